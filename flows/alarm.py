"""The alarm: a run that fails where no nightly run has come to its end for 36 hours. `prefect.yaml` says when."""

from prefect import State, flow
from prefect.states import Failed


@flow(name="alarm")
def alarm() -> State:
    """A failed run is what people look for, and what Prefect's notifications tell them of."""
    return Failed(
        name="Overdue",
        message="no run of nightly has come to its end for 36 hours: look at its last runs and at the worker's log",
    )

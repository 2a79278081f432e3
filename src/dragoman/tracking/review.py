"""The review queue: traces that a person should look at. It is MLflow's own, with two things to say of each trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.rollout.feedback import Feedback
from dragoman.rollout.record import Episode
from dragoman.tracking.store import client_of, experiment_of, is_there, start
from dragoman.tracking.traces import ANSWER, EPISODE, RATING, finish, log_trace

QUEUE = "dragoman"
WHY = "review"
"""The tag of a trace that says why somebody should look at it."""
_MOST = 1000


@dataclass(frozen=True)
class Pending:
    """A trace that nobody has looked at."""

    trace: str
    question: str
    why: str


def queue_for_review(wanted: Mapping[str, tuple[str, Episode]], folder: Path | str = "mlruns") -> int:
    """Put episodes into the queue, which is made if need be. One without a trace gets one. What was reviewed stays so.

    Args:
        wanted: why, and the episode, by its key.

    Returns:
        How many were not in it before.
    """
    import mlflow
    from mlflow.genai import review_queues

    start(folder)
    queue = _queue(experiment_of(folder))
    before = {item.item_id for item in _items(queue)}
    traces = []
    for key, (why, episode) in wanted.items():
        trace = _trace_of(key, folder) or log_trace(episode, episode.system)
        finish()
        if trace not in before:
            mlflow.set_trace_tag(trace, WHY, why)
            traces.append(trace)
    if traces:
        review_queues.add_items_to_review_queue(queue, item_ids=traces)
    return len(traces)


def queued_reviews(folder: Path | str = "mlruns") -> set[str]:
    """The keys of all episodes that are in the queue, reviewed or not."""
    import mlflow

    start(folder)
    queue = _found(experiment_of(folder))
    traces = [mlflow.get_trace(item.item_id) for item in (_items(queue) if queue else ())]
    return {key for trace in traces if trace is not None and (key := trace.info.tags.get(EPISODE))}


def pending_reviews(folder: Path | str = "mlruns") -> list[Pending]:
    """What is in the queue and was not reviewed, newest first."""
    import mlflow

    start(folder)
    found = []
    for item in _items(_queue(experiment_of(folder))):
        if item.status == "pending" and (trace := mlflow.get_trace(item.item_id)) is not None:
            root = trace.data.spans[0]
            found.append(Pending(item.item_id, str((root.inputs or {}).get("question")), trace.info.tags.get(WHY, "")))
    return found


def reviewed(folder: Path | str = "mlruns") -> dict[str, Feedback]:
    """What is said of episodes whose review is complete, by key: of rating and right answer what was said last, by whomever."""
    import mlflow

    if not is_there(folder):
        return {}
    start(folder)
    queue = _found(experiment_of(folder))
    said: dict[str, Feedback] = {}
    for item in reversed(_items(queue)) if queue else ():
        trace = mlflow.get_trace(item.item_id) if item.status == "complete" else None
        if trace is None or (key := trace.info.tags.get(EPISODE)) is None:
            continue
        valid = [one for one in trace.info.assessments if one.valid is not False and one.source.source_type == "HUMAN"]
        last = {one.name: one.value for one in sorted(valid, key=lambda one: one.last_update_time_ms or 0)}
        rating, answer = last.get(RATING), last.get(ANSWER)
        if rating is not None or answer:
            said[key] = Feedback(
                id=key,
                by=item.completed_by,
                rating=None if rating is None else "up" if rating else "down",
                answer=str(answer) if answer else None,
                at=(item.completed_time_ms or item.last_update_time_ms) / 1000,
            )
    return said


def _found(experiment: str) -> str | None:
    """The id of the queue in an experiment; None where it has none."""
    from mlflow.exceptions import MlflowException
    from mlflow.genai import review_queues

    try:
        return review_queues.get_review_queue(name=QUEUE, experiment_id=experiment).queue_id
    except MlflowException as e:
        if e.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
    return None


def _queue(experiment: str) -> str:
    """The id of the queue in an experiment, which is made if need be."""
    from mlflow.genai import label_schemas, review_queues

    if found := _found(experiment):
        return found
    there = {schema.name: schema for schema in label_schemas.list_label_schemas(experiment_id=experiment)}
    asked = (
        (RATING, "feedback", label_schemas.InputPassFail("right", "wrong"), "Is the answer right?"),
        (ANSWER, "expectation", label_schemas.InputText(), "The right answer, as short as it can be."),
    )
    for name, kind, given, instruction in asked:
        if name not in there:
            there[name] = label_schemas.create_label_schema(
                name,
                type=kind,  # type: ignore[arg-type]
                input=given,
                instruction=instruction,
                experiment_id=experiment,
            )
    schemas = [str(there[name].schema_id) for name, *_ in asked]
    made = review_queues.create_review_queue(QUEUE, queue_type="custom", schema_ids=schemas, experiment_id=experiment)
    return made.queue_id


def _items(queue: str) -> list[Any]:
    """All items of a queue, newest first."""
    from mlflow.genai import review_queues

    found, token = [], None
    while True:
        page = review_queues.list_review_queue_items(queue, max_results=_MOST, page_token=token)
        found += page
        if not (token := page.token):
            return found


def _trace_of(key: str, folder: Path | str) -> str | None:
    """The trace of an episode, by its tag."""
    found = client_of(folder).search_traces(
        locations=[experiment_of(folder)], filter_string=f"tags.{EPISODE} = '{key}'", include_spans=False, flush=True
    )
    return found[0].info.trace_id if found else None

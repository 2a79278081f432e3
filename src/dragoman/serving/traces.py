"""Traces of served questions in MLflow, and the feedback on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dragoman import tracking
from dragoman.rollout.feedback import Feedback
from dragoman.rollout.record import Episode
from dragoman.serving.kept import in_the_background

PATIENCE_S = 5.0
"""How long the end of the endpoint waits for traces that are not recorded yet."""


@contextmanager
def trace_writer(store: Path) -> Iterator[Callable[[Episode | Feedback], None]]:
    """What records an episode as a trace, and shows feedback on the trace of its episode, in a thread.

    Args:
        store: the folder of MLflow. It is opened for the first of them, so that a server that is away keeps nobody from serving.
    """
    started = False

    def write(what: Episode | Feedback) -> None:
        nonlocal started
        if not started:
            tracking.start(store)
            started = True
        if isinstance(what, Feedback):
            tracking.show_feedback(what, store)
        else:
            tracking.log_trace(what, what.system)

    with in_the_background(f"traces in {store}", write, patience_s=PATIENCE_S) as keep:
        yield keep

"""Watches the champion's traffic for drift while nobody waits, and says what it sees to Prometheus and to a file."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from dragoman.core import files
from dragoman.evaluation.drift import STATE, Comparison, Drift, Monitor, values_of, values_said
from dragoman.evaluation.settings import DriftParams
from dragoman.rollout.feedback import Feedback
from dragoman.rollout.record import Episode
from dragoman.serving.kept import in_the_background
from dragoman.serving.metrics import Metrics

log = logging.getLogger(__name__)

MOST_KNOWN = 10_000
"""The latest answers, on which feedback counts."""


@contextmanager
def drift_watcher(
    folder: Path, model: str, settings: DriftParams, known: Collection[str] | None, metrics: Metrics
) -> Iterator[Callable[[Episode | Feedback], None]]:
    """What takes episodes of a model, and on each the first feedback with a rating or passages, in a thread.

    The state is in `drift.json`. It is written whenever a window is full, and at the end: a process that is killed loses less
    than a window.

    Args:
        folder: of the episodes.
        model: the name under which the champion is served.
        known: the words of the training questions.

    Raises:
        UserError: there is a `drift.json` that is none.
    """
    path = folder / STATE
    monitor = Monitor(settings, known, Drift.read(path) if path.is_file() else Drift())
    answered: OrderedDict[str, tuple[str, list[str]]] = OrderedDict()

    def watch(what: Episode | Feedback) -> None:
        if isinstance(what, Feedback):
            under, passages = answered.get(what.id, ("", []))
            if under and (values := values_said(what, passages)):
                del answered[what.id]
                report(under, monitor.said(under, values, what.at))
        elif what.system == model and (policy := what.config.get("policy")):
            answered[what.key] = policy, what.trajectories[0].passages
            if len(answered) > MOST_KNOWN:
                answered.popitem(last=False)
            report(policy, monitor.answered(policy, values_of(what, known), what.started))

    def report(policy: str, compared: dict[str, Comparison]) -> None:
        for measure, found in compared.items():
            metrics.drift_psi.labels(measure).set(found.psi)
            metrics.drift_p.labels(measure).set(found.p)
            metrics.drift_windows.labels(measure, "alarm" if found.alarm else "same").inc()
            if found.alarm:
                log.warning("policy %s: drift in %s (p = %.2g)", policy, measure, found.p)
        if compared:
            files.write_json(path, monitor.state.model_dump(mode="json"))

    try:
        with in_the_background("drift", watch) as give:
            yield give
    finally:
        try:
            files.write_json(path, monitor.state.model_dump(mode="json"))
        except OSError as e:
            log.error("%s: cannot write (%s); what came after the last window is forgotten", path, e.strerror)

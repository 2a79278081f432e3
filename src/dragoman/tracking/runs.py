"""Runs: what a stage has measured, with the settings that it had."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dragoman.core.settings import flatten
from dragoman.rollout.record import Episode
from dragoman.tracking.scorers import show_scores
from dragoman.tracking.store import client_of, experiment_of, start
from dragoman.tracking.traces import log_trace

if TYPE_CHECKING:
    from mlflow import ActiveRun

_above: ContextVar[str | None] = ContextVar("above", default=None)
"""The id of the run under which others are recorded; see `grouped`."""
_assessed: ContextVar[bool] = ContextVar("assessed", default=False)
"""Whether evaluations have their scores on traces too; see `grouped`."""


@contextmanager
def grouped(
    name: str,
    key: str,
    folder: Path | str = "mlruns",
    *,
    tags: Mapping[str, str],
    parameters: Mapping[str, Any],
    assessed: bool = False,
) -> Iterator[str]:
    """Record what is recorded meanwhile under one run. It is that of an earlier process with the same `key`, or a new one.

    Args:
        assessed: evaluations also put the scores of each answer on a trace of it; see `scorers.show_scores`.

    Yields:
        Its id. It is running until this ends, and has failed where this fails.
    """
    start(folder)
    client, experiment = client_of(folder), experiment_of(folder)
    known = client.search_runs([experiment], f"tags.`group` = '{key}'", max_results=1)
    if known:
        run_id = known[0].info.run_id
        client.update_run(run_id, status="RUNNING")
    else:
        run_id = client.create_run(experiment, run_name=name, tags={**tags, "group": key}).info.run_id
        for parameter, value in _as_text(parameters).items():
            client.log_param(run_id, parameter, value)
    above, scored, status = _above.set(run_id), _assessed.set(assessed), "FAILED"
    try:
        yield run_id
        status = "FINISHED"
    finally:
        _above.reset(above)
        _assessed.reset(scored)
        client.set_terminated(run_id, status)


def log_evaluation(
    dataset: str,
    system: str,
    summary: Mapping[str, Any],
    predictions: Sequence[Mapping[str, Any]],
    episodes: Sequence[Episode],
    *,
    parameters: Mapping[str, Any],
    traces: int,
) -> str:
    """Record one system's evaluation as a run. Returns the run's id.

    Weights and full episodes stay where DVC keeps them; the run holds figures, a table to read, and `traces` traces. Where
    `grouped` says so, each question has a trace, with the scores of its answer.
    """
    import mlflow

    with _run(f"evaluate {dataset} {system}") as run:
        mlflow.set_tags({"stage": "evaluate", "dataset": dataset, "system": system, "git.revision": git_revision()})
        mlflow.log_params(_as_text(parameters))
        mlflow.log_metrics({metric_name(name): float(v) for name, v in flatten(summary).items() if _is_number(v)})
        columns = ("id", "type", "question", "answers", "answer", "stop", "calls", "tokens", "seconds")
        table: dict[str, list[Any]] = {c: [str(row[c]) for row in predictions] for c in columns}
        table["cover_em"] = [row["scores"]["cover_em"] for row in predictions]
        mlflow.log_table(table, "predictions.json")
        logged = [log_trace(episode, system) for episode in episodes[:traces]]
        if _assessed.get():
            show_scores(dataset, system, episodes, logged, run)
        run_id: str = run.info.run_id
        return run_id


def log_training(
    stage: str,
    out: Path,
    metrics: Mapping[str, Any],
    curves: Mapping[str, Sequence[Mapping[str, str]]],
    *,
    parameters: Mapping[str, Any],
) -> str:
    """Record a finished training stage as a run: a chart for each column of its curves, whose first column is the step.

    Views of trees (`out/trees/*.html`) go along as artifacts. Returns the run's id.
    """
    import mlflow
    from mlflow.entities import Metric

    with _run(f"{stage} {out.name}") as run:
        mlflow.set_tags({"stage": stage, "policy": str(metrics.get("policy", "")), "git.revision": git_revision()})
        mlflow.log_params(_as_text(parameters))
        now = int(time.time() * 1000)
        points = []
        for rows in curves.values():
            for row in rows:
                step, *_ = row.values()
                for name, text in list(row.items())[1:]:
                    if text:
                        points.append(Metric(name, float(text), now, int(float(step))))
        client = mlflow.MlflowClient()
        for first in range(0, len(points), 1000):  # the most that one call may hold
            client.log_batch(run.info.run_id, metrics=points[first : first + 1000])
        mlflow.log_metrics({metric_name(f"final.{k}"): float(v) for k, v in flatten(metrics).items() if _is_number(v)})
        for view in sorted(out.glob("trees/*.html")):
            mlflow.log_artifact(str(view), "trees")
        run_id: str = run.info.run_id
        return run_id


def log_validation(report: Mapping[str, Any], *, parameters: Mapping[str, Any]) -> str:
    """Record a validation as a run: its figures, and the report to read. Returns the run's id."""
    import mlflow

    with _run("validate") as run:
        mlflow.set_tags({"stage": "validate", "git.revision": git_revision()})
        mlflow.log_params(_as_text(parameters))
        mlflow.log_metrics({key: float(value) for key, value in report["metrics"].items()})
        mlflow.log_dict(dict(report), "report.json")
        run_id: str = run.info.run_id
        return run_id


def log_synthesis(out: Path, *, parameters: Mapping[str, Any]) -> str:
    """Record a synthetic set: its settings, what was kept and refused, and the card. Returns the run's id."""
    import mlflow

    with _run("synthesize") as run:
        mlflow.set_tags({"stage": "synthesize", "git.revision": git_revision()})
        mlflow.log_params(_as_text(parameters))
        figures = flatten(json.loads((out / "metrics.json").read_text(encoding="utf-8")))
        mlflow.log_metrics({name: float(value) for name, value in figures.items() if _is_number(value)})
        for name in ("card.html", "metrics.json"):
            mlflow.log_artifact(str(out / name))
        run_id: str = run.info.run_id
        return run_id


def log_decision(
    name: str,
    decision: Mapping[str, Any],
    files: Sequence[Path],
    *,
    tags: Mapping[str, str],
    parameters: Mapping[str, Any],
    metrics: Mapping[str, float],
    key: str,
) -> str:
    """Record a promotion, a refusal or a rollback as a run, with the files that show why. Returns the run's id.

    Args:
        key: names this decision. It is recorded once: a run that a killed process has left unfinished is finished.
    """
    import mlflow

    known = mlflow.search_runs(filter_string=f"tags.`decision.key` = '{key}'", max_results=1, output_format="list")
    if known and known[0].info.status == "FINISHED":
        return str(known[0].info.run_id)
    # with its key from the first: no kill may leave a run that is not found by it
    with mlflow.start_run(known[0].info.run_id) if known else _run(name, {"decision.key": key}) as run:
        mlflow.set_tags({**tags, "git.revision": git_revision()})
        mlflow.log_params(_as_text(parameters))
        mlflow.log_metrics({metric_name(name): value for name, value in metrics.items()})
        mlflow.log_dict(dict(decision), "decision.json")
        for file in files:
            mlflow.log_artifact(str(file), "plots" if file.suffix == ".png" else None)
        run_id: str = run.info.run_id
        return run_id


def git_revision() -> str:
    """The commit of the working folder, with `-dirty` when it has changes; empty outside a repository."""
    git = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def metric_name(name: str) -> str:
    """As MLflow takes it: a score may be an expression, such as `0.8 * nuggets`."""
    return re.sub(r"[^\w\-. /]+", "_", name)


def _run(run_name: str, tags: Mapping[str, str] = MappingProxyType({})) -> ActiveRun:
    """A new run, under that of `grouped` where there is one."""
    import mlflow

    return mlflow.start_run(run_name=run_name, parent_run_id=_above.get(), tags=dict(tags))


def _as_text(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Parameters by dotted keys, each as long as MLflow takes it."""
    return {key: str(value)[:6000] for key, value in flatten(parameters).items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)

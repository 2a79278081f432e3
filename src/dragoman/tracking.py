"""What happened, in MLflow: a run for each evaluated system, and single questions as traces. Nothing else imports mlflow."""

from __future__ import annotations

import json
import logging
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dragoman.rollout.record import Call, Episode, Node

EXPERIMENT = "dragoman"
SPAN_TYPES = {"ask": "CHAT_MODEL", "search": "RETRIEVER"}


def store_uri(folder: Path | str = "mlruns") -> str:
    """The SQLite store inside `folder`: MLflow 3 refuses plain file stores (`./mlruns`)."""
    return f"sqlite:///{Path(folder).resolve() / 'mlflow.db'}"


def start(folder: Path | str = "mlruns", uri: str | None = None) -> None:
    """Connect to a tracking server, or to the project's own store, and make the experiment there once."""
    import mlflow

    noisy = ("alembic", "mlflow.store.db.utils", "mlflow.tracking.fluent", "mlflow.tracing.export.async_export_queue")
    for name in noisy:
        logging.getLogger(name).setLevel(logging.WARNING)
    Path(folder).mkdir(parents=True, exist_ok=True)
    mlflow.set_tracking_uri(uri or store_uri(folder))
    if mlflow.get_experiment_by_name(EXPERIMENT) is None:
        location = None if uri else (Path(folder).resolve() / "artifacts").as_uri()
        mlflow.create_experiment(EXPERIMENT, artifact_location=location)
    mlflow.set_experiment(EXPERIMENT)


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

    Weights and full episodes stay where DVC keeps them; the run holds figures, a table to read, and `traces` traces.
    """
    import mlflow

    with mlflow.start_run(run_name=f"evaluate {dataset} {system}") as run:
        mlflow.set_tags({"stage": "evaluate", "dataset": dataset, "system": system, "git.revision": git_revision()})
        mlflow.log_params({key: str(value)[:6000] for key, value in flatten(parameters).items()})
        mlflow.log_metrics({key: float(value) for key, value in flatten(summary).items() if _is_number(value)})
        columns = ("id", "type", "question", "answers", "answer", "stop", "calls", "tokens", "seconds")
        table: dict[str, list[Any]] = {c: [str(row[c]) for row in predictions] for c in columns}
        table["cover_em"] = [row["scores"]["cover_em"] for row in predictions]
        mlflow.log_table(table, "predictions.json")
        for episode in episodes[:traces]:
            log_trace(episode, system)
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

    with mlflow.start_run(run_name=f"{stage} {out.name}") as run:
        mlflow.set_tags({"stage": stage, "policy": str(metrics.get("policy", "")), "git.revision": git_revision()})
        mlflow.log_params({key: str(value)[:6000] for key, value in flatten(parameters).items()})
        now = int(time.time() * 1000)
        points = []
        for rows in curves.values():
            for row in rows:
                step, *_ = row.values()
                for name, text in list(row.items())[1:]:
                    if text:
                        points.append(Metric(name, float(text), now, int(float(step))))
        client = mlflow.MlflowClient()
        for start in range(0, len(points), 1000):  # the most that one call may hold
            client.log_batch(run.info.run_id, metrics=points[start : start + 1000])
        mlflow.log_metrics({f"final.{k}": float(v) for k, v in flatten(metrics).items() if _is_number(v)})
        for view in sorted(out.glob("trees/*.html")):
            mlflow.log_artifact(str(view), "trees")
        run_id: str = run.info.run_id
        return run_id


def log_validation(report: Mapping[str, Any], *, parameters: Mapping[str, Any]) -> str:
    """Record a validation as a run: its figures, and the report to read. Returns the run's id."""
    import mlflow

    with mlflow.start_run(run_name="validate") as run:
        mlflow.set_tags({"stage": "validate", "git.revision": git_revision()})
        mlflow.log_params(flatten(parameters))
        mlflow.log_metrics({key: float(value) for key, value in report["metrics"].items()})
        mlflow.log_dict(dict(report), "report.json")
        run_id: str = run.info.run_id
        return run_id


def log_synthesis(out: Path, *, parameters: Mapping[str, Any]) -> str:
    """Record a synthetic set: its settings, what was kept and refused, and the card. Returns the run's id."""
    import mlflow

    with mlflow.start_run(run_name="synthesize") as run:
        mlflow.set_tags({"stage": "synthesize", "git.revision": git_revision()})
        mlflow.log_params(flatten(parameters))
        figures = flatten(json.loads((out / "metrics.json").read_text(encoding="utf-8")))
        mlflow.log_metrics({name: float(value) for name, value in figures.items() if _is_number(value)})
        for name in ("card.html", "metrics.json"):
            mlflow.log_artifact(str(out / name))
        run_id: str = run.info.run_id
        return run_id


def log_trace(episode: Episode, system: str) -> str:
    """Write an episode's first trajectory as a trace: a span for each decision, ask and search, with its real times."""
    import mlflow

    trajectory = episode.trajectories[0]
    taken = set(trajectory.steps)
    steps: list[Node | Call] = [n for n in episode.nodes if n.id in taken]
    steps += [c for c in episode.calls if c.id in taken]
    root = mlflow.start_span_no_context(
        name=system,
        span_type="AGENT",
        inputs={"question": episode.question["question"]},
        attributes={"question_id": episode.question["id"], "episode": episode.key},
        start_time_ns=_ns(episode.started),
        tags={"system": system, "stop": trajectory.stop.value},
    )
    for step in sorted(steps, key=lambda s: s.started):
        if isinstance(step, Node):
            name, kind, inputs, output = step.role, "LLM", {"messages": step.prompt}, step.text
        else:
            name, kind = step.name, SPAN_TYPES[step.kind]
            inputs = step.input if isinstance(step.input, dict) else {"messages": step.input}
            output = step.output  # type: ignore[assignment]
        span = mlflow.start_span_no_context(
            name=name,
            span_type=kind,
            parent_span=root,
            inputs=inputs,
            attributes={  # MLflow's annotation says str, its code takes any JSON value
                "id": step.id,
                "prompt_tokens": step.prompt_tokens,  # type: ignore[dict-item]
                "completion_tokens": step.completion_tokens,  # type: ignore[dict-item]
            },
            start_time_ns=_ns(step.started),
        )
        span.end(outputs=output, end_time_ns=_ns(step.started + step.seconds))
    root.end(
        outputs={"answer": trajectory.answer, "passages": trajectory.passages, "rewards": trajectory.rewards},
        status="ERROR" if trajectory.stop.is_fault else "OK",
        end_time_ns=_ns(episode.started + episode.seconds),
    )
    return str(root.trace_id)


def finish() -> None:
    """Wait until all traces are stored."""
    import mlflow

    mlflow.flush_trace_async_logging()


def git_revision() -> str:
    """The commit of the working folder, with `-dirty` when it has changes; empty outside a repository."""
    git = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _ns(unix_seconds: float) -> int:
    return int(unix_seconds * 1e9)

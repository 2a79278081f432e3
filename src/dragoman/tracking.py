"""What happened, in MLflow: runs, single questions as traces, versions of models. Nothing else imports mlflow."""

from __future__ import annotations

import json
import logging
import os
import re
import sqlite3
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.core.errors import UserError
from dragoman.rollout.record import Call, Episode, Node

if TYPE_CHECKING:
    from mlflow import ActiveRun, MlflowClient

EXPERIMENT = "dragoman"
_PLACES = (
    ("experiments", "artifact_location"), ("runs", "artifact_uri"), ("logged_models", "artifact_location"),
    ("trace_tags", "value"),
)  # fmt: skip
"""Where MLflow's store has paths of artifacts."""
SPAN_TYPES = {"ask": "CHAT_MODEL", "search": "RETRIEVER"}
_above: ContextVar[str | None] = ContextVar("above", default=None)
"""The id of the run under which others are recorded; see `grouped`."""


def server() -> str | None:
    """The tracking server that MLFLOW_TRACKING_URI names, or None: then runs and versions go to the project's own store.

    Only an http(s) address is one. MLflow sets the variable itself to the last store that this process, or the one that
    has started it, has opened.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    return uri if uri.startswith(("http://", "https://")) else None


def store_uri(folder: Path | str = "mlruns") -> str:
    """The server, or the SQLite store inside `folder`: MLflow 3 refuses plain file stores (`./mlruns`)."""
    return server() or f"sqlite:///{Path(folder).resolve() / 'mlflow.db'}"


def start(folder: Path | str = "mlruns") -> None:
    """Connect to a tracking server, or to the project's own store, and make the experiment there once."""
    import mlflow

    _quiet()
    Path(folder).mkdir(parents=True, exist_ok=True)
    mlflow.set_tracking_uri(store_uri(folder))
    mlflow.set_experiment(experiment_id=_experiment(folder))


def follow_folder(folder: Path | str = "mlruns") -> None:
    """Let the store name its artifacts where its folder is now. MLflow keeps absolute paths, and a checkout may be moved."""
    database, here = Path(folder).resolve() / "mlflow.db", (Path(folder).resolve() / "artifacts").as_uri()
    if server() or not database.is_file():
        return
    with closing(sqlite3.connect(database, timeout=60)) as store, store:
        found = store.execute("SELECT artifact_location FROM experiments WHERE name = ?", [EXPERIMENT]).fetchone()
        if found is None or found[0] == here or not found[0].startswith("file:"):  # elsewhere is where somebody put it
            return
        for table, column in _PLACES:
            store.execute(
                f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?",
                [here, len(found[0]) + 1, len(found[0]), found[0]],
            )


@contextmanager
def grouped(
    name: str, key: str, folder: Path | str = "mlruns", *, tags: Mapping[str, str], parameters: Mapping[str, Any]
) -> Iterator[str]:
    """Record what is recorded meanwhile under one run. It is that of an earlier process with the same `key`, or a new one.

    Yields:
        Its id. It is running until this ends, and has failed where this fails.
    """
    import mlflow

    start(folder)
    client, experiment = mlflow.MlflowClient(), mlflow.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None  # `start` has made it
    known = client.search_runs([experiment.experiment_id], f"tags.`group` = '{key}'", max_results=1)
    if known:
        run_id = known[0].info.run_id
        client.update_run(run_id, status="RUNNING")
    else:
        run_id = client.create_run(experiment.experiment_id, run_name=name, tags={**tags, "group": key}).info.run_id
        for parameter, value in flatten(parameters).items():
            client.log_param(run_id, parameter, str(value)[:6000])
    above, status = _above.set(run_id), "FAILED"
    try:
        yield run_id
        status = "FINISHED"
    finally:
        _above.reset(above)
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

    Weights and full episodes stay where DVC keeps them; the run holds figures, a table to read, and `traces` traces.
    """
    import mlflow

    with _run(f"evaluate {dataset} {system}") as run:
        mlflow.set_tags({"stage": "evaluate", "dataset": dataset, "system": system, "git.revision": git_revision()})
        mlflow.log_params({key: str(value)[:6000] for key, value in flatten(parameters).items()})
        mlflow.log_metrics({_metric_name(name): float(v) for name, v in flatten(summary).items() if _is_number(v)})
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

    with _run(f"{stage} {out.name}") as run:
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

    with _run("validate") as run:
        mlflow.set_tags({"stage": "validate", "git.revision": git_revision()})
        mlflow.log_params(flatten(parameters))
        mlflow.log_metrics({key: float(value) for key, value in report["metrics"].items()})
        mlflow.log_dict(dict(report), "report.json")
        run_id: str = run.info.run_id
        return run_id


def log_synthesis(out: Path, *, parameters: Mapping[str, Any]) -> str:
    """Record a synthetic set: its settings, what was kept and refused, and the card. Returns the run's id."""
    import mlflow

    with _run("synthesize") as run:
        mlflow.set_tags({"stage": "synthesize", "git.revision": git_revision()})
        mlflow.log_params(flatten(parameters))
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
) -> str:
    """Record a promotion, a refusal or a rollback as a run, with the files that show why. Returns the run's id."""
    import mlflow

    with _run(name) as run:
        mlflow.set_tags({**tags, "git.revision": git_revision()})
        mlflow.log_params({key: str(value)[:6000] for key, value in flatten(parameters).items()})
        mlflow.log_metrics(dict(metrics))
        mlflow.log_dict(dict(decision), "decision.json")
        for file in files:
            mlflow.log_artifact(str(file), "plots" if file.suffix == ".png" else None)
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


@dataclass(frozen=True)
class StoredVersion:
    """A version of a registered model, as MLflow keeps it. MLflow holds no weights, only these words about them."""

    number: int
    created: float
    """Unix time, in seconds."""
    aliases: tuple[str, ...]
    tags: Mapping[str, str]


def create_version(model: str, source: str, tags: Mapping[str, str], folder: Path | str = "mlruns") -> int:
    """Add a version to a registered model, which is made if need be. Returns the version's number.

    Args:
        model: the registered model's name.
        source: where the weights are. A path of this machine would be refused by an MLflow server, and so would a relative
            one: use another scheme, and begin with a slash.
        tags: what is known of it.
        folder: the store's.
    """
    from mlflow.exceptions import MlflowException

    Path(folder).mkdir(parents=True, exist_ok=True)
    client = _client(folder)
    try:
        client.get_registered_model(model)
    except MlflowException as e:
        if e.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        client.create_registered_model(model)
    return int(client.create_model_version(model, source, tags=dict(tags), await_creation_for=0).version)


def model_versions(model: str, folder: Path | str = "mlruns") -> list[StoredVersion]:
    """All versions of a registered model, newest first; none where there is no store or no such model."""
    if server() is None and not (Path(folder) / "mlflow.db").is_file():
        return []  # a question must not create the store
    client = _client(folder)
    names: dict[int, list[str]] = {}
    for registered in client.search_registered_models(f"name = '{model}'"):
        for alias, number in sorted(registered.aliases.items()):
            names.setdefault(int(number), []).append(alias)
    found: list[StoredVersion] = []
    token: str | None = None
    while token != "":
        page = client.search_model_versions(f"name = '{model}'", max_results=1000, page_token=token)
        found += [
            StoredVersion(
                int(v.version), v.creation_timestamp / 1000, tuple(names.get(int(v.version), ())), dict(v.tags)
            )
            for v in page
        ]
        token = page.token or ""
    return sorted(found, key=lambda v: -v.number)


def set_alias(model: str, alias: str, number: int | None, folder: Path | str = "mlruns") -> None:
    """Let `alias` name another version, or none."""
    client = _client(folder)
    if number is None:
        client.delete_registered_model_alias(model, alias)
    else:
        client.set_registered_model_alias(model, alias, str(number))


def tag_version(model: str, number: int, tags: Mapping[str, str], folder: Path | str = "mlruns") -> None:
    client = _client(folder)
    for key, value in tags.items():
        client.set_model_version_tag(model, str(number), key, value)


def keep_folder(kept: Path, name: str, folder: Path | str = "mlruns") -> str:
    """Put a copy of a folder among the artifacts of the store, in a run of its own. Returns the run's id."""
    client = _client(folder)
    run = client.create_run(_experiment(folder), run_name=name).info.run_id
    client.log_artifacts(run, str(kept), "files")
    client.set_terminated(run)
    return str(run)


def fetch_folder(run: str, target: Path, folder: Path | str = "mlruns") -> Path:
    """Get what `keep_folder` has kept, below the folder `target`. Returns where it lies.

    Raises:
        UserError: the store does not have it.
    """
    from mlflow.exceptions import MlflowException

    try:
        return Path(_client(folder).download_artifacts(run, "files", str(target)))
    except (MlflowException, OSError) as e:
        raise UserError(f"{store_uri(folder)}: the files of run {run} cannot be had: {e}") from None


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


def _experiment(folder: Path | str) -> str:
    """The id of our experiment in the store, which is made if need be."""
    client = _client(folder)
    if found := client.get_experiment_by_name(EXPERIMENT):
        return str(found.experiment_id)
    location = None if server() else (Path(folder).resolve() / "artifacts").as_uri()
    return client.create_experiment(EXPERIMENT, artifact_location=location)


def _client(folder: Path | str) -> MlflowClient:
    """A client of the server or of the store in `folder`, whatever store the runs of this process go to."""
    from mlflow import MlflowClient

    _quiet()
    follow_folder(folder)
    return MlflowClient(tracking_uri=store_uri(folder), registry_uri=store_uri(folder))


def _quiet() -> None:
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # with a server; what we print is ours
    noisy = ("alembic", "mlflow.store", "mlflow.tracking.fluent", "mlflow.tracing.export.async_export_queue")
    for name in noisy:
        logging.getLogger(name).setLevel(logging.WARNING)


def _metric_name(name: str) -> str:
    """As MLflow takes it: a score may be an expression, such as `0.8 * nuggets`."""
    return re.sub(r"[^\w\-. /]+", "_", name)


def _run(run_name: str) -> ActiveRun:
    """A new run, under that of `grouped` where there is one."""
    import mlflow

    return mlflow.start_run(run_name=run_name, parent_run_id=_above.get())


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _ns(unix_seconds: float) -> int:
    return int(unix_seconds * 1e9)

"""Where MLflow keeps what is recorded: a server, or a folder of the project's own."""

from __future__ import annotations

import logging
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "dragoman"
_PLACES = (
    ("experiments", "artifact_location"), ("runs", "artifact_uri"), ("logged_models", "artifact_location"),
    ("trace_tags", "value"),
)  # fmt: skip
"""Where MLflow's store has paths of artifacts."""


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


def unreachable(error: Exception) -> str | None:
    """What to tell of an error that MLflow met with a tracking server, or with a store of before; None for any other one."""
    exceptions = sys.modules.get("mlflow.exceptions")  # without that module no error is its
    if exceptions is None or not isinstance(error, exceptions.MlflowException):
        return None
    said = str(error).splitlines()[0][:300]
    if "out-of-date database schema" in said:
        of = server() or "the store"
        return f"MLflow: {of} was made by another version: copy the database, then run `mlflow db upgrade URI` as docs/operations.md says"
    if server() is None:
        return None
    return f"MLflow at {server()}: {said}; start the server and give the command again: what is finished is kept"


def is_there(folder: Path | str = "mlruns") -> bool:
    """Whether anything was ever recorded there, as far as that can be said without making the store."""
    return server() is not None or (Path(folder) / "mlflow.db").is_file()


def start(folder: Path | str = "mlruns") -> None:
    """Connect to a tracking server, or to the project's own store, and make the experiment there once."""
    import mlflow

    quiet()
    Path(folder).mkdir(parents=True, exist_ok=True)
    mlflow.set_tracking_uri(store_uri(folder))
    mlflow.set_experiment(experiment_id=experiment_of(folder))


def follow_folder(folder: Path | str = "mlruns") -> None:
    """Let the store name its artifacts where its folder is now. MLflow keeps absolute paths, and a checkout may be moved."""
    database, here = Path(folder).resolve() / "mlflow.db", (Path(folder).resolve() / "artifacts").as_uri()
    if server() or not database.is_file():
        return
    with closing(sqlite3.connect(database, timeout=60)) as store, store:
        if not store.execute("SELECT 1 FROM sqlite_master WHERE name = 'experiments'").fetchone():
            return  # a process was killed as it made the store: MLflow makes the tables
        found = store.execute("SELECT artifact_location FROM experiments WHERE name = ?", [EXPERIMENT]).fetchone()
        if found is None or found[0] == here or not found[0].startswith("file:"):  # elsewhere is where somebody put it
            return
        for table, column in _PLACES:
            store.execute(
                f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?",
                [here, len(found[0]) + 1, len(found[0]), found[0]],
            )


def experiment_of(folder: Path | str) -> str:
    """The id of our experiment in the store, which is made if need be."""
    client = client_of(folder)
    if found := client.get_experiment_by_name(EXPERIMENT):
        return str(found.experiment_id)
    location = None if server() else (Path(folder).resolve() / "artifacts").as_uri()
    return client.create_experiment(EXPERIMENT, artifact_location=location)


def client_of(folder: Path | str) -> MlflowClient:
    """A client of the server or of the store in `folder`, whatever store the runs of this process go to."""
    from mlflow import MlflowClient

    quiet()
    follow_folder(folder)
    return MlflowClient(tracking_uri=store_uri(folder), registry_uri=store_uri(folder))


def impatient() -> None:
    """Give up soon where a server does not answer, unless the environment says otherwise: for whoever asks again anyway.

    MLflow would try for four minutes, and a process that is to end waits for its threads.
    """
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")


def quiet() -> None:
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # with a server; what we print is ours
    noisy = ("alembic", "mlflow.store", "mlflow.tracking.fluent", "mlflow.tracing.export.async_export_queue",
             "mlflow.models.evaluation.utils.trace")  # fmt: skip
    for logger in map(logging.getLogger, noisy):
        if logger.level != logging.WARNING:  # to set a level clears what all loggers remember
            logger.setLevel(logging.WARNING)

"""Versions of registered models, their aliases and tags, and copies of their files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.core.errors import UserError
from dragoman.tracking.store import client_of, experiment_of, is_there, store_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

_ABSENT = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
"""What MLflow says of a model or a version that is not there, and of an alias."""


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
    client = client_of(folder)
    try:
        client.get_registered_model(model)
    except MlflowException as e:
        if e.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        client.create_registered_model(model)
    return int(client.create_model_version(model, source, tags=dict(tags), await_creation_for=0).version)


def model_versions(model: str, folder: Path | str = "mlruns") -> list[StoredVersion]:
    """All versions of a registered model, newest first; none where there is no store or no such model."""
    if not is_there(folder):
        return []  # a question must not create the store
    client = client_of(folder)
    names: dict[int, list[str]] = {}
    for registered in client.search_registered_models(f"name = '{model}'"):
        for alias, number in sorted(registered.aliases.items()):
            names.setdefault(int(number), []).append(alias)
    found: list[StoredVersion] = []
    token: str | None = None
    while token != "":
        page = client.search_model_versions(f"name = '{model}'", max_results=1000, page_token=token)
        found += [_stored(version, names.get(int(version.version), ())) for version in page]
        token = page.token or ""
    return sorted(found, key=lambda v: -v.number)


def aliased(model: str, alias: str, folder: Path | str = "mlruns") -> StoredVersion | None:
    """The version of a registered model that an alias names; None where there is no such store, model or alias.

    It is one question, however many versions there are.
    """
    return _one(lambda client: client.get_model_version_by_alias(model, alias), folder)


def numbered(model: str, number: int, folder: Path | str = "mlruns") -> StoredVersion | None:
    """The version of a registered model with that number; None where there is none."""
    return _one(lambda client: client.get_model_version(model, str(number)), folder)


def _one(asked: Callable[[MlflowClient], ModelVersion], folder: Path | str) -> StoredVersion | None:
    if not is_there(folder):
        return None
    from mlflow.exceptions import MlflowException

    try:
        version = asked(client_of(folder))
    except MlflowException as e:
        if e.error_code not in _ABSENT:
            raise
        return None
    return _stored(version, version.aliases)


def _stored(version: ModelVersion, aliases: Iterable[str]) -> StoredVersion:
    created = version.creation_timestamp / 1000
    return StoredVersion(int(version.version), created, tuple(sorted(aliases)), dict(version.tags))


def set_alias(model: str, alias: str, number: int | None, folder: Path | str = "mlruns") -> None:
    """Let `alias` name another version, or none."""
    client = client_of(folder)
    if number is None:
        client.delete_registered_model_alias(model, alias)
    else:
        client.set_registered_model_alias(model, alias, str(number))


def tag_version(model: str, number: int, tags: Mapping[str, str], folder: Path | str = "mlruns") -> None:
    client = client_of(folder)
    for key, value in tags.items():
        client.set_model_version_tag(model, str(number), key, value)


def keep_folder(kept: Path, name: str, folder: Path | str = "mlruns") -> str:
    """Put a copy of a folder among the artifacts of the store, in a run of its own. Returns the run's id."""
    client = client_of(folder)
    run = client.create_run(experiment_of(folder), run_name=name).info.run_id
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
        return Path(client_of(folder).download_artifacts(run, "files", str(target)))
    except (MlflowException, OSError) as e:
        raise UserError(f"{store_uri(folder)}: the files of run {run} cannot be had: {e}") from None

"""Policy versions: model folders named after their content, each with a manifest of where it came from.

A stage that trains keeps its version in `results/STAGE/policies/VERSION/` and names it in `results/STAGE/policy.json`. A
new version has a new path, so that whatever has loaded a path (an engine, a server) can never serve other weights under it.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dragoman import tracking
from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.engines.fetch import MANIFEST, weights_sha256

log = logging.getLogger(__name__)

POINTER = "policy.json"
METRICS = "metrics.json"
STARTED = "started.json"
"""The identity of the run whose work a stage's folder holds."""


def lineage(
    stage: str, system: str, start: Path, data: Mapping[str, str], parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """What a manifest says of where a policy comes from: trained by `stage` from the model folder `start`, on `data`."""
    parent = read_manifest(start)
    return {
        "stage": stage,
        "system": system,
        "base": parent.get("base", parent.get("source", "")),
        "parent": parent.get("version", ""),
        "data": dict(data),
        "parameters": dict(parameters),
    }


def publish(folder: Path, out: Path, manifest: Mapping[str, Any]) -> Path:
    """Make the model folder `folder` the policy of the stage folder `out`. It is moved; an earlier version is removed.

    Args:
        folder: a finished model folder.
        out: the stage's folder.
        manifest: where the policy comes from (see `lineage`), and its metrics.

    Returns:
        The version's folder.
    """
    sha256 = weights_sha256(folder)
    version = sha256[:12]
    files.write_json(
        folder / MANIFEST, {"version": version, "sha256": sha256, "code": tracking.git_revision(), **manifest}
    )
    target = out / "policies" / version
    target.parent.mkdir(parents=True, exist_ok=True)
    if folder.resolve() != target.resolve():
        if target.exists():
            shutil.rmtree(target)
        folder.rename(target)
    files.write_json(out / POINTER, {"version": version, "folder": f"policies/{version}"})
    for other in target.parent.iterdir():
        if other != target:
            shutil.rmtree(other)
    return target


def find_policy(policy: str, results: Path = Path("results")) -> Path:
    """The model folder of a policy: a folder itself, or the version that the training stage of that name has published.

    Raises:
        UserError: there is no such policy.
    """
    pointer = results / policy / POINTER
    for name, folder in ((pointer, None), (Path(policy) / POINTER, None), (None, Path(policy))):
        if name is not None and name.is_file():
            folder = name.parent / json.loads(name.read_text(encoding="utf-8"))["folder"]
        if folder is not None and (folder / "config.json").is_file():
            return folder
    raise UserError(f"policy {policy!r}: neither a model folder nor a finished stage ({pointer})")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a policy or of a fetched model; empty where there is none."""
    path = folder / MANIFEST
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return values


def resume(out: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """Make `out` the folder of the run with this identity, and give its metrics when it has finished already.

    The folder is kept when it is that run's, and emptied when it is another's. So a run that was cut short goes on, and
    results of different code, settings or data are never mixed.

    Args:
        identity: all that the result depends on, by name, in values that JSON can hold.

    Raises:
        UserError: the folder holds something else.
    """
    started, metrics = out / STARTED, out / METRICS
    wanted = json.loads(files.dumps(identity))
    if not started.is_file() and out.exists() and any(out.iterdir()):
        raise UserError(f"{out}: holds files that no training run wrote; give an empty folder or remove it")
    before = json.loads(started.read_text(encoding="utf-8")) if started.is_file() else {}
    if before != wanted:
        if before:
            changed = ", ".join(name for name in wanted if before.get(name) != wanted[name])
            log.info("%s: starts anew, since these have changed: %s", out, changed)
        shutil.rmtree(out, ignore_errors=True)
        files.write_json(started, wanted)
    if not metrics.is_file():
        return None
    log.info("%s: finished already, with equal settings and data", out)
    finished: dict[str, Any] = json.loads(metrics.read_text(encoding="utf-8"))
    return finished


def copy_tokenizer(base: Path, folder: Path) -> None:
    """Copy into a folder of new weights what `base` has besides weights and manifest: tokenizer, generation settings."""
    for path in base.iterdir():
        own = ".safetensors" in path.suffixes or path.name == MANIFEST or (folder / path.name).exists()
        if path.is_file() and not own:
            shutil.copy2(path, folder / path.name)

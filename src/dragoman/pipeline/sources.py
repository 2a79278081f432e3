"""Stage `sources`: hashes of the files that data sets, model and baselines are made of. By them DVC sees that a user has changed one: it runs each time."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typing_extensions import Doc

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.hashing import sha256_of
from dragoman.core.identity import content_hash
from dragoman.corpus.loaders import files_of
from dragoman.corpus.settings import listed
from dragoman.pipeline.project import Project

KEYS = ("source", "train", "dev", "test")

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Options:
    out: Annotated[Path | None, Doc("Where they go; results/sources by default.")] = None

    def folder(self, project: Project) -> Path:
        return self.out or project.results("sources")


async def run(project: Project, options: Options) -> dict[str, int]:
    """Write `NAME.json` for each data set of `datasets`: a hash for each path that its entry under `corpus` names.

    `model/source.json` has that of a model folder, if `model.source` is one, and `systems/NAME.json` that of the file which a
    baseline was taught by, if it was. The built-in corpus and names on a hub have no files. A path that is gone keeps the
    hash that it had, with a warning: what was made of it is still good, and another machine may have that alone.

    Returns:
        How many paths there are of each data set, of the model and of each baseline.

    Raises:
        UserError: a path of a data set that was never there.
    """
    out, params, counts = options.folder(project), project.params, {}
    for name in params.datasets:
        named = {path: key for key in KEYS for path in listed(getattr(params.corpus[name], key)) if path != "atlas"}
        counts[name] = _record(out / f"{name}.json", {path: f"corpus.{name}.{key}" for path, key in named.items()})
    counts["model"] = _record(
        out / "model" / "source.json", {params.model.source: "model.source"}, maybe_elsewhere=True
    )
    for name in params.baselines:
        taught = {
            value: f"systems.{name}.training" for value in [params.systems.get(name, {}).get("training")] if value
        }
        counts[name] = _record(out / "systems" / f"{name}.json", taught, maybe_elsewhere=True)
    return counts


def _record(record: Path, keys: Mapping[str, str], maybe_elsewhere: bool = False) -> int:
    """Write the hashes of paths, each with the key of params.yaml that names it. Returns how many there are."""
    known = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    hashes = {value: _hash(key, value, known, maybe_elsewhere) for value, key in keys.items()}
    hashes = {value: found for value, found in hashes.items() if found is not None}
    files.write_json(record, hashes)
    return len(hashes)


def _hash(key: str, value: str, known: Mapping[str, str], maybe_elsewhere: bool) -> str | None:
    """The hash of the names and contents of all files behind a path; None where it is a name on a hub."""
    if found := files_of(value):
        return content_hash(files=[[str(file), sha256_of([file])] for file in found])
    if value in known:
        log.warning("%s: %s is gone; what was made of it is taken as it is", key, value)
        return known[value]
    if maybe_elsewhere or value.startswith("hf:"):
        return None
    raise UserError(f"{key}: {value}: no such file, and no folder with files")

"""Stage `sources`: hashes of the files that data sets, model and baselines are made of, and of the code behind each stage.

By them DVC sees that one has changed, so this runs each time.
"""

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
from dragoman.core.identity import Code, content_hash, import_closure
from dragoman.corpus.loaders import files_of
from dragoman.corpus.settings import listed
from dragoman.pipeline.project import Project

KEYS = ("source", "train", "dev", "test")
PACKAGE = Path(__file__).resolve().parents[1]
NO_CODE = ("dragoman.config", "dragoman.pipeline.project", "dragoman.registry", "dragoman.tracking")
"""Of no stage: settings, whose values DVC tracks; and what records a run, finds its paths, or finds a policy, whose folder a stage names."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Options:
    out: Annotated[Path | None, Doc("Where they go; results/sources by default.")] = None

    def folder(self, project: Project) -> Path:
        return self.out or project.results("sources")


async def run(project: Project, options: Options) -> dict[str, int]:
    """Write `NAME.json` for each data set of `datasets`: a hash for each path that its entry under `corpus` names.

    `code/FILE.json` has one for each file behind a file of `pipeline/`; stages of dvc.yaml depend on these. See `stage_code`.
    `model/source.json` has that of a model folder, if `model.source` is one, and `systems/NAME.json` that of the file which a
    baseline was taught by, if it was. The built-in corpus and names on a hub have no files. A path that is gone keeps the
    hash that it had, with a warning: what was made of it is still good, and another machine may have that alone.

    Returns:
        How many paths there are of each data set, of the model and of each baseline.

    Raises:
        UserError: a path of a data set that was never there.
    """
    out, params, counts = options.folder(project), project.params, {}
    write_code(out / "code")
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


def write_code(folder: Path) -> None:
    """Write `FILE.json` for each file of `pipeline/`: a hash for each file behind it, by its path from where the package lies."""
    code = stage_code()
    hashes = {file: sha256_of([file]) for file in {file for behind in code.values() for file in behind}}
    for name, behind in code.items():
        _write(folder / f"{name}.json", {str(file.relative_to(PACKAGE.parent)): hashes[file] for file in behind})


def stage_code() -> dict[str, list[Path]]:
    """The files behind each file of `pipeline/`, by its name: its import closure, sorted, without systems.

    A stage of dvc.yaml names the folder of its own system. What any of them imports is here where systems are opened. That
    is done through `Project`, which is left out.
    """
    systems = {path.parent for path in PACKAGE.glob("systems/*/__init__.py")} - {PACKAGE / "systems" / "grammar"}
    found, known = dict[str, list[Path]](), dict[str, Code | None]()
    for stage in sorted(PACKAGE.glob("pipeline/[!_]*.py")):
        code = {*import_closure(f"{__package__}.{stage.stem}", NO_CODE, known)}
        if any(".runtime(" in file.read_text(encoding="utf-8") for file in code if file.parent == stage.parent):
            code.update(import_closure("dragoman.runtime", NO_CODE, known))
        found[stage.stem] = sorted(file for file in code if systems.isdisjoint(file.parents))
    return found


def _write(record: Path, hashes: Mapping[str, str]) -> None:
    """Write a file if its content changes: DVC reads again what has another time."""
    text = json.dumps(hashes, ensure_ascii=False, indent=2) + "\n"
    if not record.is_file() or record.read_text(encoding="utf-8") != text:
        files.write_text(record, text)


def _record(record: Path, keys: Mapping[str, str], maybe_elsewhere: bool = False) -> int:
    """Write the hashes of paths, each with the key of params.yaml that names it. Returns how many there are."""
    known = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    found = {value: _hash(key, value, known, maybe_elsewhere) for value, key in keys.items()}
    hashes = {value: content for value, content in found.items() if content is not None}
    _write(record, hashes)
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

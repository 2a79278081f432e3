"""What DVC keeps: hashes in `dvc.lock`, and files in its cache. The only module that knows of either.

A stage's folder is overwritten by the stage's next run, but its files stay in DVC's cache under their hash. So whoever knows
the hash of the folder can have any file of any run again, and nothing needs to be stored twice.
"""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from dragoman.core.errors import UserError

log = logging.getLogger(__name__)

LOCK = "dvc.lock"


@dataclass(frozen=True)
class Output:
    """A folder that a stage has made, as `dvc.lock` has it."""

    stage: str
    path: str
    """Of the folder, relative to the project."""
    md5: str
    """Of the folder, ending in `.dir`."""
    dependencies: Mapping[str, str]
    """MD5 of what the stage rested on, by path."""


def output_holding(folder: Path, project: Path = Path()) -> Output | None:
    """The output that holds `folder` as it is now, or None: not DVC's, or changed since DVC has last seen it."""
    lock = project / LOCK
    if not lock.is_file():
        return None
    inside = folder.resolve()
    stages = (yaml.safe_load(lock.read_text(encoding="utf-8")) or {}).get("stages", {})
    for name, stage in stages.items():
        for out in stage.get("outs", ()):
            root = (project / out["path"]).resolve()
            if not inside.is_relative_to(root) or not str(out.get("md5", "")).endswith(".dir"):
                continue
            prefix = inside.relative_to(root).as_posix()
            cached = _files(out["md5"], prefix, project)
            if not cached or {p.name for p in folder.iterdir()} != {Path(path).name for path in cached}:
                return None
            dependencies = {d["path"]: str(d.get("md5", "")) for d in stage.get("deps", ())}
            return Output(name, out["path"], out["md5"], dependencies)
    return None


def restore(md5: str, prefix: str, target: Path, project: Path = Path()) -> None:
    """Make `target` the folder `prefix` of the output with this hash, out of symbolic links into the cache.

    Raises:
        UserError: the cache does not hold it (any more).
    """
    files = _files(md5, prefix, project)
    missing = [path for path, file in files.items() if not file.is_file()]
    if not files or missing:
        raise UserError(
            f"DVC's cache {_cache(project)} does not hold {prefix} of the output {md5}; check out the revision that made it "
            "(`dragoman lineage` names it) and run `dvc fetch`"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        for path, file in files.items():
            link = scratch / Path(path).relative_to(prefix)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file.resolve())
        if target.exists():
            shutil.rmtree(target)
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    log.info("%s: %d files linked out of DVC's cache", target, len(files))


def _files(md5: str, prefix: str, project: Path) -> dict[str, Path]:
    """The cached files below `prefix` of an output, by their path in it; none when the output is not in the cache."""
    cache = _cache(project)
    listing = _object(cache, md5)
    if not listing.is_file():
        return {}
    entries = json.loads(listing.read_text(encoding="utf-8"))
    return {e["relpath"]: _object(cache, e["md5"]) for e in entries if Path(e["relpath"]).is_relative_to(Path(prefix))}


def _object(cache: Path, md5: str) -> Path:
    return cache / "files" / "md5" / md5[:2] / md5[2:]


def _cache(project: Path) -> Path:
    """DVC's cache, which its configuration may have moved."""
    told = subprocess.run(
        [sys.executable, "-m", "dvc", "cache", "dir"], cwd=project, capture_output=True, text=True, check=False
    )
    if told.returncode:
        raise UserError(f"{project.resolve()}: {told.stderr.strip() or 'dvc does not say where its cache is'}")
    return (project / told.stdout.strip()).resolve()

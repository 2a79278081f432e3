"""Content hashes of files and of code."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path


def sha256_of(files: Iterable[Path]) -> str:
    """SHA-256 of the files' contents, one after the other."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


@cache
def code_hash(folder: Path) -> str:
    """Hash of a package's code and prompts: what other code has made is something else."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.suffix in (".py", ".txt", ".json")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]

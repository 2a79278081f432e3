"""Content hashes of files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path


def sha256_of(files: Iterable[Path]) -> str:
    """SHA-256 of the files' contents, one after the other."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def sha256_of_state(files: Iterable[Path]) -> str:
    """The same for large files, which are read once in a process as long as inode, size and time of change stay."""
    states = ((path.resolve(), path.stat()) for path in files)
    return _sha256_of_state(tuple((path, s.st_ino, s.st_size, s.st_mtime_ns) for path, s in states))


@lru_cache(maxsize=256)
def _sha256_of_state(states: tuple[tuple[Path, int, int, int], ...]) -> str:
    return sha256_of(path for path, *_ in states)

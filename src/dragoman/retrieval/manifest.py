"""An index folder: what it holds (`manifest.json`) and how it comes to be, all or nothing.

An index is immutable. It is built in a hidden folder beside its own (`.NAME.METHOD`) and renamed when it is whole. So a crash
leaves either the old index or none, and never half of one.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.retrieval import methods

MANIFEST = "manifest.json"
SCHEMA = 1  # to be raised when equal settings would index otherwise: indexes that are there are used as they are


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an index folder holds. Equal manifests mean equal results."""

    method: str
    corpus_sha256: str
    passages: int
    settings: dict[str, Any]
    versions: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "dragoman": SCHEMA,
            "method": self.method,
            "corpus_sha256": self.corpus_sha256,
            "passages": self.passages,
            "settings": self.settings,
            "versions": self.versions,
        }

    @property
    def name(self) -> str:
        """What the index is called: its method, and what widens its queries."""
        return f"{self.method}+rm3" if "rm3" in self.settings else self.method

    @property
    def fingerprint(self) -> str:
        return f"{self.name}-{digest(self.to_json())}"

    def write(self, folder: Path) -> None:
        files.write_text(folder / MANIFEST, json.dumps(self.to_json(), indent=2, sort_keys=True) + "\n")

    @classmethod
    def read(cls, folder: Path, method: str | None = None) -> Manifest:
        """The manifest of an index folder.

        Raises:
            UserError: there is no index, one of another method than `method`, or one of another version of dragoman.
        """
        path = folder / MANIFEST
        if not path.is_file():
            raise UserError(
                f"{folder}: not an index (it has no {MANIFEST}): build one there first, by `dragoman index`; a server's "
                "address begins with http://"
            )
        try:
            row = json.loads(path.read_text(encoding="utf-8"))
            schema = row["dragoman"]
            manifest = cls(
                row["method"], row["corpus_sha256"], int(row["passages"]), dict(row["settings"]), dict(row["versions"])
            )
        except (ValueError, KeyError, TypeError) as e:
            raise UserError(f"{path}: not the manifest of an index ({e!r}): build the index again") from None
        if schema != SCHEMA or manifest.method not in methods.names():
            raise UserError(f"{path}: an index of another version of dragoman (schema {schema}): build it again")
        if method is not None and manifest.method != method:
            raise UserError(f"{folder}: a {manifest.method} index, not a {method} one")
        return manifest


def digest(value: Any) -> str:
    """Sixteen hexadecimal digits that name a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


@contextmanager
def building(folder: Path, method: str, *, resumable: bool = False) -> Iterator[Path]:
    """Yield the folder to build in, and put it in the place of `folder` at the end.

    After a crash a `resumable` build finds the folder as it was left; another starts from nothing. What an earlier build has
    left is kept after a UserError, too: a setting that is refused must not cost what is worked out.

    Raises:
        UserError: `folder` holds something that is not an index, or another process is building it.
    """
    folder = folder.absolute()
    if folder.exists() and not (folder / MANIFEST).is_file() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"{folder}: exists and is not an index: choose another folder, or delete it first")
    work = folder.with_name(f".{folder.name}.{method}")
    with files.only_writer(folder):
        fresh = not work.exists()
        work.mkdir(exist_ok=True)
        if not resumable:
            _empty(work)
        try:
            yield work
            files.replace_folder(work, folder)
        except BaseException as e:
            if not resumable or (fresh and isinstance(e, UserError)):
                shutil.rmtree(work, ignore_errors=True)
            raise


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()

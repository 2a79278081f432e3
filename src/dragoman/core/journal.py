"""What has been computed, one JSON line each, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from dragoman.core import files


def digest(*values: Any) -> str:
    """A short content hash of what a value depends on: its key."""
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]


class Journal:
    """A file of values by key, open for reading and appending. Open it with `with`; a second process that opens it, or
    another one in its folder, is refused.

    A key names all that its value depends on, so that what other settings have made is not mistaken for it.

    Args:
        locked: whether the caller is the folder's only writer already; see `files.only_writer`.
    """

    def __init__(self, path: Path, *, locked: bool = False) -> None:
        self.path, self._is_locked = path, locked
        self._values: dict[str, Any] = {}
        self._lock = ExitStack()

    def __enter__(self) -> Journal:
        with ExitStack() as lock:
            if not self._is_locked:
                lock.enter_context(files.only_writer(self.path.parent))
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._values = {row["key"]: row["value"] for row in files.repaired(self.path)}
            self._file = files.Appended(self.path)
            self._lock = lock.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._file.close()
        self._lock.close()

    async def get(self, key: str, compute: Callable[[], Awaitable[Any]]) -> Any:
        """The value of a key, computed and written down if it is not known."""
        if key not in self._values:
            value = await compute()
            self._file.add({"key": key, "value": value})
            self._values[key] = value
        return self._values[key]

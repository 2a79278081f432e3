"""Results of greedy requests on disk: a model that does not change answers each of them once."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from dragoman.engines.base import Engine, Front, Request, Result

log = logging.getLogger(__name__)

WAIT_S = 10.0
"""How long an operation waits for another process, which checks a full file for a second. Then it is a miss, or not kept."""
DIGEST = 16
"""Bytes before each value that prove it whole and under its own key."""


class AnswerCache:
    """Results by key in one SQLite file, which processes may share.

    It never stops a run: where the file cannot be used, a warning says so, and everything is a miss. A file that is cut or
    is no database is set aside when it is opened. SQLite keeps a rollback journal here, since its write-ahead log does not work
    in a folder that several machines mount. It never waits for the disk: what a power cut leaves is checked like any file.

    Args:
        folder: where the file lies; it is made where it is missing.
        max_mib: size of the file in MiB. The oldest tenth of the results goes when it is larger.
    """

    def __init__(self, folder: Path, max_mib: int) -> None:
        self.path = folder / "answers.sqlite"
        self._most = max_mib << 20
        self._database = self._open()

    def get(self, key: str) -> Result | None:
        """What was put under a key; None where that is nothing, or cannot be read."""
        for (value,) in self._execute("SELECT value FROM answers WHERE key = ?", key):
            with suppress(ValueError, KeyError, TypeError):  # of another version
                if value[:DIGEST] == _digest(key, value[DIGEST:]):
                    return Result.from_json(json.loads(value[DIGEST:]))
        return None

    def put(self, key: str, result: Result) -> None:
        """Keep a result, in place of what the key had before."""
        text = json.dumps(asdict(result)).encode()
        self._execute("INSERT OR REPLACE INTO answers (key, value) VALUES (?, ?)", key, _digest(key, text) + text)
        for (size,) in self._execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"):
            if size > self._most:
                oldest = "SELECT id FROM answers ORDER BY id LIMIT 1 + (SELECT count(*) / 10 FROM answers)"
                self._execute(f"DELETE FROM answers WHERE id IN ({oldest})")

    def close(self) -> None:
        """Everything is a miss from now on."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def _execute(self, statement: str, *values: Any) -> list[Any]:
        """The rows of a statement; none where it fails."""
        if self._database is None:
            return []
        try:
            return self._database.execute(statement, values).fetchall()
        except sqlite3.Error as e:
            if getattr(e, "sqlite_errorcode", None) != sqlite3.SQLITE_BUSY:
                log.warning("%s: %s; answers are neither taken from it nor kept in it any more", self.path, e)
                self.close()
            return []

    def _open(self) -> sqlite3.Connection | None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{self.path}.lock"):  # what one process starts anew, the next one must not set aside
                try:
                    return self._connect()
                except sqlite3.OperationalError:  # locked, not writable, a full disk: says nothing of what is in it
                    raise
                except sqlite3.DatabaseError as e:
                    log.warning("%s: %s; it is set aside as %s.broken and started anew", self.path, e, self.path.name)
                    self.path.replace(f"{self.path}.broken")
                    Path(f"{self.path}-journal").unlink(missing_ok=True)  # it would be played back into the new one
                    return self._connect()
        except (OSError, sqlite3.Error) as e:
            log.warning("%s: %s; answers are not kept", self.path, e)
            return None

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.path, timeout=WAIT_S, isolation_level=None)
        try:
            database.execute("PRAGMA auto_vacuum = FULL")  # what is deleted makes the file smaller
            database.execute("PRAGMA synchronous = OFF")
            database.execute("CREATE TABLE IF NOT EXISTS answers (id INTEGER PRIMARY KEY, key TEXT UNIQUE, value BLOB)")
            faults = [fault for (fault,) in database.execute("PRAGMA quick_check(1)") if fault != "ok"]
            if faults:
                raise sqlite3.DatabaseError(faults[0])
        except sqlite3.Error:
            database.close()
            raise
        return database


class CachedEngine(Front):
    """An engine whose greedy requests are answered out of a cache where they were asked before. Others go through.

    Equal requests that come at the same time all miss: `inner` is to compute them once. To forget leaves
    what is on disk.
    """

    def __init__(self, inner: Engine, cache: AnswerCache) -> None:
        super().__init__(inner)
        self.cache = cache

    async def generate(self, requests: Sequence[Request]) -> list[Result]:
        """See `Engine.generate`."""
        return list(await asyncio.gather(*map(self._one, requests)))

    async def _one(self, request: Request) -> Result:
        key = _key(self.fingerprint, request) if request.deterministic else ""
        if key and (known := self.cache.get(key)):
            return replace(known, cached=True)
        (result,) = await self.inner.generate([request])
        if key:
            self.cache.put(key, result)
        return result


_LATER = ("special", "alternatives", "beside", "weights")
"""Fields that requests did not have at first. Where one is empty it is no part of the key, so what was kept before is found."""


def _key(fingerprint: str, request: Request) -> str:
    """Everything that a greedy result depends on, which the seed is no part of."""
    asked = asdict(replace(request, seed=0))
    for later in _LATER:
        if not asked[later]:
            del asked[later]
    return hashlib.sha256(json.dumps([fingerprint, asked]).encode()).hexdigest()


def _digest(key: str, text: bytes) -> bytes:
    return hashlib.blake2b(key.encode() + text, digest_size=DIGEST).digest()

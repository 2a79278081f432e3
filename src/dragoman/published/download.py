"""Fetching files of published data sets: half a download is gone on with, and nothing is taken that is not what it should be.

A folder of downloads has the files under the names of the catalogue, `NAME.part` beside them while one is under way, and
`received.json`: size and SHA-256 of each file as it was first received. A file may also be put there by hand.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.http import PASSING_STATUS
from dragoman.core.progress import bar
from dragoman.published.catalogue import Remote

log = logging.getLogger(__name__)

RECEIVED = "received.json"
TRIES = 5
"""How often a server is asked in a row without sending anything."""
_TIMEOUT = httpx.Timeout(60, connect=20)
_MIB = 1 << 20


class Unreachable(Exception):
    """The network or the server does not give the file. What has come of it stays, for the next try."""


@dataclass(frozen=True)
class Download:
    """A file that is here, and was checked."""

    path: Path
    sha256: str
    known: bool
    """Whether it was compared with a published checksum; otherwise with what was received first, or with nothing."""


def fetch(remote: Remote, folder: Path, *, url: str | None = None, first_wait: float = 1.0) -> Download:
    """Have a file of the catalogue in `folder`, fetched if it is not there.

    Args:
        url: another address of the same file.
        first_wait: seconds before a server is asked again, doubled each time.

    Raises:
        Unreachable: it could not be fetched.
        UserError: the file is not what it should be, by its checksum, its size, or what was received before; or the disk is full.
    """
    target = folder / remote.name
    folder.mkdir(parents=True, exist_ok=True)
    if target.is_file():
        return _checked(remote, target, target)
    part = folder / f"{remote.name}.part"
    _Transfer(url or remote.url, part, remote.bytes).run(first_wait)
    files.sync(part)  # a power cut must not leave a name, or a record, of what never reached the disk
    done = _checked(remote, part, target)
    part.replace(target)
    _note(part).unlink(missing_ok=True)
    files.sync(folder)
    return done


def _checked(remote: Remote, path: Path, target: Path) -> Download:
    """The file at `path`, if it is what is to be had at `target`.

    Raises:
        UserError: it is not. One that was just fetched is put aside, so that the next try begins anew.
    """
    record = _received(target.parent)
    sha256 = _digest(path, "sha256")
    wrong = ""
    if remote.checksum is not None:
        algorithm, expected = remote.checksum
        found = sha256 if algorithm == "sha256" else _digest(path, algorithm)
        if found != expected:
            wrong = f"its {_NAMES[algorithm]} is {found}, published is {expected}"
    elif remote.name not in record:
        record[remote.name] = {"bytes": path.stat().st_size, "sha256": sha256, "url": remote.url}
        files.write_json(target.parent / RECEIVED, record)
        log.info("%s: no checksum of it is known; recorded as received, SHA-256 %s", target, sha256)
    elif (expected := record[remote.name]["sha256"]) != sha256:
        wrong = (
            f"its SHA-256 is {sha256}, but {expected} was received before; if the publisher has changed it and you want the new "
            f"one, take {remote.name!r} out of {target.parent / RECEIVED}"
        )
    if wrong:
        aside = target.with_name(f"{target.name}.refused")
        path.replace(aside)
        _note(path).unlink(missing_ok=True)
        raise UserError(
            f"{target}: not the file that was expected: {wrong}. It was put aside as {aside.name}; the same command fetches it again"
        )
    return Download(target, sha256, known=remote.checksum is not None)


_NAMES = {"sha256": "SHA-256", "md5": "MD5"}


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest()


def _received(folder: Path) -> dict[str, dict[str, Any]]:
    path = folder / RECEIVED
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError:
        raise UserError(f"{path}: not valid JSON; mend it, or remove it with the downloads beside it") from None


def _note(part: Path) -> Path:
    """What a server said of the file of which `part` is the beginning: its URL and its validator."""
    return part.with_name(f"{part.name}.json")


@dataclass
class _Transfer:
    """A file on its way to `part`."""

    url: str
    part: Path
    size: int | None
    """Bytes of the whole file, where that is published."""

    def run(self, first_wait: float) -> None:
        """Fetch what is missing.

        Raises:
            Unreachable: the server cannot be reached, refuses, or breaks off `TRIES` times in a row.
        """
        tries, wait = 0, first_wait
        with httpx.Client(timeout=_TIMEOUT, follow_redirects=True, headers={"Accept-Encoding": "identity"}) as client:
            while True:
                before = self._here
                try:
                    self._ask(client)
                    return
                except httpx.TransportError as e:
                    reason = f"{type(e).__name__}: {e}" if str(e) else type(e).__name__
                except httpx.HTTPStatusError as e:
                    reason = f"HTTP {e.response.status_code}"
                    if e.response.status_code not in PASSING_STATUS:
                        raise Unreachable(reason) from None
                except httpx.HTTPError as e:  # too many redirects
                    raise Unreachable(str(e)) from None
                except httpx.InvalidURL as e:
                    raise UserError(f"{self.url}: not an http(s) URL ({e})") from None
                tries, wait = (1, first_wait) if self._here > before else (tries + 1, wait)
                if tries >= TRIES:
                    raise Unreachable(reason) from None
                log.info("%s: %s; asking again in %.0f s", self.url, reason, wait)
                time.sleep(wait)
                wait *= 2

    @property
    def _here(self) -> int:
        return self.part.stat().st_size if self.part.is_file() else 0

    def _ask(self, client: httpx.Client) -> None:
        begun = self._begun()
        if self.size is not None and self._here == self.size and begun:
            return
        headers = {"Range": f"bytes={self._here}-", "If-Range": begun} if begun and self._here else {}
        with client.stream("GET", self.url, headers=headers) as response:
            if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
                self.part.unlink()  # it has grown shorter, or was whole: begin anew
                raise httpx.ReadError("what was here is not a part of the file")
            response.raise_for_status()
            start = self._here if response.status_code == httpx.codes.PARTIAL_CONTENT else 0
            if start and not response.headers.get("content-range", "").startswith(f"bytes {start}-"):
                self.part.unlink()
                raise httpx.ReadError("another part was sent than was asked for")
            if "text/html" in response.headers.get("content-type", ""):
                raise Unreachable("a web page was sent in the place of the file; it may want a browser")
            length = response.headers.get("content-length", "")
            total = start + int(length) if length.isdecimal() else None
            self._check_size(total, start)
            validator = response.headers.get("etag", "") or response.headers.get("last-modified", "")
            files.write_json(_note(self.part), {"url": self.url, "validator": validator})
            self._take(response, start, total)

    def _begun(self) -> str:
        """The validator of what is here of the file (ETag, or when it was changed); empty if it cannot be gone on with."""
        try:
            note = json.loads(_note(self.part).read_text(encoding="utf-8"))
            return str(note["validator"]) if note["url"] == self.url and not note["validator"].startswith("W/") else ""
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return ""

    def _check_size(self, total: int | None, start: int) -> None:
        if total is None:
            return
        if self.size is not None and total != self.size:
            raise UserError(
                f"{self.url}: the file has {total} bytes, published are {self.size}: it is another file now, or a page about it. "
                "Convert another edition with `dragoman data import`"
            )
        if (free := shutil.disk_usage(self.part.parent).free) < total - start:
            raise UserError(
                f"{self.part.parent}: {total - start} bytes are still to come, and {free} are free; make room"
            )

    def _take(self, response: httpx.Response, start: int, total: int | None) -> None:
        with self.part.open("r+b" if start else "wb") as stream, _mebibytes(self.part.stem, total) as advance:
            stream.seek(start)
            advance(start)
            # as they come: what is gathered to blocks would be lost with the connection
            for block in response.iter_raw():
                stream.write(block)
                advance(len(block))


@contextmanager
def _mebibytes(title: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar that counts MiB and is told bytes."""
    done = 0
    with bar(f"{title} (MiB)", (total or 0) // _MIB) as advance:

        def told(count: int) -> None:
            nonlocal done
            advance("", (done + count) // _MIB - done // _MIB)
            done += count

        yield told

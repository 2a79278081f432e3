"""The files of a published data set as they come: plain, gzipped, or in a zip, which is never unpacked.

A reader yields (line from 1, row) for each record, and a sentence in the place of a row that cannot be read.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, cast

from dragoman.core import rows
from dragoman.core.errors import UserError
from dragoman.core.rows import Row

Numbered = Iterator[tuple[int, Row | str]]
Reader = Callable[["Source"], Numbered]

_BLOCK = 1 << 20  # characters
_LONGEST_RECORD = 64 << 20  # characters; those of published sets have some 10,000
_LINES_BEFORE_HEADER = 10
csv.field_size_limit(_LONGEST_RECORD)


@dataclass(frozen=True)
class Source:
    """A file, a folder of files, or with `member` a file in a zip."""

    path: Path
    member: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.member}" if self.member else str(self.path)

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Its content, unpacked while it is read.

        Raises:
            UserError: there is no such file, or it is broken or cut off, also while it is read.
        """
        try:
            if self.member:
                with zipfile.ZipFile(self.path) as archive, archive.open(self._entry(archive)) as stream:
                    yield stream
            elif self.path.suffix == ".gz":
                with gzip.open(self.path) as unpacked:
                    yield cast(IO[bytes], unpacked)
            else:
                with self.path.open("rb") as stream:
                    yield stream
        except (FileNotFoundError, IsADirectoryError):
            raise UserError(f"{self}: no such file") from None
        except (zipfile.BadZipFile, gzip.BadGzipFile, EOFError, zlib.error) as e:
            raise UserError(f"{self}: broken or cut off ({e}); fetch it again") from None

    def inner(self, pattern: str) -> list[Source]:
        """The files of a folder or a zip that match `pattern` below it, or below the one folder that a zip holds."""
        if self.path.is_dir():
            return [Source(path) for path in sorted(self.path.glob(pattern))]
        try:
            with zipfile.ZipFile(self.path) as archive:
                names = sorted(info.filename for info in archive.infolist() if not info.is_dir())
        except FileNotFoundError:
            raise UserError(f"{self}: no such file or folder") from None
        except zipfile.BadZipFile:
            raise UserError(f"{self}: neither a folder nor a zip; if it was fetched, fetch it again") from None
        return [replace(self, member=name) for name in names if PurePosixPath(name).match(pattern)]

    def _entry(self, archive: zipfile.ZipFile) -> str:
        """The member by its path, or by its name alone where one file of the zip has it."""
        names = archive.namelist()
        named = [name for name in names if PurePosixPath(name).name == PurePosixPath(self.member).name]
        if self.member in names:
            return self.member
        if len(named) != 1:
            raise UserError(f"{self.path}: holds no {self.member}; found {', '.join(names[:10])}")
        return named[0]


def json_lines(source: Source) -> Numbered:
    """An object a line."""
    with source.open() as stream:
        yield from rows.numbered(stream)


def json_array(source: Source) -> Numbered:
    """The objects of one array, read one by one: files of this kind have hundreds of megabytes."""
    decoder, gap = json.JSONDecoder(), re.compile(r"[\s,]*")
    with source.open() as raw:
        text = io.TextIOWrapper(raw, encoding="utf-8-sig")
        rest, line, begun = "", 1, False
        while True:
            try:
                block = text.read(_BLOCK)
            except UnicodeDecodeError as e:
                yield line, f"not valid UTF-8 ({e.reason})"
                return
            rest += block
            place = 0
            while True:
                start = gap.match(rest, place).end()  # type: ignore[union-attr]
                line += rest.count("\n", place, start)
                place = start
                if place == len(rest):
                    break
                if not begun:
                    if rest[place] != "[":
                        yield line, f"expected one JSON array of objects, found {rest[place : place + 20]!r}"
                        return
                    begun, place = True, place + 1
                    continue
                if rest[place] == "]":
                    return
                try:
                    row, end = decoder.raw_decode(rest, place)
                except (json.JSONDecodeError, RecursionError) as e:
                    if block and len(rest) - place < _LONGEST_RECORD:
                        break  # its end may be in the next block
                    yield line, f"a record that is not valid JSON ({getattr(e, 'msg', 'nested too deeply')})"
                    return
                yield line, rows.checked(row, escaped="\\u" in rest[place:end])
                line += rest.count("\n", place, end)
                place = end
            rest = rest[place:]
            if not block:
                yield line, "the array does not end: the file is cut off; fetch it again"
                return


def json_list(key: str) -> Reader:
    """The objects of the list under a key of one object. Files of this kind are small enough to be read whole."""

    def read(source: Source) -> Numbered:
        with source.open() as stream:
            raw = stream.read()
        try:
            whole = json.loads(raw.decode("utf-8-sig"))
        except UnicodeDecodeError as e:
            yield 1, f"not valid UTF-8 ({e.reason} at byte {e.start})"
            return
        except json.JSONDecodeError as e:
            yield e.lineno, f"not valid JSON ({e.msg}): expected an object with a list {key!r}"
            return
        if not isinstance(whole, dict) or not isinstance(whole.get(key), list):
            found = f"one with the keys {list(whole)[:10]}" if isinstance(whole, dict) else f"a {type(whole).__name__}"
            yield 1, f"expected an object with a list {key!r}, found {found}"
            return
        yield from ((1, rows.checked(row)) for row in whole[key])

    return read


def table(*needed: str, delimiter: str = ",") -> Reader:
    """The rows of a table as objects of strings, by the names of its header, which has the columns `needed`.

    Lines before the header are passed over: spreadsheets have remarks there.
    """

    def read(source: Source) -> Numbered:
        header: list[str] = []
        first: list[str] = []
        for line, cells in _cells(source, delimiter):
            if isinstance(cells, str):
                yield line, cells
            elif header and any(cells):
                yield line, dict(zip(header, cells, strict=False))
            elif not header and set(needed) <= set(cells):
                header = cells
            elif not header:
                first = first or cells
                if line >= _LINES_BEFORE_HEADER:
                    break
        if not header:
            found = ", ".join(first)[:200] or "nothing"
            yield 1, f"expected a header with the columns {', '.join(needed)}; found {found}"

    return read


def pairs(*names: str) -> Reader:
    """The rows of a table without a header, with tabs between, as objects of strings by the names given."""

    def read(source: Source) -> Numbered:
        for line, cells in _cells(source, "\t"):
            if isinstance(cells, str):
                yield line, cells
            elif len(cells) == len(names):
                yield line, dict(zip(names, cells, strict=True))
            elif cells:
                yield line, f"expected {len(names)} cells ({', '.join(names)}), found {len(cells)}"

    return read


def _cells(source: Source, delimiter: str) -> Iterator[tuple[int, list[str] | str]]:
    """The lines of a table, each with its number. A text is what keeps a line from being read, and the last."""
    with source.open() as raw:
        text = io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")
        lines = csv.reader(text, delimiter=delimiter)
        try:
            for cells in lines:
                yield lines.line_num, cells
        except UnicodeDecodeError as e:
            yield lines.line_num + 1, f"not valid UTF-8 ({e.reason} at byte {e.start})"
        except csv.Error as e:
            yield lines.line_num, f"not a table ({e})"

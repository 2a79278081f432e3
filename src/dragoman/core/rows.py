"""Rows of a JSONL file, each with its line, and what is wrong with a file, so that a person can mend it in one go."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dragoman.core.errors import UserError

Row = dict[str, Any]

SHOWN = 5


class Faults:
    """The faults of one source: counts all, keeps the first `SHOWN`, and raises them as one error."""

    def __init__(self, source: Path | str, remedy: str = "mend them and run again") -> None:
        self.source = source
        self.remedy = remedy
        self.total = 0
        self._first: list[str] = []

    def add(self, what: str, line: int | None = None, path: Path | str | None = None) -> None:
        """Note one fault, at a line (from 1) of `path`, which is the source itself unless another file is named."""
        place = f"{path or self.source}" + (f":{line}" if line is not None else "")
        self.total += 1
        if len(self._first) < SHOWN:
            self._first.append(f"{place}: {what}")

    def check(self) -> None:
        """Raise what was noted, if anything was.

        Raises:
            UserError: one sentence for one fault; for several, how many there are and the first of them.
        """
        if self.total == 1:
            raise UserError(self._first[0])
        if self.total > 1:
            which = "" if self.total <= SHOWN else f", here the first {SHOWN}"
            listed = "".join(f"\n  {fault}" for fault in self._first)
            raise UserError(f"{self.source}: {self.total} faults ({self.remedy}){which}:{listed}")


def each(path: Path | str) -> Iterator[tuple[int, Row | str]]:
    """Yield (line number from 1, object or what is wrong) for each line that is not blank.

    Raises:
        UserError: the file is missing.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    with path.open("rb") as lines:
        yield from numbered(lines)


def numbered(lines: Iterable[bytes]) -> Iterator[tuple[int, Row | str]]:
    """The same for lines that come from elsewhere."""
    for number, raw in enumerate(lines, start=1):
        raw = raw.removeprefix(BOM_UTF8) if number == 1 else raw
        if raw.strip():
            yield number, _parsed(raw)


def _parsed(raw: bytes) -> Row | str:
    try:
        row = json.loads(raw.decode("utf-8").rstrip())
    except UnicodeDecodeError as e:
        return f"not valid UTF-8 ({e.reason} at byte {e.start})"
    except json.JSONDecodeError as e:
        return f"not valid JSON ({e.msg} at column {e.colno})"
    except ValueError:  # Python's own limit, whose text names a function of Python's
        return "not valid JSON (a number has too many digits)"
    except RecursionError:
        return "not valid JSON (it is nested too deeply)"
    return checked(row, escaped=b"\\u" in raw)


def checked(row: Any, *, escaped: bool = True) -> Row | str:
    """A row out of JSON, if it is an object of Unicode text, or what is wrong.

    Args:
        escaped: whether the JSON has escapes: it can spell half of a surrogate pair, which no UTF-8 file or index can hold.
    """
    if not isinstance(row, dict):
        return f"expected a JSON object, found {type(row).__name__}"
    if escaped:
        for key, value in row.items():
            try:
                json.dumps([key, value], ensure_ascii=False).encode()
            except UnicodeEncodeError:
                return f"{key!r} holds half of a surrogate pair, which is not Unicode text"
    return row

"""JSON lines, and whole files that are written all or nothing. What reads rows is in `dragoman.core.rows`."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dragoman.core.errors import UserError
from dragoman.core.rows import read as read


def dumps(row: Any) -> str:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"))


def repaired(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file that a run appends to, if there is one, after cutting off a last line that a crash left torn."""
    if not path.is_file():
        return
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    if end < len(content):
        with path.open("r+b") as file:
            file.truncate(end)
    for number, line in enumerate(content[:end].splitlines(), start=1):
        try:
            yield json.loads(line)
        except ValueError:
            raise UserError(f"{path}:{number}: not valid JSON, and not the last line; move the file away") from None


def write(path: Path | str, rows: Iterable[dict[str, Any]]) -> int:
    """Write the rows to `path`, all or nothing. Returns how many."""
    lines = [dumps(row) + "\n" for row in rows]
    write_text(path, "".join(lines))
    return len(lines)


def write_json(path: Path | str, value: Any) -> None:
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def write_csv(path: Path | str, rows: Sequence[dict[str, Any]]) -> None:
    """Write the rows as CSV with a header, in which a column stands where a row first has it."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def write_text(path: Path | str, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: Path | str) -> Iterator[Path]:
    """A temporary file to write, which then takes the place of `path`: a reader or a crash never sees half of it."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)

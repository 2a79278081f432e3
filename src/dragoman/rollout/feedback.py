"""Feedback: what a user says of an answer that was served, as one JSON line beside the episodes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, Literal

from pydantic import Field

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.rollout.record import Record, validated

FEEDBACK = "feedback.jsonl"


class Feedback(Record):
    """All that is said of one answer. A later line of the same `id` takes the place of the earlier ones."""

    id: str  # the key of the episode
    by: str | None = None  # the name of the API key; None where none is asked for
    rating: Literal["up", "down"] | None = None
    answer: str | None = None  # the right one, where the answer was not
    passages: list[str] = Field([])  # the ids of the passages that the right answer rests on
    comment: str | None = None
    at: float  # unix time

    @property
    def said(self) -> str:
        """Its content without its time: of equal ones, one is enough."""
        return files.dumps(self.model_dump(mode="json", exclude={"at"}))


def read_feedback(folder: Path) -> dict[str, Feedback]:
    """The feedback that counts, by the key of its episode; none where there is no such file.

    Raises:
        UserError: a line is no feedback.
    """
    found: dict[str, Feedback] = {}
    for path, number, row in served_rows(folder / FEEDBACK):
        feedback = validated(Feedback, row, f"{path}:{number}", "feedback")
        found[feedback.id] = feedback
    return found


def served_rows(path: Path) -> Iterator[tuple[Path, int, dict[str, Any]]]:
    """The rows that an endpoint has written: of the file that was put aside (`NAME.1.jsonl`), then of the one in use.

    The endpoint may be writing, so half a last line is left alone. A file that is not there has no row.

    Yields:
        File, line from 1, and row.

    Raises:
        UserError: a line is no JSON object.
    """
    with ExitStack() as stack:
        opened: list[tuple[Path, IO[bytes]]] = []
        # both before either is read, and the one in use first: it may be put aside at any moment, over the one before
        for part in (path, aside(path)):
            with suppress(FileNotFoundError):
                if part.is_file():
                    opened.append((part, stack.enter_context(part.open("rb"))))
        if len(opened) == 2 and os.path.sameopenfile(opened[0][1].fileno(), opened[1][1].fileno()):
            opened.pop()
        for part, lines in reversed(opened):
            for number, line in enumerate(lines, start=1):
                if not line.endswith(b"\n"):
                    break
                try:
                    row = json.loads(line)
                except ValueError:
                    row = None
                if not isinstance(row, dict):
                    raise UserError(f"{part}:{number}: not a JSON object; move the file away")
                yield part, number, row


def aside(path: Path) -> Path:
    """Where a file goes that has grown too large: `episodes.jsonl` to `episodes.1.jsonl`."""
    return path.with_name(f"{path.stem}.1{path.suffix}")

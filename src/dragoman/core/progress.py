"""Progress of long jobs: a bar with a note, or a table that fills, on a terminal; silence elsewhere, and with `TQDM_DISABLE`."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console


class Advance(Protocol):
    def __call__(self, note: str = "", steps: int = 1) -> None: ...


@contextmanager
def bar(title: str, total: int) -> Iterator[Advance]:
    """Show `total` steps under `title`. What is yielded is to be called after each, with a note to show beside it."""
    if _quiet():
        yield lambda note="", steps=1: None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=_console()) as progress:
        task = progress.add_task(title, total=total, note="")
        yield lambda note="", steps=1: progress.update(task, advance=steps, note=note)


@contextmanager
def grid(corner: str, rows: Sequence[str], columns: Sequence[str]) -> Iterator[Callable[[str, str, str], None]]:
    """Show a table whose cells are empty at first, with any bar of a cell's own below it.

    Args:
        corner: what stands above the names of the rows.

    Yields:
        What is to be called with a row, a column and the text of their cell.
    """
    if _quiet():
        yield lambda row, column, text: None
        return
    from rich.live import Live
    from rich.markup import escape
    from rich.table import Table

    cells: dict[tuple[str, str], str] = {}

    def drawn() -> Table:
        table = Table(corner, *map(escape, columns))
        for row in rows:
            table.add_row(escape(row), *(escape(cells.get((row, column), "")) for column in columns))
        return table

    below = sys.stderr
    with Live(get_renderable=drawn, console=_console()):
        logs = [handler for handler in logging.getLogger().handlers if getattr(handler, "stream", None) is below]
        try:
            for handler in logs:
                handler.setStream(sys.stderr)  # type: ignore[attr-defined]  # rich's own: lines stand above the table
            yield lambda row, column, text: cells.update({(row, column): text})
        finally:
            for handler in logs:
                handler.setStream(below)  # type: ignore[attr-defined]


def _quiet() -> bool:
    return not sys.stderr.isatty() or "TQDM_DISABLE" in os.environ  # as other people's bars


@cache
def _console() -> Console:
    """One for all that is shown at once: a bar inside a table has to know of it."""
    from rich.console import Console

    return Console(stderr=True)

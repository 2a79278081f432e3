"""Progress of long jobs: a bar with a note on a terminal, silence elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Advance(Protocol):
    def __call__(self, note: str = "", steps: int = 1) -> None: ...


@contextmanager
def bar(title: str, total: int) -> Iterator[Advance]:
    """Show `total` steps under `title`. What is yielded is to be called after each, with a note to show beside it."""
    if not sys.stderr.isatty():
        yield lambda note="", steps=1: None
        return
    from rich.console import Console
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
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=total, note="")
        yield lambda note="", steps=1: progress.update(task, advance=steps, note=note)

"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table_lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table. In a cell, a bar and a line break lose their meaning."""
    return [_row(head), "|---" * len(head) + "|", *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    texts = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return "|" + "|".join(f" {text} " if text else " " for text in texts) + "|"

"""`predictions.jsonl` of an evaluation: a line for each system and question, as `metrics.prediction` makes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dragoman.core import files

PREDICTIONS = "predictions.jsonl"


def write_predictions(folder: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write the predictions of an evaluation into its folder, in the place of those that are there."""
    files.write(folder / PREDICTIONS, rows)


def read_predictions(folder: Path) -> Iterator[dict[str, Any]]:
    """The predictions of the evaluation in a folder, in their order.

    Raises:
        UserError: there are none, or a line is not an object in JSON and UTF-8.
    """
    return (row for _, row in files.read(folder / PREDICTIONS))

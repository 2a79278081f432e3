"""The tables that expectations are run on: a row for each thing that is checked, its line in the file as index."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dragoman.core.text import count_words

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Table:
    """What one suite is run on. A row of `frame` has the line of the file, or a name, as its index."""

    suite: str
    frame: pd.DataFrame


def file_table(faults: Mapping[Any, str | None]) -> Table:
    """What is wrong with each line of a file; the line None is the file as a whole."""
    return Table("file", frame(faults, fault=faults.values()))


def frame(index: Iterable[Any], **columns: Any) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(
        {name: list(values) for name, values in columns.items()}, index=pd.Index(list(index), dtype=object)
    )


def words(values: Iterable[str | None]) -> list[float]:
    return [float("nan") if v is None else count_words(v) for v in values]


def listed(values: Iterable[str]) -> str | None:
    """The values in a row; None when there are none."""
    return ", ".join(values) or None

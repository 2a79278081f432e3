"""Tables through Great Expectations, quietly. Nothing else imports it."""

from __future__ import annotations

import html
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.core.errors import UserError
from dragoman.quality.tables import Table

if TYPE_CHECKING:
    import pandas as pd
    from great_expectations.expectations.expectation import Expectation

SHOWN = 10
"""Bad rows that are named."""
DOCS = "gx/uncommitted/data_docs/local_site/index.html"
"""Data Docs, below the folder of the checkpoints."""


@dataclass(frozen=True)
class Finding:
    """What became of one expectation. `rows` counts the bad ones and `first` holds (index, value) of some of them."""

    expectation: str
    column: str | None
    met: bool
    rows: int = 0
    first: tuple[tuple[Any, Any], ...] = ()


class Checkpoints:
    """A project of Great Expectations in `folder`, with a checkpoint for each suite.

    Raises:
        UserError: a suite is empty. Great Expectations would say that all is well.
    """

    def __init__(self, folder: Path, suites: Mapping[str, Sequence[Expectation]]) -> None:
        if empty := [name for name, expectations in suites.items() if not expectations]:
            raise UserError(f"suite {empty[0]}: has no expectation, and whatever it is run on would pass")
        import great_expectations as gx
        from great_expectations.data_context.types.base import ProgressBarsConfig

        self._context = gx.get_context(mode="file", project_root_dir=folder)
        self._context.variables.progress_bars = ProgressBarsConfig(globally=False)
        source = self._context.data_sources.add_or_update_pandas("dragoman")
        self._checkpoints = {}
        for name, expectations in suites.items():
            batch = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("table")
            suite = self._context.suites.add_or_update(gx.ExpectationSuite(name=name, expectations=list(expectations)))
            validation = self._context.validation_definitions.add_or_update(
                gx.ValidationDefinition(name=name, data=batch, suite=suite)
            )
            self._checkpoints[name] = self._context.checkpoints.add_or_update(
                gx.Checkpoint(
                    name=name,
                    validation_definitions=[validation],
                    result_format={"result_format": "SUMMARY", "partial_unexpected_count": SHOWN},
                )
            )

    def run(self, name: str, table: Table) -> list[Finding]:
        """Run the table's suite on it. `name` is that of the run in the Data Docs, and of a folder there."""
        from great_expectations.core.run_identifier import RunIdentifier

        shown = _escaped(table.frame)
        ran = self._checkpoints[table.suite].run({"dataframe": shown}, run_id=RunIdentifier(run_name=name))
        (result,) = ran.run_results.values()
        return [_finding(r, table) for r in result.results]

    def write_docs(self) -> None:
        self._context.build_data_docs()


@contextmanager
def quiet() -> Iterator[None]:
    """No word of Great Expectations to its makers, and none to the user but what we say ourselves."""
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    logger = logging.getLogger("great_expectations")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # what it logs of an expectation that raised is in its result, too
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _escaped(frame: pd.DataFrame) -> pd.DataFrame:
    """A copy whose texts are safe in a page: the Data Docs show them as they are, and a browser would run their scripts.

    Every text is escaped, also one without a tag, so that two that differ still do, and `_raw` gives each back.
    """
    import pandas as pd

    index = pd.Index([_safe(at) for at in frame.index], dtype=frame.index.dtype)
    columns = {
        name: pd.Series([_safe(value) for value in column], index, column.dtype)
        for name, column in frame.select_dtypes(exclude=["number", "bool"]).items()
    }
    return frame.set_axis(index).assign(**columns)


def _safe(value: Any) -> Any:
    return html.escape(value, quote=False) if isinstance(value, str) else value


def _raw(value: Any) -> Any:
    """What was found in a table, as it was before `_escaped`."""
    if isinstance(value, str):
        return html.unescape(value)
    if isinstance(value, dict):
        return {key: _raw(part) for key, part in value.items()}
    return [_raw(part) for part in value] if isinstance(value, list | tuple) else value


def _finding(result: Any, table: Table) -> Finding:
    config, detail = result.expectation_config, result.to_json_dict()["result"]  # numpy's numbers as plain ones
    columns = config.kwargs.get("column_list") or [c for key in ("column", "column_A") if (c := config.kwargs.get(key))]
    words, column = config.description, ", ".join(columns) or None
    if result.success:
        return Finding(words, column, met=True)
    if raised := _exception(result.exception_info):
        return Finding(f"{words} (could not be checked: {raised})", column, met=False, rows=len(table.frame))
    if "unexpected_count" in detail:
        bad = zip(detail["partial_unexpected_index_list"], detail["partial_unexpected_list"], strict=True)
        first = tuple((_raw(at), _raw(value)) for at, value in bad)
        return Finding(words, column, met=False, rows=detail["unexpected_count"], first=first)
    if column is None:  # of the table as a whole
        return Finding(words, column, met=False)
    bad_rows = table.frame.index[table.frame[column] > 0]  # a share: the mean of zeros and ones
    found = f"{detail['observed_value']:.1%} are"
    lines = list(dict.fromkeys(bad_rows))[:SHOWN]
    return Finding(words, column, met=False, rows=len(bad_rows), first=tuple((line, found) for line in lines))


def _exception(info: Mapping[str, Any]) -> str:
    """What was raised, if anything was: Great Expectations reports one exception, or one for each metric."""
    several = [info] if "raised_exception" in info else list(info.values())
    return next((str(e["exception_message"]) for e in several if e.get("raised_exception")), "")

"""Bad data is refused before it costs a training run: what this project makes, against what it has to be.

`lines` and `artifacts` turn files into tables, `suites` says what is expected of them, `checkpoint` runs the one against the other.
"""

from __future__ import annotations

import logging
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dragoman import tracking
from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.hashing import sha256_of
from dragoman.core.progress import bar
from dragoman.quality.artifacts import Artifact, Reader, find
from dragoman.quality.checkpoint import DOCS, Checkpoints, Finding, quiet
from dragoman.quality.settings import ValidateParams
from dragoman.quality.suites import suites
from dragoman.synthesis.plan import Plan, load_plan

logger = logging.getLogger(__name__)

REPORT = "report.json"
MOST_CHARACTERS = 160
NAMED = 3  # bad rows of an expectation in a message; the report has more


def validate(
    paths: Iterable[Path],
    out: Path,
    settings: ValidateParams,
    *,
    plan: Plan | None = None,
    track: Path | None = None,
) -> dict[str, Any]:
    """Check files, and those of known names below folders, against all that is expected of them. They are only read.

    Args:
        paths: files and folders; see `artifacts.KINDS` for the names.
        out: where `report.json`, `metrics.json` and the Data Docs go (`gx/`); those of an earlier run are replaced.
        settings: the limits.
        plan: what the categories of synthetic questions are compared with that have no `plan.yaml` beside them; the built-in one
            by default.
        track: the folder of MLflow to record the result in.

    Returns:
        What `out/report.json` holds: `docs`, `files` (for each: file, kind, rows, expectations met and failed, and what
        could not be checked), and `metrics`, which `out/metrics.json` holds too, with the SHA-256 of each file.

    Raises:
        UserError: there is nothing to check, or, once everything is written, an expectation is not met. The message is a
            table of file, expectation, number of bad rows and the first of them.
    """
    reader = Reader(found := find(paths), plan or load_plan())
    if (out / "gx").exists() and not (out / REPORT).is_file():
        raise UserError(f"{out / 'gx'}: made by something else; give another folder for the results")
    out.mkdir(parents=True, exist_ok=True)
    checked = []
    with quiet(), tempfile.TemporaryDirectory(dir=out, prefix=".gx.") as scratch:
        checkpoints = Checkpoints(Path(scratch), suites(settings))
        with bar("validate", len(found)) as advance:
            for number, path in enumerate(found, start=1):
                checked.append(_check(reader.read(path), number, checkpoints))
                advance(str(path))
        checkpoints.write_docs()
        metrics = {
            "files": len(checked),
            "rows": sum(file["rows"] for file in checked),
            "expectations": sum(file["met"] + len(file["failed"]) for file in checked),
            "failed": sum(len(file["failed"]) for file in checked),
        }
        report = {"docs": str(out / DOCS), "metrics": metrics, "files": checked}
        files.write_json(out / REPORT, report)
        # by its hash the gate knows whether this is the data that it judges by
        files.write_json(out / "metrics.json", metrics | {"sha256": {str(path): sha256_of([path]) for path in found}})
        shutil.rmtree(out / "gx", ignore_errors=True)
        (Path(scratch) / "gx").rename(out / "gx")
    if track is not None:
        tracking.start(track)
        tracking.log_validation(report, parameters=settings.model_dump())
    for file in checked:
        for what in file["unchecked"]:
            logger.warning("%s: not checked %s", file["file"], what)
    if metrics["failed"]:
        raise UserError(_message(report, out))
    return report


def _check(artifact: Artifact, number: int, checkpoints: Checkpoints) -> dict[str, Any]:
    """An artifact's part of the report."""
    name = f"{number}-" + re.sub(r"[^\w.-]", ".", str(artifact.path))[-100:]  # becomes the name of a folder
    findings = [f for t in artifact.tables for f in checkpoints.run(name, t)]
    met = Counter(f.met for f in findings)
    return {
        "file": str(artifact.path),
        "kind": artifact.kind,
        "rows": artifact.rows,
        "met": met[True],
        "failed": [_failure(f) for f in findings if not f.met],
        "unchecked": list(artifact.unchecked),
    }


def _failure(finding: Finding) -> dict[str, Any]:
    first = [{"line" if isinstance(at, int) else "of": at, "value": value} for at, value in finding.first]
    return {"expectation": finding.expectation, "column": finding.column, "rows": finding.rows, "first": first}


def _message(report: dict[str, Any], out: Path) -> str:
    metrics = report["metrics"]
    table = [("file", "expectation", "rows", "first bad rows")]
    for file in report["files"]:
        for failure in file["failed"]:
            places = [_place(file["file"], row) for row in failure["first"][:NAMED]]
            table.append((file["file"], failure["expectation"], str(failure["rows"] or "-"), "; ".join(places)))
    bad = sum(bool(file["failed"]) for file in report["files"])
    return (
        f"{metrics['failed']} of {metrics['expectations']} expectations are not met, in {bad} of {metrics['files']} files\n"
        + _aligned(table)
        + f"\nmore bad rows: {out / REPORT}; Data Docs, to read in a browser: {report['docs']}"
    )


def _place(file: str, row: dict[str, Any]) -> str:
    """A bad row as file:line, where it has a line, and what was found in it."""
    value = row["value"]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
    found = ", ".join(str(v)[:MOST_CHARACTERS] for v in values if v is not None)
    if "line" not in row:
        return f"{row['of']} ({found})" if row["of"] else found
    return f"{file}:{row['line']}" + (f" ({found})" if found else "")


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

"""Artifacts in which a row is made bad, for tests of what refuses them."""

from __future__ import annotations

import json
from pathlib import Path


def spoil_line(path: Path, number: int = 2, **values: object) -> None:
    """Put other values into a row of a file of JSON lines; the first has number 1."""
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[number - 1] = json.dumps(json.loads(lines[number - 1]) | values)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def spoil_samples(path: Path) -> None:
    """Give the second of some samples a credit that none can have."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    credit = table["credit"].to_pylist()
    credit[1] = 7.0
    pq.write_table(table.set_column(table.schema.get_field_index("credit"), "credit", [credit]), path)


def spoil_index(path: Path) -> None:
    """Let an index's manifest count another number of passages."""
    path.write_text(json.dumps(json.loads(path.read_text()) | {"passages": 1}))

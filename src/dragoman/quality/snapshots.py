"""Snapshots of MAPS as a table to be checked."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from dragoman.quality.lines import Lines
from dragoman.quality.tables import frame, listed
from dragoman.systems.maps.snapshots import SnapshotRow

if TYPE_CHECKING:
    import pandas as pd


def snapshot_columns(lines: Lines[SnapshotRow]) -> pd.DataFrame:
    """A row for each snapshot: its round, and what its pool has twice."""
    found = [row.snapshot for row in lines.rows.values()]
    ids = [Counter(passage.id for passage in snapshot.pool.passages) for snapshot in found]
    queries = [Counter(snapshot.pool.queries) for snapshot in found]
    return frame(
        lines.rows,
        key=[f"{snapshot.question.id} round {snapshot.round}" for snapshot in found],
        answers=[len(snapshot.question.answers) for snapshot in found],
        repeated_passages=[listed(id for id, count in counts.items() if count > 1) for counts in ids],
        repeated_queries=[listed(query for query, count in counts.items() if count > 1) for counts in queries],
    )

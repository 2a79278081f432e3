"""Snapshots of MAPS are validated as other artifacts are: a bad one is named by file, line and expectation."""

import json

import pytest

from dragoman.core.types import Passage, Question
from dragoman.quality.artifacts import Reader
from dragoman.quality.lines import read_lines
from dragoman.quality.snapshots import snapshot_columns
from dragoman.synthesis.plan import load_plan
from dragoman.systems.maps.snapshots import SnapshotRow, snapshots

QUESTION = Question("q", "Which currency has Bhutan?", ("ngultrum",))
FIRST, SECOND = (
    snapshot.to_json()
    for snapshot in snapshots(QUESTION, [("bhutan", [Passage("b", "B", "x")]), ("n", [Passage("n", "N", "y")])], 9)
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "snapshots.jsonl"


def written(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_sound_snapshots_have_nothing_twice(path):
    columns = snapshot_columns(read_lines(written(path, FIRST, SECOND), SnapshotRow))
    assert columns.key.tolist() == ["q round 0", "q round 1"] and columns.answers.tolist() == [1, 1]
    assert columns.repeated_passages.isna().all() and columns.repeated_queries.isna().all()


def test_what_a_pool_has_twice_is_named(path):
    twice = {**SECOND, "pool": [FIRST["pool"][0]] * 2}
    columns = snapshot_columns(read_lines(written(path, FIRST, twice), SnapshotRow))
    assert (columns.repeated_passages[2], columns.repeated_queries[2]) == ("b", "bhutan")


def test_a_line_that_is_no_snapshot_is_a_fault_of_the_file(path):
    artifact = Reader([path], load_plan()).read(written(path, FIRST, {**SECOND, "round": 7}))
    assert artifact.kind == "snapshots" and artifact.rows == 2
    assert "round is 7" in artifact.tables[0].frame.fault[2]

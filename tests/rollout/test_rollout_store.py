"""Episodes on disk, when more than one process is after them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.core.errors import UserError
from dragoman.rollout.store import EpisodeStore


def test_a_store_that_is_open_is_not_opened_again(tmp_path: Path) -> None:
    with EpisodeStore(tmp_path / "out") as first:
        first.remember("q1", "c1", "kept")
        with pytest.raises(UserError, match="is writing there"), EpisodeStore(tmp_path / "out"):
            pass
        assert (tmp_path / "out" / "calls.jsonl").read_text().count("kept") == 1


def test_a_store_that_cannot_be_read_is_left_open_to_others(tmp_path: Path) -> None:
    (tmp_path / "episodes.jsonl").write_text('{"schema_version": 0}\n')
    for _ in range(2):
        with pytest.raises(UserError, match="written with schema 0"), EpisodeStore(tmp_path):
            pass

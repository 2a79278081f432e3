"""Episodes on disk, when more than one process is after them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.core.errors import UserError
from dragoman.rollout.record import Episode
from dragoman.rollout.store import EpisodeStore, read_episodes


def test_a_store_that_is_open_is_not_opened_again(tmp_path: Path) -> None:
    with EpisodeStore(tmp_path / "out") as first:
        first.remember("q1", "c1", "kept")
        with pytest.raises(UserError, match="is writing there"), EpisodeStore(tmp_path / "out"):
            pass
        assert (tmp_path / "out" / "calls.jsonl").read_text().count("kept") == 1


def test_a_line_that_is_no_episode_is_named_by_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "episodes.jsonl").write_text('{"schema_version": 1, "key": "k"}\n')
    message = r"episodes\.jsonl:1: not an episode \(question: Field required\)"
    with pytest.raises(UserError, match=message):
        read_episodes(tmp_path / "episodes.jsonl")
    with pytest.raises(UserError, match=message), EpisodeStore(tmp_path):
        pass


def test_a_store_that_cannot_be_read_is_left_open_to_others(tmp_path: Path) -> None:
    (tmp_path / "episodes.jsonl").write_text('{"schema_version": 0}\n')
    for _ in range(2):
        with pytest.raises(UserError, match="written with schema 0"), EpisodeStore(tmp_path):
            pass


def test_a_store_keeps_the_episodes_of_the_latest_configs_and_those_of_the_one_that_is_asked(tmp_path: Path) -> None:
    """A folder that each night evaluates another policy does not grow for ever."""

    def episode(night: int, question: str) -> Episode:
        config = {"policy": night}
        return Episode(
            key=f"{night}/{question}", question={"id": question}, system="s", config=config, nodes=[], calls=[],
            trajectories=[], started=0, seconds=1,
        )  # fmt: skip

    with EpisodeStore(tmp_path) as store:
        for night in range(10):
            for question in ("a", "b"):
                store.add(episode(night, question))
            store.trim({"policy": night})
        assert [*store.episodes] == [f"{night}/{question}" for night in range(2, 10) for question in ("a", "b")]
        store.add(episode(10, "a"))
        store.trim({"policy": 2})
        store.add(episode(2, "c"))
    kept = [e.key for e in read_episodes(tmp_path / "episodes.jsonl")]
    latest = [f"{night}/{question}" for night in range(4, 10) for question in ("a", "b")]
    assert kept == ["2/a", "2/b", *latest, "10/a", "2/c"]

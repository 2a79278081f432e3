"""The file of what was asked and answered: whole lines, for its owner alone, and not without end."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import IO

import pytest

from dragoman.core.errors import UserError
from dragoman.rollout.record import Episode
from dragoman.rollout.store import read_episodes
from dragoman.serving.episodes import episode_writer
from dragoman.serving.kept import KeptLines

MIB = 1 << 20


def episode(key: str) -> Episode:
    empty: dict[str, list] = {"calls": [], "nodes": [], "trajectories": []}
    return Episode(key=key, question={"id": key}, system="standard", config={}, started=0, seconds=0, **empty)


def keys(path: Path) -> list[str]:
    return [episode.key for episode in read_episodes(path)]


def test_a_line_that_a_killed_server_left_torn_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    with episode_writer(tmp_path, MIB) as keep:
        keep(episode("first"))
    with path.open("a") as file:
        file.write('{"key": "torn')
    with episode_writer(tmp_path, MIB) as keep:
        keep(episode("second"))
    assert keys(path) == ["first", "second"]


def test_kept_episodes_are_for_their_owner_alone_also_those_of_before(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "episodes.jsonl"
    for readable in (False, True):
        with episode_writer(path.parent, MIB):
            pass
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        if not readable:
            path.chmod(0o644)


def test_a_full_file_is_put_aside_in_place_of_the_one_before(tmp_path: Path) -> None:
    most = 2 * len(episode("0").model_dump_json()) + 50
    with episode_writer(tmp_path, most) as keep:
        for number in range(7):
            keep(episode(str(number)))
    assert {path.name for path in tmp_path.iterdir()} == {"episodes.jsonl", "episodes.1.jsonl"}
    assert keys(tmp_path / "episodes.jsonl")[-1] == "6"
    assert all(path.stat().st_size <= most for path in tmp_path.iterdir())


@pytest.mark.parametrize("left", [None, b"", b'{"purged": true}\n'])
def test_a_file_that_somebody_moves_or_replaces_is_written_under_its_name_again(
    tmp_path: Path, left: bytes | None
) -> None:
    path, kept = tmp_path / "lines.jsonl", KeptLines(tmp_path / "lines.jsonl", MIB)
    kept.append({"key": "before"})
    path.replace(tmp_path / "moved.jsonl")
    if left is not None:
        path.write_bytes(left)
    offset, length = kept.append({"key": "after"})
    kept.close()
    assert offset == len(left or b"") and path.read_bytes() == (left or b"") + b'{"key":"after"}\n'
    assert length == len(b'{"key":"after"}\n') and b"before" in (tmp_path / "moved.jsonl").read_bytes()


def test_in_a_file_that_was_emptied_in_place_a_line_is_where_it_is_said_to_be(tmp_path: Path) -> None:
    kept = KeptLines(tmp_path / "lines.jsonl", MIB)
    kept.append({"key": "before"})
    kept.path.write_bytes(b"")
    offset, length = kept.append({"key": "after"})
    kept.close()
    assert kept.path.read_bytes()[offset : offset + length] == b'{"key":"after"}\n'


def test_episodes_are_kept_again_as_soon_as_they_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(kept: KeptLines) -> IO[bytes]:
        return Path("/dev/full").open("ab")

    path, disks = tmp_path / "episodes.jsonl", iter([full, full, KeptLines._open])
    monkeypatch.setattr(KeptLines, "_open", lambda kept: next(disks)(kept))
    monkeypatch.setattr(KeptLines, "_is_in_place", lambda kept: True)  # the full disk has another name
    with episode_writer(tmp_path, MIB) as keep:
        for key in ("lost", "lost too", "kept", "kept too"):
            keep(episode(key))
    assert keys(path) == ["kept", "kept too"]
    (said,) = caplog.messages
    assert said == f"{path}: cannot write ([Errno 28] No space left on device); nothing is kept until that is mended"


def test_a_second_server_on_one_folder_is_refused(tmp_path: Path) -> None:
    with (
        episode_writer(tmp_path, MIB),
        pytest.raises(UserError, match="is writing there"),
        episode_writer(tmp_path, MIB),
    ):
        pass

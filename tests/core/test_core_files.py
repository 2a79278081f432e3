"""Files that a process writes are whole, and a folder has one writer."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from pathlib import Path

import pytest
from writers import another_writer

from dragoman.core import files
from dragoman.core.errors import UserError


def test_a_second_writer_of_a_folder_is_refused_with_the_process_of_the_first(tmp_path: Path) -> None:
    with another_writer(tmp_path / "out") as other:
        with (
            pytest.raises(UserError, match=f"out: process {other.pid} is writing there"),
            files.only_writer(tmp_path / "out"),
        ):
            pass
        with files.only_writer(tmp_path / "beside"):
            pass


def test_the_lock_of_a_process_that_was_killed_keeps_nobody_out(tmp_path: Path) -> None:
    with another_writer(tmp_path / "out") as other:
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
    assert (tmp_path / ".out.lock").read_text() == str(other.pid)
    with files.only_writer(tmp_path / "out"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_its_writer_empties_stays_locked(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with files.only_writer(out):
        out.mkdir()
        out.rmdir()
        with pytest.raises(UserError, match="is writing there"), files.only_writer(out):
            pass


@pytest.mark.parametrize("whole", [b"", b"one\n", b"one\n" + b"x" * 200_000 + b"\n"])
@pytest.mark.parametrize("torn", [b"", b"two", b"y" * 200_000])
def test_of_a_file_that_is_appended_to_the_torn_line_alone_is_cut_off(
    tmp_path: Path, whole: bytes, torn: bytes
) -> None:
    path = tmp_path / "rows"
    path.write_bytes(whole + torn)
    files.cut_torn_line(path)
    assert path.read_bytes() == whole


def test_content_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[Path, bool]] = []
    folder, target = tmp_path / "new", tmp_path / "model"
    monkeypatch.setattr(files, "sync", lambda path: synced.append((path, target.exists())))
    files.write_text(tmp_path / "row", "1")
    (written, _), (names, _) = synced
    assert written.name.startswith(".row.") and names == tmp_path
    synced.clear()
    folder.mkdir()
    (folder / "weights").write_text("1")
    files.rename_folder(folder, target)
    assert synced == [(folder / "weights", False), (folder, False), (tmp_path, True)]


def test_a_folder_that_takes_the_place_of_another_leaves_no_part_of_it_where_its_removal_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(folder: Path, ignore_errors: bool = False) -> None:
        raise KeyboardInterrupt

    target = tmp_path / "model[1]"
    for name in (target, tmp_path / "first", tmp_path / "second"):
        name.mkdir()
        (name / "manifest.json").write_text(name.name)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", die)
        files.replace_folder(tmp_path / "first", target)
    assert (target / "manifest.json").read_text() == "first" and len(list(tmp_path.iterdir())) == 3
    files.replace_folder(tmp_path / "second", target)
    assert (target / "manifest.json").read_text() == "second" and list(tmp_path.iterdir()) == [target]


def test_a_folder_that_cannot_be_renamed_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, mounted = Path.rename, tmp_path / "mounted"

    def rename_unless_mounted(path: Path, target: Path) -> Path:
        if path == mounted:
            raise OSError(errno.EBUSY, "busy")
        return rename(path, target)

    for name in (mounted, tmp_path / "new"):
        name.mkdir()
    (mounted / "manifest.json").write_text("old")
    monkeypatch.setattr(Path, "rename", rename_unless_mounted)
    with pytest.raises(OSError, match="busy"):
        files.replace_folder(tmp_path / "new", mounted)
    assert (mounted / "manifest.json").read_text() == "old"


def test_two_writers_of_one_file_with_equal_process_ids_do_not_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 7)  # containers on one checkout each have a process 7
    with files.replacing(tmp_path / "row") as first, files.replacing(tmp_path / "row") as second:
        assert first != second
        first.write_text("1")
        second.write_text("2")
    assert [path.name for path in tmp_path.iterdir()] == ["row"]


def test_a_write_that_fails_names_its_file(tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught, files.replacing(tmp_path / "corpus.jsonl"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.filename == str(tmp_path / "corpus.jsonl")


def test_the_root_of_all_folders_cannot_be_written_anew() -> None:
    with pytest.raises(UserError, match="name a folder in it"), files.only_writer(Path("/")):
        pass

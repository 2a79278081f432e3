"""JSON lines, and whole files that are written all or nothing. What is wrong with a row, `dragoman.core.rows` says."""

from __future__ import annotations

import csv
import glob
import io
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from dragoman.core.errors import UserError
from dragoman.core.rows import Faults, Row, each

_BLOCK = 1 << 16


def dumps(row: Any) -> str:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"))


def read(path: Path | str, faults: Faults | None = None) -> Iterator[tuple[int, Row]]:
    """Yield (line number from 1, object) for each line that is not blank.

    Args:
        faults: takes what is wrong with a line, and the next line is read. None: the first fault is raised.

    Raises:
        UserError: the file is missing, or a line is not an object in JSON and UTF-8.
    """
    for number, row in each(path):
        if isinstance(row, dict):
            yield number, row
        elif faults is None:
            raise UserError(f"{path}:{number}: {row}")
        else:
            faults.add(row, number)


def repaired(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file that a run appends to, if there is one, after cutting off a last line that a crash left torn.

    Raises:
        UserError: another line is not a row.
    """
    if not path.is_file():
        return
    cut_torn_line(path)
    for number, row in each(path):
        if not isinstance(row, dict):
            raise UserError(f"{path}:{number}: {row}; move the file away")
        yield row


class Appended:
    """A file of rows that this process appends to: each is there whole, or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("a", encoding="utf-8")

    def add(self, row: dict[str, Any]) -> None:
        """
        Raises:
            UserError: the disk is full.
        """
        try:
            self._file.write(dumps(row) + "\n")
            self._file.flush()  # to the kernel, which survives the death of this process
        except OSError as e:
            raise UserError(
                f"{self.path}: cannot write ({e.strerror}); make room and run the same command again, "
                "what is finished is kept"
            ) from None

    def close(self) -> None:
        with suppress(OSError):  # on a full disk: the write has failed and been reported, closing flushes once more
            self._file.close()


def cut_torn_line(path: Path) -> None:
    """Cut off the last line of a file that is there, if it does not end: a process has died in the middle of it."""
    if not path.is_file():
        return
    with path.open("r+b") as file:
        end = left = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - _BLOCK)
            file.seek(start)
            if found := file.read(end - start).rfind(b"\n") + 1:
                end = start + found
                break
            end = start
        if end < left:
            file.truncate(end)


def check_file(path: Path, hint: str = "") -> None:
    """
    Raises:
        UserError: there is no such file; `hint` ends the sentence. Or a folder lies there.
    """
    if path.is_dir():
        raise UserError(f"{path}: a folder; name a file in it")
    if not path.is_file():
        raise UserError(f"{path}: no such file{hint}")


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Keep other processes from writing to a folder. The lock lies beside it, since some who write there empty it first.

    Raises:
        UserError: another process has it. One that is dead has nothing.
    """
    folder = folder.resolve()
    if not folder.name:
        raise UserError(f"{folder}: cannot be replaced as a whole; name a folder in it")
    path = folder.with_name(f".{folder.name}.lock")
    lock = FileLock(path, timeout=0)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise UserError(
            f"{folder}: process {_text(path) or 'unknown'} is writing there; wait until it is done, or name another folder"
        ) from None
    except (NotADirectoryError, FileExistsError):  # of which the command line tells
        raise
    except OSError as e:  # the folder around it may be read-only, as in a container
        raise UserError(
            f"{path}: cannot write ({e.strerror}); name a folder whose parent can be written to, too"
        ) from None
    try:
        path.write_text(str(os.getpid()))
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is held: who has waited for this file then asks for a new one
        lock.release()


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:  # given back in between
        return ""


def write(path: Path | str, rows: Iterable[dict[str, Any]]) -> int:
    """Write the rows to `path`, all or nothing. Returns how many."""
    lines = [dumps(row) + "\n" for row in rows]
    write_text(path, "".join(lines))
    return len(lines)


def write_json(path: Path | str, value: Any) -> None:
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def write_csv(path: Path | str, rows: Sequence[dict[str, Any]]) -> None:
    """Write the rows as CSV with a header, in which a column stands where a row first has it."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def write_text(path: Path | str, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: Path | str) -> Iterator[Path]:
    """A temporary file to write, which then takes the place of `path`: a reader or a crash never sees half of it.

    Its content is on the disk before it has the name, so that a power cut leaves the old file or the new one.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # not by the process id, which two containers on one checkout may share
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    except OSError as e:
        e.filename = e.filename or str(path)  # which of several disks is full, a failed write does not say
        raise
    finally:
        temporary.unlink(missing_ok=True)


def rename_folder(folder: Path, target: Path) -> None:
    """Give a finished folder its name, once all that is in it is on the disk."""
    _sync_all(folder)
    folder.rename(target)
    sync(target.parent)


def replace_folder(folder: Path, target: Path) -> None:
    """Put a finished folder in the place of another, which is removed. The name never stands for a part of either."""
    _sync_all(folder)
    with set_aside(target):
        folder.rename(target)
        sync(target.parent)


@contextmanager
def set_aside(path: Path) -> Iterator[None]:
    """Rename what stands here at once, and remove it after the block.

    To remove a folder takes time. A process that is killed meanwhile would leave a part of it, without the file that says what it is. So
    it is removed under a hidden name, with what others have left there.

    Raises:
        OSError: it cannot be renamed, as a mount point cannot. Nothing has changed.
    """
    with suppress(FileNotFoundError):
        path.rename(path.with_name(f".{path.name}.{uuid.uuid4().hex}.old"))
    yield
    for old in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 32}.old"):
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.unlink(missing_ok=True)


def _sync_all(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        sync(path)


def sync(path: Path) -> None:
    """Wait until a file, or the list of names of a folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""The passages of an index on disk: written once in corpus order, read one at a time by row number.

`passages.jsonl` has one passage a line; `offsets.npy` says at which byte each row begins (and where the file ends).
The file is mapped into memory, so an index bigger than the memory opens at once and is shared between processes.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.types import Passage

if TYPE_CHECKING:
    import numpy as np

PASSAGES = "passages.jsonl"
OFFSETS = "offsets.npy"


def passage_line(id: str, title: str, text: str) -> bytes:
    """A passage as `passages.jsonl` has it; the hash of a corpus is that of these lines."""
    return (files.dumps({"id": id, "title": title, "text": text}) + "\n").encode()


def corpus_sha256(passages: Iterable[Passage]) -> str:
    """The hash of a corpus, as `write_passages` gives it."""
    digest = hashlib.sha256()
    for passage in passages:
        digest.update(passage_line(passage.id, passage.title, passage.text))
    return digest.hexdigest()


def write_passages(passages: Iterable[Passage], folder: Path) -> str:
    """Write the passages into `folder`, streaming. Returns the SHA-256 of the file: equal corpora, equal hashes.

    Raises:
        UserError: there is no passage, or one has no id, an id seen before, no text, or text that is not Unicode.
    """
    digest = hashlib.sha256()
    offsets = [0]
    seen: set[str] = set()
    with (folder / PASSAGES).open("wb") as lines:
        for row, passage in enumerate(passages, start=1):
            if not passage.id:
                raise UserError(f"passage number {row} of the corpus has no id")
            if passage.id in seen:
                raise UserError(f"passage id {passage.id!r} occurs twice in the corpus: ids must be unique")
            if not passage.text.strip():
                raise UserError(f"passage {passage.id!r} has no text: leave it out of the corpus")
            seen.add(passage.id)
            try:
                line = passage_line(passage.id, passage.title, passage.text)
            except UnicodeEncodeError:
                raise UserError(f"passage {passage.id!r} holds half a surrogate pair, which is not text") from None
            lines.write(line)
            digest.update(line)
            offsets.append(offsets[-1] + len(line))
    if not seen:
        raise UserError("the corpus is empty: there is nothing to index")
    import numpy as np

    np.save(folder / OFFSETS, np.asarray(offsets, dtype=np.uint64))
    return digest.hexdigest()


class PassageStore:
    """The passages of an index folder, by row (from 0). Safe to read from several threads."""

    def __init__(self, folder: Path) -> None:
        import numpy as np

        try:
            self._offsets = np.load(folder / OFFSETS)
            with (folder / PASSAGES).open("rb") as lines:
                self._lines = mmap.mmap(lines.fileno(), 0, access=mmap.ACCESS_READ)
            if len(self._lines) != self._offsets[-1]:
                raise ValueError(f"{PASSAGES} has {len(self._lines)} bytes where {self._offsets[-1]} were written")
        except (OSError, ValueError, EOFError) as e:
            raise UserError(f"{folder}: the index is damaged ({e}): delete the folder and build it again") from None

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> Passage:
        if not 0 <= row < len(self):
            raise IndexError(row)
        line = json.loads(self._lines[int(self._offsets[row]) : int(self._offsets[row + 1])])
        return Passage(line["id"], line["title"], line["text"])

    def __iter__(self) -> Iterator[Passage]:
        return (self[row] for row in range(len(self)))

    def missing(self, ids: Iterable[str]) -> list[str]:
        """Those of `ids` that no passage has. The first call reads the whole file, and remembers 16 bytes a passage."""
        import numpy as np

        hashes, rows = self._by_id
        absent = []
        for id in ids:
            first, last = np.searchsorted(hashes, hash(id), "left"), np.searchsorted(hashes, hash(id), "right")
            if not any(self[int(row)].id == id for row in rows[first:last]):
                absent.append(id)
        return absent

    @cached_property
    def _by_id(self) -> tuple[np.ndarray, np.ndarray]:
        """The hashes of all ids, sorted, and the row of each."""
        import numpy as np

        hashes = np.fromiter((hash(passage.id) for passage in self), dtype=np.int64, count=len(self))
        order = np.argsort(hashes, kind="stable")
        return hashes[order], order

    def close(self) -> None:
        self._lines.close()


def indexed_text(passage: Passage) -> str:
    """What a retriever sees of a passage: the title on a line of its own, then the text."""
    return f"{passage.title}\n{passage.text}" if passage.title else passage.text

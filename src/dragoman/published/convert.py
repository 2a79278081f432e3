"""Writing a data set in the project's form: `corpus.jsonl` and a question file for each split, whatever the published format."""

from __future__ import annotations

import hashlib
import heapq
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.progress import bar
from dragoman.core.rows import Row
from dragoman.core.types import Passage
from dragoman.corpus.chunking import with_wholes
from dragoman.corpus.names import CORPUS, SPLITS, TRIPLES, Split
from dragoman.published import beir
from dragoman.published.formats import entries
from dragoman.published.records import Entry
from dragoman.published.source import Source

MANIFEST = "dataset.json"
"""What a folder was made of, and what is in it. It is written last."""
_FIRST_KEYS = ("id", "question", "answers", "type", "supporting_ids")
_NOTE_EVERY = 1000


@dataclass(frozen=True)
class Part:
    """A file, its format, and whose questions it holds, unless the file itself says so."""

    format: str
    source: Source
    split: Split | None = None


def convert(
    parts: Sequence[Part], out: Path, *, made_of: Mapping[str, Any], hold_out: int = 0, most: int | None = None
) -> dict[str, Any]:
    """Write what the files hold to the folder `out`, all or nothing, and return its manifest.

    Passages of the same id are written once. A passage without text is left out, and a question that the format cannot answer. Of
    a question whose gold passages are not all there, none is known.

    Args:
        made_of: what the folder depends on. Where its manifest says the same, it is left as it is.
        hold_out: so many questions of `train`, and at most a tenth, become `dev`.
        most: at most so many questions of each split, and of passages that come with a question only theirs. Which they are
            depends on their ids alone, and so for held out questions.

    Returns:
        `made_of`; `passages`, a count; `questions`, a count for each split; `left_out`, a count for each reason.

    Raises:
        UserError: a file cannot be read or is of another format; there is no question; two questions have one id; or `out` holds
            something else.
    """
    manifest = written(out)
    if manifest is None and out.exists() and (out.is_file() or any(out.iterdir())):
        raise UserError(f"{out}: holds something that no import wrote; name another folder")
    if manifest is not None and manifest["made_of"] == dict(made_of):
        return manifest
    out.parent.mkdir(parents=True, exist_ok=True)
    with files.only_writer(out), tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch:
        made = Path(scratch) / out.name
        made.mkdir()
        with (made / CORPUS).open("w", encoding="utf-8") as stream:
            content = _Content(stream, hold_out, most)
            content.read(parts)
        if not content.passages:
            (made / CORPUS).unlink()
        questions = content.split()
        if not questions:
            why = "; ".join(f"{count} {reason}" for reason, count in content.left_out.items())
            raise UserError(
                f"{', '.join(str(part.source) for part in parts)}: no question with an answer"
                + (f" ({why})" if why else "")
            )
        for split, rows in questions.items():
            files.write(made / f"{split}.jsonl", map(_ordered, rows))
        for part in parts:
            if part.format == beir.NAME:
                _copy_triples(part.source, made)
        manifest = {
            "made_of": dict(made_of),
            "passages": len(content.passages),
            "questions": {split: len(rows) for split, rows in questions.items()},
            "left_out": dict(content.left_out),
        }
        files.write_json(made / MANIFEST, manifest)
        files.replace_folder(made, out)
    return manifest


def written(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder that `convert` wrote; None for any other."""
    path = folder / MANIFEST
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    except ValueError:
        return None
    return found if isinstance(found, dict) and "made_of" in found else None


@dataclass
class _Content:
    """Passages as they come, to the disk; questions until all are known."""

    stream: IO[str]
    hold_out: int
    most: int | None
    passages: set[str] = field(default_factory=set)
    left_out: Counter[str] = field(default_factory=Counter)
    questions: dict[Split, list[Row]] = field(default_factory=lambda: {split: [] for split in SPLITS})
    samples: dict[Split, list[tuple[int, int, Entry]]] = field(default_factory=lambda: {split: [] for split in SPLITS})
    """Heaps of (rank negated, place in the files, question with its passages)."""
    met: int = 0

    def read(self, parts: Sequence[Part]) -> None:
        before = Counter[str | None]()  # records of earlier files of a split, whose made ids these go on from
        with bar("converting", len(parts)) as advance:
            for part in parts:
                number = -1
                for number, (split, entry) in enumerate(_told(part, before[part.split])):
                    if split is not None:
                        self._keep(split, entry)
                    else:
                        self._write(entry.passages)
                        self.left_out.update([entry.left_out] if entry.left_out else [])
                    if number % _NOTE_EVERY == 0:
                        advance(f"{part.source.path.name}: {number} records", 0)
                before[part.split] += number + 1
                advance(part.source.path.name)
        for split, sample in self.samples.items():
            for _, _, entry in sorted(sample, key=lambda kept: kept[1]):
                self._write(entry.passages)
                self.questions[split].append(entry.question or {})

    def _keep(self, split: Split, entry: Entry) -> None:
        if self.most is None:
            self._write(entry.passages)
        if entry.question is None:
            self.left_out[entry.left_out] += 1
        elif self.most is None:
            self.questions[split].append(entry.question)
        else:
            # `split` holds out a tenth of all at most, which is a ninth of what is left
            wanted = self.most + (min(self.hold_out, self.most // 9) if split == "train" else 0)
            sample, self.met = self.samples[split], self.met + 1
            ranked = (-_rank(entry.question), self.met, entry)
            if len(sample) < wanted:
                heapq.heappush(sample, ranked)
            else:
                heapq.heappushpop(sample, ranked)

    def _write(self, passages: Sequence[Passage]) -> None:
        for passage in passages:
            if not passage.text.strip():
                self.left_out["passages without text"] += 1
            elif passage.id not in self.passages:
                self.passages.add(passage.id)
                self.stream.write(files.dumps(asdict(passage)) + "\n")

    def split(self) -> dict[Split, list[Row]]:
        """The questions of the splits that have some, with those held out in `dev`."""
        train = self.questions["train"]
        if not self.questions["dev"] and (held := min(self.hold_out, len(train) // 10)):
            chosen = {row["id"] for row in heapq.nsmallest(held, train, key=_rank)}
            self.questions["dev"] = [row for row in train if row["id"] in chosen]
            self.questions["train"] = [row for row in train if row["id"] not in chosen]
        seen: dict[str, Split] = {}
        known = with_wholes(self.passages)
        for split, rows in self.questions.items():
            for row in rows:
                if (other := seen.get(row["id"])) is not None:
                    where = f"is in {other} too" if other != split else "is there twice"
                    raise UserError(f"{split}: the question id {row['id']!r} {where}; each needs its own")
                seen[row["id"]] = split
                if known and set(row.get("supporting_ids", ())) - known:
                    self.left_out["sets of gold passages that are not all there"] += 1
                    row["supporting_ids"] = []
        return {split: rows for split, rows in self.questions.items() if rows}


def _told(part: Part, before: int) -> Iterator[tuple[Split | None, Entry]]:
    """What a file holds, with the split of what is about a question; None for what is left out of all."""
    for entry in entries(part.format, part.source, part.split, earlier=before):
        if entry.question is None and not entry.left_out:
            yield None, entry
            continue
        split = entry.split or part.split
        if split is None and entry.question is not None:
            raise UserError(
                f"{part.source}: whose questions are these? Say so: train={part.source.path}, or dev=, or test="
            )
        yield split, entry


def _rank(row: Row) -> int:
    """A number that depends on the question's id alone, for a choice that looks like chance."""
    return int.from_bytes(hashlib.sha256(row["id"].encode()).digest()[:8], "big")


def _ordered(row: Row) -> Row:
    return {key: row[key] for key in _FIRST_KEYS if key in row} | row


def _copy_triples(source: Source, made: Path) -> None:
    for file in source.inner(TRIPLES):
        with file.open() as stream, (made / TRIPLES).open("wb") as copy:
            shutil.copyfileobj(stream, copy)

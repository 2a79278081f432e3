"""BEIR folders (Thakur et al. 2021, arXiv 2104.08663): read with their answers, and written without a loss.

A folder, or a zip of one, has `corpus.jsonl`, `queries.jsonl` and `qrels/SPLIT.tsv`. BEIR leaves the `metadata` of a query to the
publisher. HotpotQA has its answer there, and an export of this project all that a question has besides its text: then it also
names its split, as questions without gold passages are in no qrels.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.rows import Faults, Row
from dragoman.core.types import Passage
from dragoman.corpus.fields import ID_KEYS, QUESTION_KEYS, TEXT_KEYS, TITLE_KEYS, question_of, text_of
from dragoman.corpus.loaders import load_corpus, load_questions, read_qrels
from dragoman.corpus.names import CORPUS, SPLITS, TRIPLES, Split
from dragoman.published.records import NO_ANSWER, Entry
from dragoman.published.source import Source, json_lines

NAME = "beir"
NO_SPLIT = "queries that the qrels of no split name"
_CALLED: dict[Split, tuple[str, ...]] = {
    "train": ("train",),
    "dev": ("dev", "valid", "validation"),
    "test": ("test",),
}
"""What others call a split."""
_HEADER = "query-id\tcorpus-id\tscore\n"


def entries(source: Source) -> Iterator[Entry]:
    """Passages and questions of a BEIR folder or zip. A query without answers is left out.

    Raises:
        UserError: a file of it is missing, or has a line that is not as it should be.
    """
    corpus, queries = source.inner(CORPUS), source.inner("queries.jsonl")
    if len(queries) != 1 or not (corpus or source.inner(TRIPLES)):
        raise UserError(f"{source}: expected a BEIR folder, with corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv")
    relevant = {split: _qrels(source, split) for split in SPLITS}
    for passages in corpus:
        yield from (Entry((passage,)) for passage in _passages(passages))
    faults = Faults(str(queries[0]))
    for line, row in json_lines(queries[0]):
        if isinstance(row, str):
            faults.add(row, line)
            continue
        identity = text_of(row, ID_KEYS, faults, line)
        text = text_of(row, QUESTION_KEYS, faults, line)
        metadata = row.get("metadata") or {}
        if not isinstance(metadata, dict):
            faults.add(f"'metadata' must be an object, found {type(metadata).__name__}", line)
        elif identity is not None and text is not None:
            yield from _questions(identity, text, metadata, relevant, faults, line)
    faults.check()


def _questions(
    identity: str, text: str, metadata: Row, relevant: dict[Split, dict[str, list[str]]], faults: Faults, line: int
) -> Iterator[Entry]:
    named = metadata.get("split")
    splits = [split for split in SPLITS if named == split or (named is None and identity in relevant[split])]
    if not splits:
        yield Entry(left_out=NO_SPLIT)
    more = {key: value for key, value in metadata.items() if key != "split"}
    if "answers" not in more and isinstance(more.get("answer"), str):
        more["answers"] = [more.pop("answer")]
        more.pop("supporting_facts", None)  # HotpotQA's, which the qrels repeat
    for split in splits:
        if not more.get("answers"):
            yield Entry(split=split, left_out=NO_ANSWER)
            continue
        question = {"id": identity, "question": text} | {k: v for k, v in more.items() if k not in ("id", "question")}
        if gold := relevant[split].get(identity):
            question["supporting_ids"] = gold
        if question_of(identity, question, True, faults, line) is not None:
            yield Entry(question=question, split=split)


def _passages(source: Source) -> Iterator[Passage]:
    faults = Faults(str(source))
    for line, row in json_lines(source):
        if isinstance(row, str):
            faults.add(row, line)
            continue
        identity = text_of(row, ID_KEYS, faults, line)
        title = text_of(row, TITLE_KEYS, faults, line, optional=True)
        text = text_of(row, TEXT_KEYS, faults, line, optional=True)
        if identity is not None and title is not None and text is not None:
            yield Passage(identity, title, text)
    faults.check()


def _qrels(source: Source, split: Split) -> dict[str, list[str]]:
    relevant: dict[str, list[str]] = {}
    for file in (file for name in _CALLED[split] for file in source.inner(f"qrels/{name}.tsv")):
        faults = Faults(str(file))
        with file.open() as lines:
            read_qrels(lines, relevant, faults)
        faults.check()
    return relevant


def export(folder: Path, out: Path) -> dict[str, int]:
    """Write a folder of the project's form as a BEIR folder, all or nothing. `entries` gives the same passages and questions.

    Returns:
        How many passages, and how many questions of each split.

    Raises:
        UserError: there is nothing to export; a file of it cannot be read; `out` is there already; or an id or a key cannot be
            written so that it can be read again.
    """
    corpus, triples = folder / CORPUS, folder / TRIPLES
    splits = {split: path for split in SPLITS if (path := folder / f"{split}.jsonl").is_file()}
    if not splits or not (corpus.is_file() or triples.is_file()):
        raise UserError(f"{folder}: expected corpus.jsonl and one of {', '.join(f'{s}.jsonl' for s in SPLITS)}")
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise UserError(f"{out}: is there already; name a folder that is not, or remove it")
    counts: dict[str, int] = {}
    lines: list[dict[str, Any]] = []
    split_of: dict[str, Split] = {}
    out.parent.mkdir(parents=True, exist_ok=True)
    with files.only_writer(out), tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch:
        made = Path(scratch) / "beir"
        (made / "qrels").mkdir(parents=True)
        if corpus.is_file():
            passages = load_corpus(corpus)
            rows = ({"_id": p.id, "title": p.title, "text": p.text, "metadata": {}} for p in passages)
            counts["passages"] = files.write(made / corpus.name, rows)
        if triples.is_file():
            shutil.copyfile(triples, made / TRIPLES)
        for split, path in splits.items():
            load_questions(path)
            before, relevance = len(lines), [_HEADER]
            for line, row in files.read(path):
                query, gold = _query(row, split, f"{path}:{line}")
                if split_of.setdefault(query["_id"], split) != split:
                    raise UserError(
                        f"{path}:{line}: the id {query['_id']!r} is in {split_of[query['_id']]} too; rename one"
                    )
                lines.append(query)
                relevance += [f"{query['_id']}\t{passage}\t1\n" for passage in gold]
            counts[split] = len(lines) - before
            if len(relevance) > 1:
                files.write_text(made / "qrels" / f"{split}.tsv", "".join(relevance))
        files.write(made / "queries.jsonl", lines)
        files.rename_folder(made, out)
    return counts


def _query(row: Row, split: Split, place: str) -> tuple[dict[str, Any], list[str]]:
    """A question as a line of `queries.jsonl`, and its gold passages."""
    identity_key, text_key = (next(k for k in keys if row.get(k) is not None) for keys in (ID_KEYS, QUESTION_KEYS))
    gold = row.get("supporting_ids") or []
    for name in (row[identity_key], *gold):
        if set(name) & set("\t\r\n"):
            raise UserError(
                f"{place}: the id {name!r} has a tab or a line break, which BEIR's qrels cannot hold; rename it"
            )
    if "split" in row:
        raise UserError(f"{place}: the key 'split' is what an export tells the split by; rename it")
    told = {identity_key, text_key} | ({"supporting_ids"} if gold else set())
    metadata = {"split": split} | {key: value for key, value in row.items() if key not in told}
    return {"_id": row[identity_key], "text": row[text_key], "metadata": metadata}, gold

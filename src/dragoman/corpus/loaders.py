"""Reads a user's corpus and questions into `Passage` and `Question`, and refuses what is broken, by file and line.

A corpus is a JSONL file, a file of triples (TSV or RDF), a BEIR folder, a Hugging Face data set (from the hub or from
`save_to_disk`), or a folder of text files. Questions are a JSONL file in the project's own format, or the queries and
relevance labels of a BEIR folder (Thakur et al. 2021, arXiv 2104.08663). Nothing is ever skipped silently: one bad line
refuses the whole file.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from dragoman.core import rows
from dragoman.core.errors import UserError
from dragoman.core.rows import Faults, Row
from dragoman.core.types import Passage, Question

log = logging.getLogger(__name__)

ID_KEYS = ("id", "_id", "docid", "doc_id", "passage_id")
TITLE_KEYS = ("title", "name")
TEXT_KEYS = ("text", "contents", "passage", "content", "document")
QUESTION_KEYS = ("question", "text", "query")
TRIPLES = (".tsv", ".nt", ".ttl")
SAVED_BY_DATASETS = ("dataset_info.json", "dataset_dict.json")


def load_corpus(source: str | Path, *, limit: int | None = None) -> list[Passage]:
    """Read a corpus.

    Args:
        source: one of
            - a `.jsonl` file: an object a line with id (or `_id`), text and, optionally, title;
            - a file of triples, whose entities are the passages: `.tsv`, or RDF in `.nt` (N-Triples) or `.ttl` (Turtle);
            - a BEIR folder, which holds `corpus.jsonl`;
            - a folder of `.txt` and `.md` files, each a passage: its id is its path below the folder, its title the
              first Markdown heading or else the name of the file;
            - a folder that `datasets.save_to_disk` wrote;
            - `hf:NAME[:CONFIG][:SPLIT]`, where NAME is a data set of the hub or such a folder. Columns without a known
              name for the id are numbered from 0.
        limit: read only so many passages, the first ones. Faults behind them are not looked for.

    Raises:
        UserError: the source does not exist or is none of these; or it has no passage, a duplicate id, an empty text, a
            missing key, a wrong type, bad JSON or bad UTF-8. Up to five faults are named at once.
    """
    _check_limit(limit)
    name = str(source)
    if name.startswith("hf:"):
        return _passages(name, _dataset_rows(name, *_hub_address(name)), limit)
    path = Path(source)
    if path.is_file():
        if path.suffix in TRIPLES:
            from dragoman.corpus.triples import entity_passages, read_triples  # rdflib takes a while to import

            return entity_passages(read_triples(path))[:limit]
        if path.suffix != ".jsonl":
            raise UserError(
                f"{path}: a corpus file must be JSON lines and end in .jsonl, or triples and end in {', '.join(TRIPLES)}"
            )
        return _jsonl_passages(path, limit)
    if not path.is_dir():
        raise UserError(f"{path}: no such corpus; give a .jsonl file, a folder, or hf:NAME")
    if (path / "corpus.jsonl").is_file():
        return _jsonl_passages(path / "corpus.jsonl", limit)
    if any((path / mark).is_file() for mark in SAVED_BY_DATASETS):
        return _passages(name, _dataset_rows(name, name, None, None), limit)
    return _text_passages(path, limit)


def load_questions(path: str | Path, *, limit: int | None = None, require_answers: bool = True) -> list[Question]:
    """Read questions.

    Args:
        path: a JSONL file (id, question, answers, and optionally type, supporting_ids, triples; other keys are ignored);
            or a BEIR folder with `queries.jsonl`, whose `qrels/*.tsv` become the supporting ids; or one file of those
            qrels, for one split. With qrels, the queries without a relevant passage are left out, as BEIR does.
        limit: read only so many questions, the first ones. Faults behind them are not looked for.
        require_answers: refuse a question without answers. BEIR has none, so pass False for it.

    Raises:
        UserError: the file does not exist or holds no question, or a question has a duplicate id, an empty text, a
            missing key or a wrong type; or bad JSON or bad UTF-8. Up to five faults are named at once.
    """
    _check_limit(limit)
    path = Path(path)
    if path.is_dir() or path.suffix == ".tsv":
        folder = path if path.is_dir() else path.parent.parent
        source = folder / "queries.jsonl"
        if not source.is_file():
            raise UserError(
                f"{path}: no questions here; give a .jsonl file, or a BEIR folder with queries.jsonl and qrels/"
            )
        qrels = sorted(path.glob("qrels/*.tsv")) if path.is_dir() else [path]
        relevant = _qrels(qrels) if qrels else None
    else:
        source, relevant = path, None

    faults = Faults(source)
    lines: dict[str, int] = {}
    questions: list[Question] = []
    for number, row in rows.read(source, faults):
        identity = _text_of(row, ID_KEYS, faults, number)
        if identity is None or not _is_new(identity, lines, number, faults):
            continue
        if relevant is not None and identity not in relevant:
            continue
        question = _question(identity, row, require_answers, faults, number)
        if question is None:
            continue
        if relevant is not None:
            question = _with_support(question, relevant[identity])
        questions.append(question)
        if len(questions) == limit:
            break
    if relevant is not None and limit is None:
        for identity in sorted(relevant.keys() - lines.keys()):
            faults.add(f"has no query {identity!r}, which its qrels name")
    faults.check()
    if not questions:
        raise UserError(f"{source}: holds no question" + (" that its qrels name" if relevant is not None else ""))
    if relevant is not None:
        log.info("%s: %d questions with relevant passages", source, len(questions))
    return questions


# --- one row ---------------------------------------------------------------------------------------------------------


def _text_of(row: Row, keys: tuple[str, ...], faults: Faults, line: int, *, optional: bool = False) -> str | None:
    """The first of `keys` that the row has, when it is a text that is not blank; otherwise a fault, and None."""
    key = next((k for k in keys if row.get(k) is not None), None)
    if key is None:
        if optional:
            return ""
        faults.add(f"the key {keys[0]!r} is missing", line)
        return None
    value = row[key]
    if not isinstance(value, str):
        faults.add(f"{key!r} must be a string, found {type(value).__name__}", line)
        return None
    if not value.strip() and not optional:
        faults.add(f"{key!r} is empty", line)
        return None
    return value


def _texts_of(row: Row, key: str, faults: Faults, line: int) -> tuple[str, ...] | None:
    value = row.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        faults.add(f"{key!r} must be a list of strings", line)
        return None
    if not all(v.strip() for v in value):
        faults.add(f"{key!r} holds an empty string", line)
        return None
    return tuple(value)


def _triples_of(row: Row, faults: Faults, line: int) -> tuple[tuple[str, str, str], ...] | None:
    value = row.get("triples")
    if value is None:
        return ()
    well_formed = isinstance(value, list) and all(
        isinstance(t, list) and len(t) == 3 and all(isinstance(part, str) for part in t) for t in value
    )
    if not well_formed:
        faults.add("'triples' must be a list of [subject, relation, object], all strings", line)
        return None
    return tuple((s, r, o) for s, r, o in value)


def _question(identity: str, row: Row, require_answers: bool, faults: Faults, line: int) -> Question | None:
    before = faults.total
    text = _text_of(row, QUESTION_KEYS, faults, line)
    answers = _texts_of(row, "answers", faults, line)
    supporting = _texts_of(row, "supporting_ids", faults, line)
    triples = _triples_of(row, faults, line)
    kind = row.get("type")
    if kind is not None and not isinstance(kind, str):
        faults.add(f"'type' must be a string, found {type(kind).__name__}", line)
    if answers == () and require_answers:
        faults.add("'answers' is missing or empty", line)
    if faults.total > before or text is None or answers is None or supporting is None or triples is None:
        return None
    return Question(identity, text, answers, kind or "", supporting, triples)


def _with_support(question: Question, ids: list[str]) -> Question:
    return Question(question.id, question.question, question.answers, question.type, tuple(ids), question.triples)


def _is_new(identity: str, lines: dict[str, int], line: int, faults: Faults) -> bool:
    if identity in lines:
        faults.add(f"the id {identity!r} was used before, at {lines[identity]}", line)
        return False
    lines[identity] = line
    return True


def _check_limit(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise UserError(f"limit must be at least 1, found {limit}")


# --- JSON lines and BEIR ---------------------------------------------------------------------------------------------


def _jsonl_passages(path: Path, limit: int | None) -> list[Passage]:
    faults = Faults(path)
    return _collect(path, rows.read(path, faults), faults, limit)


def _passages(source: str, numbered: Iterable[tuple[int, Row]], limit: int | None) -> list[Passage]:
    return _collect(source, numbered, Faults(source), limit)


def _collect(
    source: Path | str, numbered: Iterable[tuple[int, Row]], faults: Faults, limit: int | None
) -> list[Passage]:
    """Build the passages; with a limit, stop after so many rows, faulty ones included."""
    lines: dict[str, int] = {}
    passages = []
    for number, row in islice(numbered, limit):
        identity = _text_of(row, ID_KEYS, faults, number)
        title = _text_of(row, TITLE_KEYS, faults, number, optional=True)
        text = _text_of(row, TEXT_KEYS, faults, number)
        if identity is not None and _is_new(identity, lines, number, faults) and title is not None and text is not None:
            passages.append(Passage(identity, title, text))
    faults.check()
    if not passages:
        raise UserError(f"{source}: holds no passage")
    return passages


def _qrels(paths: list[Path]) -> dict[str, list[str]]:
    """Query id -> ids of the passages with a positive score, out of BEIR's files `query-id corpus-id score`."""
    relevant: dict[str, list[str]] = {}
    for path in paths:
        faults = Faults(path)
        if not path.is_file():
            raise UserError(f"{path}: no such file")
        for number, raw in enumerate(path.read_bytes().splitlines(), start=1):
            try:
                fields = raw.decode("utf-8").split("\t")
            except UnicodeDecodeError as e:
                faults.add(f"not valid UTF-8 ({e.reason} at byte {e.start})", number)
                continue
            if (number == 1 and fields[0] == "query-id") or not raw.strip():
                continue
            if len(fields) != 3 or not re.fullmatch(r"-?\d+", fields[2].strip()):
                faults.add("expected query-id, corpus-id and a whole number as score, with tabs between", number)
            elif int(fields[2]) > 0:
                passages = relevant.setdefault(fields[0], [])
                if fields[1] not in passages:
                    passages.append(fields[1])
        faults.check()
    return relevant


# --- folders of text files -------------------------------------------------------------------------------------------


def _text_passages(folder: Path, limit: int | None) -> list[Passage]:
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.suffix in (".txt", ".md")
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )
    if not files:
        raise UserError(f"{folder}: no corpus here; expected corpus.jsonl, a saved data set, or .txt and .md files")
    faults = Faults(folder)
    passages = []
    for file in files[:limit]:
        raw = file.read_bytes()
        try:
            text = raw.decode("utf-8-sig").strip()
        except UnicodeDecodeError as e:
            line = raw.count(b"\n", 0, e.start) + 1
            faults.add(f"not valid UTF-8 ({e.reason} at byte {e.start})", line, path=file)
            continue
        if not text:
            faults.add("the file is empty", 1, path=file)
            continue
        heading = re.search(r"^#{1,6}[ \t]+(.+?)[ \t#]*$", text, flags=re.MULTILINE) if file.suffix == ".md" else None
        passages.append(Passage(file.relative_to(folder).as_posix(), heading[1] if heading else file.stem, text))
    faults.check()
    return passages


# --- Hugging Face data sets ------------------------------------------------------------------------------------------


def _hub_address(address: str) -> tuple[str, str | None, str | None]:
    """`hf:NAME[:CONFIG][:SPLIT]` -> name, config, split."""
    name, *rest = address.removeprefix("hf:").split(":")
    if not name or len(rest) > 2:
        raise UserError(f"{address}: expected hf:NAME, hf:NAME:CONFIG or hf:NAME:CONFIG:SPLIT")
    config, split = (*rest, "", "")[:2]
    return name, config or None, split or None


def _dataset_rows(address: str, name: str, config: str | None, split: str | None) -> Iterator[tuple[int, Row]]:
    """The rows of one split, numbered from 0, under the keys `id`, `title` and `text`."""
    import datasets

    try:
        loaded = datasets.load_from_disk(name) if Path(name).is_dir() else datasets.load_dataset(name, config)
    except (OSError, ValueError) as e:  # a wrong name, a wrong config, no network, a broken folder
        raise UserError(f"{address}: this data set could not be loaded ({e})") from e
    data = _split_of(address, loaded, split) if isinstance(loaded, datasets.DatasetDict) else loaded
    columns = {
        key: next((c for c in names if c in data.column_names), None)
        for key, names in (("id", ID_KEYS), ("title", TITLE_KEYS), ("text", TEXT_KEYS))
    }
    if columns["text"] is None:
        raise UserError(f"{address}: no text column; found {data.column_names}, expected one of {list(TEXT_KEYS)}")
    for number, record in enumerate(data):
        row = {key: record[column] for key, column in columns.items() if column is not None}
        if columns["id"] is None or (isinstance(row["id"], int) and not isinstance(row["id"], bool)):
            row["id"] = str(row.get("id", number))  # columns of whole numbers are common as ids
        yield number, row


def _split_of(address: str, splits: Any, wanted: str | None) -> Any:
    """The split asked for; else the only one, or the one that holds a corpus by its name."""
    names = list(splits)
    usual = [name for name in ("corpus", "passages", "train") if name in names]
    choice = wanted or (names[0] if len(names) == 1 else usual[0] if usual else None)
    if choice not in names:
        asked = f"no split {choice!r}" if choice else "several splits"
        raise UserError(f"{address}: {asked}; choose one of {names} as hf:NAME:CONFIG:SPLIT (CONFIG may be empty)")
    return splits[choice]

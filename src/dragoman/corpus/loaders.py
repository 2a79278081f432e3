"""Reads a user's corpus and questions into `Passage` and `Question`, and refuses what is broken, by file and line.

A corpus is a JSONL file, a file of triples (TSV or RDF), a BEIR folder, or a folder of text files. It may also be a Hugging
Face data set, from the hub or from `save_to_disk`. Questions are a JSONL file in the project's own format, or the queries and
relevance labels of a BEIR folder (Thakur et al. 2021, arXiv 2104.08663). Nothing is ever skipped silently: one bad line
refuses the whole file.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.rows import Faults, Row
from dragoman.core.text import count_words
from dragoman.core.types import Passage, Question
from dragoman.corpus.fields import ID_KEYS, TEXT_KEYS, TITLE_KEYS, question_of, text_of
from dragoman.corpus.hub import dataset_rows, hub_address, place_of
from dragoman.corpus.names import CORPUS, TRIPLES
from dragoman.corpus.triple_passages import triple_passages

log = logging.getLogger(__name__)

TRIPLE_SUFFIXES = (".tsv", ".nt", ".ttl")
TEXT_SUFFIXES = (".txt", ".md")
SAVED_BY_DATASETS = ("dataset_info.json", "dataset_dict.json")


def load_corpus(source: str | Path) -> list[Passage]:
    """Read a corpus.

    Args:
        source: one of
            - a `.jsonl` file: an object a line with id (or `_id`), text and, optionally, title;
            - a file of triples, each of which is a passage: `.tsv`, or RDF in `.nt` (N-Triples) or `.ttl` (Turtle);
            - a BEIR folder, which holds `corpus.jsonl`;
            - a folder of `.txt` and `.md` files, each a passage, whose id is its path below the folder. Its title is the
              first Markdown heading, or a short first line that stands alone, or else the name of the file. A warning
              counts the files of other kinds;
            - a folder that `datasets.save_to_disk` wrote;
            - `hf:NAME[@REVISION][:CONFIG][:SPLIT]`, where NAME is a data set of the hub or such a folder. Columns without
              a known name for the id are numbered from 0.

    Raises:
        UserError: the source does not exist or is none of these; or it has no passage, a duplicate id, an empty text, a
            missing key, a wrong type, bad JSON or bad UTF-8. Up to five faults are named at once. Or a file name is not UTF-8.
    """
    name = str(source)
    if name.startswith("hf:"):
        return _passages(name, dataset_rows(name, *hub_address(name)))
    path = Path(source)
    if path.is_file():
        if path.suffix in TRIPLE_SUFFIXES:
            from dragoman.corpus.triples import read_triples  # rdflib takes a while to import

            return triple_passages(read_triples(path))
        if path.suffix != ".jsonl":
            raise UserError(
                f"{path}: a corpus file must be JSON lines and end in .jsonl, or triples and end in {', '.join(TRIPLE_SUFFIXES)}"
            )
        return _jsonl_passages(path)
    if not path.is_dir():
        raise UserError(f"{path}: no such corpus; give a .jsonl file, a folder, or hf:NAME")
    if (path / CORPUS).is_file():
        return _jsonl_passages(path / CORPUS)
    if any((path / mark).is_file() for mark in SAVED_BY_DATASETS):
        return _passages(name, dataset_rows(name, name, None, None))
    return _text_passages(path)


def is_texts(source: str | Path) -> bool:
    """Whether a corpus is a folder of text files, whose passages are whole documents."""
    path = Path(source)
    return path.is_dir() and not any((path / mark).is_file() for mark in (CORPUS, *SAVED_BY_DATASETS))


def load_questions(path: str | Path, *, limit: int | None = None, require_answers: bool = True) -> list[Question]:
    """Read questions.

    Args:
        path: a JSONL file (id, question, answers, and optionally type, supporting_ids, triples, topic, parts, nuggets, reference;
            other keys are ignored); or a BEIR folder with `queries.jsonl`, whose `qrels/*.tsv` become the supporting ids; or one file of those
            qrels, for one split. With qrels, the queries without a relevant passage are left out, as BEIR does.
        limit: read only so many questions, the first ones. Faults behind them are not looked for.
        require_answers: refuse a question without answers. BEIR has none, so pass False for it.

    Raises:
        UserError: the file does not exist or holds no question, or a question has a duplicate id, an empty text, a
            missing key or a wrong type; or bad JSON or bad UTF-8. Up to five faults are named at once.
    """
    if limit is not None and limit < 1:
        raise UserError(f"limit must be at least 1, found {limit}")
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
    for number, row in files.read(source, faults):
        identity = text_of(row, ID_KEYS, faults, number)
        if identity is None or not _is_new(identity, lines, number, faults):
            continue
        if relevant is not None and identity not in relevant:
            continue
        question = question_of(identity, row, require_answers, faults, number)
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


def join_passages(parts: Iterable[tuple[str, list[Passage]]]) -> list[Passage]:
    """Several corpora as one, in their order; a passage that several of them have is in it once.

    Args:
        parts: the passages of each corpus, with its name.

    Raises:
        UserError: two corpora have different passages under one id.
    """
    first: dict[str, tuple[str, Passage]] = {}
    repeated = 0
    for name, passages in parts:
        for passage in passages:
            earlier, known = first.setdefault(passage.id, (name, passage))
            if known != passage:
                raise UserError(
                    f"{name}: the id {passage.id!r} stands for another passage than in {earlier}; give one of them another id"
                )
            repeated += known is not passage
    if repeated:
        log.info("%d passages are in several of the corpora, and were taken once", repeated)
    return [passage for _, passage in first.values()]


def files_of(source: str) -> list[Path]:
    """The files that `load_corpus` or `load_questions` may read for it, sorted; none where it is nothing on this disk.

    Raises:
        UserError: the name of one is not UTF-8.
    """
    path = place_of(source)
    if path.is_dir():
        return _visible(path)
    beside = [path.parent.parent / "queries.jsonl"] if path.suffix == ".tsv" else []  # of qrels
    return [file for file in (*beside, path) if file.is_file()]


def _with_support(question: Question, ids: list[str]) -> Question:
    return replace(question, supporting_ids=tuple(ids))


def _is_new(identity: str, lines: dict[str, int], line: int, faults: Faults) -> bool:
    if identity in lines:
        faults.add(f"the id {identity!r} was used before, at {lines[identity]}", line)
        return False
    lines[identity] = line
    return True


# --- JSON lines and BEIR ---------------------------------------------------------------------------------------------


def _jsonl_passages(path: Path) -> list[Passage]:
    faults = Faults(path)
    return _collect(path, files.read(path, faults), faults)


def _passages(source: str, numbered: Iterable[tuple[int, Row]]) -> list[Passage]:
    return _collect(source, numbered, Faults(source))


def _collect(source: Path | str, numbered: Iterable[tuple[int, Row]], faults: Faults) -> list[Passage]:
    lines: dict[str, int] = {}
    passages = []
    for number, row in numbered:
        identity = text_of(row, ID_KEYS, faults, number)
        title = text_of(row, TITLE_KEYS, faults, number, optional=True)
        text = text_of(row, TEXT_KEYS, faults, number)
        if identity is not None and _is_new(identity, lines, number, faults) and title is not None and text is not None:
            passages.append(Passage(identity, title, text))
    faults.check()
    if not passages:
        raise UserError(f"{source}: holds no passage")
    return passages


def _qrels(paths: list[Path]) -> dict[str, list[str]]:
    relevant: dict[str, list[str]] = {}
    for path in paths:
        if not path.is_file():
            raise UserError(f"{path}: no such file")
        faults = Faults(path)
        read_qrels(path.read_bytes().splitlines(), relevant, faults)
        faults.check()
    return relevant


def read_qrels(lines: Iterable[bytes], relevant: dict[str, list[str]], faults: Faults) -> None:
    """Add to `relevant`, by query id, the ids of the passages with a positive score, out of BEIR's `query-id corpus-id score`."""
    for number, raw in enumerate(lines, start=1):
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as e:
            faults.add(f"not valid UTF-8 ({e.reason} at byte {e.start})", number)
            continue
        fields = line.split("\t")
        if (number == 1 and fields[0] == "query-id") or not line.strip():
            continue
        if len(fields) != 3 or not re.fullmatch(r"-?\d+", fields[2].strip()):
            faults.add("expected query-id, corpus-id and a whole number as score, with tabs between", number)
        elif int(fields[2]) > 0:
            passages = relevant.setdefault(fields[0], [])
            if fields[1] not in passages:
                passages.append(fields[1])


# --- folders of text files -------------------------------------------------------------------------------------------


_HEADING = re.compile(r"^#{1,6}[ \t]+(.+?)(?:[ \t]+#*)?(?:[ \t]*\{[#.][^{}\n]*\})?[ \t\r]*$", re.MULTILINE)
"""Without closing marks and without the attributes that Pandoc writes behind a heading, such as `{#install .page}`."""
_FENCED = re.compile(r"^ {0,3}(`{3,}|~{3,})[^`\n]*$.*?(?:^ {0,3}\1[`~]*[ \t\r]*$|\Z)", re.MULTILINE | re.DOTALL)
"""A block of code, whose comments look like headings."""
_TITLE_WORDS = 12
_TITLE_LINE = re.compile(rf"(\S+(?:[ \t]+\S+){{0,{_TITLE_WORDS - 1}}})[ \t]*\r?\n[ \t]*\r?\n\s*(?=\S)")
"""Up to so many runs without a blank, alone on the first line. In a script without blanks one run may be many words."""


def _visible(folder: Path) -> list[Path]:
    """All files below a folder without the hidden ones, sorted.

    Raises:
        UserError: the name of one is not UTF-8, so that no id can be made of it.
    """
    visible = sorted(
        file
        for file in folder.rglob("*")
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )
    for file in visible:
        name = os.fsencode(file.relative_to(folder))
        try:
            name.decode()
        except UnicodeDecodeError:
            raise UserError(f"{folder}: the name of the file {name!r} is not UTF-8; give it another name") from None
    return visible


def _text_passages(folder: Path) -> list[Passage]:
    suffixes = {file: file.suffix.casefold() for file in _visible(folder)}
    texts = [file for file, suffix in suffixes.items() if suffix in TEXT_SUFFIXES]
    if not texts:
        raise UserError(f"{folder}: no corpus here; expected corpus.jsonl, a saved data set, or .txt and .md files")
    unread = (suffix for file, suffix in suffixes.items() if suffix not in TEXT_SUFFIXES and file != folder / TRIPLES)
    if others := Counter(suffix or "no suffix" for suffix in unread):
        counts = ", ".join(f"{count} with {suffix}" for suffix, count in sorted(others.items()))
        log.warning("%s: files that are not .txt or .md are left out: %s", folder, counts)
    faults = Faults(folder)
    passages = []
    for file in texts:
        if not file.resolve().is_relative_to(folder.resolve()):
            raise UserError(f"{file}: a link out of {folder}, to {file.resolve()}; copy the file, or remove the link")
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
        heading = _HEADING.search(_FENCED.sub("", text)) if suffixes[file] == ".md" else None
        title = heading[1] if heading else file.stem
        if heading is None and (first := _TITLE_LINE.match(text)) and count_words(first[1]) <= _TITLE_WORDS:
            title, text = first[1], text[first.end() :]
        passages.append(Passage(file.relative_to(folder).as_posix(), title, text))
    faults.check()
    return passages

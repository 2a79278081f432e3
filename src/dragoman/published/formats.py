"""The published formats by name, and reading files of them: one bad record refuses a file, by its line and what was expected there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pydantic import ValidationError

from dragoman.core.errors import UserError
from dragoman.core.rows import SHOWN, Faults, Row
from dragoman.core.settings import near
from dragoman.corpus.fields import question_of
from dragoman.corpus.names import Split
from dragoman.published import beir, records
from dragoman.published.records import NO_ANSWER, Entry, Record
from dragoman.published.source import Reader, Source, json_array, json_lines, json_list, pairs, table


@dataclass(frozen=True)
class Format:
    """How the records of a file are told apart, and what each must be."""

    about: str
    rows: Reader
    record: type[Record]
    lines: bool = False
    """Whether each record has a line of its own; elsewhere its number tells where it is."""


def _squad(source: Source) -> Iterator[tuple[int, Row | str]]:
    """The questions of SQuAD's articles, each with the title and the text of its paragraph; a paragraph alone, if it has none."""
    for line, article in json_list("data")(source):
        if isinstance(article, str):
            yield line, article
            continue
        paragraphs = article.get("paragraphs")
        for paragraph in paragraphs if isinstance(paragraphs, list) else [{}]:
            if not isinstance(paragraph, dict):
                yield line, f"expected an object as paragraph, found {type(paragraph).__name__}"
                continue
            around = {"title": article.get("title"), "context": paragraph.get("context")}
            asked = paragraph.get("qas")
            if asked == []:
                yield line, {"id": "", "question": "", "answers": [], **around, "asked": False}
            for question in asked if isinstance(asked, list) else [{}]:
                if isinstance(question, dict):
                    yield line, {"answers": [], **question, **around, "asked": True}
                else:
                    yield line, f"expected an object as question, found {type(question).__name__}"


FORMATS = {
    "hotpotqa": Format("a JSON array of questions with context", json_array, records.HotpotQA),
    "2wiki": Format("the same, with evidences", json_array, records.TwoWiki),
    "musique": Format("a question with its paragraphs a line", json_lines, records.MuSiQue, lines=True),
    "squad": Format("articles of paragraphs of questions, version 1.1 or 2.0", _squad, records.SQuAD),
    "dpr": Format("a JSON array of questions with positive and negative passages", json_array, records.DPR),
    "dpr-passages": Format(
        "a table of passages", table("id", "text", "title", delimiter="\t"), records.DPRPassage, lines=True
    ),
    "dpr-answers": Format(
        "a table of questions and answers", pairs("question", "answers"), records.DPRAnswers, lines=True
    ),
    "popqa": Format(
        "a table of questions", table("id", "question", "possible_answers", delimiter="\t"), records.PopQA, lines=True
    ),
    "bamboogle": Format("a table of questions", table("Question", "Answer"), records.Bamboogle, lines=True),
    "freshqa": Format(
        "a table of questions", table("id", "split", "question", "answer_0"), records.FreshQA, lines=True
    ),
    "multihop-rag": Format("a JSON array of questions", json_array, records.MultiHopRAG),
    "multihop-rag-corpus": Format("a JSON array of articles", json_array, records.Article),
    "qald": Format("questions with SPARQL and results", json_list("questions"), records.QALD),
}
NAMES = (*FORMATS, beir.NAME)


def entries(name: str, source: Source, split: Split | None = None, *, earlier: int = 0) -> Iterator[Entry]:
    """What a file holds, record by record.

    Args:
        name: of the format, one of `NAMES`.
        split: whose questions these are. Ids are made of it, and of the record's number, where a format has none.
        earlier: so many records of the split were in other files.

    Raises:
        UserError: no such format or file, or a record that is not of the format. Up to five are named at once; the rest of
            the file is then not read.
    """
    if name == beir.NAME:
        yield from beir.entries(source)
        return
    if name not in FORMATS:
        raise UserError(f"no format {name!r}{near(name, NAMES)}; there are: {', '.join(NAMES)}")
    form, faults = FORMATS[name], Faults(str(source), "the rest was not read")
    places: dict[str, str] = {}
    number = 0
    for number, (line, row) in enumerate(form.rows(source), start=1):
        here = str(line) if form.lines else f"record {number}"
        prefix = "" if form.lines else f"{here}: "
        before = faults.total
        if isinstance(row, str):
            faults.add(f"{row}; the format {name} is {form.about}", line)
        elif isinstance(record := _record(name, row), str):
            faults.add(prefix + record, line)
        else:
            entry = record.entry(f"{split or 'question'}-{earlier + number}")
            if entry.question is not None and not entry.question["answers"]:
                entry = replace(entry, question=None, left_out=NO_ANSWER)
            if entry.question is not None:
                identity = entry.question["id"]
                if (other := places.setdefault(identity, here)) != here:
                    faults.add(f"{prefix}the id {identity!r} was used before, at {other}", line)
                question_of(identity, entry.question, True, faults, line)
            if faults.total == before:
                yield entry
        if faults.total >= SHOWN:
            break
    if not number:
        raise UserError(f"{source}: holds nothing; the format {name} is {form.about}")
    faults.check()


def _record(name: str, row: Row) -> Record | str:
    """A record of the format, or in what it is none."""
    model = FORMATS[name].record
    if foreign := model.FOREIGN & row.keys():
        return f"{min(foreign)!r} does not belong to the format {name}{_hint(name, row)}"
    try:
        return model.model_validate(row)
    except ValidationError as e:
        error = e.errors(include_url=False, include_input=False)[0]
    key = ".".join(map(str, error["loc"]))
    if error["type"] != "missing":
        return f"{key!r}: {error['msg'].removeprefix('Value error, ')}; expected by the format {name}{_hint(name, row)}"
    if key in ("answer", "answers"):
        return f"{key!r} is missing: a test set whose answers are not published is of no use here{_hint(name, row)}"
    return f"{key!r} is missing, which the format {name} has{_hint(name, row)}"


def _hint(name: str, row: Row) -> str:
    """The format that a record seems to be of, if it is another."""
    for other, form in FORMATS.items():
        if other != name and not form.record.FOREIGN & row.keys():
            try:
                form.record.model_validate(row)
            except ValidationError:
                continue
            return f"; it looks like --format {other}"
    return ""

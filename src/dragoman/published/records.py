"""The records of published data sets, as their publishers describe them, and what each is in the project's form.

A record is validated by its model. Keys that a model does not name are ignored, as publishers add some.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, Json

from dragoman.core.errors import UserError
from dragoman.core.rows import Row
from dragoman.core.types import Passage
from dragoman.corpus.names import Split

HARD_NEGATIVES = 10
"""So many passages without the answer come along with each question of DPR, which gives up to a hundred."""

UNANSWERABLE = "questions that their passages do not answer"
NO_ANSWER = "questions without an answer"


@dataclass(frozen=True)
class Entry:
    """What one record holds: passages, and a question, as a line of a question file has it."""

    passages: tuple[Passage, ...] = ()
    question: Row | None = None
    split: Split | None = None
    """Where the record itself says it."""
    left_out: str = ""
    """What it holds in the place of a question, in the plural."""


class Record(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    FOREIGN: ClassVar[frozenset[str]] = frozenset()
    """Keys that show a record to be of a richer format, of which this one would lose a part."""

    def entry(self, name: str) -> Entry:
        """What the record holds; `name` is an id for a question that has none.

        Raises:
            UserError: the format's class does not say how to read it.
        """
        raise UserError(f"{type(self).__module__}.{type(self).__name__}: a format needs `def entry(self, name)`")


def passage(title: str, text: str) -> Passage:
    """A passage without an id of its own is known by its content: the start of SHA-1 of title, new line and text."""
    return Passage(hashlib.sha1(f"{title}\n{text}".encode()).hexdigest()[:12], title, text)


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name for name in names if name.strip()))


class HotpotQA(Record):
    """HotpotQA (Yang et al. 2018, arXiv 1809.09600): `context` has paragraphs as title and sentences, `supporting_facts` names the
    sentences behind the answer by title and place. Gold are the paragraphs of these titles."""

    FOREIGN = frozenset({"evidences"})

    id: str = Field(alias="_id")
    question: str
    answer: str
    supporting_facts: list[tuple[str, int]]
    context: list[tuple[str, list[str]]]
    type: str = ""
    level: str = ""

    def entry(self, name: str) -> Entry:
        found = tuple(passage(title, " ".join(s.strip() for s in text if s.strip())) for title, text in self.context)
        first = {p.title: p.id for p in reversed(found)}
        gold = _distinct(first.get(title, title) for title, _ in self.supporting_facts)
        row: Row = {"id": self.id, "question": self.question, "answers": _distinct([self.answer]), "type": self.type}
        row |= {"supporting_ids": gold} | ({"level": self.level} if self.level else {})
        return Entry(found, row)


class TwoWiki(HotpotQA):
    """2WikiMultiHopQA (Ho et al. 2020, arXiv 2011.01060): HotpotQA's format, with the triples behind the answer as `evidences`."""

    FOREIGN = frozenset()

    evidences: list[tuple[str, str, str]]

    def entry(self, name: str) -> Entry:
        entry = super().entry(name)
        return Entry(entry.passages, (entry.question or {}) | {"triples": [list(triple) for triple in self.evidences]})


class _Paragraph(Record):
    title: str
    paragraph_text: str
    is_supporting: bool


class _Step(Record):
    question: str
    answer: str


class MuSiQue(Record):
    """MuSiQue (Trivedi et al. 2022, arXiv 2108.00573): paragraphs that are marked as supporting or not. The start of an id tells hops and
    shape. Of MuSiQue-Full, the questions whose paragraphs were taken away are left out."""

    id: str
    question: str
    answer: str
    answer_aliases: list[str] = Field(default_factory=list)
    answerable: bool = True
    paragraphs: list[_Paragraph]
    question_decomposition: list[_Step]

    def entry(self, name: str) -> Entry:
        found = [passage(p.title, p.paragraph_text) for p in self.paragraphs]
        if not self.answerable:
            return Entry(tuple(found), left_out=UNANSWERABLE)
        gold = [p.id for p, paragraph in zip(found, self.paragraphs, strict=True) if paragraph.is_supporting]
        row: Row = {"id": self.id, "question": self.question, "answers": _distinct([self.answer, *self.answer_aliases])}
        row |= {"type": self.id.partition("__")[0], "supporting_ids": _distinct(gold)}
        row |= {"decomposition": [step.model_dump() for step in self.question_decomposition]}
        return Entry(tuple(found), row)


class _Span(Record):
    text: str


class SQuAD(Record):
    """A question of SQuAD 1.1 or 2.0 (Rajpurkar et al. 2016, arXiv 1606.05250) with its paragraph, which is gold."""

    id: str
    question: str
    answers: list[_Span]
    title: str
    context: str
    is_impossible: bool = False
    asked: bool = True
    """Whether there is a question: some paragraphs have none."""

    def entry(self, name: str) -> Entry:
        found = passage(self.title.replace("_", " "), self.context)
        if not self.asked:
            return Entry((found,))
        if self.is_impossible:
            return Entry((found,), left_out=UNANSWERABLE)
        row: Row = {"id": self.id, "question": self.question, "answers": _distinct(span.text for span in self.answers)}
        return Entry((found,), row | {"type": "single_hop", "supporting_ids": [found.id]})


class _Context(Record):
    title: str
    text: str
    number: str | int | None = Field(None, validation_alias=AliasChoices("passage_id", "psg_id"))

    @property
    def passage(self) -> Passage:
        by_content = passage(self.title, self.text)
        return by_content if self.number is None else Passage(str(self.number), self.title, self.text)


class DPR(Record):
    """A question of DPR's training files (Karpukhin et al. 2020, arXiv 2004.04906). Gold is the first positive passage, the one that
    DPR trains on: an annotator's choice where there was one, else what BM25 ranks first of those with the answer."""

    question: str
    answers: list[str]
    positive_ctxs: list[_Context]
    hard_negative_ctxs: list[_Context]

    def entry(self, name: str) -> Entry:
        found = [context.passage for context in (*self.positive_ctxs, *self.hard_negative_ctxs[:HARD_NEGATIVES])]
        gold = [found[0].id] if self.positive_ctxs else []
        row: Row = {"id": name, "question": self.question, "answers": _distinct(self.answers)}
        return Entry(tuple(found), row | {"type": "single_hop", "supporting_ids": gold})


class DPRPassage(Record):
    """A row of DPR's Wikipedia, `psgs_w100.tsv`."""

    id: str
    text: str
    title: str

    def entry(self, name: str) -> Entry:
        return Entry((Passage(self.id, self.title, self.text),))


def _python_list(text: Any) -> Any:
    try:
        return ast.literal_eval(text) if isinstance(text, str) else text
    except (ValueError, SyntaxError):
        raise ValueError("expected a list as Python writes it") from None


class DPRAnswers(Record):
    """A row of DPR's files of questions and answers, `nq-test.qa.csv`: a question and a list as Python writes it."""

    question: str
    answers: Annotated[list[str], BeforeValidator(_python_list)]

    def entry(self, name: str) -> Entry:
        row: Row = {"id": name, "question": self.question, "answers": _distinct(self.answers), "type": "single_hop"}
        return Entry(question=row)


class PopQA(Record):
    """A row of PopQA (Mallen et al. 2023, arXiv 2212.10511); `prop` is the relation that is asked for."""

    id: str
    question: str
    possible_answers: Json[list[str]]
    prop: str = ""

    def entry(self, name: str) -> Entry:
        row: Row = {
            "id": self.id,
            "question": self.question,
            "answers": _distinct(self.possible_answers),
            "type": self.prop,
        }
        return Entry(question=row)


class Bamboogle(Record):
    """A row of Bamboogle (Press et al. 2023, arXiv 2210.03350)."""

    question: str = Field(alias="Question")
    answer: str = Field(alias="Answer")

    def entry(self, name: str) -> Entry:
        row: Row = {"id": name, "question": self.question, "answers": _distinct([self.answer]), "type": "2hop"}
        return Entry(question=row)


class FreshQA(Record):
    """A row of FreshQA (Vu et al. 2023, arXiv 2310.03214), whose answers stand in columns `answer_0`, `answer_1` and so on."""

    model_config = ConfigDict(extra="allow")

    id: str
    split: str
    question: str
    fact_type: str = ""
    false_premise: str = ""
    num_hops: str = ""

    def entry(self, name: str) -> Entry:
        columns = sorted((int(key[7:]), value) for key, value in (self.model_extra or {}).items() if _is_answer(key))
        row: Row = {"id": self.id, "question": self.question, "answers": _distinct(value for _, value in columns)}
        row |= {"type": self.fact_type, "num_hops": self.num_hops, "false_premise": self.false_premise == "TRUE"}
        splits: dict[str, Split] = {"TRAIN": "train", "DEV": "dev", "TEST": "test"}
        return Entry(question=row, split=splits.get(self.split))


def _is_answer(column: str) -> bool:
    return column.startswith("answer_") and column[7:].isdecimal()


def _article_id(url: str) -> str:
    return hashlib.sha1(url.encode()).hexdigest()[:12]


class Article(Record):
    """An article of MultiHop-RAG's `corpus.json`, known by its URL."""

    title: str
    body: str
    url: str

    def entry(self, name: str) -> Entry:
        return Entry((Passage(_article_id(self.url), self.title, self.body),))


class _Evidence(Record):
    url: str


class MultiHopRAG(Record):
    """A question of MultiHop-RAG (Tang and Yang 2024, arXiv 2401.15391). A `null_query` has no evidence."""

    query: str
    answer: str
    question_type: str
    evidence_list: list[_Evidence]

    def entry(self, name: str) -> Entry:
        row: Row = {"id": name, "question": self.query, "answers": _distinct([self.answer]), "type": self.question_type}
        return Entry(question=row | {"supporting_ids": _distinct(_article_id(e.url) for e in self.evidence_list)})


class _Wording(Record):
    language: str
    string: str


class _Query(Record):
    sparql: str


class _Cell(Record):
    value: str


class _Bindings(Record):
    bindings: list[dict[str, _Cell]] = Field(default_factory=list)


class _Result(Record):
    boolean: bool | None = None
    results: _Bindings = _Bindings()

    @property
    def values(self) -> list[str]:
        if self.boolean is not None:
            return ["yes" if self.boolean else "no"]
        return [cell.value.removeprefix(_WIKIDATA) for row in self.results.bindings for cell in row.values()]


_WIKIDATA = "http://www.wikidata.org/entity/"


class QALD(Record):
    """A question of QALD-10 (Usbeck et al. 2023, doi 10.3233/SW-233471) in English; `answers` are SPARQL's JSON results."""

    question: list[_Wording]
    query: _Query
    answers: list[_Result]

    def entry(self, name: str) -> Entry:
        wording = next((w.string for w in self.question if w.language == "en" and w.string.strip()), None)
        answers = _distinct(value for result in self.answers for value in result.values)
        if wording is None or not answers:
            return Entry(left_out="questions not asked in English" if wording is None else NO_ANSWER)
        row: Row = {"id": name, "question": wording, "answers": answers, "type": "sparql"}
        return Entry(question=row | {"sparql": self.query.sparql})

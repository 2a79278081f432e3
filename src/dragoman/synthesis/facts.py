"""What passages say, ready to be asked for: facts out of triples where there are any, out of the text itself otherwise.

A fact is a noun phrase and what it stands for, such as "the capital of Bhutan" and Thimphu. No model is asked.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from dragoman.core.settings import read_yaml
from dragoman.core.text import content_words, has, key, stands_in
from dragoman.core.types import Passage, Triple
from dragoman.corpus.atlas.facts import ALIAS

RELATIONS = Path(__file__).with_name("relations.yaml")
SHORTEST, LONGEST = 6, 32  # words of a sentence that is asked about
SHORTEST_SPAN = 3  # characters of a name, a number or a date that is asked for
GAP = "____"
MOST_STATED = 1 / 2  # of the passages: where more have a fact out of triples, the others are not read
SMALL = frozenset(("am", "be", "i", "me", "my", "no", "so", "us"))  # beside those that `content_words` leaves out

_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9“\"])")
_WORD = r"(?<![\w/-])[A-Z](?:\w|[’'/-](?!s\b)\w)+"  # with a capital: "O'Brien", "X-200/B", and of "Dante's" the "Dante"
_NAME = re.compile(rf"\b{_WORD}(?:\s+(?:of|the|de|la|and)?\s*{_WORD})*")
_NUMBER = re.compile(r"(?<![\w/-])\d[\d,.]*\d(?:[/-]\d(?:[\w.]*\w)?)*(?![\w/-])")
"""`1,500` and `4711-0815`, each whole; not the `200` of `X-200`, nor the `10` of `10-year`: cover-EM finds no part of a word."""
_MILLIONS = re.compile(r"\d{1,3}(?:,\d{3}){2}")
_MONTH = "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
_DATE = re.compile(rf"\b(?:\d{{1,2}} {_MONTH}|{_MONTH}(?: \d{{1,2}})?)(?:,? \d{{4}})?\b")
_DEFINITION = re.compile(r"^(?P<what>.{2,80}?)\s(?:is|was|are|were)\s(?P<as>(?:an?|the)\s[^.;]{10,160})")
_MARKUP = re.compile(r"[*_`]+|!?\[([^\]]*)\]\([^)]*\)")
_LIST_ITEM = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+")
_WHOLE = re.compile(r"[A-Z0-9“\"].*[.!?][”\")]?$", re.S)
_COPULA = re.compile(r"(?:is|are|was|were)\b", re.I)
_LINKING = re.compile(r"\b(?:after|as|at|by|for|from|in|into|near|of|on|since|to|under|with)$", re.I)
_NOT_PROSE = ("#", "|", "```", "- [", "<", "    ")


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that a passage says."""

    passage: str
    """The id of the passage."""
    aspect: str
    """What kind of thing it is: a relation, or `definition`, `name`, `number`, `date`. Two facts of one aspect can be compared."""
    subject: str
    """What the fact is about, as a person would call it."""
    plain: str
    """The noun phrase in everyday words; that of a triple has `{s}` where the subject stands."""
    expert: str
    """The same in the words of the trade."""
    distant: str
    """The same in words that the passage does not use; empty where there are none."""
    answers: tuple[str, ...]
    triple: Triple | None = None


@cache
def relations() -> dict[str, dict[str, str] | None]:
    """How each relation of the built-in corpus is asked for: `relations.yaml`. None: it is not."""
    asked: dict[str, dict[str, str] | None] = read_yaml(RELATIONS)
    return asked


def worded(relation: str) -> dict[str, str] | None:
    """How a relation is asked for, with `{s}` for the subject; None where it is not.

    One that `relations` does not know is asked for in its own words: "the owner of {s}", "the thing that {s} is part of".
    """
    if relation in relations():
        return relations()[relation]
    name = " ".join(relation.replace("_", " ").split()).removeprefix("the ")
    if _LINKING.search(name):
        plain = f"the thing that {{s}} {name if _COPULA.match(name) else f'is {name}'}"
    else:
        plain = f"the {name} of {{s}}"
    return {"plain": plain, "expert": plain, "distant": ""}


def facts_of(passages: Sequence[Passage], triples: Iterable[Triple] = ()) -> dict[str, list[Fact]]:
    """The facts of each passage, by its id: those that triples state and, of passages without any, what their text says.

    Texts are read only where at most half of the passages have a stated fact. A corpus that is made of triples, as the built-in
    one, is asked about in their words alone.
    """
    by_passage: dict[str, list[Fact]] = defaultdict(list)
    for fact in _stated(passages, list(triples))[0]:
        by_passage[fact.passage].append(fact)
    if len(by_passage) <= MOST_STATED * len(passages):
        linked = _links(passages)
        for passage in [passage for passage in passages if passage.id not in by_passage]:
            if read := list(_read(passage, linked)):
                by_passage[passage.id] = read
    return dict(by_passage)


def left_out(passages: Sequence[Passage], triples: Iterable[Triple]) -> dict[str, int]:
    """How many triples are not asked for, by the reason, the most frequent first."""
    return dict(_stated(passages, list(triples))[1].most_common())


def unambiguous(facts: Mapping[str, Sequence[Fact]], passages: Sequence[Passage]) -> tuple[dict[str, list[Fact]], int]:
    """The facts whose words have one answer, by passage, and how many others there are.

    A fact is left out where another one is asked for in the same words and has another answer. So is a definition which
    stands in a passage about something else.
    """
    every = [fact for known in facts.values() for fact in known]
    answers: dict[str, set[str]] = defaultdict(set)
    for fact in every:
        answers[key(phrase(fact, "plain"))].add(fact.answers[0])
    defined = {fact.passage: key(_definition(fact)) for fact in every if fact.aspect == "definition"}
    elsewhere = _said_of_others(defined, passages)
    clear: dict[str, list[Fact]] = {}
    for id, known in facts.items():
        kept = [
            fact
            for fact in known
            if len(answers[key(phrase(fact, "plain"))]) == 1 and not (fact.aspect == "definition" and id in elsewhere)
        ]
        if kept:
            clear[id] = kept
    return clear, len(every) - sum(map(len, clear.values()))


def _definition(fact: Fact) -> str:
    """How a definition defines its title."""
    return fact.plain.partition("“")[2]


def _said_of_others(defined: Mapping[str, str], passages: Sequence[Passage]) -> set[str]:
    """The passages whose definition stands in one of another title. Each text is read once, however many there are."""
    titles = {passage.id: passage.title for passage in passages}
    meant: dict[str, set[str]] = defaultdict(set)  # passages by definition
    lengths: dict[str, set[int]] = defaultdict(set)  # of definitions in words, by their first two
    for id, definition in defined.items():
        words = definition.split()
        meant[definition].add(id)
        lengths[" ".join(words[:2])].add(len(words))
    found = set()
    for passage in passages:
        words = key(passage.text).split()
        for start in range(len(words)):
            for length in lengths.get(" ".join(words[start : start + 2]), ()):
                same = meant.get(" ".join(words[start : start + length]), ())
                found |= {id for id in same if titles[id] != passage.title}
    return found


def _stated(passages: Sequence[Passage], triples: Sequence[Triple]) -> tuple[list[Fact], Counter[str]]:
    """What triples state, and how many of them are not asked for, by the reason.

    A triple is asked for when nothing else stands in the answer's place, and when a passage about its subject says it.
    """
    titled: dict[str, list[Passage]] = defaultdict(list)
    for passage in passages:
        titled[passage.title].append(passage)
    objects: dict[tuple[str, str], list[str]] = defaultdict(list)
    aliases: dict[str, list[str]] = defaultdict(list)
    for subject, relation, object_ in triples:
        objects[subject, relation].append(object_)
        if relation == ALIAS:
            aliases[subject].append(object_)
    stated: list[Fact] = []
    unused: Counter[str] = Counter()
    for (subject, relation), ends in objects.items():
        if relation == ALIAS:
            continue
        words = worded(relation)
        saying = [passage for passage in titled[subject] if stands_in(passage.text, ends[0])]
        if words is None:
            unused["of relations that relations.yaml leaves out"] += len(ends)
        elif len(ends) > 1:
            unused["with several objects for one question"] += len(ends)
        elif not titled[subject]:
            unused["about what no passage has as its title"] += 1
        elif not saying:
            unused["that no passage about their subject says"] += 1
        elif _is_small(ends[0]):
            unused["with a small word as object"] += 1
        else:
            names = (ends[0], *_rounded(ends[0]), *(aliases[ends[0]] if not ends[0][0].isdigit() else ()))
            stated.append(
                Fact(
                    saying[0].id, relation, subject, words["plain"], words["expert"], words["distant"], names,
                    (subject, relation, ends[0]),
                )
            )  # fmt: skip
    return stated, unused


def _is_small(answer: str) -> bool:
    """Whether it is a small word once its marks and capitals are gone, as `.in` and the symbol `As`: each sentence has it."""
    return key(answer) in SMALL or not content_words(key(answer))


def _rounded(number: str) -> list[str]:
    """How one says a number of millions: `1,750,000` is 1.75 million."""
    return [f"{int(number.replace(',', '')) / 1e6:g} million"] if _MILLIONS.fullmatch(number) else []


_Links = Mapping[tuple[str, str, str], set[str]]
"""What an account links with a name: answers by its title, their aspect and that name."""


def _links(passages: Sequence[Passage]) -> _Links:
    linked: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for passage in passages:
        title = passage.title.strip()
        for sentence in sentences(passage.text):
            found = _found(passage, title, sentence)
            for name in {span[0] for aspect, span in found if aspect == "name"}:
                for aspect, span in found:
                    if span[0] != name:
                        linked[title, aspect, name].add(span[0])
    return linked


def _read(passage: Passage, linked: _Links) -> Iterator[Fact]:
    """Definitions, and sentences with a gap where a name or a number was."""
    title = passage.title.strip()
    for place, sentence in enumerate(sentences(passage.text)):
        if not SHORTEST <= len(sentence.split()) <= LONGEST:
            continue
        found = _DEFINITION.match(sentence)
        if found and place == 0 and title and has(found["what"], title) and not has(found["as"], title):
            what = found["as"].rstrip(" ,")
            yield Fact(
                passage.id, "definition", title, f"the name of what is described as “{what}”",
                f"the designation of what is defined as “{what}”", "", (title,),
            )  # fmt: skip
        yield from _gaps(passage, title, sentence, linked)


def spans(passage: Passage) -> list[str]:
    """The names, dates and numbers that a text says of its title, each once: what it can be asked for in a few words."""
    title = passage.title.strip()
    found = [span for sentence in sentences(passage.text) for _, span in _found(passage, title, sentence)]
    return list(dict.fromkeys(span[0] for span in found if len(span[0]) >= SHORTEST_SPAN))


def _found(passage: Passage, title: str, sentence: str) -> list[tuple[str, re.Match[str]]]:
    """The spans of a sentence, each with its aspect. What is part of a date is neither a name nor a number."""
    dates = list(_DATE.finditer(sentence))

    def apart(span: re.Match[str]) -> bool:
        return not any(span.start() < date.end() and date.start() < span.end() for date in dates)

    names = [m for m in _NAME.finditer(sentence) if m.start() > 0 and not has(title, m[0]) and apart(m)]
    names = [m for m in names if not re.search(rf"\b{re.escape(m[0].lower())}\b", passage.text)]  # a word, capitalized
    numbers = [m for m in _NUMBER.finditer(sentence) if apart(m)]
    return [*(("name", m) for m in names), *(("number", m) for m in numbers), *(("date", m) for m in dates)]


def _gaps(passage: Passage, title: str, sentence: str, linked: _Links) -> Iterator[Fact]:
    found = _found(passage, title, sentence)
    names = [span for aspect, span in found if aspect == "name"]
    for aspect, span in found:
        answer = span[0]
        if len(answer) < SHORTEST_SPAN or sentence.count(answer) > 1:
            continue
        open_ = (sentence[: span.start()] + GAP + sentence[span.end() :]).rstrip(".")
        others = [m[0] for m in names if m[0] != answer and not has(m[0], answer)]
        others = [name for name in others if linked[title, aspect, name] == {answer}]  # else it has several answers
        distant = f"the {aspect} that the account of {title} links with {others[0]}" if others and title else ""
        yield Fact(
            passage.id, aspect, title, f"the {aspect} missing from “{open_}”", f"the exact {aspect} that completes “{open_}”",
            distant, (answer,),
        )  # fmt: skip


def mentions(text: str) -> list[str]:
    """The names, dates and numbers in a question. A word is no name for being the first of its sentence."""
    said = [sentence[:1].lower() + sentence[1:] for sentence in _SENTENCE.split(text)]
    return [span[0] for sentence in said for finder in (_NAME, _NUMBER) for span in finder.finditer(sentence)]


def sentences(text: str) -> list[str]:
    """The whole sentences of a text, Markdown taken off; headings, tables, code and lists of links are no sentences.

    What begins or ends without the marks of a sentence is a heading, or was cut off where a long text was chunked.
    """
    paragraphs, code = [""], False
    for line in text.splitlines():
        if line.startswith("```"):
            code = not code
        if code or not line.strip() or line.startswith(_NOT_PROSE):
            paragraphs.append("")
        elif _LIST_ITEM.match(line):
            paragraphs.append(_LIST_ITEM.sub("", line))
        else:
            paragraphs[-1] += f" {line.strip()}"
    plain = [_MARKUP.sub(lambda m: m[1] or "", paragraph).strip() for paragraph in paragraphs]
    split = [sentence.strip() for paragraph in plain for sentence in _SENTENCE.split(paragraph)]
    return [sentence for sentence in split if _WHOLE.match(sentence)]


def through(first: Fact, second: Fact) -> Fact:
    """The second fact, asked for by way of the first: `the currency of the country of Monterrey`."""

    def joined(name: str) -> str:
        way, end = getattr(first, name), getattr(second, name)
        return str(end).replace("{s}", way) if way else ""

    return replace(
        second, subject=first.subject, plain=joined("plain"), expert=joined("expert"), distant=joined("distant")
    )


def phrase(fact: Fact, wording: str, subject: str | None = None) -> str:
    """The noun phrase of a fact in one of its wordings, about its subject or whatever stands for it."""
    text = str(getattr(fact, wording))
    return text.replace("{s}", subject or fact.subject) if fact.triple else text

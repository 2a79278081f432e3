"""Checks a question against the triples alone, without the code that made it.

It knows the type of the question, its words, and the facts. It finds the start by its name in the text, walks the path over
all triples, and wants one end. From the words of a comparison it reads which side is asked for.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable

from dragoman.core.types import Question

Triple = tuple[str, str, str]

ALIAS = "also called"
CHAINS = {"single_hop", "compositional", "inference"}
COMPARISONS = {"comparison", "bridge_comparison"}
MORE = r"\b(larger|more|higher|later)\b"
LESS = r"\b(smaller|fewer|lower|earlier|first)\b"


class TripleIndex:
    """Triples, to be looked up from both ends."""

    def __init__(self, triples: Iterable[Triple]) -> None:
        self.triples = set(triples)
        self._objects: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._subjects: dict[tuple[str, str], set[str]] = defaultdict(set)
        for subject, relation, object_ in self.triples:
            self._objects[subject, relation].add(object_)
            self._subjects[object_, relation].add(subject)

    def step(self, node: str, relation: str, forward: bool) -> set[str]:
        return (self._objects if forward else self._subjects).get((node, relation), set())

    def names(self, node: str) -> set[str]:
        return {node} | self.step(node, ALIAS, True)


def verify(question: Question, triples: TripleIndex) -> list[str]:
    """What is wrong with a question; nothing when its answer follows from the triples and is the only one."""
    if missing := [t for t in question.triples if t not in triples.triples]:
        return [f"not among the triples: {missing}"]
    if not question.answers or not question.triples:
        return ["no answer or no path"]
    if question.type in CHAINS:
        return _chain(question, triples)
    if question.type in COMPARISONS:
        return _comparison(question, triples)
    return [f"unknown type {question.type!r}"]


def _chain(question: Question, triples: TripleIndex) -> list[str]:
    faults = [f"the question says its answer {a!r}" for a in question.answers if _mentions(question.question, {a})]
    ways = [
        w for w in _ways(question.triples, question.question, triples) if set(question.answers) & triples.names(w[-1])
    ]
    if not ways:
        return [*faults, "no way from something in the question along the path to the answer"]
    for start, ends, end in ways:
        if ends != {end}:
            faults.append(f"several answers from {start!r}: {sorted(ends)}")
        if not set(question.answers) <= triples.names(end) or question.answers[0] != end:
            faults.append(f"the answers {question.answers} are not the names of {end!r}")
    return faults


def _comparison(question: Question, triples: TripleIndex) -> list[str]:
    half = len(question.triples) // 2
    sides = []
    for part in (question.triples[:half], question.triples[half:]):
        ways = [(start, ends, end) for start, ends, end in _ways(part, question.question, triples) if ends == {end}]
        if len(ways) != 1:
            return [f"not one way to one end along {part}"]
        sides.append(ways[0])
    (one, _, value), (other, _, other_value) = sides
    if one == other:
        return ["compares a thing with itself"]
    if question.answers[0] in ("yes", "no"):
        expected = "yes" if value == other_value else "no"
        return [] if question.answers == (expected,) else [f"{value!r} and {other_value!r}: should be {expected}"]
    if _value(value) == _value(other_value):
        return [f"both have {value!r}"]
    more_is_one = _value(value) > _value(other_value)
    winner = one if more_is_one == _asks_for_more(question.question) else other
    right = question.answers[0] == winner and set(question.answers) <= triples.names(winner)
    return [] if right else [f"{one!r} has {value!r}, {other!r} has {other_value!r}: should be {winner!r}"]


def _ways(path: tuple[Triple, ...], text: str, triples: TripleIndex) -> list[tuple[str, set[str], str]]:
    """The ways to read a path from something that the text mentions: start, all ends by these relations, the path's end."""
    ways = []
    one, other = path[0][0], path[0][2]
    for start, end in dict.fromkeys(((one, other), (other, one))):
        if not _mentions(text, triples.names(start), beside=triples.names(end)):
            continue
        node, reached = start, {start}
        for subject, relation, object_ in path:
            if node not in (subject, object_):
                break
            forward = node == subject
            node = object_ if forward else subject
            reached = {end for n in reached for end in triples.step(n, relation, forward)} - {start}
        else:
            ways.append((start, reached, node))
    return ways


def _asks_for_more(text: str) -> bool:
    if "north" in text or "south" in text:
        return "north" in text
    more, less = re.search(MORE, text), re.search(LESS, text)
    if bool(more) == bool(less):
        raise ValueError(f"cannot tell which side is asked for: {text}")
    return bool(more)


def _value(text: str) -> float:
    found = re.match(r"-?[\d,.]+", text)
    if not found:
        raise ValueError(f"not a number: {text}")
    value = float(found[0].replace(",", ""))
    return -value if text.endswith("° S") else value


def _mentions(text: str, names: Iterable[str], *, beside: Iterable[str] = ()) -> bool:
    """Whether a name occurs in the text, and not only as a part of one `beside` it: "Sierra Leone" names no leone."""
    wanted = [f" {_words(name)} " for name in names]
    words = f" {_words(text)} "
    for longer in (f" {_words(name)} " for name in beside):
        if longer not in wanted and any(name in longer for name in wanted):
            words = words.replace(longer, " | ")
    return any(name in words for name in wanted)


def _words(text: str) -> str:
    plain = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return " ".join(re.findall(r"\w+", plain.casefold()))

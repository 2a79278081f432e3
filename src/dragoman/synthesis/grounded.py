"""Writes questions without a model: facts of the passages, put in the words that `phrasings.yaml` has for each category.

What it writes is stiff and right: every question has an answer that its passages state.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import islice, product
from pathlib import Path
from typing import Any

from dragoman.core.errors import UserError
from dragoman.core.hashing import sha256_of
from dragoman.core.journal import digest
from dragoman.core.settings import read_yaml
from dragoman.core.text import has
from dragoman.synthesis.brief import NOTHING_TO_ASK, Brief, Draft, Rejected
from dragoman.synthesis.facts import GAP, Fact, phrase, through
from dragoman.synthesis.plan import Plan

PHRASINGS = Path(__file__).with_name("phrasings.yaml")
LIES = 0.5  # share of the questions of yes or no that are to be answered with no
NAMING = ("verbose and natural",)  # phrasings that name the subject
SHORT_QUERY, LONG_QUERY = 6, 8  # most and least keywords
MOST_ANSWERS = 12  # ways to say several things at once, of all their names
STOPWORDS = frozenset(re.findall(r"\w+", """
    a an and are as at be by does for from has have how in is it its of on or that the their there these this to was were
    what when where which who whose will with
"""))  # fmt: skip
OURS = frozenset(
    re.findall(r"\w+", "account completes defined described exact links missing")
)  # in a phrase about a text


@cache
def phrasings() -> dict[str, Any]:
    return read_yaml(PHRASINGS)


class GroundedWriter:
    """A `Writer` over the facts of a corpus (see `facts_of`)."""

    def __init__(self, facts: Mapping[str, Sequence[Fact]]) -> None:
        self.facts = facts
        self.fingerprint = f"grounded 3 {sha256_of([PHRASINGS])[:12]} {digest(sorted(facts.items()))}"
        self._others: dict[str, list[str]] = {}  # the answers to each aspect, for what is likely but wrong
        for fact in (fact for known in facts.values() for fact in known):
            self._others.setdefault(fact.aspect, []).append(fact.answers[0])

    @staticmethod
    def check(plan: Plan) -> None:
        """
        Raises:
            UserError: the plan wants what there are no words for; an engine may have them.
        """
        words = phrasings()
        asked = words["kernels"].keys()
        plan.require("user_expertise", words["premises"].keys())
        plan.require("question_phrasing", words["phrasings"].keys())
        plan.require("answer_phrasing", words["answers"].keys())
        plan.require("answer_intent", asked)
        plan.require("question_intent", asked)
        plan.require("premise", {"with premise", "without premise"})
        plan.require("lexical_similarity", {"similar to document", "distant from document", "unpopular entities"})
        plan.require("aspect_granularity", {"single aspect", "multiple aspects"})
        for name in ("question_phrasing", "answer_phrasing"):
            if any(name not in (*plan.core, *combination) for combination in plan.combinations):
                raise UserError(f"{name}: the grounded writer needs it in every combination; use an engine")

    async def write(self, brief: Brief, candidates: int) -> Sequence[Draft | Rejected]:
        return [self._write(brief, brief.rng(f"candidate {n}")) for n in range(candidates)]

    def _write(self, brief: Brief, rng: random.Random) -> Draft | Rejected:
        wanted, words = brief.categories, phrasings()
        asked, needed = self._facts(brief, rng)
        if not asked:
            return Rejected(NOTHING_TO_ASK, ", ".join(p.id for p in brief.passages))
        first = asked[0]
        expert = wanted.get("user_expertise") == "expert"
        wording = "expert" if expert else "plain"
        if wanted.get("lexical_similarity") == "distant from document":
            if not all(fact.distant for fact in asked):
                return Rejected("no other words", first.plain)
            wording = "distant"
        two_turns = wanted.get("interaction_type") == "two-turn"
        if not first.subject and (two_turns or wanted["question_phrasing"] in NAMING):
            return Rejected("no name for its subject", first.passage)
        named = first.triple is not None
        style = wanted["question_phrasing"]
        query = style.endswith("query")  # which no search engine reads together with what was said before
        builds_on = two_turns and named and not query
        phrases = [
            _its(phrase(f, wording, "it")) if builds_on and f.subject == first.subject else phrase(f, wording)
            for f in asked
        ]
        intent = wanted.get("question_intent") or wanted.get("answer_intent") or "factoid"
        if intent == "comparison" and len(asked) < 2:
            return Rejected("nothing to compare", phrases[0])
        said = [fact.answers[0] for fact in asked]
        answers, claims = whole_answers(asked), ""
        nuggets = [f"{phrase(f, 'plain')}: {f.answers[0]}" for f in asked]
        if intent == "yes-no":
            guesses = list(said)
            if rng.random() < LIES:
                lie = rng.randrange(len(asked))
                guesses[lie] = self._wrong(asked[lie], rng)
                if not guesses[lie]:
                    return Rejected("nothing to mistake it for", phrases[lie])
            answers = ("yes",) if guesses == said else ("no",)
            claims = " and that ".join(f"{guess} is {x}" for guess, x in zip(guesses, phrases, strict=True))
            nuggets = [f"{claims}: {answers[0]}"]
        compared = intent == "comparison"
        kernels = words["kernels"] | (words["distant_kernels"] if wording == "distant" else {})
        kernel = rng.choice(kernels[intent]).format(
            x=phrases[0] if compared else " and ".join(phrases), y=phrases[-1], claims=claims
        )
        more = (
            [] if wording == "distant" else [phrase(f, "plain" if expert else "expert", "it") for f in asked if named]
        )
        subject = "" if first.subject in first.answers else first.subject  # a definition is asked what its title is
        mark = words["marks"].get(intent, "")
        claimed = guesses if intent == "yes-no" else []
        keys = (
            _short_query(asked, phrases, subject, claimed, mark)
            if style == "short search query"
            else _long_query(subject, *claimed, *phrases, *more, mark)
        )
        if not keys:
            return Rejected(f"too much for {SHORT_QUERY} keywords", " and ".join(phrases))
        text = rng.choice(words["phrasings"][style]).format(q=kernel, keys=keys, s=first.subject)
        turns: tuple[str, ...] = ()
        if two_turns:
            opening = rng.choice(words["first_turns"]).format(s=first.subject)
            if not query:
                text = f"{rng.choice(words['second_turns'])} {_lowered(text)}"
            turns = (opening, text)
            text = f"{opening} {text}"
        elif not query:
            text = text[0].upper() + text[1:]
        if wanted.get("premise") == "with premise":
            premise = rng.choice(words["premises"]["expert" if expert else "novice"])
            text = f"{premise} {text}"
            turns = (f"{premise} {turns[0]}", turns[1]) if turns else ()
        known = [(phrase(fact, "plain"), fact.answers[0]) for fact in needed]
        facts = " and ".join(f"{x} is {answer}" for x, answer in known)
        replies = words["verdicts" if intent == "yes-no" else "answers"][wanted["answer_phrasing"]]
        reference = rng.choice(replies).format(facts=facts, verdict=answers[0], a=" and ".join(said))
        return Draft(
            question=text,
            answers=answers,
            reference=reference,
            nuggets=tuple(nuggets),
            parts=tuple(f.answers for f in asked) if len(asked) > 1 and intent != "yes-no" else (),
            supporting_ids=tuple(dict.fromkeys(f.passage for f in needed)),
            turns=turns,
            triples=tuple(f.triple for f in needed if f.triple),
            evidence=tuple(answer for _, answer in known) if intent == "yes-no" else (),
            writer="grounded",
        )

    def _facts(self, brief: Brief, rng: random.Random) -> tuple[list[Fact], list[Fact]]:
        """What is asked for, and what has to be known for it; nothing where there is nothing to ask.

        Of each passage one thing, more of one for several aspects. Where a fact leads from one of two passages to the
        other, a single aspect is asked for through it: "the capital of the country of Monterrey". Else it is asked of both.
        """
        wanted = brief.categories
        known = [list(self.facts.get(p.id, ())) for p in brief.passages]
        if not known or not all(known):
            return [], []
        several = wanted.get("aspect_granularity") == "multiple aspects"
        if len(known) == 1:
            first = rng.choice(known[0])
            if not several and wanted.get("question_intent") != "comparison":
                return [first], [first]
            others = [f for f in known[0] if f.answers != first.answers and (f.aspect != first.aspect or not several)]
            return self._pair(first, others, rng)
        if not several and wanted.get("question_intent") != "comparison":
            chains = [
                (a, b)
                for here, there, text in ((0, 1, brief.passages[1].text), (1, 0, brief.passages[0].text))
                for a in known[here]
                for b in known[there]
                if _leads(a, b) and a.subject not in b.answers and not has(text, a.subject)  # which would say it all
            ]
            if chains:
                chain = rng.choice(chains)
                return [through(*chain)], list(chain)
        first = rng.choice(known[0])
        several = several and wanted.get("question_intent") != "comparison"  # what is compared is of one kind
        others = [f for f in known[1] if (f.aspect != first.aspect) == several and f.answers != first.answers]
        return self._pair(first, others, rng)

    @staticmethod
    def _pair(first: Fact, others: Sequence[Fact], rng: random.Random) -> tuple[list[Fact], list[Fact]]:
        pair = [first, rng.choice(others)] if others else []
        return pair, pair

    def _wrong(self, fact: Fact, rng: random.Random) -> str:
        others = [answer for answer in self._others[fact.aspect] if answer not in fact.answers]
        return rng.choice(others) if others else ""


def whole_answers(asked: Sequence[Fact]) -> tuple[str, ...]:
    """The names of a fact; of several facts one name of each, in their order, in every way up to `MOST_ANSWERS`."""
    ways = product(*(fact.answers for fact in asked))
    return tuple(" and ".join(names) for names in islice(ways, MOST_ANSWERS))


def _leads(first: Fact, second: Fact) -> bool:
    """Whether the first fact says what the second is about."""
    return first.triple is not None and second.triple is not None and first.answers[0] == second.subject


def _its(text: str) -> str:
    """`the capital of it` as one says it: `its capital`."""
    return re.sub(r"\bthe ((?:(?!\bthe ).)+?) of it\b", r"its \1", text)


def _lowered(text: str) -> str:
    return text if text.startswith("I ") else text[0].lower() + text[1:]


def _short_query(asked: Sequence[Fact], phrases: Sequence[str], subject: str, guesses: Sequence[str], mark: str) -> str:
    """All that is asked for, and a mark of the intent where there is room; nothing if it is too much.

    A sentence of a text is cut. Whether guesses are so is not asked without the mark.
    """
    for most in range(SHORT_QUERY, 0, -1):
        said = [_around(fact, text, most) for fact, text in zip(asked, phrases, strict=True)]
        found = _keywords(subject, *guesses, *said, mark if guesses else "")
        if len(found) <= SHORT_QUERY:
            return " ".join(_keywords(*found, mark)[:SHORT_QUERY])
    return ""


def _around(fact: Fact, text: str, most: int) -> str:
    """A phrase; of one that quotes a text, the subject and the `most` words nearest to the gap, one more without subject."""
    if fact.triple:
        return text
    what, _, sentence = text.partition("“")
    before, _, after = sentence.rpartition(GAP)  # what is defined stood before its definition
    left, right = _keywords(before), _keywords(after)
    subject = "" if fact.subject in fact.answers else fact.subject
    nearest = sorted(range(len(left + right)), key=lambda n: abs(n + 0.5 - len(left)))[: most + (not subject)]
    named = [word for word in _keywords(subject, what) if word not in OURS]
    return " ".join([*named, *((left + right)[n] for n in sorted(nearest))])


def _long_query(*texts: str) -> str:
    """Filled up with what people type when a few words are missing."""
    found = _keywords(*texts)
    more = [filler for filler in phrasings()["fillers"] if filler not in found]
    return " ".join(found + more[: max(0, LONG_QUERY - len(found))])


def _keywords(*texts: str) -> list[str]:
    """The words of some texts, each once and without the small ones."""
    found: list[str] = []
    for text in texts:
        for word in re.findall(r"[\w’'°²-]+(?:[.,]\d+)*", text.replace(GAP, " ")):
            if word.lower() not in STOPWORDS and not any(has(other, word) for other in found):
                found.append(word)
    return found

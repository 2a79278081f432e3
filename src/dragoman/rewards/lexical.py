"""Nugget correctness and faithfulness by words alone, where no able judge is at hand.

They give the verdicts of the judge's scales (mRAG, appendix D.3) by rules that anybody can follow. A rule sees no paraphrase
and no negation: `not Thimphu` names Thimphu. `tests/rewards/labelled.jsonl` has answers with verdicts of a person, and a test
says how often the rules agree with them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import fmean

from dragoman.core.text import has, key
from dragoman.core.types import Passage, Question
from dragoman.rewards.answer import cover_exact_match, normalize
from dragoman.rewards.base import Trajectory, reward
from dragoman.rewards.claims import claims, marked, says, sentences, unsaid, words

_VERDICTS = frozenset({"yes", "no"})
_ABSTAINS = re.compile(
    r"\b(?:(?:do|does|did) ?(?:not|n['’]t) (?:know|say|mention|state|contain|provide|specify|give)"
    r"|not (?:mentioned|stated|given|provided|known|specified|found|clear|sure|enough)"
    r"|cannot|can['’]t|unable|unknown|unclear|no (?:information|answer|mention))\b",
    re.I,
)


@reward(bounds=(0, 1))
def lexical_nuggets(
    question: Question, trajectory: Trajectory, passages: Sequence[Passage], *, spare: int = 10
) -> float | None:
    """Correctness by words: the mean of (s + 1) / 3 over the nuggets, each a part of the answer by its names.

    s is 2 where the answer has a name of the nugget, and 1 where it has names and numbers beside that nobody asked for. Without,
    s is -1 where something else stands in its place, and 0 where nothing does, or the answer says that it does not know. Where the
    proxy's own text was no action the whole is 0, as in `nuggets`.

    Args:
        spare: so many content words beyond the question and the reference still keep to the question.

    Returns:
        None where there is no answer, or nothing to compare it with.
    """
    if trajectory.answer is None or not question.answers:
        return None
    if trajectory.stop.is_invalid:
        return 0.0
    return fmean((verdict + 1) / 3 for verdict in verdicts(question, trajectory.answer, spare=spare))


@reward(bounds=(0, 1))
def lexical_faithfulness(question: Question, trajectory: Trajectory, passages: Sequence[Passage]) -> float | None:
    """Faithfulness by words: the mean of (s + 1) / 2 over the sentences of an answer that claim something.

    s is 1 where the kept passages have all parts of the claim (see `claims`), 0 where they have some, and -1 where they have
    none. An answer that is empty, or rests on no passage, has 0.

    Returns:
        None where there is no answer, or where neither it nor the question claims anything.
    """
    if trajectory.answer is None:
        return None
    if not trajectory.answer.strip() or not passages:
        return 0.0
    support = []
    for parts, _ in claims(trajectory.answer, question.question):
        said = sum(says(passages, part) for part in parts)
        support.append(1.0 if said == len(parts) else 0.5 if said else 0.0)
    return fmean(support) if support else None


def verdicts(question: Question, answer: str, *, spare: int = 10) -> list[int]:
    """What an answer says of each nugget, on the judge's scale: -1, 0, 1 or 2.

    Args:
        question: with at least one acceptable answer. Its `parts` are the nuggets or, without any, its answer is the one.
        spare: see `lexical_nuggets`.
    """
    nuggets = question.parts or (question.answers,)
    said_by_others = [end for triple in question.triples for end in (triple[0], triple[2])]
    names = [name for nugget in nuggets for name in nugget]
    known = " | ".join([question.question, question.reference, *question.nuggets, *names, *said_by_others])
    foreign = unsaid(marked_in(answer), known)
    other = unsaid([word for sentence in sentences(answer) for word in words(sentence)], known)
    found = [_verdict(nugget, answer, foreign, other) for nugget in nuggets]
    # what stands in the place of one nugget is no idle talk beside another
    beside = (bool(foreign) or len(other) > spare) and -1 not in found
    return [1 if verdict == 2 and beside else verdict for verdict in found]


def marked_in(answer: str) -> list[str]:
    """The names and numbers of all sentences of an answer."""
    return [part for sentence in sentences(answer) for part in marked(sentence)]


def _verdict(nugget: Sequence[str], answer: str, foreign: Sequence[str], other: Sequence[str]) -> int:
    if _VERDICTS.issuperset(map(normalize, nugget)):
        said = next((word for word in normalize(answer).split() if word in _VERDICTS), None)
        return 0 if said is None else 2 if said in set(map(normalize, nugget)) else -1
    if any(cover_exact_match(answer, name) or (key(name) and has(answer, name)) for name in nugget):
        return 2
    if not answer.strip() or _ABSTAINS.search(answer):
        return 0
    return -1 if _in_its_place(nugget[0], answer, foreign, other) else 0


def _in_its_place(name: str, answer: str, foreign: Sequence[str], other: Sequence[str]) -> bool:
    """Whether an answer has something of a nugget's kind: a number, a name or, of a plain word, any word that is not known."""
    if name[:1].isdigit():
        return any(part[:1].isdigit() for part in foreign)
    if name != name.lower() and marked_in(answer):
        return any(not part[:1].isdigit() for part in foreign)
    return bool(other)

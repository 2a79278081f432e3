"""How well an answer matches the gold ones: the scores of SQuAD and HotpotQA, and containment.

Answers are compared after SQuAD's normalisation (lower case, no punctuation, no articles, single spaces), and the best
score over all acceptable answers counts. Where a question asks for several things, cover-EM asks for each of them. A gold
answer of which the normalisation leaves nothing, such as `*` or `The The`, is compared as it is written.

SQuAD knows the marks of ASCII alone. Those of print (`“Paris”`, `1990–1995`) stay for EM and F1, and cover-EM looks past them. It
also takes `l'Allemagne` for two words, and a printed hyphen for that of the keyboard.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence

from dragoman.core.text import side_by_side, stands_in
from dragoman.core.types import Passage, Question
from dragoman.rewards.base import Trajectory, reward

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = frozenset(string.punctuation)
_APOSTROPHES = str.maketrans("‘’", "''")
_KEYS = _APOSTROPHES | str.maketrans("‐‑‒–−", "-----")
_ELISION = re.compile(r"(?<=\w)'(?=\w{2})")


def normalize(text: str) -> str:
    """SQuAD's `normalize_answer`."""
    bare = "".join(c for c in text.lower() if c not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match(answer: str, gold: str) -> float:
    said, wanted = _compared(answer, gold)
    return float(said == wanted)


def cover_exact_match(answer: str, gold: str) -> float:
    """1 when the gold answer's words occur in the answer, side by side. Of a script without blanks its letters do."""
    said, wanted = _compared(answer, gold)
    if not normalize(gold):
        return float(bool(wanted) and stands_in(said, wanted))
    if side_by_side(said, wanted):
        return 1.0
    pairs = ((normalize(plain(answer)), normalize(plain(gold))) for plain in (_without_marks, _typed))
    return float(any(bool(bare) and side_by_side(text, bare) for text, bare in pairs))


def _typed(text: str) -> str:
    """As a keyboard writes it: printed hyphens and dashes as `-`, and a blank for an apostrophe before two letters or more,
    so that an elided article is a word."""
    plain = unicodedata.normalize("NFC", text).translate(_KEYS)
    return _ELISION.sub(" ", plain)


def _without_marks(text: str) -> str:
    """With a blank for each mark beyond ASCII, and an apostrophe for a printed one; accents as one character."""
    plain = unicodedata.normalize("NFC", text).translate(_APOSTROPHES)
    return "".join(" " if not c.isascii() and unicodedata.category(c).startswith("P") else c for c in plain)


def precision_f1(answer: str, gold: str) -> tuple[float, float]:
    """Share of the answer's words that the gold answer has, and token F1.

    As HotpotQA scores it, yes, no and noanswer match only themselves: no part of a sentence is half a "yes".
    """
    said, wanted = _compared(answer, gold)
    if said != wanted and {said, wanted} & {"yes", "no", "noanswer"}:
        return 0.0, 0.0
    common = sum((Counter(said.split()) & Counter(wanted.split())).values())
    if not common:
        return 0.0, 0.0
    precision, recall = common / len(said.split()), common / len(wanted.split())
    return precision, 2 * precision * recall / (precision + recall)


def _compared(answer: str, gold: str) -> tuple[str, str]:
    """Both normalised. Where that leaves nothing of the gold answer, which would then equal an empty one, they stay as they are
    written; of the choice `A` without the marks around it."""
    if wanted := normalize(gold):
        return normalize(answer), wanted
    around = f"{string.punctuation}{string.whitespace}" if any(map(str.isalnum, gold)) else None
    return answer.strip(around), gold.strip(around)


SCORES: dict[str, Callable[[str, str], float]] = {
    "cover_em": cover_exact_match,
    "em": exact_match,
    "f1": lambda answer, gold: precision_f1(answer, gold)[1],
    "precision": lambda answer, gold: precision_f1(answer, gold)[0],
}


def scores(answer: str, golds: Sequence[str], parts: Sequence[Sequence[str]] = ()) -> dict[str, float | None]:
    """Every score of an answer, each the best over the acceptable answers.

    Args:
        golds: acceptable answers, at least one.
        parts: of each thing that is asked for its names, where it is several: cover-EM is 1 when the answer has all of them.
    """
    best: dict[str, float | None] = {name: max(score(answer, g) for g in golds) for name, score in SCORES.items()}
    return best | ({"cover_em": float(all(_covers(answer, names) for names in parts))} if parts else {})


def _covers(answer: str, names: Sequence[str]) -> bool:
    return any(cover_exact_match(answer, name) for name in names)


def _register(name: str) -> None:
    """Make a score a reward: None without an acceptable answer, or without an answer."""

    def best(question: Question, trajectory: Trajectory, passages: Sequence[Passage]) -> float | None:
        if trajectory.answer is None or not question.answers:
            return None
        return scores(trajectory.answer, question.answers, question.parts)[name]

    reward(bounds=(0, 1), name=name)(best)


for _name in SCORES:
    _register(_name)

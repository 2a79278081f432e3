"""Questions out of served traffic: each once, without personal data, and with an answer that somebody stands for."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from dragoman.core import files
from dragoman.core.text import content_words, count_words, same_question
from dragoman.core.types import Question
from dragoman.rewards.answer import normalize
from dragoman.rollout.feedback import Feedback
from dragoman.rollout.record import Episode
from dragoman.synthesis.masking import MASK, masked
from dragoman.synthesis.settings import HarvestParams

SENSE = 2
"""So many words that mean something must be left of a question where personal data was masked."""
REPEATED = "repeated"
FORBIDDEN = "forbidden by their key"
WORDS = "too short or too long"
SENSELESS = "without sense once masked"
KNOWN = "in the data set already"
UNLABELLED = "without a label"
REJECTED = "rejected"
CONTRADICTED = "contradicted"
DISAGREED = "draws disagree"
LONG = "answer too long"
PERSONAL = "personal data in the answer"


@dataclass
class Harvest:
    """What became of the episodes. Each is a question of the set, or dropped for one reason.

    `labels` says how often an answer was `corrected` or `confirmed` by a user, or `agreed` on by draws.
    """

    episodes: int = 0
    questions: list[Question] = field(default_factory=list)
    labels: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    passages_gone: int = 0
    """Gold passages that were named, and that the corpus lacks."""
    feedback_alone: int = 0
    """Feedback on episodes that are not there any more."""
    askers: frozenset[str] = frozenset()
    """The names of the keys that asked."""


@dataclass(frozen=True)
class Asked:
    """What is kept in memory of an episode."""

    question: str
    draws: tuple[tuple[str, str], ...]
    """Answers, each with what it was drawn by: equal ones by equal means are one draw."""
    asked_by: str | None

    @classmethod
    def of(cls, episode: Episode) -> Asked:
        means = hashlib.sha256(files.dumps([episode.system, episode.config]).encode()).hexdigest()[:16]
        draws = tuple(
            (f"{means} {number}", t.answer.strip())
            for number, t in enumerate(episode.trajectories)
            if t.answer is not None and normalize(t.answer)
        )
        return cls(episode.question["question"], draws, episode.asked_by)


def harvest(
    episodes: Iterable[Episode],
    feedback: Mapping[str, Feedback],
    settings: HarvestParams,
    *,
    words: tuple[int, int],
    passages: Collection[str],
    known: Collection[str],
) -> Harvest:
    """Make questions out of episodes. They are ordered by id, which is a hash of the question.

    Args:
        episodes: of one key the last counts that has an answer: where a proxy failed, standard RAG answered after it.
        feedback: by the key of the episode.
        words: the fewest and the most words of a question.
        passages: the ids that can be gold passages.
        known: questions, as `same_question` has them, that are not to be harvested again.
    """
    asked: dict[str, Asked] = {}
    for episode in episodes:
        found = Asked.of(episode)
        if found.draws or episode.key not in asked:
            asked[episode.key] = found
    done = Harvest(
        episodes=len(asked),
        feedback_alone=len(feedback.keys() - asked.keys()),
        askers=frozenset(one.asked_by for one in asked.values() if one.asked_by is not None),
    )
    for normalised, group in _same(asked, settings.forbidden, done):
        said = [feedback[key] for key in group.keys if key in feedback]
        answers, label = _label(group, said, settings)
        reason = _unfit(group, normalised, words, known) or (_unfit_answer(answers, settings) if answers else label)
        if reason:
            done.dropped[reason] += 1
            continue
        done.labels[label] += 1
        named = max(said, key=lambda one: (bool(one.passages), one.at), default=None)
        gold = named.passages if named else []
        there = tuple(id for id in gold if id in passages)
        done.passages_gone += len(gold) - len(there)
        id = f"served-{hashlib.sha256(normalised.encode()).hexdigest()[:16]}"
        done.questions.append(Question(id, group.question, answers, "served", there))
    done.questions.sort(key=lambda question: question.id)
    return done


def split_of(question: Question, shares: Mapping[str, float]) -> str:
    """The split that a question belongs to, by its id alone: whatever else is harvested, it never wanders to another."""
    place = int(hashlib.sha256(question.id.encode()).hexdigest()[:13], 16) / 16**13 * sum(shares.values())
    for split, share in shares.items():
        place -= share
        if place < 0:
            return split
    return list(shares)[-1]


@dataclass
class _Group:
    """Episodes of one question."""

    question: str
    is_masked: bool = False
    """So two of them may have meant different things, and have different answers."""
    keys: list[str] = field(default_factory=list)
    draws: dict[tuple[str, str], str] = field(default_factory=dict)
    answers: dict[str, list[str]] = field(default_factory=dict)


def _same(asked: Mapping[str, Asked], forbidden: Collection[str], done: Harvest) -> Iterator[tuple[str, _Group]]:
    """Episodes by their question (`same_question`). Two that differ in what was masked alone are one."""
    groups: dict[str, _Group] = {}
    for key, one in asked.items():
        if one.asked_by in forbidden:
            done.dropped[FORBIDDEN] += 1
            continue
        question = " ".join(masked(one.question).split())
        normalised = same_question(question)
        if normalised in groups:
            done.dropped[REPEATED] += 1
        group = groups.setdefault(normalised, _Group(question))
        group.is_masked |= question != " ".join(one.question.split())
        group.keys.append(key)
        group.draws.update({(means, normalize(answer)): answer for means, answer in one.draws})
        group.answers[key] = [answer for _, answer in one.draws]
    yield from groups.items()


def _unfit(group: _Group, normalised: str, words: tuple[int, int], known: Collection[str]) -> str:
    """Why it is no question to train on; empty if it is one."""
    least, most = words
    if not normalised or not least <= count_words(normalised) <= most:
        return WORDS
    if group.is_masked and count_words(" ".join(content_words(MASK.sub(" ", group.question)))) < SENSE:
        return SENSELESS
    return KNOWN if normalised in known else ""


def _label(group: _Group, said: list[Feedback], settings: HarvestParams) -> tuple[tuple[str, ...], str]:
    """The right answers with how they are known; or none, with the reason."""
    corrected = [one.answer for one in sorted(said, key=lambda one: one.at) if one.answer and normalize(one.answer)]
    rated: dict[str, dict[str, str]] = {"up": {}, "down": {}}
    for one in said:
        if one.rating:
            rated[one.rating] |= {normalize(answer): answer for answer in reversed(group.answers[one.id])}
    confirmed = [answer for same, answer in rated["up"].items() if same not in rated["down"]]
    if group.is_masked and len({normalize(answer) for answer in (*corrected, *confirmed)}) > 1:
        return (), CONTRADICTED
    if corrected:
        return (corrected[-1],), "corrected"
    if confirmed:
        return tuple(confirmed), "confirmed"
    if rated["up"]:
        return (), CONTRADICTED
    if any(one.rating == "down" for one in said):
        return (), REJECTED
    if not settings.draws or len(group.draws) < settings.draws:
        return (), UNLABELLED
    if len({normalize(answer) for answer in group.draws.values()}) > 1:
        return (), DISAGREED
    return (min(group.draws.values(), key=lambda answer: (len(answer), answer)),), "agreed"


def _unfit_answer(answers: tuple[str, ...], settings: HarvestParams) -> str:
    if any(masked(answer) != answer for answer in answers):
        return PERSONAL
    return LONG if any(count_words(answer) > settings.max_answer_words for answer in answers) else ""

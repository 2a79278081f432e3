"""Rewards of long answers by an LLM as judge: nugget correctness and faithfulness (mRAG, section 3.2.1, appendix D.3).

What an answer says is judged *aspect* by aspect: facts that can be checked one by one. The paper's reward is
R = (4 correctness + faithfulness) / 5: `train.reward: 0.8 * nuggets + 0.2 * faithfulness`. Longer answers have more nuggets
(its section 4.0.3), so guard their length: `+ length_penalty(words=120)`, and look at `answer_words`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any
from weakref import WeakKeyDictionary

from dragoman.core.text import unfenced
from dragoman.core.types import Passage, Question
from dragoman.engines.base import Constraint, Engine, Request
from dragoman.rewards.base import Trajectory, reward
from dragoman.systems.prompts import load, number

ABSTAINED = 1 / 3
"""Of an LLM that said nothing: the paper's scale gives "no answer" a 0, which is a third of the way from -1 to 2."""
LONGEST = 200  # characters of an aspect
TOKENS = 64  # for an aspect
_VERDICT = re.compile(r"[\s*\"']*([+-]?\d+)(?!\d|[.,]\d)")
"""Of a judge that was held by no grammar: "2." and "+1 - it says so"."""


@dataclass(frozen=True)
class Scale:
    """The verdicts that a judge may give on an aspect: the whole numbers from `low` to `high`, asked for by `prompt`."""

    prompt: str
    low: int
    high: int

    @property
    def verdicts(self) -> list[str]:
        return [str(verdict) for verdict in range(self.low, self.high + 1)]

    @property
    def grammar(self) -> Constraint:
        return Constraint(regex="|".join(self.verdicts))

    async def mean(
        self, engine: Engine, aspects: Sequence[str], state: dict[str, Any], *, draws: int, temperature: float
    ) -> float | None:
        """The mean over aspects of the mean verdict on each, brought to [0, 1]; None where one has no readable verdict."""
        grammar = self.grammar

        async def one(aspect: str) -> float | None:
            messages = load(__package__, self.prompt).messages(state | {"aspect": aspect})
            seed = int(hashlib.sha256(repr(messages).encode()).hexdigest()[:8], 16) >> 1  # as every engine takes it
            request = Request(messages, max_tokens=4, n=draws, temperature=temperature, grammar=grammar, seed=seed)
            (result,) = await engine.generate([request])
            said = [_VERDICT.match(completion.text) for completion in result.completions]
            given = [int(found[1]) for found in said if found and self.low <= int(found[1]) <= self.high]
            return (fmean(given) - self.low) / (self.high - self.low) if given else None

        found = await asyncio.gather(*map(one, aspects))
        scores = [score for score in found if score is not None]
        return fmean(scores) if found and len(scores) == len(found) else None


CORRECT = Scale("nugget", -1, 2)
SUPPORTED = Scale("support", -1, 1)

_known: WeakKeyDictionary[Engine, dict[tuple[str, str, int], list[str]]] = WeakKeyDictionary()


@reward(bounds=(0, 1))
async def nuggets(
    question: Question,
    trajectory: Trajectory,
    passages: Sequence[Passage],
    *,
    judge: Engine,
    draws: int = 5,
    temperature: float = 0.5,
    most: int = 8,
) -> float | None:
    """Correctness: how well an answer says each aspect of the reference, as a mean (algorithm 3).

    A verdict s lies between -1 and 2, and counts (s + 1) / 3. Algorithm 3 prints (s + 1) / 2, which reaches 1.5; its text wants
    [0, 1]. The aspects are the question's `nuggets`, else those that the judge finds in its `reference`, once a question. A
    question with neither has one aspect: its answer. An empty answer says nothing of any, and is not judged. Where the proxy's own
    text was no action there is nobody who abstained: 0.

    Args:
        judge: gives the verdicts, and finds aspects where it has to.
        draws: verdicts on each aspect, whose mean counts.
        temperature: of these.
        most: aspects that it may find.

    Returns:
        None where there is no answer, nothing to compare it with, or no readable verdict.
    """
    expected = question.reference or next(iter(question.answers), "") or "; ".join(question.nuggets)
    if trajectory.answer is None or not expected:
        return None
    if not trajectory.answer.strip():
        return 0.0 if trajectory.stop.is_invalid else ABSTAINED
    aspects = await _reference_aspects(judge, question, expected, most)
    state = {"question": question.question, "expected": expected, "answer": trajectory.answer}
    return await CORRECT.mean(judge, aspects, state, draws=draws, temperature=temperature)


@reward(bounds=(0, 1))
async def faithfulness(
    question: Question,
    trajectory: Trajectory,
    passages: Sequence[Passage],
    *,
    judge: Engine,
    draws: int = 5,
    temperature: float = 0.5,
    most: int = 8,
    passage_words: int = 100,
) -> float | None:
    """How far the kept passages say what an answer says: each aspect of it, as a mean (algorithm 4).

    A verdict s lies between -1 and 1, and counts (s + 1) / 2. An answer that is empty, or rests on no passage, has nothing that
    is supported: 0, without asking.

    Args:
        judge: finds the aspects of an answer, and gives the verdicts.
        draws: verdicts on each aspect, whose mean counts.
        temperature: of these.
        most: aspects that it may find.
        passage_words: of each passage that the judge sees.

    Returns:
        None where there is no answer, or no readable aspect or verdict.
    """
    if trajectory.answer is None:
        return None
    if not trajectory.answer.strip() or not passages:
        return 0.0
    aspects = await find_aspects(judge, question.question, trajectory.answer, most)
    state = {"question": question.question, "passages": number(passages, passage_words)}
    return await SUPPORTED.mean(judge, aspects, state, draws=draws, temperature=temperature)


async def find_aspects(engine: Engine, question: str, text: str, most: int) -> list[str]:
    """The aspects of a text, at most so many, as an engine finds them; none where what it wrote cannot be read.

    Raises:
        EngineFault: the engine failed.
    """
    prompt = load(__package__, "aspects").messages({"question": question, "text": text})
    grammar = Constraint(json_schema=json.dumps(_schema(most)))
    (result,) = await engine.generate([Request(prompt, max_tokens=TOKENS * most, grammar=grammar)])
    try:
        found: list[str] = json.loads(unfenced(result.completions[0].text))["aspects"]
        stripped = [aspect.strip() for aspect in found] if isinstance(found, list) else []
        return list(dict.fromkeys(filter(None, stripped)))[:most]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # cut off, or of a server without schemas
        return []


async def _reference_aspects(engine: Engine, question: Question, expected: str, most: int) -> list[str]:
    """Those that the question names, or the judge finds once: the reference of a question does not change."""
    if question.nuggets or not question.reference:
        return list(question.nuggets) or [expected]
    known, key = _known.setdefault(engine, {}), (question.question, expected, most)
    if key not in known:
        found = await find_aspects(engine, question.question, expected, most)
        if not found:
            return []
        known[key] = found
    return known[key]


def _schema(most: int) -> dict[str, Any]:
    aspect = {"type": "string", "minLength": 1, "maxLength": LONGEST}
    aspects = {"type": "array", "items": aspect, "minItems": 1, "maxItems": most}
    return {
        "type": "object",
        "properties": {"aspects": aspects},
        "required": ["aspects"],
        "additionalProperties": False,
    }

"""Asks two systems more questions until it is clear which is better, or no question is left.

Who looks again and again, and stops at the first interval that is clear of zero, finds differences where there are none: of
five looks at 95% one in seven. So the number of looks is fixed beforehand, and they share the 5% among them (Bonferroni's
inequality; Dunn 1961, Multiple comparisons among means). Of looks at normal means, equally far apart, less would do: 1.58% for
each of five (Pocock 1977, Group sequential methods). But scores of questions are mostly 0 and 1, and few of them are hardly
normal, so we take the 1% that holds however they depend on each other.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dragoman.core.errors import UserError
from dragoman.core.stats import student_interval
from dragoman.core.types import Question
from dragoman.evaluation.evaluate import REWARD, Evaluation, evaluate
from dragoman.evaluation.metrics import ANSWER_SCORES, RETRIEVAL_SCORES, differences_of
from dragoman.evaluation.predictions import read_predictions
from dragoman.runtime import Runtime

log = logging.getLogger(__name__)

LOOKS = 5
FEWEST = 30
"""Questions between two looks: of fewer an interval says too little."""
ERROR = 0.05
"""The most that a difference may be found where there is none, over all looks."""


def looks(total: int) -> list[int]:
    """After how many of `total` questions to look: at most `LOOKS` times, at equal distances of at least `FEWEST`.

    Raises:
        UserError: too few for one look.
    """
    count = min(LOOKS, total // FEWEST)
    if not count:
        raise UserError(f"--until-clear: {total} questions are too few to tell; give it at least {FEWEST}")
    return [math.ceil(total * look / count) for look in range(1, count + 1)]


def level(count: int) -> float:
    """The level of the interval at each of so many looks."""
    return 1 - ERROR / count


def is_clear(interval: dict[str, float]) -> bool:
    return interval["low"] > 0 or interval["high"] < 0


async def until_clear(
    pair: Sequence[str],
    systems: Sequence[str],
    questions: Sequence[Question],
    runtime: Runtime,
    evaluation: Evaluation,
    *,
    score: str = REWARD,
) -> dict[str, Any]:
    """Evaluate systems on the first so many questions: those after which the difference of two of them is clear of zero.

    A second run with the same settings asks nothing again, and stops at the same look.

    Args:
        pair: the two, both among `systems`. The others are asked once it is known how many questions it takes.
        score: by which they are compared, a usual one but the judge's, or one of `evaluate.scores`.

    Returns:
        As `evaluate`. `sequential` has the `score`, the interval at the last look, its `level`, `look` of `looks`, `n` `of` so many
        questions, and whether it is `clear`.

    Raises:
        UserError: fewer than 30 questions, or no such score; see also `evaluate`.
    """
    settings = evaluation.settings
    known = (*ANSWER_SCORES, *RETRIEVAL_SCORES, *settings.scores)
    if score not in known:
        raise UserError(f"--clear-by {score}: choose from {', '.join(known)}, or add it to evaluate.scores")
    earlier, later = sorted(pair, key=list(systems).index)
    sizes = looks(len(questions))
    found: dict[str, Any] = {"pair": f"{later} - {earlier}", "score": score, "looks": len(sizes), "of": len(questions)}
    bare = settings.model_copy(update={"judge": False, "scores": tuple({score} & {*settings.scores})})
    of_a_look = replace(evaluation, settings=bare, track=None)
    for look, n in enumerate(sizes, start=1):
        found |= {"look": look, "n": n, "level": level(len(sizes)), "clear": False}
        await evaluate((earlier, later), questions[:n], runtime, of_a_look)
        of: dict[str, dict[str, Any]] = {earlier: {}, later: {}}
        for row in read_predictions(evaluation.out):
            of[row["system"]][row["id"]] = row
        values = differences_of(of[later], of[earlier], score)
        if len(values) < 2:  # nobody answers: to ask on is of no use
            break
        interval = student_interval(values, found["level"])
        found |= interval | {"clear": is_clear(interval) and len(values) >= FEWEST}  # an outage may leave a few
        log.info("look %d of %d: %s %+.3f [%+.3f, %+.3f]", look, len(sizes), found["pair"], *interval.values())
        if found["clear"]:
            break
    return await evaluate(systems, questions[: found["n"]], runtime, evaluation, more={"sequential": found})

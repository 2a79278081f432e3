"""MyGO, minimalist policy gradient optimization (Mujica-MyGO, section 3.3 and appendix D).

In time the trajectories that pass are as if drawn from the optimal policy (propositions 1 and 2). Maximum likelihood is
then all that is left to do: no advantage, no ratio, no critic, no reference.

1. Attempt each question once.
2. Raise the threshold to what first attempts earned: delta = max(delta', mean of R).
3. Attempt again what missed the threshold, until it passes or its attempts are used up (appendix D.1).
4. Maximize the likelihood of the agents' tokens in the trajectories that passed (eq. 6).

Offline (appendix E) all attempts are those of the warm-up, under a fixed threshold: step 2 is left out. That they are drawn
iteration by iteration makes no difference, since the warm-up does not change.

Since nothing is weighed by who drew it, sampling and learning may overlap (appendix D.2): `rl.max_staleness`. The threshold
before is then that of the last iteration that had been learnt from when drawing began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dragoman.core.errors import UserError
from dragoman.core.types import Question
from dragoman.rollout.record import Episode
from dragoman.rollout.samples import Sample
from dragoman.training import likelihood
from dragoman.training.algorithm import Algorithm, Collected
from dragoman.training.selection import CONTRAST, mean_reward, worth
from dragoman.training.settings import MygoParams, RlParams

if TYPE_CHECKING:
    from dragoman.training.learner import Learner
    from dragoman.training.loop import Loop


async def collect(loop: Loop, questions: Sequence[Question]) -> Collected:
    """The turns of all roles in the first trajectory of each question that passed."""
    s = loop.settings
    threshold = loop.history[-1]["threshold"] if loop.history else s.mygo.threshold
    waiting, tried, passed = list(questions), list[Episode](), list[Episode]()
    for attempt in range(s.mygo.attempts):
        # 1. and 3.
        by = loop.run.start if s.mygo.offline else None
        episodes = await loop.draw(waiting, attempt, by=by)
        earned = [worth(episode, loop.run.reward, s.price) for episode in episodes]
        if attempt == 0:
            # 2.
            threshold = next_threshold(s.mygo, threshold, [x for x in earned if x is not None])
        good = [x is not None and x >= threshold - CONTRAST for x in earned]
        tried += episodes
        passed += [episode for episode, ok in zip(episodes, good, strict=True) if ok]
        waiting = [question for question, ok in zip(waiting, good, strict=True) if not ok]
        if not waiting:
            break
    if s.mygo.offline:
        await loop.runtime.release(loop.system, loop.run.start)
    found = loop.samples(passed)
    batch = loop.fitting(found)
    figures = {
        "reward": mean_reward(tried[: len(questions)], loop.run.reward),  # later attempts are at what is hard
        "too_long": len(found) - len(batch),
        "threshold": threshold,
        "passed": len(passed),
        "never_passed": len(waiting),
    }
    return Collected(tried, batch, figures)


def prepare(learner: Learner, batch: Sequence[Sample]) -> tuple[tuple[()], dict[str, float]]:
    """See `likelihood.prepare`: offline, or ahead of the learner, another policy drew the actions."""
    s = learner.settings
    return likelihood.prepare(learner, batch, drawn_by_another=s.mygo.offline or s.max_staleness > 0)


def hopeless(history: Sequence[Mapping[str, Any]], settings: RlParams) -> str:
    """Nothing has passed for as many iterations as `mygo.patience` allows."""
    last = history[-settings.mygo.patience :]
    if len(last) < settings.mygo.patience or any(row["passed"] for row in last):
        return ""
    return (
        f"no trajectory has earned the threshold, {last[-1]['threshold']:.3f}, in {len(last)} iterations of up to "
        f"{settings.mygo.attempts} attempts; lower rl.mygo.threshold, or take a graded reward such as f1"
    )


def next_threshold(settings: MygoParams, threshold: float, first: Sequence[float]) -> float:
    """The threshold of an iteration, which is the one before it where it is fixed, or the run is offline."""
    fixed = settings.offline or not settings.progressive
    return threshold if fixed else raised(threshold, first)


def raised(threshold: float, first: Sequence[float]) -> float:
    """The threshold of an iteration: the one before it, or the mean reward of the first attempts where that is more.

    delta = max(delta', mean of R) (section 3.3; appendix D.1, progressive selection threshold). A trajectory passes when it
    earned at least so much: if it had to earn more, none could once every first attempt is right.

    Args:
        threshold: delta', of the iteration before.
        first: what the first attempts earned, of those that were scored.
    """
    return max(threshold, sum(first) / len(first)) if first else threshold


def check(settings: RlParams) -> None:
    """
    Raises:
        UserError: drawing ahead, where the warm-up draws anyway and its draws do not age.
    """
    if settings.mygo.offline and settings.max_staleness:
        raise UserError("rl.max_staleness: offline, the warm-up draws all trajectories; leave it at 0")


# 4.
ALGORITHM = Algorithm("mygo", collect, prepare, likelihood.loss, shaped=False, check=check, hopeless=hopeless)

"""MyGO, minimalist policy gradient optimization (Mujica-MyGO: seed 003, section 3.3 and appendix D).

In time the trajectories that pass are as if drawn from the optimal policy (propositions 1 and 2). Maximum likelihood is
then all that is left to do: no advantage, no ratio, no critic, no reference.

1. Attempt each question once.
2. Raise the threshold to what first attempts earned: delta = max(delta', mean of R).
3. Attempt again what missed the threshold, until it passes or its attempts are used up (appendix D.1).
4. Maximize the likelihood of the agents' tokens in the trajectories that passed (eq. 6).

Shapes: a actions, of at most m tokens each. Everything is zero where an action has no token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from dragoman.core.types import Question
from dragoman.rollout.record import Episode
from dragoman.rollout.samples import Sample
from dragoman.training.algorithm import Algorithm, Collected, MicroBatch
from dragoman.training.selection import mean_reward
from dragoman.training.settings import RlParams

if TYPE_CHECKING:
    from dragoman.training.learner import Learner
    from dragoman.training.loop import Loop

PROBED = 64
"""Actions by which an iteration's entropy and distance to the engine are measured: learning itself needs neither."""


async def collect(loop: Loop, questions: Sequence[Question]) -> Collected:
    """The turns of all roles in the first trajectory of each question that passed."""
    s = loop.settings
    threshold = loop.history[-1]["threshold"] if loop.history else s.mygo.threshold
    waiting, tried, passed = list(questions), list[Episode](), list[Episode]()
    for attempt in range(s.mygo.attempts):
        # 1. and 3.
        episodes = await loop.roll_out(
            waiting,
            exploration=s.single().exploration,
            seed=loop.seed + loop.iteration * s.mygo.attempts + attempt,
            part=f"{attempt:02d}",
        )
        earned = [_earned(episode, loop.reward, s.price) for episode in episodes]
        if attempt == 0:
            # 2.
            threshold = raised(threshold, [x for x in earned if x is not None])
        good = [x is not None and x >= threshold for x in earned]
        tried += episodes
        passed += [episode for episode, ok in zip(episodes, good, strict=True) if ok]
        waiting = [question for question, ok in zip(waiting, good, strict=True) if not ok]
        if not waiting:
            break
    found = loop.samples(passed)
    batch = loop.fitting(found)
    figures = {
        "reward": mean_reward(tried[: len(questions)], loop.reward),  # later attempts are at what is hard
        "too_long": len(found) - len(batch),
        "threshold": threshold,
        "passed": len(passed),
        "never_passed": len(waiting),
    }
    return Collected(tried, batch, figures)


def _earned(episode: Episode, reward: str, price: float) -> float | None:
    """The reward of a single trajectory, less the price of its steps; None where it could not be scored."""
    (trajectory,) = episode.trajectories
    earned = trajectory.rewards.get(reward)
    return None if earned is None else earned - price * len(trajectory.steps)


def prepare(learner: Learner, batch: Sequence[Sample]) -> tuple[tuple[()], dict[str, float]]:
    """Nothing that learning needs: the likelihood is computed when it is differentiated."""
    figures = learner.survey(batch[:PROBED]).figures()
    del figures["kl"]  # there is no reference
    return (), figures


def loss(micro: MicroBatch, experience: tuple[()], settings: RlParams) -> tuple[Tensor, dict[str, float]]:
    """The negative log-likelihood (eq. 6)."""
    # 4.
    value = likelihood_loss(micro.logprobs, micro.free, tokens=micro.tokens)
    return value, {"nll": float(value.detach())}


def raised(threshold: float, first: Sequence[float]) -> float:
    """The threshold of an iteration: the one before it, or the mean reward of the first attempts where that is more.

    delta = max(delta', mean of R) (section 3.3; appendix D.1, progressive selection threshold). A trajectory passes when it
    earned at least so much: if it had to earn more, none could once every first attempt is right.

    Args:
        threshold: delta', of the iteration before.
        first: what the first attempts earned, of those that were scored.
    """
    return max(threshold, sum(first) / len(first)) if first else threshold


def likelihood_loss(logprobs: Tensor, free: Tensor, *, tokens: int) -> Tensor:
    """The negative log-likelihood of the agents' own tokens (eq. 6), as a mean over `tokens`.

    Every token of every turn, of planner and workers alike, counts the same, so this is the expectation over trajectories
    but for a constant factor. Tokens that the grammar forced are not the agents' own: they have probability 1.

    Args:
        logprobs: [a, m] under the policy that is trained.
        free: [a, m] bool.
        tokens: how many of them the iteration has, of which these actions may be a part.

    Returns:
        A scalar.
    """
    return -(logprobs * free).sum() / tokens


ALGORITHM = Algorithm("mygo", collect, prepare, loss)

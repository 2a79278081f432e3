"""MyGO, minimalist policy gradient optimization (Mujica-MyGO: seed 003, section 3.3 and appendix D).

Sample until a trajectory is good enough, then make it likelier. What is good enough rises with what the policy earns at its
first attempts, so that in time the trajectories are as if drawn from the optimal policy (propositions 1 and 2), and maximum
likelihood is all that is left to do: no advantage, no ratio, no critic, no reference.

Shapes: a actions, of at most m tokens each. Everything is zero where an action has no token.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dragoman.core.types import Question
from dragoman.rollout.record import Episode
from dragoman.rollout.samples import Sample
from dragoman.training.learner import PolicyLearner
from dragoman.training.loop import Collected, Loop, mean_reward

PROBED = 64
"""Actions by which an iteration's entropy and distance to the engine are measured: learning itself needs neither."""


def raised(threshold: float, first: Sequence[float]) -> float:
    """The threshold of an iteration: the one before it, or the mean reward of the first attempts where that is more.

    delta = max(delta', mean of R) (section 3.3; appendix D.1, progressive selection threshold). A trajectory passes when it
    earned at least so much: if it had to earn more, none could once every first attempt is right.

    Args:
        threshold: delta', of the iteration before.
        first: what the first attempts earned, of those that were scored.
    """
    return max(threshold, sum(first) / len(first)) if first else threshold


def likelihood_loss(logprobs: Tensor, mask: Tensor, *, tokens: int) -> Tensor:
    """The negative log-likelihood of the agents' own tokens (eq. 6), as a mean over `tokens`.

    Every token of every turn, of planner and workers alike, counts the same, so this is the expectation over trajectories
    but for a constant factor. Tokens that the grammar forced have probability 1 and add nothing.

    Args:
        logprobs: [a, m] under the policy that is trained.
        mask: [a, m] bool.
        tokens: how many there are in the optimizer step, of which these actions may be a part.

    Returns:
        A scalar.
    """
    return -(logprobs * mask).sum() / tokens


class Learner(PolicyLearner[None]):
    """A policy alone, which imitates what passed."""

    def appraise(self, batch: Sequence[Sample]) -> tuple[None, dict[str, float]]:
        """Nothing that learning needs: the likelihood is computed when it is differentiated."""
        figures = self.survey(batch[:PROBED]).figures()
        del figures["kl"]  # there is no reference
        return None, figures

    def step(self, batch: Sequence[Sample], indices: Sequence[int], experience: None) -> dict[str, float]:
        """One optimizer step on the likelihood, in micro-batches whose gradients add up."""
        tokens = sum(len(batch[i].completion_ids) for i in indices)
        self.optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for micro in self.batches(batch, indices):
            logprobs = self.actor(micro, self.settings.exploration.temperature).logprobs
            loss = likelihood_loss(logprobs, micro.mask.to(logprobs.device), tokens=tokens)
            loss.backward()
            total += float(loss.detach())
        return {"nll": total, "grad_norm": self.apply_gradients()}


class Run(Loop):
    """Iterate: attempt each question until it passes, learn the trajectories that did."""

    algorithm = "mygo"
    learner_type = Learner

    async def collect(self, questions: Sequence[Question]) -> Collected:
        """The turns of all roles in the first trajectory of each question that passed.

        The first attempts of all questions set the threshold; only those that missed it are attempted again, each time all
        at once.
        """
        s = self.settings
        exploration = s.exploration.single()
        threshold = self.history[-1]["threshold"] if self.history else s.mygo.threshold
        waiting, tried, passed = list(questions), list[Episode](), list[Episode]()
        for attempt in range(s.mygo.attempts):
            episodes = await self.roll_out(
                waiting,
                exploration=exploration,
                seed=self.seed + self.iteration * s.mygo.attempts + attempt,
                part=f"{attempt:02d}",
            )
            earned = [self._earned(episode) for episode in episodes]
            if attempt == 0:
                threshold = raised(threshold, [x for x in earned if x is not None])
            good = [x is not None and x >= threshold for x in earned]
            tried += episodes
            passed += [episode for episode, ok in zip(episodes, good, strict=True) if ok]
            waiting = [question for question, ok in zip(waiting, good, strict=True) if not ok]
            if not waiting:
                break
        found = self.samples(passed)
        batch = self.fitting(found)
        figures = {
            "reward": mean_reward(tried[: len(questions)], self.reward),  # later attempts are at what is hard
            "too_long": len(found) - len(batch),
            "threshold": threshold,
            "passed": len(passed),
            "never_passed": len(waiting),
        }
        return Collected(tried, batch, figures)

    def _earned(self, episode: Episode) -> float | None:
        """The reward of a single trajectory, less the price of its steps; None where it could not be scored."""
        (trajectory,) = episode.trajectories
        reward = trajectory.rewards.get(self.reward)
        return None if reward is None else reward - self.settings.price * len(trajectory.steps)

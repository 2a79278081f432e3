"""Multi-agent PPO on credited actions (C-3PO: Guo et al. 2025, section 5.2 and appendix A.1).

Every action of every role is an episode of its own for PPO: its state is a prompt, its steps are tokens, its reward comes
with the last token. What ties the agents together is the credit, which is the expected reward of the whole system.

Shapes: a actions, of at most m tokens each. Everything is zero where an action has no token.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman.core.errors import UserError
from dragoman.core.types import Question
from dragoman.rollout.samples import Sample
from dragoman.training.actor import Critic
from dragoman.training.learner import PolicyLearner, engine_correction
from dragoman.training.loop import Collected, Loop, with_contrast
from dragoman.training.settings import RlParams


def token_rewards(credit: Tensor, logprobs: Tensor, reference: Tensor, mask: Tensor, *, kl_coef: float) -> Tensor:
    """The credit with the last token, less a penalty at each for leaving the reference policy (appendix A.1).

    r(s_{t,m}, a_{t,m}) = [m = M] r_credit(s_t, a_t) - beta log(pi_old(a_{t,m} | s_{t,m}) / pi_ref(a_{t,m} | s_{t,m}))

    Args:
        credit: [a].
        logprobs: [a, m] under the policy that drew the actions.
        reference: [a, m] under the reference policy, the warm-up.
        mask: [a, m] bool.
        kl_coef: beta.

    Returns:
        [a, m]
    """
    rewards = -kl_coef * (logprobs - reference) * mask
    last = mask.sum(1, keepdim=True) - 1
    return rewards.scatter_add(1, last, credit[:, None].to(rewards.dtype))


def generalized_advantages(rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float) -> Tensor:
    """Generalized advantage estimates over the tokens of each action (eq. 9; Schulman et al. 2016).

    delta_m = r_m + gamma V(s_{m+1}) - V(s_m), and A_m = sum over l of (gamma lambda)^l delta_{m+l}. Nothing follows an
    action's last token: the credit already is the expected reward of all that comes after.

    Args:
        rewards: [a, m].
        values: [a, m].
        mask: [a, m] bool.

    Returns:
        [a, m]
    """
    advantages = torch.zeros_like(rewards)
    following = torch.zeros_like(rewards[:, 0])
    next_value = torch.zeros_like(following)
    for m in reversed(range(rewards.shape[1])):
        delta = rewards[:, m] + gamma * next_value - values[:, m]
        following = (delta + gamma * lam * following) * mask[:, m]
        advantages[:, m] = following
        next_value = values[:, m] * mask[:, m]
    return advantages


def policy_loss(
    logprobs: Tensor, old: Tensor, advantages: Tensor, correction: Tensor, weights: Tensor, mask: Tensor, *, clip: float
) -> Tensor:
    """The clipped surrogate, as a loss (eq. 8): the sum over an action's tokens, the weighted sum over actions.

    Args:
        logprobs: [a, m] under the policy that is trained.
        old: [a, m] under the policy that drew the actions.
        advantages: [a, m].
        correction: [a, m] importance of trainer to engine, see `engine_correction`.
        weights: [a] see `role_weights`.
        mask: [a, m] bool.
        clip: epsilon.

    Returns:
        A scalar.
    """
    ratio = (logprobs - old).exp()
    surrogate = torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    return -(weights * (correction * surrogate * mask).sum(1)).sum()


def tree_values(batch: Sequence[Sample]) -> Tensor:
    """[a] V(s) of the state each action was taken in: the mean credit of the actions that were drawn there.

    A tree needs no critic to be learnt: it has tried each state more than once, and the mean of what followed is the
    Monte-Carlo estimate of its value (as in VinePPO: Kazemnejad et al. 2024).
    """
    total: dict[str, float] = defaultdict(float)
    draws: dict[str, int] = defaultdict(int)
    for sample in batch:
        total[sample.group] += sample.draws * sample.credit
        draws[sample.group] += sample.draws
    return torch.tensor([total[sample.group] / draws[sample.group] for sample in batch])


def value_loss(values: Tensor, returns: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    """Squared error to the empirical returns G = A + V (eq. 10): the sum over tokens, the weighted sum over actions."""
    return (weights * ((values - returns).square() * mask).sum(1)).sum()


def role_weights(actions: Sequence[Sample]) -> Tensor:
    """[a] weights that make a weighted sum over actions the sum over roles of the mean over each role's draws (eq. 6)."""
    counts: dict[str, int] = defaultdict(int)
    for action in actions:
        counts[action.role] += action.draws
    return torch.tensor([action.draws / counts[action.role] for action in actions])


def whiten(advantages: Tensor, mask: Tensor) -> Tensor:
    """Advantages with mean 0 and standard deviation 1 over all tokens."""
    values = advantages[mask]
    return (advantages - values.mean()) / (values.std(correction=0) + 1e-6) * mask


@dataclass(frozen=True)
class Experience:
    """What PPO adds to a batch of actions before it learns from them. All are [a, m], and constant while it does."""

    old: Tensor
    advantages: Tensor
    returns: Tensor
    correction: Tensor


class Learner(PolicyLearner[Experience]):
    """Actor and critic, and the two things PPO does with a batch of actions."""

    def __init__(self, warm_up: Path, settings: RlParams, *, seed: int) -> None:
        super().__init__(warm_up, settings, seed=seed)
        self.critic: Critic | None = None
        if settings.critic != "tree":
            self.critic = Critic(self.actor, separate=settings.critic == "separate", adapter=settings.adapter)
            self.optimizer.add_param_group(
                {"params": self.critic.trainable(), "lr": settings.value_lr, "initial_lr": settings.value_lr}
            )
        if settings.kl_coef:
            self.open_reference()

    def appraise(self, batch: Sequence[Sample]) -> tuple[Experience, dict[str, float]]:
        """Old and reference log-probabilities, values, token rewards, advantages (appendix A.1)."""
        s = self.settings
        seen = self.survey(batch, reference=bool(s.kl_coef), critic=self.critic)
        mask = seen.mask
        values = seen.values if self.critic is not None else tree_values(batch)[:, None] * mask
        credit = torch.tensor([sample.credit for sample in batch])
        rewards = token_rewards(credit, seen.old, seen.reference, mask, kl_coef=s.kl_coef)
        advantages = generalized_advantages(rewards, values, mask, gamma=s.gamma, lam=s.lam)
        returns = advantages + values
        correction = engine_correction(seen.raw, seen.engine, mask, cap=s.importance_cap)
        unexplained = (returns - values)[mask].var(correction=0) / (returns[mask].var(correction=0) + 1e-8)
        stats = {**seen.figures(), "explained_variance": float(1 - unexplained)}
        if s.whiten:
            advantages = whiten(advantages, mask)
        return Experience(seen.old, advantages, returns, correction), stats

    def step(self, batch: Sequence[Sample], indices: Sequence[int], experience: Experience) -> dict[str, float]:
        """One optimizer step on the loss L_CLIP + c_v L_V (eq. 11), in micro-batches whose gradients add up."""
        s = self.settings
        weights = torch.zeros(len(batch))
        weights[list(indices)] = role_weights([batch[i] for i in indices])
        self.optimizer.zero_grad(set_to_none=True)
        totals: dict[str, float] = defaultdict(float)
        for micro in self.batches(batch, indices):
            width = micro.mask.shape[1]
            mask = micro.mask.to(self.actor.device)
            old, advantages, returns, correction = (
                tensor[micro.actions, :width].to(mask.device)
                for tensor in (experience.old, experience.advantages, experience.returns, experience.correction)
            )
            weight = weights[micro.actions].to(mask.device)
            policy = self.actor(micro, s.exploration.temperature)
            clipped = policy_loss(policy.logprobs, old, advantages, correction, weight, mask, clip=s.clip)
            squared = torch.zeros(())
            if self.critic is not None:
                squared = value_loss(self.critic(micro, policy), returns, weight, mask)
            (clipped + s.value_coef * squared).backward()
            ratio = (policy.logprobs.detach() - old).exp()
            totals["policy_loss"] += float(clipped.detach())
            totals["value_loss"] += float(squared.detach())
            totals["clipped"] += float((((ratio - 1).abs() > s.clip) & mask).sum())
            totals["tokens"] += float(mask.sum())
        norm = self.apply_gradients()
        return {
            "policy_loss": totals["policy_loss"],
            "value_loss": totals["value_loss"],
            "clip_fraction": totals["clipped"] / totals["tokens"],
            "grad_norm": norm,
        }

    def state(self) -> dict[str, Any]:
        return super().state() | {"critic": None if self.critic is None else self.critic.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        if self.critic is not None:
            self.critic.load_state(state["critic"])


class Run(Loop):
    """Iterate: roll out trees with the current policy, assign credit, learn."""

    algorithm = "ppo"
    learner_type = Learner

    async def collect(self, questions: Sequence[Question]) -> Collected:
        """The actions of trees, with their credit.

        Raises:
            UserError: nothing to learn from.
        """
        episodes = await self.grow_trees(questions)
        found = self.samples(episodes)
        if self.settings.only_contrasts:
            found = with_contrast(found)
        fitting = self.fitting(found)
        if not fitting:
            raise UserError(
                f"rl iteration {self.iteration}: no action to learn from (of {len(found)} none has at most "
                f"{self.settings.max_tokens} tokens); the reasons why trajectories ended are in {self.out / 'rollouts'}"
            )
        return Collected(episodes, fitting, {"too_long": len(found) - len(fitting)})

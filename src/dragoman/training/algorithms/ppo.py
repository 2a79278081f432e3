"""Multi-agent PPO on credited actions (C-3PO: Guo et al. 2025, section 5 and appendix A.1).

Every action of every role is an episode of its own for PPO: its state is a prompt, its steps are tokens, its reward comes
with the last token. What ties the agents together is the credit, which is the expected reward of the whole system.

1. Roll out a tree for each question (eq. 1 to 4), and credit each action with the mean reward below it (eq. 5).
2. Reward the tokens of an action: its credit with the last, less a penalty at each for leaving the warm-up.
3. Value the state before each token, by a critic or by the tree.
4. Estimate advantages and returns (GAE, below eq. 9).
5. Weigh actions so that the loss is a sum over roles (eq. 6 and 8).
6. Take optimizer steps on the clipped surrogate (eq. 9) and the value loss (eq. 10), added as in eq. 11.

Shapes: a actions, of at most m tokens each. Everything is zero where an action has no token.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from dragoman.core.errors import UserError
from dragoman.core.types import Question
from dragoman.rollout.samples import Sample
from dragoman.training.algorithm import Algorithm, Collected, MicroBatch
from dragoman.training.selection import with_contrast
from dragoman.training.settings import RlParams
from dragoman.training.survey import engine_correction

if TYPE_CHECKING:
    from dragoman.training.learner import Learner
    from dragoman.training.loop import Loop


class Experience(NamedTuple):
    """What PPO adds to a batch of actions. All are [a, m], and constant while it learns."""

    old: Tensor
    advantages: Tensor
    returns: Tensor
    correction: Tensor


async def collect(loop: Loop, questions: Sequence[Question]) -> Collected:
    """The actions of trees, with their credit.

    Raises:
        UserError: nothing to learn from.
    """
    # 1.
    episodes = await loop.roll_out(questions)
    found = loop.samples(episodes)
    fitting = loop.fitting(found)
    if not fitting:
        raise UserError(
            f"rl iteration {loop.iteration}: no action to learn from (of {len(found)} none has at most "
            f"{loop.settings.max_tokens} tokens); the reasons why trajectories ended are in {loop.out / 'rollouts'}"
        )
    batch = with_contrast(fitting) if loop.settings.only_contrasts else fitting
    return Collected(episodes, batch, {"too_long": len(found) - len(fitting)})


def prepare(learner: Learner, batch: Sequence[Sample]) -> tuple[Experience, dict[str, float]]:
    """Token rewards, values, advantages and returns (appendix A.1), under the policy that drew the actions."""
    s, seen = learner.settings, learner.survey(batch)
    mask = seen.mask
    # 2.
    credit = torch.tensor([sample.credit for sample in batch])
    rewards = token_rewards(credit, seen.old, seen.reference, mask, kl_coef=s.kl_coef)
    # 3.
    values = tree_values(batch)[:, None] * mask if s.critic == "tree" else seen.values
    # 4.
    advantages = generalized_advantages(rewards, values, mask, gamma=s.gamma, lam=s.lam)
    returns = advantages + values
    unexplained = (returns - values)[mask].var(correction=0) / (returns[mask].var(correction=0) + 1e-8)
    figures = {**seen.figures(), "explained_variance": float(1 - unexplained)}
    if s.whiten:
        advantages = whiten(advantages, mask)
    correction = engine_correction(seen.raw, seen.engine, mask, cap=s.importance_cap)
    return Experience(seen.old, advantages, returns, correction), figures


def loss(micro: MicroBatch, experience: Experience, settings: RlParams) -> tuple[Tensor, dict[str, float]]:
    """L_CLIP + c_v L_V (eq. 11)."""
    # 6.
    old, advantages, returns, correction = experience
    clip = settings.clip
    clipped = policy_loss(micro.logprobs, old, advantages, correction, micro.weights, micro.mask, clip=clip)
    squared = torch.zeros(())
    if micro.values is not None:
        squared = value_loss(micro.values, returns, micro.weights, micro.mask)
    beyond = ((micro.logprobs.detach() - old).exp() - 1).abs() > clip
    return clipped + settings.value_coef * squared, {
        "policy_loss": float(clipped.detach()),
        "value_loss": float(squared.detach()),
        "clip_fraction": float((beyond & micro.mask).sum()) / micro.tokens,
    }


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
    """Generalized advantage estimates over the tokens of each action (below eq. 9; Schulman et al. 2016).

    A_m = sum over l of (gamma lambda)^l delta_{m+l}, where delta_m = r_m + gamma V(s_{m+1}) - V(s_m). Nothing follows an
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
    """The clipped surrogate, as a loss (eq. 9): the sum over an action's tokens, the weighted sum over actions.

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
    """[a] weights that make a weighted sum over actions the sum over roles of the mean over each role's draws (eq. 8)."""
    counts: dict[str, int] = defaultdict(int)
    for action in actions:
        counts[action.role] += action.draws
    return torch.tensor([action.draws / counts[action.role] for action in actions])


def whiten(advantages: Tensor, mask: Tensor) -> Tensor:
    """Advantages with mean 0 and standard deviation 1 over all tokens."""
    values = advantages[mask]
    return (advantages - values.mean()) / (values.std(correction=0) + 1e-6) * mask


ALGORITHM = Algorithm(
    "ppo",
    collect,
    prepare,
    loss,
    weigh=role_weights,  # 5.
    needs_reference=lambda settings: settings.kl_coef > 0,
    needs_critic=lambda settings: settings.critic != "tree",
)

"""Multi-agent PPO on credited actions (C-3PO: Guo et al. 2025, section 5 and appendix A.1).

Every action of every role is an episode of its own for PPO: its state is a prompt, its steps are the tokens that the grammar
left free, its reward comes with the last. What ties the agents together is the credit, which is the expected reward of the whole system.

1. Roll out a tree for each question (eq. 1 to 4), and credit each action with the mean reward below it (eq. 5).
2. Reward the tokens of an action: its credit with the last, less a penalty at each for leaving the warm-up.
3. Value the state before each token, by a critic or by the tree.
4. Estimate advantages and returns (GAE, below eq. 9).
5. Weigh actions so that the loss of an iteration is a sum over roles (eq. 6 and 8).
6. Take optimizer steps on the clipped surrogate (eq. 9) and the value loss (eq. 10), added as in eq. 11.

Shapes: a actions, of at most m tokens each. Everything is zero where an action has no token, or one that is not free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from dragoman.core.errors import UserError
from dragoman.core.types import Question
from dragoman.rollout.record import check_outage
from dragoman.rollout.samples import Sample
from dragoman.training.algorithm import Algorithm, Collected, MicroBatch
from dragoman.training.selection import siblings, with_contrast
from dragoman.training.settings import RlParams
from dragoman.training.surrogates import beyond_clip, surrogate
from dragoman.training.survey import engine_correction, sibling_means, sibling_shares

if TYPE_CHECKING:
    from dragoman.training.learner import Learner
    from dragoman.training.loop import Loop


class Experience(NamedTuple):
    """What PPO adds to a batch of actions, constant while it learns. All are [a, m] but the weights, which are [a]."""

    old: Tensor
    advantages: Tensor
    returns: Tensor
    correction: Tensor
    weights: Tensor


async def collect(loop: Loop, questions: Sequence[Question]) -> Collected:
    """The actions of trees, with their credit.

    Raises:
        UserError: nothing to learn from.
        Fault: for every tree met a fault.
    """
    # 1.
    episodes = await loop.roll_out(questions)
    found = loop.samples(episodes)
    fitting = loop.fitting(found)
    if not found:
        check_outage(episodes)
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
    batch, free = seen.informed(batch), seen.free
    # 2.
    credit = torch.tensor([sample.credit for sample in batch])
    rewards = token_rewards(credit, seen.old, seen.reference, free, kl_coef=s.kl_coef)
    # 3. A tree's value is that of a state, not of a token: anything but 1 would let advantages decay with an action's length.
    tree = s.critic == "tree"
    values = tree_values(batch)[:, None] * free if tree else seen.values * free
    gamma, lam = (1.0, 1.0) if tree else (s.gamma, s.lam)
    # 4.
    advantages = generalized_advantages(rewards, values, free, gamma=gamma, lam=lam)
    returns = advantages + values
    unexplained = (returns - values)[free].var(correction=0) / (returns[free].var(correction=0) + 1e-8)
    figures = {**seen.figures(batch), "explained_variance": float((1 - unexplained).nan_to_num())}
    # 5.
    weights = role_weights(batch)
    if s.scale_advantages:
        advantages = scaled(advantages, free, weights, least=s.min_std)
    correction = engine_correction(seen.old, seen.engine, free, cap=s.importance_cap)
    return Experience(seen.old, advantages, returns, correction, weights), figures


def loss(micro: MicroBatch, experience: Experience, settings: RlParams) -> tuple[Tensor, dict[str, float]]:
    """L_CLIP + c_v L_V (eq. 11); L_CLIP (eq. 9) is the sum over an action's tokens, and the weighted sum over actions."""
    # 6.
    old, advantages, returns, correction, weights = experience
    objective = correction * surrogate(micro.logprobs, old, advantages, micro.free, settings)
    clipped = -(weights * objective.sum(1)).sum()
    squared = torch.zeros(())
    if micro.values is not None:
        squared = value_loss(micro.values, returns, weights, micro.free)
    return clipped + settings.value_coef * squared, {
        "policy_loss": float(clipped.detach()),
        "value_loss": float(squared.detach()),
        "clip_fraction": beyond_clip(micro.logprobs, old, micro.free, settings) / micro.tokens,
    }


def check(settings: RlParams) -> None:
    """
    Raises:
        UserError: the tree is to be the critic, and the exploration has no siblings.
    """
    if settings.critic == "tree" and not settings.exploration.has_siblings:
        raise UserError(
            "rl.critic: the tree can only be the critic where states have several actions: raise rl.exploration.breadth, "
            "or set rl.critic to head"
        )


def token_rewards(credit: Tensor, logprobs: Tensor, reference: Tensor, free: Tensor, *, kl_coef: float) -> Tensor:
    """The credit with the last free token, less a penalty at each for leaving the reference policy (appendix A.1).

    r(s_{t,m}, a_{t,m}) = [m = M] r_credit(s_t, a_t) - beta log(pi_old(a_{t,m} | s_{t,m}) / pi_ref(a_{t,m} | s_{t,m}))

    Args:
        credit: [a].
        logprobs: [a, m] under the policy that drew the actions.
        reference: [a, m] under the reference policy, the warm-up.
        free: [a, m] bool.
        kl_coef: beta.

    Returns:
        [a, m]
    """
    rewards = -kl_coef * (logprobs - reference) * free
    last = (free * torch.arange(1, free.shape[1] + 1)).argmax(1, keepdim=True)
    return rewards.scatter_add(1, last, (credit * free.any(1))[:, None].to(rewards.dtype))


def generalized_advantages(rewards: Tensor, values: Tensor, free: Tensor, *, gamma: float, lam: float) -> Tensor:
    """Generalized advantage estimates over the tokens of each action (below eq. 9; Schulman et al. 2016).

    A_m = sum over l of (gamma lambda)^l delta_{m+l}, where delta_m = r_m + gamma V(s_{m+1}) - V(s_m). Nothing follows an
    action's last token: the credit already is the expected reward of all that comes after. A forced token is no step.

    Args:
        rewards: [a, m].
        values: [a, m].
        free: [a, m] bool.

    Returns:
        [a, m]
    """
    advantages = torch.zeros_like(rewards)
    following = torch.zeros_like(rewards[:, 0])
    next_value = torch.zeros_like(following)
    for m in reversed(range(rewards.shape[1])):
        here = free[:, m]
        delta = rewards[:, m] + gamma * next_value - values[:, m]
        following = torch.where(here, delta + gamma * lam * following, following)
        advantages[:, m] = following * here
        next_value = torch.where(here, values[:, m], next_value)
    return advantages


def tree_values(batch: Sequence[Sample]) -> Tensor:
    """[a] V(s) of the state each action was taken in: the mean credit of its siblings, by their shares.

    A tree needs no critic to be learnt: it has tried each state more than once, and the mean of what followed is the
    Monte-Carlo estimate of its value (as in VinePPO: Kazemnejad et al. 2024).

    Where siblings leave actions out, an action has a larger share because it was drawn itself. In the mean that it is compared
    with, it has what is left of its share without that: else the fewer are drawn, the smaller are all advantages (Kool et al.
    2019, Buy 4 REINFORCE samples). At marks that is its share times its chance to be drawn: its probability among the actions that
    were listed. Of a written one it is that of its other draws. What was forced stands for its kind, and keeps its share.
    """
    share, credits = sibling_shares(batch), torch.tensor([x.credit for x in batch])
    left = [1.0 if x.forced else (x.draws - 1) / x.draws if x.probability is None else x.inclusion for x in batch]
    others = (1 - share + share * torch.tensor(left)).clamp(min=1e-6)  # 0 of the only draw of a text
    return credits - (credits - sibling_means(batch, credits)) / others


def value_loss(values: Tensor, returns: Tensor, weights: Tensor, free: Tensor) -> Tensor:
    """Squared error to the empirical returns G = A + V (eq. 10): the sum over tokens, the weighted sum over actions."""
    return (weights * ((values - returns).square() * free).sum(1)).sum()


def role_weights(batch: Sequence[Sample]) -> Tensor:
    """[a] weights of an iteration: a sum over roles of the mean over each role's states (eq. 8), of which siblings have shares.

    So where all actions of a state were drawn, the surrogate is the sum of pi(a) A(a) over them, and its gradient exact.
    """
    states = Counter(batch[group[0]].role for group in siblings(batch))
    return sibling_shares(batch) / torch.tensor([states[x.role] for x in batch])


def scaled(advantages: Tensor, free: Tensor, weights: Tensor, *, least: float) -> Tensor:
    """Advantages in units of their root mean square over all free choices, as they are weighed; 0 stays 0.

    They have their baseline already. To centre them again, over tokens, would let a state's worse action gain by what long
    actions of other states lost.

    Args:
        least: of what they are divided by, so that small ones stay small.
    """
    each = weights[:, None] * free
    return advantages / ((each * advantages.square()).sum() / each.sum().clamp(min=1e-9)).sqrt().clamp(min=least)


ALGORITHM = Algorithm(
    "ppo",
    collect,
    prepare,
    loss,
    needs_reference=lambda settings: settings.kl_coef > 0,
    needs_critic=lambda settings: settings.critic != "tree",
    check=check,
)

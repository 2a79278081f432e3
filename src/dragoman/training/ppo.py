"""Multi-agent PPO on credited actions (C-3PO: Guo et al. 2025, section 5.2 and appendix A.1).

Every action of every role is an episode of its own for PPO: its state is a prompt, its steps are tokens, its reward comes
with the last token. What ties the agents together is the credit, which is the expected reward of the whole system.

Shapes: a actions, of at most m tokens each. Everything is zero where an action has no token.
"""

from __future__ import annotations

import logging
import math
import random
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman import jsonl
from dragoman.config import RlParams
from dragoman.engines.local import fingerprint
from dragoman.errors import UserError
from dragoman.progress import bar
from dragoman.rollout.record import Episode
from dragoman.rollout.samples import Sample, samples, write_samples
from dragoman.rollout.view import write_tree
from dragoman.training.actions import AllowedTokens, Batch, Row, collate, micro_batches, rows
from dragoman.training.actor import Actor, Critic
from dragoman.training.dev import dev_rollout, roll_out_policy
from dragoman.training.policy import METRICS, lineage, publish, resume
from dragoman.types import Question
from dragoman.world import Worlds

log = logging.getLogger(__name__)

CHECKPOINT = "checkpoint.pt"


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


def engine_correction(trainer: Tensor, engine: Tensor, mask: Tensor, *, cap: float) -> Tensor:
    """[a, m] weights min(pi_trainer / pi_engine, cap), for engines compute the same model a little differently."""
    return torch.where(mask, (trainer - engine).exp().clamp(max=cap), 0.0)


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


class Learner:
    """Actor, critic and optimizer, and the two things PPO does with a batch of actions: appraise it, learn from it."""

    def __init__(self, warm_up: Path, settings: RlParams, *, seed: int) -> None:
        torch.manual_seed(seed)  # of the adapter's and the head's first weights
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.settings = settings
        self.actor = Actor(warm_up, settings.adapter, device, bf16=settings.bf16)
        self.critic = None
        if settings.critic != "tree":
            self.critic = Critic(self.actor, separate=settings.critic == "separate", adapter=settings.adapter)
        self.reference = None
        if settings.kl_coef and not self.actor.has_reference:
            self.reference = Actor(warm_up, None, device, bf16=settings.bf16).requires_grad_(False)
        groups: list[dict[str, Any]] = [{"params": self.actor.trainable(), "lr": settings.policy_lr}]
        if self.critic is not None:
            groups.append({"params": self.critic.trainable(), "lr": settings.value_lr})
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0)
        self.allowed = AllowedTokens(warm_up)

    def batches(self, batch: Sequence[Sample], indices: Sequence[int]) -> list[Batch]:
        limit = self.settings.micro_batch_tokens
        grouped: list[list[Row]] = list(micro_batches(rows(batch, indices), limit))
        return [collate(group, batch, self.allowed, self.allowed.pad_id) for group in grouped]

    @torch.no_grad()
    def appraise(self, batch: Sequence[Sample]) -> tuple[Experience, dict[str, float]]:
        """Old and reference log-probabilities, values, token rewards, advantages (appendix A.1)."""
        s = self.settings
        longest = max(len(sample.completion_ids) for sample in batch)
        shape = (len(batch), longest)
        old, raw, entropy, reference, values = (torch.zeros(shape) for _ in range(5))
        mask = torch.zeros(shape, dtype=torch.bool)
        with bar("appraise", len(batch)) as advance:
            for micro in self.batches(batch, range(len(batch))):
                policy = self.actor(micro, s.exploration.temperature)
                width = micro.mask.shape[1]
                old[micro.actions, :width] = policy.logprobs.cpu()
                raw[micro.actions, :width] = policy.raw.cpu()
                entropy[micro.actions, :width] = policy.entropy.cpu()
                if self.critic is not None:
                    values[micro.actions, :width] = self.critic(micro, policy).cpu()
                mask[micro.actions, :width] = micro.mask
                if s.kl_coef:
                    reference[micro.actions, :width] = self._reference(micro).cpu()
                advance(steps=len(micro.actions))
        if self.critic is None:
            values = tree_values(batch)[:, None] * mask
        if not s.kl_coef:
            reference = old
        credit = torch.tensor([sample.credit for sample in batch])
        rewards = token_rewards(credit, old, reference, mask, kl_coef=s.kl_coef)
        advantages = generalized_advantages(rewards, values, mask, gamma=s.gamma, lam=s.lam)
        returns = advantages + values
        engine, reported = engine_logprobs(batch, raw)
        correction = engine_correction(raw, engine, mask, cap=s.importance_cap)
        difference = (raw - engine)[mask & reported]
        kl, chosen = (old - reference)[mask], entropy[mask]
        unexplained = (returns - values)[mask].var(correction=0) / (returns[mask].var(correction=0) + 1e-8)
        ratios = difference.exp().quantile(torch.tensor([0.05, 0.5, 0.95])).tolist() if len(difference) else [1.0] * 3
        stats = {
            "kl": float(kl.mean()),
            "entropy": float(chosen.mean()),
            "explained_variance": float(1 - unexplained),
            "engine_difference": float(difference.abs().mean()) if len(difference) else 0.0,
            **{f"engine_ratio_{q}": r for q, r in zip(("p05", "p50", "p95"), ratios, strict=True)},
        }
        if s.whiten:
            advantages = whiten(advantages, mask)
        return Experience(old, advantages, returns, correction), stats

    def _reference(self, micro: Batch) -> Tensor:
        if self.reference is not None:
            return self.reference(micro, self.settings.exploration.temperature).logprobs
        with self.actor.reference():
            return self.actor(micro, self.settings.exploration.temperature).logprobs

    def learn(self, batch: Sequence[Sample], experience: Experience, *, shuffle: random.Random) -> dict[str, float]:
        """Some epochs of clipped updates over mini-batches. Returns the means of what was seen on the way."""
        s = self.settings
        seen: dict[str, list[float]] = defaultdict(list)
        groups = rows(batch, range(len(batch)))
        with bar("learn", s.epochs * len(batch)) as advance:
            for _ in range(s.epochs):
                shuffle.shuffle(groups)  # siblings stay together: they share their prompt
                for mini in _mini_batches(groups, s.batch_size):
                    indices = [i for row in mini for i in row.actions]
                    step = self.step(batch, indices, experience)
                    for name, value in step.items():
                        seen[name].append(value)
                    advance(f"policy {step['policy_loss']:+.3f} value {step['value_loss']:.3f}", steps=len(indices))
        return {name: sum(values) / len(values) for name, values in seen.items()}

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
        # apart: the critic's gradients are far larger at first, and would scale the policy's down with them
        norm = torch.nn.utils.clip_grad_norm_(self.actor.trainable(), s.max_grad_norm)
        critics = torch.zeros(())
        if self.critic is not None:
            critics = torch.nn.utils.clip_grad_norm_(self.critic.trainable(), s.max_grad_norm)
        if torch.isfinite(norm + critics):  # a bad batch must not destroy the weights; a guard sees it
            self.optimizer.step()
        return {
            "policy_loss": totals["policy_loss"],
            "value_loss": totals["value_loss"],
            "clip_fraction": totals["clipped"] / totals["tokens"],
            "grad_norm": float(norm),
        }

    def set_progress(self, progress: float) -> None:
        """Cosine decay of both learning rates, `progress` from 0 to 1."""
        factor = 0.5 * (1 + math.cos(math.pi * progress))
        rates = (self.settings.policy_lr, self.settings.value_lr)  # the second is the critic's, if there is one
        for group, lr in zip(self.optimizer.param_groups, rates, strict=False):
            group["lr"] = lr * factor

    def state(self) -> dict[str, Any]:
        return {
            "actor": self.actor.state(),
            "critic": None if self.critic is None else self.critic.state(),
            "optimizer": self.optimizer.state_dict(),
            "random": torch.get_rng_state(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.actor.load_state(state["actor"])
        if self.critic is not None:
            self.critic.load_state(state["critic"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])


def engine_logprobs(batch: Sequence[Sample], own: Tensor) -> tuple[Tensor, Tensor]:
    """The engine's log-probabilities as [a, m], with `own` where it reported none, and where it did report."""
    engine, reported = own.clone(), torch.zeros(own.shape, dtype=torch.bool)
    for i, sample in enumerate(batch):
        if len(sample.logprobs) == len(sample.completion_ids):
            engine[i, : len(sample.logprobs)] = torch.tensor(sample.logprobs)
            reported[i, : len(sample.logprobs)] = True
    return engine, reported


def _mini_batches(groups: Sequence[Row], size: int) -> list[list[Row]]:
    """Rows in their order, cut where `size` actions are full."""
    batches: list[list[Row]] = [[]]
    for row in groups:
        if batches[-1] and sum(len(r.actions) for r in batches[-1]) + len(row.actions) > size:
            batches.append([])
        batches[-1].append(row)
    return batches


class Run:
    """Iterate: roll out trees with the current policy, assign credit, learn. Keep the policy that is best on `dev`.

    Every iteration ends in a checkpoint. A run that was cut short goes on from there when it is made again with equal
    arguments, and comes to the same numbers; with other arguments it starts anew.

    Args:
        system: name of the system whose roles are trained.
        questions: to learn from; shuffled anew in each pass.
        dev: never learnt from; greedy answers to them choose the policy.
        warm_up: model folder of the policy to start from, which is also the reference.
        reward: name of the score that is learnt from, such as `cover_em`.
        out: the stage's folder.
        data: hashes of what is learnt from, for the manifest.
        ranks: a curriculum: questions by id, those of lower rank first in each pass.

    Raises:
        UserError: nothing to learn from.
    """

    def __init__(
        self,
        system: str,
        questions: Sequence[Question],
        dev: Sequence[Question],
        worlds: Worlds,
        settings: RlParams,
        *,
        warm_up: Path,
        reward: str,
        seed: int,
        out: Path,
        data: dict[str, str],
        ranks: Mapping[str, int] = {},
    ) -> None:
        if not questions or not dev:
            raise UserError("PPO needs questions to learn from and dev questions to choose by; one of the two is empty")
        self.system, self.questions, self.dev, self.worlds = system, questions, dev, worlds
        self.settings, self.warm_up, self.reward, self.seed, self.out = settings, warm_up, reward, seed, out
        self.ranks = ranks
        parameters = {"reward": reward, "seed": seed, **settings.model_dump(mode="json")}
        self.manifest = lineage("rl", system, warm_up, data, parameters)
        self.arguments = jsonl.dumps(
            [self.manifest, fingerprint(warm_up, "bfloat16"), [q.id for q in questions], [q.id for q in dev]]
        )
        self.learner = Learner(warm_up, settings, seed=seed)
        self.iteration = 0
        self.history: list[dict[str, Any]] = []
        self.dev_history: list[dict[str, Any]] = []
        self.best: dict[str, Any] | None = None

    async def train(self) -> dict[str, Any]:
        """Train, publish the best policy in `out`, and return what `out/metrics.json` holds."""
        if finished := resume(self.out, self.arguments):
            return finished
        self._load_checkpoint()
        stopped = self.settings.guards.broken_by(self.history[-1]) if self.history else ""
        with bar(f"rl {self.system}", self.settings.iterations) as advance:
            advance(steps=self.iteration)
            while self.iteration < self.settings.iterations and not stopped:
                if self.iteration % self.settings.dev_every == 0:
                    await self._evaluate()
                row = await self._iterate()
                self.history.append(row)
                self.iteration += 1
                self._checkpoint()
                advance(f"reward {row['reward']:.2f} KL {row['kl']:.3f}")
                stopped = self.settings.guards.broken_by(row)
        if stopped:
            log.warning("rl: stopped after %d iterations: %s; the best policy is kept", self.iteration, stopped)
        else:
            await self._evaluate()
        return self._finish(stopped)

    async def _iterate(self) -> dict[str, Any]:
        """One iteration: roll out, assign credit, appraise, learn."""
        s, started = self.settings, time.monotonic()
        chosen = questions_of(self.iteration, self.questions, s.questions, self.seed, self.ranks)
        episodes = await roll_out_policy(
            self.system,
            self._policy(),
            chosen,
            self.worlds,
            exploration=s.exploration.build(),
            reward=self.reward,
            seed=self.seed + self.iteration,
            concurrency=s.concurrency,
            out=self.out / "rollouts" / f"{self.iteration:04d}",
        )
        await self.worlds.release(f"{self.system}@{self._policy()}")  # the next iteration has other weights
        rolled = time.monotonic()
        batch, too_long = self._samples(episodes)
        self.learner.set_progress(self.iteration / s.iterations)
        experience, stats = self.learner.appraise(batch)
        shuffle = random.Random(f"{self.seed}/{self.iteration}")
        stats |= self.learner.learn(batch, experience, shuffle=shuffle)
        self.learner.allowed.forget()
        write_samples(self.out / "samples.parquet", batch)
        write_tree(episodes[0], self.reward, self.out / "trees" / f"{self.iteration:04d}.html")
        leaves = [t for e in episodes for t in e.trajectories]
        nodes = [n for e in episodes for n in e.nodes]
        rewarded = [r for t in leaves if (r := t.rewards.get(self.reward)) is not None]
        return {
            "iteration": self.iteration,
            "reward": sum(rewarded) / max(1, len(rewarded)),
            "valid_actions": sum(n.stop is None for n in nodes) / max(1, len(nodes)),
            "unscored": len(leaves) - len(rewarded),
            "trees": len(episodes),
            "actions": len(batch),
            "too_long": too_long,
            **{f"actions_{role}": n for role, n in sorted(Counter(x.role for x in batch).items())},
            **stats,
            "rollout_seconds": round(rolled - started, 1),
            "learn_seconds": round(time.monotonic() - rolled, 1),
        }

    async def _evaluate(self) -> None:
        """Greedy answers to the dev questions; the policy is kept when it is the best so far."""
        row = next((r for r in self.dev_history if r["iteration"] == self.iteration), None)
        if row is None:
            summary = await dev_rollout(
                self.system,
                self._policy(),
                self.dev,
                self.worlds,
                reward=self.reward,
                seed=self.seed,
                concurrency=self.settings.concurrency,
                out=self.out / "dev" / f"{self.iteration:04d}",
            )
            row = {"iteration": self.iteration, **summary}
            self.dev_history.append(row)
        if self.best is None or self._worth(row) > self._worth(self.best):
            self.best = row
            shutil.rmtree(self.out / "best", ignore_errors=True)
            shutil.copytree(self._policy(), self.out / "best")
        log.info("rl iteration %d: dev %s %.3f", self.iteration, self.reward, row["dev_reward"])

    def _worth(self, row: dict[str, Any]) -> float:
        """By what a policy is chosen: its dev reward, less the price of its steps."""
        worth: float = row["dev_reward"] - self.settings.price * row["dev_steps"]
        return worth

    def _samples(self, episodes: Sequence[Episode]) -> tuple[list[Sample], int]:
        """What is learnt from: the roles that are trained, prompts that fit; and how many did not."""
        s = self.settings
        found = [sample for episode in episodes for sample in samples(episode, self.reward, price=s.price)]
        if s.roles:
            found = [sample for sample in found if sample.role in s.roles]
        if s.only_contrasts:
            credits = defaultdict(set)
            for sample in found:
                credits[sample.group].add(sample.credit)
            found = [sample for sample in found if len(credits[sample.group]) > 1]
        fitting = [x for x in found if len(x.prompt_ids) + len(x.completion_ids) <= s.max_tokens]
        if not fitting:
            raise UserError(
                f"rl iteration {self.iteration}: no action to learn from (of {len(found)} none has at most "
                f"{s.max_tokens} tokens); the reasons why trajectories ended are in {self.out / 'rollouts'}"
            )
        return fitting, len(found) - len(fitting)

    def _policy(self) -> Path:
        """A folder with the current weights, for an engine to read."""
        if self.iteration == 0:
            return self.warm_up
        folder = self.out / "current" / f"{self.iteration:04d}"
        if not folder.is_dir():
            shutil.rmtree(folder.parent, ignore_errors=True)
            scratch = folder.with_name(f".{folder.name}")
            self.learner.actor.export(scratch)
            scratch.rename(folder)
        return folder

    def _checkpoint(self) -> None:
        state = {
            "iteration": self.iteration,
            "history": self.history,
            "dev_history": self.dev_history,
            "best": self.best,
            "learner": self.learner.state(),
        }
        with jsonl.replacing(self.out / CHECKPOINT) as temporary:
            torch.save(state, temporary)
        self._write_history()

    def _load_checkpoint(self) -> None:
        path = self.out / CHECKPOINT
        if path.is_file():
            state = torch.load(path, weights_only=True)
            self.learner.load_state(state["learner"])
            self.iteration, self.best = state["iteration"], state["best"]
            self.history, self.dev_history = state["history"], state["dev_history"]
            log.info("rl: going on after iteration %d of %d", self.iteration, self.settings.iterations)

    def _write_history(self) -> None:
        jsonl.write_csv(self.out / "history.csv", self.history)
        jsonl.write_csv(self.out / "dev.csv", self.dev_history)

    def _finish(self, stopped: str) -> dict[str, Any]:
        """Publish the best policy; what only a resumed run would need goes."""
        assert self.best is not None  # the first iteration starts with an evaluation
        metrics = {
            "iterations": self.iteration,
            "stopped": stopped,
            "best_iteration": self.best["iteration"],
            "dev_reward": self.best["dev_reward"],
            "dev_questions": len(self.dev),
            "first": self.dev_history[0],
            "last": self.dev_history[-1],
        }
        policy = publish(self.out / "best", self.out, self.manifest | {"metrics": metrics})
        metrics["policy"] = policy.name
        jsonl.write_json(self.out / METRICS, metrics)
        self._write_history()
        shutil.rmtree(self.out / "current", ignore_errors=True)
        (self.out / CHECKPOINT).unlink(missing_ok=True)
        return metrics


def questions_of(
    iteration: int, questions: Sequence[Question], count: int, seed: int, ranks: Mapping[str, int] = {}
) -> list[Question]:
    """The `count` questions of an iteration: none comes again before a pass is over, and each pass has an order of its own.

    Within it, questions of lower rank (by id) come first. What does not fill a last iteration of a pass is left out of it.
    """
    count = min(count, len(questions))
    turn, place = divmod(iteration, len(questions) // count)
    order = list(questions)
    random.Random(f"{seed}/{turn}").shuffle(order)
    order.sort(key=lambda question: ranks.get(question.id, 0))
    return order[place * count : (place + 1) * count]

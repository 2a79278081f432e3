"""How good a policy is while it is trained: its greedy answers to the dev questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dragoman.core.identity import code_hash
from dragoman.core.progress import bar
from dragoman.core.types import Question
from dragoman.rewards import Reward
from dragoman.rollout.backends import Backends
from dragoman.rollout.exploration import GREEDY, Exploration
from dragoman.rollout.record import Episode
from dragoman.rollout.scheduler import describe, roll_out
from dragoman.rollout.store import EpisodeStore
from dragoman.runtime import Runtime
from dragoman.systems.base import System

DESCRIBED = (
    "dragoman.engines",
    "dragoman.registry",
    "dragoman.retrieval",
    "dragoman.runtime",
    "dragoman.systems",
    "dragoman.tracking",
)
"""Left out of a trainer's code: the rollouts' description has it, or its result cannot depend on it."""


def run_identity(
    trainer: str,
    name: str,
    system: System,
    backends: Backends,
    manifest: Mapping[str, Any],
    *,
    exploration: Exploration,
    reward: str,
    seed: int,
    learnt_from: Sequence[str],
    dev: Sequence[Question],
) -> dict[str, Any]:
    """All that the result of a training run depends on; see `registry.policy.resume`.

    Args:
        trainer: the module that trains: its import closure is part of the identity, and that of other trainers is not.
        name: of the system.
        backends: with the policy that training starts from as its proxy.
        manifest: of the policy to be: its parameters and the hashes of its data.
        learnt_from: ids of questions or samples, in their order.
    """
    return {
        "trainer": code_hash(trainer, stop=DESCRIBED),
        **describe(name, system, backends, exploration, seed, Reward.of(reward, backends.llm)),
        **{key: value for key, value in manifest.items() if key not in ("system", "trained_with")},
        "learnt_from": list(learnt_from),
        "dev": [question.id for question in dev],
    }


async def roll_out_policy(
    system: str,
    folder: Path,
    questions: Sequence[Question],
    runtime: Runtime,
    *,
    exploration: Exploration,
    reward: str,
    seed: int,
    concurrency: int,
    out: Path,
) -> list[Episode]:
    """Episodes of the policy in `folder`, with `reward` among their rewards, kept in `out`."""
    played, backends = runtime.open(f"{system}@{folder}")
    with EpisodeStore(out) as store, bar(f"{out.parent.name} {out.name}", len(questions)) as advance:
        return await roll_out(
            questions,
            system,
            played,
            backends,
            store,
            exploration=exploration,
            seed=seed,
            concurrency=concurrency,
            reward=Reward.of(reward, backends.llm),
            progress=lambda episode: advance(),
        )


async def dev_rollout(
    system: str,
    folder: Path,
    questions: Sequence[Question],
    runtime: Runtime,
    *,
    reward: str,
    seed: int,
    concurrency: int,
    out: Path,
) -> dict[str, Any]:
    """See `summary`, of the policy's greedy answers."""
    episodes = await roll_out_policy(
        system,
        folder,
        questions,
        runtime,
        exploration=GREEDY,
        reward=reward,
        seed=seed,
        concurrency=concurrency,
        out=out,
    )
    return summary(episodes, reward)


def summary(episodes: Sequence[Episode], reward: str) -> dict[str, Any]:
    """Mean reward, decisions and steps (with searches and calls of the LLM) per question, and the share of each first
    decision, of greedy episodes."""
    trajectories = [e.trajectories[0] for e in episodes]
    rewarded = [r for t in trajectories if (r := t.rewards.get(reward)) is not None]
    first = Counter(e.nodes[0].kind for e in episodes if e.nodes and e.nodes[0].kind)
    return {
        "dev_reward": sum(rewarded) / max(1, len(rewarded)),
        "dev_depth": sum(len(t.nodes) for t in trajectories) / len(trajectories),
        "dev_steps": sum(len(t.steps) for t in trajectories) / len(trajectories),
        **{f"share_{kind}": count / len(episodes) for kind, count in sorted(first.items())},
    }

"""How good a policy is while it is trained: its greedy answers to the dev questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dragoman.core.progress import bar
from dragoman.core.types import Question
from dragoman.rewards.trajectory import Rewards
from dragoman.rollout.exploration import Exploration
from dragoman.rollout.record import Episode
from dragoman.rollout.scheduler import roll_out
from dragoman.rollout.store import EpisodeStore
from dragoman.runtime import Runtime


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
            rewards=Rewards.for_training(reward, backends.llm),
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
        exploration=Exploration(),
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

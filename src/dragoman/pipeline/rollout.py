"""Stage `rollout`: roll a system out on questions, for training or to look at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dragoman.core.errors import UserError
from dragoman.core.progress import bar
from dragoman.core.types import Question
from dragoman.rewards import Reward
from dragoman.rollout.backends import Backends
from dragoman.rollout.exploration import Exploration
from dragoman.rollout.figures import figures
from dragoman.rollout.record import Episode
from dragoman.rollout.results import write_rollout
from dragoman.rollout.scheduler import roll_out
from dragoman.rollout.store import EpisodeStore
from dragoman.systems.base import System


async def roll_out_questions(
    name: str,
    system: System,
    backends: Backends,
    questions: Sequence[Question],
    *,
    exploration: Exploration,
    draws: int,
    reward: str,
    seed: int,
    concurrency: int,
    out: Path,
    views: int,
) -> tuple[list[Episode], dict[str, Any]]:
    """Roll out, and write episodes, samples, figures, and an HTML view of the first `views` trees.

    `draws` repeats the rollout with other seeds, which is how single trajectories are sampled more than once.

    Returns:
        The episodes, and what `out/metrics.json` holds.
    """
    if not questions:
        raise UserError("no questions to roll out")
    episodes: list[Episode] = []
    finished: list[Episode] = []
    with EpisodeStore(out) as store, bar(f"roll out {name}", draws * len(questions)) as advance:

        def progress(episode: Episode) -> None:
            finished.append(episode)
            so_far = figures(finished, reward)
            rate = so_far["tokens"] / max(so_far["seconds"], 0.1)
            mean = "" if so_far["reward"] is None else f"{reward} {so_far['reward']:.2f}"
            advance(f"{so_far['nodes']} nodes {rate:.0f} tokens/s {mean}")

        for draw in range(draws):
            episodes += (
                await roll_out(  # in the order of the questions, not of completion: what follows must not depend on it
                    questions,
                    name,
                    system,
                    backends,
                    store,
                    exploration=exploration,
                    seed=seed + draw,
                    concurrency=concurrency,
                    reward=Reward.of(reward, backends.llm),
                    progress=progress,
                )
            )
    return episodes, write_rollout(episodes, reward, out, views)

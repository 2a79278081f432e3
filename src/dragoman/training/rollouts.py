"""Episodes of the policies of a training run, and how good a policy is on the dev questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from dragoman.core.progress import bar
from dragoman.core.types import Question
from dragoman.registry.policy import PolicySet
from dragoman.rewards import Reward
from dragoman.rewards.gold import precision, recall
from dragoman.rollout.exploration import GREEDY, Exploration
from dragoman.rollout.record import Episode, check_outage
from dragoman.rollout.scheduler import roll_out
from dragoman.rollout.store import EpisodeStore
from dragoman.runtime import Runtime


@dataclass(frozen=True)
class Rollouts:
    """Rolls a system out with one policy after another, always for the same reward, and the same shaping of it."""

    system: str
    runtime: Runtime
    reward: str
    seed: int
    concurrency: int
    shaping: str | None = None

    @property
    def shaped(self) -> str:
        """The name of the reward with its shaping."""
        return Reward.of(self.reward, shaping=self.shaping).shaped_name

    async def run(
        self,
        policy: PolicySet,
        questions: Sequence[Question],
        *,
        out: Path,
        exploration: Exploration = GREEDY,
        seed: int | None = None,
    ) -> list[Episode]:
        """An episode for each question, with the reward among their rewards, kept in `out`.

        `seed` is by default that of all rollouts.
        """
        played, backends = self.runtime.open(self.system, policy)
        with EpisodeStore(out) as store, bar(f"{out.parent.name} {out.name}", len(questions)) as advance:
            return await roll_out(
                questions,
                self.system,
                played,
                backends,
                store,
                exploration=exploration,
                seed=self.seed if seed is None else seed,
                concurrency=self.concurrency,
                reward=backends.reward(self.reward, shaping=self.shaping),
                progress=lambda episode: advance(),
            )


def summary(episodes: Sequence[Episode], reward: str) -> dict[str, Any]:
    """What greedy episodes are worth, by the names of the columns of `dev.csv`.

    These are the mean reward, and how many questions have none. Decisions, and steps (with searches and calls of the LLM), are
    counted per question. There is the share of each first decision, and, where gold passages are known, their recall and precision.

    Raises:
        Fault: so many questions met one that the others say too little. A later try asks them again.
    """
    check_outage(episodes)
    trajectories = [e.trajectories[0] for e in episodes]
    rewarded = [r for t in trajectories if (r := t.rewards.get(reward)) is not None]
    first = Counter(e.nodes[0].kind for e in episodes if e.nodes and e.nodes[0].kind)
    return {
        "dev_reward": sum(rewarded) / max(1, len(rewarded)),
        "dev_unscored": len(trajectories) - len(rewarded),
        "dev_depth": sum(len(t.nodes) for t in trajectories) / len(trajectories),
        "dev_steps": sum(len(t.steps) for t in trajectories) / len(trajectories),
        **_gold(episodes),
        **{f"share_{kind}": count / len(episodes) for kind, count in sorted(first.items())},
    }


def _gold(episodes: Sequence[Episode]) -> dict[str, float]:
    ended = [(e.trajectories[0], e.question["supporting_ids"]) for e in episodes]
    known = [(t.passages, gold) for t, gold in ended if gold and not (t.stop.is_fault or t.stop.is_cut)]
    if not known:
        return {}
    return {
        "dev_recall": round(fmean(recall(kept, gold) for kept, gold in known), 4),
        "dev_precision": round(fmean(precision(kept, gold) for kept, gold in known), 4),
    }

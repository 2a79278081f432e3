"""The training stages from questions to files: what `dragoman rollout`, `seeds`, `sft` and `rl` do."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman import jsonl, tracking
from dragoman.config import SeedsParams
from dragoman.engines.local import Vocabulary
from dragoman.errors import UserError
from dragoman.model import sha256_of
from dragoman.progress import bar
from dragoman.rewards.rewards import Rewards
from dragoman.rollout.figures import figures
from dragoman.rollout.record import Episode
from dragoman.rollout.samples import Sample, samples, write_samples
from dragoman.rollout.scheduler import roll_out
from dragoman.rollout.store import EpisodeStore
from dragoman.rollout.tree import Exploration, World
from dragoman.rollout.view import write_tree
from dragoman.systems.base import System
from dragoman.training import seeds
from dragoman.types import Question
from dragoman.world import folder_name

if TYPE_CHECKING:
    from dragoman.training.loop import Loop

SAMPLES = "samples.parquet"


async def roll_out_questions(
    name: str,
    system: System,
    world: World,
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
                    world,
                    store,
                    exploration=exploration,
                    seed=seed + draw,
                    concurrency=concurrency,
                    rewards=Rewards.for_training(reward, world.llm),
                    progress=progress,
                )
            )
    return episodes, write_rollout(episodes, reward, out, views)


def write_rollout(episodes: Sequence[Episode], reward: str, out: Path, views: int) -> dict[str, Any]:
    """What a rollout leaves beside its episodes: samples, figures, and an HTML view of the first `views` trees.

    Returns:
        What `out/metrics.json` holds.
    """
    metrics = figures(episodes, reward)
    write_samples(out / SAMPLES, [sample for episode in episodes for sample in samples(episode, reward)])
    jsonl.write_json(out / "metrics.json", metrics)
    for episode in episodes[:views]:
        write_tree(episode, reward, out / "trees" / f"{folder_name(str(episode.question['id']))}.html")
    return metrics


async def make_seeds(
    name: str,
    system: System,
    world: World,
    questions: Sequence[Question],
    settings: SeedsParams,
    vocabulary: Callable[[], Vocabulary],
    *,
    reward: str,
    seed: int,
    out: Path,
    sources: Mapping[str, str] = {},
) -> dict[str, Any]:
    """Grow trees, keep what is worth imitating, and write it to `out/samples.parquet`.

    `vocabulary` opens the proxy's, which is needed when the samples come from another model, from an oracle, or saw examples. `sources` tells,
    by a question's id, where it is from; the figures then say what each source gave.

    Raises:
        UserError: no question was answered rightly, so there is nothing to imitate.
    """
    episodes, grown = await roll_out_questions(
        name,
        system,
        world,
        questions,
        exploration=settings.exploration.build(),
        draws=1,
        reward=reward,
        seed=seed,
        concurrency=settings.concurrency,
        out=out,
        views=3,
    )
    chosen = [sample for episode in episodes for sample in seeds.select(episode, reward, settings)]
    if not chosen:
        raise UserError(
            f"seeds: none of {grown['trajectories']} trajectories was worth keeping (mean {reward} {grown['reward']}); "
            "take more questions, or a teacher (seeds.teacher)"
        )
    if settings.teacher is not None or settings.shots or settings.exploration.oracle:
        chosen = seeds.for_proxy(chosen, episodes, settings.shots, vocabulary())
    chosen = [sample for sample in chosen if sample.completion_ids]
    kept = seeds.balance(chosen, settings.max_share, seed)
    write_samples(out / SAMPLES, kept)
    metrics = {"trees": grown, "worth_imitating": seeds.counts(chosen), "kept": seeds.counts(kept)}
    if sources:
        metrics["sources"] = _by_source(episodes, kept, sources, reward)
    jsonl.write_json(out / "metrics.json", metrics)
    return metrics


def _by_source(
    episodes: Sequence[Episode], kept: Sequence[Sample], sources: Mapping[str, str], reward: str
) -> dict[str, dict[str, Any]]:
    """What each source of questions gave: its trees, their mean reward, and the actions that were kept."""
    found = {}
    for source in dict.fromkeys(sources.values()):
        own = [e for e in episodes if sources.get(str(e.question["id"])) == source]
        actions = sum(sources.get(sample.question) == source for sample in kept)
        found[source] = {"questions": len(own), "reward": figures(own, reward)["reward"], "actions": actions}
    return found


def algorithm(name: str) -> type[Loop]:
    """The run of stage `rl` by the algorithm of that name.

    Raises:
        UserError: there is none.
    """
    from dragoman.training import grpo, mygo, ppo  # torch takes seconds, and the other stages do without

    runs: dict[str, type[Loop]] = {"ppo": ppo.Run, "mygo": mygo.Run, "grpo": grpo.Run}
    if name not in runs:
        raise UserError(f"unknown algorithm {name!r}: choose from {', '.join(runs)}")
    return runs[name]


def file_hash(*paths: Path) -> str:
    return sha256_of(paths)[:16]


def record(stage: str, out: Path, metrics: dict[str, Any], parameters: dict[str, Any], track: Path | None) -> None:
    """Record a finished training stage in MLflow: its settings, its figures, and its curves."""
    if track is None:
        return
    curves = {path.stem: list(csv.DictReader(path.open(encoding="utf-8"))) for path in sorted(out.glob("*.csv"))}
    tracking.start(track)
    tracking.log_training(stage, out, metrics, curves, parameters=parameters)

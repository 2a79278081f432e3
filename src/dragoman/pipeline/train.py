"""The training stages from questions to files: what `dragoman rollout`, `seeds`, `sft` and `rl` do."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman import tracking
from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.hashing import sha256_of
from dragoman.core.types import Question
from dragoman.engines.local import Vocabulary
from dragoman.pipeline.rollout import roll_out_questions
from dragoman.rollout.backends import Backends
from dragoman.rollout.figures import figures
from dragoman.rollout.record import Episode
from dragoman.rollout.results import SAMPLES
from dragoman.rollout.samples import Sample, write_samples
from dragoman.systems.base import System
from dragoman.training import algorithms, seeds
from dragoman.training.settings import SeedsParams

if TYPE_CHECKING:
    from dragoman.training.loop import Loop


async def make_seeds(
    name: str,
    system: System,
    backends: Backends,
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
        backends,
        questions,
        exploration=settings.exploration,
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
    files.write_json(out / "metrics.json", metrics)
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


def algorithm(name: str) -> Callable[..., Loop]:
    """The run of stage `rl` by the algorithm of that name.

    Raises:
        UserError: there is none.
    """
    from dragoman.training.loop import Loop  # torch takes seconds, and the other stages do without

    return partial(Loop, algorithms.find(name))


def file_hash(*paths: Path) -> str:
    return sha256_of(paths)[:16]


def record(stage: str, out: Path, metrics: dict[str, Any], parameters: dict[str, Any], track: Path | None) -> None:
    """Record a finished training stage in MLflow: its settings, its figures, and its curves."""
    if track is None:
        return
    curves = {path.stem: list(csv.DictReader(path.open(encoding="utf-8"))) for path in sorted(out.glob("*.csv"))}
    tracking.start(track)
    tracking.log_training(stage, out, metrics, curves, parameters=parameters)

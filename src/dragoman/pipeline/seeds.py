"""Stage `seeds`: trajectories that are worth imitating, by rejection sampling (C-3PO sections 5.2 and 6.1)."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typing_extensions import Doc

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.engines.local import Vocabulary
from dragoman.pipeline.inputs import ShardInputOptions, open_inputs
from dragoman.pipeline.project import Project, check_results
from dragoman.pipeline.rollout import rolled_out
from dragoman.rollout.exploration import Exploration
from dragoman.rollout.figures import figures
from dragoman.rollout.record import Episode, check_outage
from dragoman.rollout.results import SAMPLES
from dragoman.rollout.samples import Sample, write_samples
from dragoman.systems.base import System
from dragoman.systems.visible import visible_to
from dragoman.training import seeds
from dragoman.training.settings import SeedsParams

VIEWS = 3
"""Trees that are written as HTML."""


@dataclass(frozen=True, kw_only=True)
class Options(ShardInputOptions):
    out: Annotated[Path | None, Doc("Where the seed trajectories go; results/seeds by default.")] = None

    def folder(self, project: Project) -> Path:
        return self.out or project.results("seeds")


async def run(project: Project, options: Options) -> dict[str, Any]:
    """Sample trees from the untrained proxy, a teacher or an oracle, and keep what is worth imitating.

    Returns:
        What `metrics.json` holds; of a shard, where nothing is chosen, the figures of its trees.

    Raises:
        UserError: no such system, a file that cannot be read, an index that has other ids than the oracle's gold passages, a
            shard that is not finished, or nothing to imitate.
    """
    params, settings, out = project.params, project.params.seeds, options.folder(project)
    check_results(out)
    name = params.train.system
    system = project.trained_system()
    system = system.with_shots(settings.shots) if settings.shots else system
    part, sources = options.part(), params.train.questions
    inputs = open_inputs(project, options, "train", out, sources=sources, limit=settings.questions)
    episodes, grown = await rolled_out(
        project,
        options,
        inputs,
        name,
        system,
        lambda runtime: runtime.open_sampler(name, settings.teacher, shots=settings.shots),
        exploration=explored(system, settings),
        concurrency=settings.concurrency,
        out=out,
        views=VIEWS,
    )
    if part:
        return grown
    metrics = choose(
        system,
        episodes,
        grown,
        settings,
        lambda: Vocabulary(Path(params.proxy.model), None),
        reward=params.train.reward,
        seed=params.seed,
        out=out,
        sources=inputs.asked.sources,
        visible=visible_to(system, inputs.asked.questions, {p.id: p for p in inputs.passages or ()}),
    )
    project.record("seeds", out, metrics, settings.model_dump())
    return metrics


def explored(system: System, settings: SeedsParams) -> Exploration:
    """How trees are grown: only an oracle at marks says what is right. Else actions are imitated for the answer's reward."""
    if settings.exploration.oracle and all(role.options for role in system.roles):
        return settings.exploration
    return settings.exploration.model_copy(update={"answers": True})


def choose(
    system: System,
    episodes: Sequence[Episode],
    grown: Mapping[str, Any],
    settings: SeedsParams,
    vocabulary: Callable[[], Vocabulary],
    *,
    reward: str,
    seed: int,
    out: Path,
    sources: Mapping[str, str] = {},
    visible: Mapping[str, Any] = {},
) -> dict[str, Any]:
    """Keep what is worth imitating, and write it to `out/samples.parquet`.

    Args:
        episodes: the trees, of which `grown` are the figures.
        vocabulary: opens the proxy's, for samples of another model or an oracle, or that saw examples.
        sources: where a question is from, by its id; the figures then say what each source gave.
        visible: what the roles see of gold passages, for the figures.

    Raises:
        UserError: no question was answered rightly, so there is nothing to imitate.
        Fault: so many trees met one that the others say too little. A later try grows them again.
    """
    check_outage(episodes)
    chosen = [sample for episode in episodes for sample in seeds.select(episode, reward, settings)]
    by_proxy = settings.teacher is None
    taught = (
        seeds.labelled(episodes, vocabulary(), by_proxy=by_proxy) if any(role.options for role in system.roles) else []
    )
    known = {(sample.episode, sample.node) for sample in taught}
    chosen = [sample for sample in chosen if (sample.episode, sample.node) not in known]
    if not chosen and not taught:
        raise UserError(
            f"seeds: none of {grown['trajectories']} trajectories was worth keeping (mean {reward} {grown['reward']}); "
            "take more questions, a lower seeds.min_advantage, or, where the proxy writes, a teacher (seeds.teacher)"
        )
    # A choice of one has no positions: nobody was asked, and there is nothing to imitate.
    chosen = [sample for sample in chosen if sample.marks is None or sample.marks.positions]
    if not by_proxy or settings.shots or settings.exploration.oracle:
        shown = {role.name: min(settings.shots, len(role.prompt.examples)) for role in system.roles}
        chosen = seeds.for_proxy(chosen, episodes, shown, vocabulary())
    chosen = [s for s in chosen if s.completion_ids or s.marks] + taught
    kept = seeds.balance(chosen, settings.max_share, seed)
    if settings.max_samples is not None and len(kept) > settings.max_samples:
        kept = random.Random(seed).sample(kept, settings.max_samples)
    write_samples(out / SAMPLES, kept)
    metrics = {"trees": grown, "worth_imitating": seeds.counts(chosen), "kept": seeds.counts(kept)}
    if visible:
        metrics["visible"] = dict(visible)
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

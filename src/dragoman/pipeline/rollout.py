"""Stage `rollout`: roll a system out on questions, for training or to look at."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge
from typing_extensions import Doc

from dragoman.core.errors import UserError
from dragoman.core.progress import bar
from dragoman.core.types import Question
from dragoman.pipeline.inputs import Inputs, ShardInputOptions, check_gold_in_index, open_inputs
from dragoman.pipeline.project import Project, check_results
from dragoman.rewards import Reward
from dragoman.rollout.backends import Backends
from dragoman.rollout.exploration import Exploration
from dragoman.rollout.record import Episode
from dragoman.rollout.results import write_rollout
from dragoman.rollout.scheduler import describe, roll_out
from dragoman.rollout.shards import keys, merge
from dragoman.rollout.store import EpisodeStore
from dragoman.runtime import Runtime
from dragoman.systems.base import System
from dragoman.systems.system_name import SystemName


@dataclass(frozen=True, kw_only=True)
class Options(ShardInputOptions):
    system: Annotated[str | None, Doc("A system, or system@policy; train.system by default.")] = None
    tree: Annotated[bool, Doc("Grow trees: every first decision, then several draws each.")] = False
    samples: Annotated[
        int | None, Ge(1), Doc("Instead of trees: so many single trajectories each, by as many seeds from `--seed` on.")
    ] = None
    limit: Annotated[int | None, Ge(1), Doc("Only the first so many questions.")] = None
    views: Annotated[int, Ge(0), Doc("Write so many trees as HTML.")] = 10
    out: Annotated[Path | None, Doc("Where the episodes go; results/rollout by default.")] = None

    def folder(self, project: Project) -> Path:
        return self.out or project.results("rollout")


async def run(project: Project, options: Options) -> dict[str, Any]:
    """Roll the system out on training questions, or put shards of that together.

    Raises:
        UserError: options that exclude each other, no such system, a shard that is not finished, or an index that has other
            ids than an oracle's gold passages.
    """
    params, out = project.params, options.folder(project)
    check_results(out)
    name = options.system or params.train.system
    system = project.system(name)
    if options.tree == (options.samples is not None):
        raise UserError("give either --tree or --samples N")
    options.part()  # a bad one is refused before a corpus is indexed
    inputs = open_inputs(project, options, "train", out, sources=params.train.questions, limit=options.limit)
    tree = params.rl.exploration
    _, metrics = await rolled_out(
        project,
        options,
        inputs,
        name,
        system,
        lambda runtime: runtime.open(name),
        exploration=tree if options.tree else tree.single(),
        draws=options.samples or 1,
        concurrency=params.rl.concurrency,
        out=out,
        views=options.views if options.tree else 0,
    )
    return metrics


async def rolled_out(
    project: Project,
    options: ShardInputOptions,
    inputs: Inputs,
    name: str,
    system: System,
    opened: Callable[[Runtime], tuple[System, Backends]],
    *,
    exploration: Exploration,
    draws: int = 1,
    concurrency: int,
    out: Path,
    views: int,
) -> tuple[list[Episode], dict[str, Any]]:
    """Roll out on the questions, or on a shard of them; or put finished shards together, for which no model is run.

    Args:
        system: what `opened` opens, without the models that run it.
        out: the folder of the whole.

    Returns:
        As `roll_out_questions`.

    Raises:
        UserError: a shard is not finished, or belongs to another rollout. Or an oracle acts, and the index that was named
            lacks its gold passages.
    """
    questions, part = inputs.asked.questions, options.part()
    reward, seed = project.params.train.reward, project.params.seed
    if options.merge is not None:
        config = describe(name, system, None, exploration, seed, Reward.of(reward))
        (episodes,) = merge(out, options.merge, questions, {"": config}, draws=draws).values()
        return episodes, write_rollout(episodes, reward, out, views)
    if part:
        questions, views = part.part(questions), 0
        part.begin(out)
    labelled = exploration.oracle and any(role.oracle for role in system.roles)
    async with project.runtime(inputs.index, inputs.passages, cache=True) as runtime:
        if options.index and (labelled or SystemName.parse(name).needs_gold):
            await check_gold_in_index(runtime.retriever, inputs.asked, inputs.passages or ())
        episodes, figures = await roll_out_questions(
            name,
            *opened(runtime),
            questions,
            exploration=exploration,
            draws=draws,
            reward=reward,
            seed=seed,
            concurrency=concurrency,
            out=options.place(out),
            views=views,
        )
    if part:
        part.finish(out, {"": keys(episodes)})
    return episodes, figures


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
    clock = time.monotonic()
    nodes = tokens = rewarded = 0
    earned = 0.0
    with EpisodeStore(out) as store, bar(f"roll out {name}", draws * len(questions)) as advance:
        before = set(store.done)

        def progress(episode: Episode) -> None:
            # sums: figures of all that is finished would take longer with each question
            nonlocal nodes, tokens, rewarded, earned
            rewards = [r for t in episode.trajectories if (r := t.rewards.get(reward)) is not None]
            nodes, rewarded, earned = nodes + len(episode.nodes), rewarded + len(rewards), earned + sum(rewards)
            tokens += 0 if episode.key in before else episode.tokens
            rate = tokens / max(time.monotonic() - clock, 0.1)
            mean = f"{reward} {earned / rewarded:.2f}" if rewarded else ""
            advance(f"{nodes} nodes {rate:.0f} tokens/s {mean}")

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
                    reward=backends.reward(reward),
                    progress=progress,
                )
            )
    return episodes, write_rollout(episodes, reward, out, views)

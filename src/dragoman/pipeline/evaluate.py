"""Stage `evaluate`: systems on the same questions, with the same frozen LLM and the same index."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge
from typing_extensions import Doc

from dragoman.core.errors import UserError
from dragoman.evaluation.evaluate import evaluate
from dragoman.evaluation.sequential import until_clear
from dragoman.pipeline.inputs import InputOptions, open_inputs
from dragoman.pipeline.project import Project


@dataclass(frozen=True, kw_only=True)
class Options(InputOptions):
    systems: Annotated[tuple[str, ...], Doc("Systems, separated by commas: direct,standard,c3po.")] = ()
    limit: Annotated[int | None, Ge(1), Doc("Only the first so many questions; evaluate.limit by default.")] = None
    until_clear: Annotated[
        tuple[str, ...],
        Doc("Two of the systems: ask in batches until the interval of their difference is clear of zero."),
    ] = ()
    out: Annotated[Path | None, Doc("Where the results go; results/evaluate/DATASET by default.")] = None

    def name(self, project: Project) -> str:
        """What the results call the dataset."""
        return self.corpus.parent.name if self.corpus else self.dataset or project.params.train.dataset

    def folder(self, project: Project) -> Path:
        return self.out or project.results("evaluate") / self.name(project)


async def run(project: Project, options: Options) -> dict[str, Any]:
    """Evaluate systems; see `evaluation.evaluate`. A file of questions is asked whole, unless there is a limit.

    Raises:
        UserError: no such system or policy, not two different ones to compare, or a file that cannot be read.
    """
    params, settings, out = project.params, project.params.evaluate, options.folder(project)
    dataset = "" if options.questions else options.dataset or params.train.dataset
    systems = options.systems or options.until_clear or params.compared(dataset)
    project.check_systems(*systems)
    if options.until_clear and (len({*options.until_clear}) != 2 or not {*options.until_clear} <= {*systems}):
        raise UserError(f"--until-clear {','.join(options.until_clear)}: name two of the systems: {', '.join(systems)}")
    limit = options.limit or (None if options.questions else settings.limit)
    inputs = open_inputs(project, options, settings.split, out, sources=(settings.questions,), limit=limit)
    async with project.runtime(inputs.index, inputs.passages, cache=params.evaluate.cache) as runtime:
        ask: Callable[..., Awaitable[dict[str, Any]]]
        ask = partial(until_clear, options.until_clear) if options.until_clear else evaluate
        return await ask(
            systems,
            inputs.asked.questions,
            runtime,
            dataset=options.name(project),
            settings=settings,
            seed=params.seed,
            out=out,
            track=project.tracking,
        )

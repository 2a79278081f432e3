"""Stage `gepa`: other instructions for the roles of a system, with the weights as they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typing_extensions import Doc

from dragoman.core import files
from dragoman.core.hashing import sha256_of
from dragoman.pipeline.inputs import InputOptions, open_dev, open_inputs
from dragoman.pipeline.project import Project, check_results
from dragoman.registry.policy import find_policy
from dragoman.runtime import find_system
from dragoman.training.run import TrainingRun


@dataclass(frozen=True, kw_only=True)
class Options(InputOptions):
    dev: Annotated[Path | None, Doc("Any file of dev questions (JSONL).")] = None
    out: Annotated[Path | None, Doc("Where the policy goes; results/gepa by default.")] = None

    def folder(self, project: Project) -> Path:
        return self.out or project.results("gepa")


async def run(project: Project, options: Options) -> dict[str, Any]:
    """Let a reflection model rewrite the instructions, and keep those that answer the dev questions best.

    Raises:
        UserError: no reflection model, nothing to rewrite, too small a budget, or a file that cannot be read.
        Fault: an engine, the retriever or the reflection model's server failed.
    """
    from dragoman.training.gepa.rewriting import check, check_budget, rewrite  # GEPA, for this command alone

    params, settings, out = project.params, project.params.gepa, options.folder(project)
    check_results(out)
    name, sources = params.train.system, params.train.questions
    system, _ = find_system(name, params, registry=project.registry)
    check(name, system, settings)
    inputs = open_inputs(project, options, "train", out, sources=sources)
    dev = open_dev(project, options, options.dev, inputs, out, sources=sources, limit=settings.dev_questions)
    check_budget(len(inputs.asked.questions), len(dev.asked.questions), settings)
    with files.only_writer(out):
        async with project.runtime(inputs.index, inputs.passages, cache=True) as runtime:
            training = TrainingRun(
                system=name,
                dev=dev.asked.questions,
                runtime=runtime,
                start=find_policy(params.proxy.model),
                reward=params.train.reward,
                seed=params.seed,
                out=out,
                data={"questions": sha256_of(inputs.asked.files)[:16]},
            )
            metrics = await rewrite(training, inputs.asked.questions, settings)
    project.record("gepa", out, metrics, settings.model_dump())
    return metrics

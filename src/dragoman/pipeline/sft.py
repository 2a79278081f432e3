"""Stage `sft`: the warm-up on seed trajectories."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typing_extensions import Doc

from dragoman.core.hashing import sha256_of
from dragoman.pipeline.inputs import InputOptions, open_inputs
from dragoman.pipeline.project import Project
from dragoman.rollout.results import SAMPLES
from dragoman.rollout.samples import read_samples


@dataclass(frozen=True, kw_only=True)
class Options(InputOptions):
    samples: Annotated[Path | None, Doc("Samples to imitate (Parquet); results/seeds/samples.parquet by default.")] = (
        None
    )
    out: Annotated[Path | None, Doc("Where the policy goes; results/sft by default.")] = None

    def folder(self, project: Project) -> Path:
        return self.out or project.results("sft")


async def run(project: Project, options: Options) -> dict[str, Any]:
    """Imitate the samples, and keep the epoch that answers the dev questions best.

    Raises:
        UserError: no such system, or a file that cannot be read.
    """
    from dragoman.training.sft import train  # torch takes seconds

    params, settings, out = project.params, project.params.sft, options.folder(project)
    name = params.train.system
    project.check_systems(name)
    samples = options.samples or project.results("seeds") / SAMPLES
    batch = read_samples(samples)
    sources = params.train.questions
    inputs = open_inputs(project, options, "dev", out, sources=sources, limit=settings.dev_questions)
    async with project.runtime(inputs.index, inputs.passages, cache=True) as runtime:
        metrics = await train(
            name,
            batch,
            inputs.asked.questions,
            runtime,
            settings,
            base=Path(params.proxy.model),
            reward=params.train.reward,
            seed=params.seed,
            out=out,
            data={str(samples): sha256_of([samples])[:16]},
        )
    project.record("sft", out, metrics, settings.model_dump())
    return metrics

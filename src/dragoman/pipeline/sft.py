"""Stage `sft`: the warm-up on seed trajectories."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typing_extensions import Doc

from dragoman.core import files
from dragoman.core.hashing import sha256_of
from dragoman.pipeline.inputs import InputOptions, check_gold, check_gold_in_index, known_to, open_inputs
from dragoman.pipeline.project import Project, check_results
from dragoman.pipeline.questions import QuestionSet, load_mixed
from dragoman.registry.policy import find_policy
from dragoman.rollout.results import SAMPLES
from dragoman.rollout.samples import read_samples
from dragoman.systems.checks import check_roles
from dragoman.training.run import TrainingRun

log = logging.getLogger(__name__)

NO_QUESTIONS = QuestionSet([], (), {})


@dataclass(frozen=True, kw_only=True)
class Options(InputOptions):
    samples: Annotated[Path | None, Doc("Samples to imitate (Parquet); results/seeds/samples.parquet by default.")] = (
        None
    )
    visit: Annotated[Path | None, Doc("At marks: questions of further rounds; the training questions by default.")] = (
        None
    )
    policy: Annotated[
        str | None, Doc("The policy to start from: a stage or a folder; the proxy's base by default.")
    ] = None
    out: Annotated[Path | None, Doc("Where the policy goes; results/sft by default.")] = None

    def folder(self, project: Project) -> Path:
        return self.out or project.results("sft")


async def run(project: Project, options: Options) -> dict[str, Any]:
    """Imitate the samples, and keep the epoch that answers the dev questions best.

    Raises:
        UserError: no such system or role, a file that cannot be read, or another run that writes to the same folder. Or
            corpus or index lack gold passages of the visited questions.
    """
    from dragoman.training import imitation, sft  # torch takes seconds

    params, settings, out = project.params, project.params.sft, options.folder(project)
    check_results(out)
    name = params.train.system
    check_roles("sft.roles", params.sft.roles, name, project.trained_system().roles)
    samples = options.samples or project.results("seeds") / SAMPLES
    batch = read_samples(samples)
    sources = params.train.questions
    inputs = open_inputs(project, options, "dev", out, sources=sources, limit=settings.dev_questions)
    with files.only_writer(out):
        async with project.runtime(inputs.index, inputs.passages, cache=True) as runtime:
            training = TrainingRun(
                system=name,
                dev=inputs.asked.questions,
                runtime=runtime,
                start=find_policy(params.proxy.model) if options.policy is None else project.policy(options.policy),
                reward=params.train.reward,
                seed=params.seed,
                out=out,
                data={str(samples): sha256_of([samples])[:16]},
            )
            if any(sample.marks for sample in batch):
                visited = _visited(project, options) if settings.rounds else NO_QUESTIONS
                if settings.rounds and not visited.questions:
                    log.warning("sft: no further rounds, since it is not known which questions to visit: give --visit")
                visited = known_to(inputs.index, visited)
                if options.visit and inputs.passages:
                    check_gold(visited, inputs.passages, options.corpus or project.corpus(options.dataset))
                if options.index:
                    await check_gold_in_index(runtime.retriever, visited, inputs.passages or ())
                metrics = await imitation.train(training, batch, visited.questions, settings)
            else:
                metrics = await sft.train(training, batch, settings)
    project.record("sft", out, metrics, settings.model_dump())
    return metrics


def _visited(project: Project, options: Options) -> QuestionSet:
    """The questions whose states the policy visits, and an oracle labels. None where they are not known."""
    if options.visit is not None:
        return load_mixed([("file", options.visit)])
    if options.corpus or (options.index and options.questions and not options.dataset):  # not a dataset's
        return NO_QUESTIONS
    return project.questions("train", project.params.train.questions, dataset=options.dataset)

"""Stage `rl`: reinforcement learning from the warm-up, by `train.algorithm`."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typing_extensions import Doc

from dragoman.core import files
from dragoman.core.hashing import sha256_of
from dragoman.core.journal import digest
from dragoman.pipeline.inputs import InputOptions, open_dev, open_inputs
from dragoman.pipeline.project import Project, check_results
from dragoman.registry.trained_with import differences, warn_if_turned
from dragoman.runtime import find_system
from dragoman.synthesis.difficulty import curriculum
from dragoman.systems.checks import check_roles
from dragoman.training import algorithms
from dragoman.training.run import TrainingRun
from dragoman.training.settings import RlParams

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Options(InputOptions):
    policy: Annotated[str, Doc("The policy to start from and to stay near: a stage or a folder.")] = "sft"
    dev: Annotated[Path | None, Doc("Any file of dev questions (JSONL).")] = None
    single: Annotated[bool, Doc("Ablation: single trajectories, system reward, no tree.")] = False
    out: Annotated[Path | None, Doc("Where the policy goes; results/rl by default.")] = None

    def folder(self, project: Project) -> Path:
        return self.out or project.results("rl")


async def run(project: Project, options: Options) -> dict[str, Any]:
    """Roll out and learn, again and again, and keep the policy that earns most on dev, with shaping and price.

    Raises:
        UserError: no such system, role or policy, or a file that cannot be read, or another run that writes to the same folder.
    """
    from dragoman.training.loop import Loop  # torch takes seconds

    params, out = project.params, options.folder(project)
    check_results(out)
    name = params.train.system
    check_roles("rl.roles", params.rl.roles, name, project.trained_system().roles)
    warm_up = project.policy(options.policy)
    system, _ = find_system(name, params, warm_up)
    warn_if_turned(f"rl: {options.policy}", system, warm_up.manifest)
    if not params.allow_mismatch and (others := differences(system, warm_up.manifest)):
        log.warning("rl: %s was trained with other settings of %s: %s", options.policy, name, "; ".join(others))
    settings = params.rl
    settings = settings.single() if options.single else settings
    sources = params.train.questions
    inputs = open_inputs(project, options, "train", out, sources=sources)
    dev = open_dev(project, options, options.dev, inputs, out, sources=sources, limit=settings.dev_questions)
    data = {"questions": sha256_of(inputs.asked.files)[:16]}
    ranks: dict[str, int] = {}
    if params.train.curriculum:
        ranks = curriculum(inputs.asked.files, planned(params.train.algorithm, settings), params.seed)
        data["curriculum"] = digest(sorted(ranks.items()))
    with files.only_writer(out):
        async with project.runtime(inputs.index, inputs.passages, cache=True) as runtime:
            training = TrainingRun(
                system=name,
                dev=dev.asked.questions,
                runtime=runtime,
                start=warm_up,
                reward=params.train.reward,
                seed=params.seed,
                out=out,
                data=data,
            )
            algorithm = algorithms.find(params.train.algorithm)
            metrics = await Loop(algorithm, training, inputs.asked.questions, settings, ranks).train()
    project.record("rl", out, metrics, {"algorithm": params.train.algorithm, **settings.model_dump()})
    return metrics


def planned(algorithm: str, settings: RlParams) -> int:
    """How many questions a run takes; self-training that does not draw anew takes those of its first iteration again and again."""
    once = algorithm == "selftrain" and not settings.selftrain.redraw
    return settings.questions if once else settings.iterations * settings.questions

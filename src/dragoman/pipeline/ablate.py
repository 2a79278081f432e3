"""Stage `ablate`: the trained system with one part taken away."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typing_extensions import Doc

from dragoman.core.errors import UserError
from dragoman.pipeline import evaluate, rl, warm_up
from dragoman.pipeline.project import Project
from dragoman.systems import ablation, ablations, build, system_names
from dragoman.systems.system_name import SystemName

TRAINED = "rl"
"""The policy of most ablations."""


def _choices() -> str:
    """All ablations, by system; what is wrong with a system is said when it is asked for."""
    known = {}
    for name in system_names():
        with suppress(UserError):
            known[name] = ", ".join(ablations(name))
    return "; ".join(f"{name}: {names}" for name, names in known.items() if names)


@dataclass(frozen=True, kw_only=True)
class Options:
    variant: Annotated[str, Doc(f"What is taken away from train.system. Of {_choices()}.")]
    dataset: Annotated[str | None, Doc("A dataset of params.yaml; train.dataset by default.")] = None
    policy: Annotated[
        str | None, Doc("From which a part is taken, such as a chain's; that of stage rl by default.")
    ] = None
    out: Annotated[Path | None, Doc("Where the results go; results/ablations/VARIANT by default.")] = None

    def folder(self, project: Project) -> Path:
        return self.out or project.results("ablations") / self.variant


async def run(project: Project, options: Options) -> dict[str, Any]:
    """Evaluate what is left; returns the evaluation's metrics.

    Raises:
        UserError: no such ablation, one that changes nothing here, or the policy that it needs is not trained yet. Or a
            policy for an ablation that has its own, or none.
    """
    system, out = project.params.train.system, options.folder(project)
    chosen = ablation(system, options.variant)
    if options.policy and (chosen.policy != TRAINED or chosen.warm_up or chosen.single):
        raise UserError(f"--policy: ablation {options.variant!r} takes no part from a trained policy; leave it out")
    policy = options.policy or chosen.policy
    settings = {f"{system}.{key}": value for key, value in chosen.settings.items()}
    if chosen.warm_up:
        own = project.changed(
            {**settings, **chosen.training, "train.dataset": options.dataset or project.params.train.dataset}
        )
        _check_changes(project, own, options.variant)
        await warm_up.run(own, warm_up.Options(system=system, out=out / "warm-up"))
        policy = str(out / "warm-up" / "sft")
    if chosen.single:
        policy = str(out / "rl")
        await rl.run(project, rl.Options(dataset=options.dataset, single=True, out=out / "rl"))
    changed = project.changed(settings | {"allow_mismatch": True})
    name = str(SystemName(system, policy))
    return await evaluate.run(changed, evaluate.Options(dataset=options.dataset, systems=(name,), out=out))


def _check_changes(project: Project, own: Project, variant: str) -> None:
    """
    Raises:
        UserError: a variant would be trained that is the trained system itself.
    """
    name, params = project.params.train.system, (project.params, own.params)
    before, after = ((build(name, p.system_settings(name)), p.sft, p.seeds) for p in params)
    if before == after:
        raise UserError(
            f"ablation {variant!r} changes nothing: {name} is trained so already; evaluate {name}@sft instead"
        )

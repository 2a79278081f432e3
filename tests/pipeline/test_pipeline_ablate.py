"""What an ablation trains and evaluates, with stages that only note how they were called."""

from pathlib import Path

import pytest

from dragoman.config import Params
from dragoman.core.errors import UserError
from dragoman.pipeline import ablate
from dragoman.pipeline.project import Project
from dragoman.systems import build

MARKS = {"decide": "marks", "prompts": "brief", "roadmap": False}


@pytest.fixture
def stages(monkeypatch):
    called = []

    def stage(name):
        async def run(project, options):
            called.append((name, project.params, options))
            return {}

        return run

    for name in ("warm_up", "rl", "evaluate"):
        monkeypatch.setattr(getattr(ablate, name), "run", stage(name))
    return called


def project(**c3po) -> Project:
    params = Params()
    changes = {f"c3po.{key}": value for key, value in {**MARKS, **c3po}.items()} | {"sft.rounds": 1}
    return Project(root=Path("here"), params=params.changed(changes, origin="test"))


async def ablated(stages, variant: str, **c3po):
    await ablate.run(project(**c3po), ablate.Options(variant=variant, out=Path("out")))
    *trained, (_, params, options) = stages
    return [name for name, *_ in trained], build("c3po", params.system_settings("c3po")), options.systems[0]


@pytest.mark.parametrize(
    ("variant", "setting", "value"),
    [("text", "decide", "text"), ("full-prompts", "prompts", "full"), ("no-rounds", "decide", "marks")],
)
async def test_a_variant_that_needs_its_own_warm_up_has_one(stages, variant, setting, value):
    trained, system, name = await ablated(stages, variant)
    assert trained == ["warm_up"] and name == "c3po@out/warm-up/sft"
    assert getattr(system, setting) == value
    (_, params, _), *_ = stages
    assert params.sft.rounds == (0 if variant == "no-rounds" else 1)
    assert getattr(build("c3po", params.system_settings("c3po")), setting) == value


async def test_a_variant_that_changes_nothing_is_not_trained(stages):
    with pytest.raises(UserError, match="ablation 'no-roadmap' changes nothing: c3po is trained so already"):
        await ablated(stages, "no-roadmap")
    assert stages == []
    assert (await ablated(stages, "no-roadmap", roadmap=True))[0] == ["warm_up"]


async def test_examples_are_written_for_a_proxy_that_writes(stages):
    trained, system, name = await ablated(stages, "icl")
    assert (trained, name) == ([], "c3po")
    assert (system.shots, system.decide, system.prompts) == (3, "text", "full")


async def test_other_variants_take_the_trained_policy(stages):
    assert (await ablated(stages, "only-planning"))[::2] == ([], "c3po@rl")
    stages.clear()
    assert (await ablated(stages, "no-tree"))[::2] == (["rl"], "c3po@out/rl")


async def test_a_part_may_be_taken_from_another_policy_than_that_of_stage_rl(stages):
    options = ablate.Options(variant="only-planning", policy="results/elsewhere", out=Path("out"))
    await ablate.run(project(), options)
    ((_, _, evaluated),) = stages
    assert evaluated.systems == ("c3po@results/elsewhere",)


@pytest.mark.parametrize("variant", ["text", "no-tree", "icl", "no-rl"])
async def test_a_policy_for_a_variant_that_has_its_own_or_none_is_refused(stages, variant):
    with pytest.raises(UserError, match=f"--policy: ablation '{variant}' takes no part from a trained policy"):
        await ablate.run(project(), ablate.Options(variant=variant, policy="results/elsewhere"))
    assert stages == []

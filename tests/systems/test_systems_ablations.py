"""Ablations: each can be built, and none asks a policy for what it was not trained to say."""

import asyncio
import random

import pytest

from dragoman.core.errors import UserError
from dragoman.core.types import Passage, Question
from dragoman.systems import ablation, ablations, build, profile_settings, system_names

VARIANTS = [(system, name) for system in system_names() for name in ablations(system)]
PASSAGES = [Passage(f"p{i}", f"Town {i}", f"Jane Doe left Town {i} for the River Osse {i}.") for i in range(3)]


@pytest.mark.parametrize(("system", "name"), VARIANTS)
def test_every_ablation_is_a_system_that_can_be_built(system, name):
    assert build(system, ablation(system, name).settings).roles


class Wanders:
    """A context in which any option may be taken. It remembers of what kind each role's options were."""

    def __init__(self) -> None:
        self.rng, self.seen = random.Random(0), set[tuple[str, str]]()

    async def act(self, role, *, history=(), **state):
        options = role.options(**state)
        if options.many or len(options.texts) > 1:  # else the policy is not asked
            self.seen.add((role.name, type(options).__name__))
        places = range(len(options.texts))
        return options.action(
            [i for i in places if self.rng.random() < 0.5] if options.many else [self.rng.choice(places)]
        )

    async def ask(self, ask, *, history=(), **state):
        return "Osse"

    async def retrieve(self, query, *, k, page=0):
        return PASSAGES[page * k : (page + 1) * k]

    async def parallel(self, branches):
        return {name: await branch(self) for name, branch in branches.items()}


def kinds(system: str, settings: dict) -> set[tuple[str, str]]:
    """Each role with what its options are at marks, a choice of one or a selection of several."""
    built, context = build(system, profile_settings(system, "cpu") | settings), Wanders()
    for _ in range(30):
        asyncio.run(built.run(Question("q", "Who left Town 1 before Town 2?", ("Jane Doe",)), context))
    return context.seen


@pytest.mark.parametrize(("system", "name"), VARIANTS)
def test_an_ablation_whose_options_are_of_another_kind_has_a_warm_up_of_its_own(system, name):
    variant = ablation(system, name)
    trained = kinds(system, {})
    assert variant.warm_up or not variant.policy or kinds(system, dict(variant.settings)) <= trained


def test_a_chain_of_subquestions_is_chosen_from_and_a_graph_selected():
    start = ("planner", "Choice")
    assert start in kinds("mujica", dict(ablation("mujica", "no-graph").settings))
    assert start not in kinds("mujica", {})


@pytest.mark.parametrize(
    ("system", "message"),
    [("c3po", "unknown ablation 'no-llm' of c3po: choose from no-tree, no-rl"), ("direct", "of direct: it has none")],
)
def test_an_unknown_ablation_is_named(system, message):
    with pytest.raises(UserError, match=message):
        ablation(system, "no-llm")

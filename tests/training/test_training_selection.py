"""Which actions have something to teach."""

from types import SimpleNamespace

from dragoman.rollout.samples import Sample
from dragoman.training import algorithms
from dragoman.training.selection import with_contrast


def action(group: str, credit: float, cost: float = 0.0, tokens: int = 1) -> Sample:
    return Sample(
        episode="e", question="q", node="n", group=group, role="filter", kind="K", depth=1, forced=False, prompt_ids=(1,),
        completion_ids=(2,) * tokens, logprobs=(), temperature=1.0, grammar=None, credit=credit, cost=cost,
    )  # fmt: skip


def test_a_price_is_no_contrast():
    equal = [action("a", 1 - 4 * 0.002, cost=4 * 0.002), action("a", 1 - 6 * 0.002, cost=6 * 0.002)]
    assert with_contrast(equal) == []
    differ = [action("b", 0.5, cost=0.5), action("b", 0.5, cost=0.0)]  # it hides one
    assert with_contrast([*equal, *differ]) == differ


def test_noise_of_addition_is_no_contrast():
    assert with_contrast([action("a", 0.3), action("a", 0.1 + 0.2)]) == []
    differ = [action("a", 0.3), action("a", 0.3 + 1e-5)]
    assert with_contrast(differ) == differ


async def test_a_sibling_that_is_too_long_leaves_no_contrast_to_the_one_that_stays():
    found = [action("a", 1.0), action("a", 0.0, tokens=9), action("b", 1.0), action("b", 0.0)]

    async def roll_out(questions):
        return []

    loop = SimpleNamespace(
        roll_out=roll_out,
        samples=lambda episodes: found,
        fitting=lambda samples: [x for x in samples if x.tokens < 9],
        settings=SimpleNamespace(only_contrasts=True),
    )
    for name in ("ppo", "grpo"):
        collected = await algorithms.find(name).collect(loop, [])
        assert collected.batch == found[2:] and collected.figures["too_long"] == 1
    loop.settings.only_contrasts = False
    collected = await algorithms.find("ppo").collect(loop, [])
    assert collected.batch == [found[0], *found[2:]]

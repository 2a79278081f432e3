"""The equations, against values computed by hand."""

import dataclasses
import math
import random
import re
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from dragoman.rollout import choosing
from dragoman.rollout.choosing import draw
from dragoman.rollout.record import Node
from dragoman.rollout.samples import Sample, sample_of
from dragoman.systems.grammar import Form, Line, OneOf
from dragoman.training.algorithm import MicroBatch
from dragoman.training.algorithms.ppo import (
    Experience,
    generalized_advantages,
    loss,
    prepare,
    role_weights,
    scaled,
    token_rewards,
    tree_values,
    value_loss,
)
from dragoman.training.settings import RlParams
from dragoman.training.survey import Survey, engine_correction, sibling_shares


@dataclass(frozen=True)
class Stay: ...


@dataclass(frozen=True)
class Find:
    query: str


@dataclass(frozen=True)
class Plan: ...


# Two actions: the first of three tokens, the second of two.
MASK = torch.tensor([[True, True, True], [True, True, False]])


def test_the_credit_comes_with_the_last_token_and_the_kl_penalty_with_each():
    old = torch.tensor([[-1.0, -2.0, -3.0], [-0.5, -0.5, 0.0]])
    reference = torch.tensor([[-1.5, -2.0, -2.0], [-0.5, -1.0, 0.0]])
    rewards = token_rewards(torch.tensor([0.75, 0.25]), old, reference, MASK, kl_coef=0.1)
    # log-ratios 0.5, 0, -1 and 0, 0.5
    assert rewards.tolist() == [
        pytest.approx([-0.05, 0.0, 0.1 + 0.75]),
        pytest.approx([0.0, -0.05 + 0.25, 0.0]),
    ]


def test_generalized_advantages():
    rewards = torch.tensor([[0.0, 0.0, 1.0], [0.1, 0.5, 0.0]])
    values = torch.tensor([[0.5, 0.6, 0.8], [0.2, 0.4, 9.0]])  # a value where there is no token must not count
    advantages = generalized_advantages(rewards, values, MASK, gamma=0.9, lam=0.5)
    # first: deltas 0.9 * 0.6 - 0.5 = 0.04, 0.9 * 0.8 - 0.6 = 0.12, 1 - 0.8 = 0.2; gamma lambda = 0.45
    a1 = 0.12 + 0.45 * 0.2
    # second: deltas 0.1 + 0.9 * 0.4 - 0.2 = 0.26, 0.5 - 0.4 = 0.1
    assert advantages.tolist() == [
        pytest.approx([0.04 + 0.45 * a1, a1, 0.2]),
        pytest.approx([0.26 + 0.45 * 0.1, 0.1, 0.0]),
    ]


# The grammar forced the tokens in between and at the end.
FREE = torch.tensor([[True, False, True, False], [False, False, False, False]])


def test_a_forced_token_is_no_step_and_gets_nothing():
    rewards = token_rewards(torch.tensor([1.0, 1.0]), torch.zeros(2, 4), torch.zeros(2, 4), FREE, kl_coef=0.1)
    assert rewards.tolist() == [[0, 0, 1, 0], [0, 0, 0, 0]]
    values = torch.tensor([[0.5, 9.0, 0.8, 9.0], [9.0] * 4])
    advantages = generalized_advantages(rewards, values, FREE, gamma=0.9, lam=0.5)
    assert advantages.tolist() == [pytest.approx([0.9 * 0.8 - 0.5 + 0.45 * 0.2, 0, 0.2, 0]), [0, 0, 0, 0]]
    assert value_loss(values, rewards, torch.ones(2), FREE).item() == pytest.approx(0.25 + 0.04)


def test_without_discount_every_token_gets_what_the_action_earned_beyond_its_value():
    rewards = torch.tensor([[0.0, 0.0, 1.0]])
    values = torch.tensor([[0.3, 0.5, 0.9]])
    advantages = generalized_advantages(rewards, values, MASK[:1], gamma=1.0, lam=1.0)
    assert advantages.tolist() == [pytest.approx([0.7, 0.5, 0.1])]


def test_the_importance_of_trainer_to_engine_weights_a_token_and_is_capped():
    trainer = torch.tensor([[-1.0, -1.0, -1.0], [0.0, 0.0, 0.0]])
    engine = torch.tensor([[-1.0, -3.0, -0.5], [0.0, 0.0, -5.0]])
    correction = engine_correction(trainer, engine, MASK, cap=2.0)
    assert correction.tolist() == [pytest.approx([1.0, 2.0, math.exp(-0.5)]), [1.0, 1.0, 0.0]]
    experience = Experience(trainer, torch.ones(2, 3), trainer, correction, torch.tensor([1.0, 0.5]))
    total, figures = loss(MicroBatch(trainer, None, MASK, 5), experience, RlParams())
    assert total.item() == figures["policy_loss"] == pytest.approx(-(1 + 2 + math.exp(-0.5) + 0.5 * (1 + 1)))


def test_value_loss():
    values = torch.tensor([[0.5, 0.0, 1.0], [1.0, 1.0, 9.0]])
    returns = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    assert value_loss(values, returns, torch.tensor([1.0, 0.5]), MASK).item() == pytest.approx(1.25 + 0.5)


def drawn(group: str, draws: int = 1, role: str = "filter", **changes) -> Sample:
    plain = Sample(
        episode="e", question="q", node="n", group=group, role=role, kind="K", depth=1, forced=False, prompt_ids=(1,),
        completion_ids=(2,), logprobs=(), temperature=1.0, grammar=None, credit=0.0, draws=draws,
    )  # fmt: skip
    return dataclasses.replace(plain, **changes)


def test_each_role_counts_once_and_in_it_each_state_however_many_actions_were_taken():
    batch = [drawn("a"), drawn("r", role="router"), drawn("a"), drawn("b"), drawn("s", role="router")]
    assert role_weights(batch).tolist() == pytest.approx([1 / 4, 1 / 2, 1 / 4, 1 / 2, 1 / 2])


def test_an_action_weighs_as_often_as_it_was_drawn_or_by_its_probability():
    batch = [drawn("a", 3), drawn("a", 1), drawn("b", probability=0.6), drawn("b", probability=0.2)]
    assert role_weights(batch).tolist() == pytest.approx([3 / 8, 1 / 8, 3 / 8, 1 / 8])


def test_the_tree_values_a_state_at_the_mean_of_what_was_drawn_in_it():
    listed = [drawn("a", credit=1.0, probability=0.25), drawn("a", credit=0.0, probability=0.75)]
    assert tree_values(listed).tolist() == pytest.approx([0.25, 0.25])


def test_a_written_action_is_compared_with_the_other_draws_of_its_state():
    batch = [
        drawn("a", 3, credit=1.0),
        drawn("b", 1, role="router", credit=0.5),
        drawn("a", 1, credit=0.0),
    ]
    # two of the other three draws beside one that earned 1; an only one is what it is worth
    assert tree_values(batch).tolist() == pytest.approx([2 / 3, 0.5, 1.0])
    assert tree_values([drawn("a", 4, credit=0.7)]).tolist() == pytest.approx([0.7])


@pytest.mark.parametrize("count", [2, 3, 16])
def test_the_gradient_over_written_actions_is_as_large_however_few_are_drawn(count):
    rng, seeds, scale = random.Random(0), 2000, 0.0
    for _ in range(seeds):  # two texts of the same probability, of which the first is right
        right = sum(rng.random() < 0.5 for _ in range(count))
        batch = [drawn("a", n, credit=c) for n, c in ((right, 1.0), (count - right, 0.0)) if n]
        advantages = torch.tensor([x.credit for x in batch]) - tree_values(batch)
        pulls = torch.tensor([0.5 if x.credit else -0.5 for x in batch])
        scale += float((role_weights(batch) * advantages * pulls).sum()) / 0.25 / seeds
    assert scale == pytest.approx(1, abs=0.05)


def test_where_actions_were_left_out_each_counts_by_its_probability_in_what_it_is_compared_with():
    batch = [
        drawn("a", credit=1.0, probability=0.3, inclusion=0.5),  # a share of 0.6
        drawn("a", credit=0.0, probability=0.2, inclusion=0.5),  # and of 0.4
    ]
    assert tree_values(batch).tolist() == pytest.approx([1 - (1 - 0.6) / 0.7, (0.6 - 0) / 0.8])
    assert tree_values([drawn("a", credit=1.0, probability=1e-60)]).tolist() == [1.0]  # an only one is what it is worth
    forced = [dataclasses.replace(x, forced=True) for x in batch]
    assert tree_values(forced).tolist() == pytest.approx([0.6, 0.6])


def test_the_gradient_of_a_state_is_hardly_smaller_where_few_actions_are_drawn():
    logits, credits = [0.5, 0.0, -0.4, -1.0], [1.0, 0.2, 0.6, 0.0]
    p = torch.tensor(logits).softmax(0)
    exact = p * (torch.tensor(credits) - (p * torch.tensor(credits)).sum())
    seeds, found, plain = 4000, torch.zeros(4), torch.zeros(4)
    for seed in range(seeds):
        taken = draw(logits, False, 2, 1.0, random.Random(seed))
        batch = [
            drawn("a", credit=credits[t.places[0]], probability=t.probability, inclusion=t.inclusion) for t in taken
        ]
        share, earned = role_weights(batch), torch.tensor([x.credit for x in batch])
        for total, value in ((found, tree_values(batch)), (plain, (share * earned).sum())):
            for t, pull in zip(taken, (share * (earned - value)).tolist(), strict=True):
                total += pull / seeds * (torch.eye(4)[t.places[0]] - p)  # the gradient of its log-probability
    scales = [float(total @ exact / (exact @ exact)) for total in (found, plain)]
    assert 0.85 < scales[0] < 1.05 and scales[1] < 0.8
    assert float(torch.cosine_similarity(found, exact, dim=0)) > 0.99


def test_the_gradient_of_a_long_selection_is_hardly_smaller_than_it_is(monkeypatch):
    """Of its actions only those over the least certain options are listed, so their probabilities add up to far less than 1."""
    monkeypatch.setattr(choosing, "ENUMERATED", 5)
    logits, asked, seeds, found = [3.0 + 0.01 * i for i in range(20)], 3, 1000, torch.zeros(3)
    p = torch.tensor(logits[:asked]).sigmoid()
    exact = p * (1 - p) / asked  # of the share that is taken of the three least certain options
    for seed in range(seeds):
        taken = draw(logits, True, 2, 1.0, random.Random(seed))
        within = torch.tensor([[float(i in t.places) for i in range(asked)] for t in taken])
        batch = [
            drawn("a", credit=c, probability=t.probability, inclusion=t.inclusion)
            for t, c in zip(taken, within.mean(1).tolist(), strict=True)
        ]
        advantages = within.mean(1) - tree_values(batch)
        found += ((role_weights(batch) * advantages)[:, None] * (within - p)).sum(0) / seeds
    assert 0.8 < float(found @ exact / (exact @ exact)) < 1.05


def surveyed(old: torch.Tensor, free: torch.Tensor) -> Survey:
    none = torch.zeros_like(free)
    return Survey(old, torch.zeros_like(old), old, torch.zeros_like(old), old, none, free)


def prepared(batch: list[Sample], old: torch.Tensor, free: torch.Tensor, **settings) -> Experience:
    learner = SimpleNamespace(settings=RlParams(critic="tree", **settings), survey=lambda batch: surveyed(old, free))
    return prepare(learner, batch)[0]


def test_the_distance_to_the_warm_up_is_that_of_what_the_policy_does_and_not_of_all_that_is_listed():
    old = torch.tensor([[math.log(0.9)], [math.log(0.1)]])
    seen = dataclasses.replace(
        surveyed(old, torch.ones(2, 1, dtype=torch.bool)), reference=torch.full((2, 1), 0.5).log()
    )
    batch = [drawn("a", probability=0.9), drawn("a", probability=0.1)]
    # 0.9 ln(0.9 / 0.5) + 0.1 ln(0.1 / 0.5); the plain mean of the two is -0.51
    assert seen.figures(batch)["kl"] == pytest.approx(0.3681, abs=1e-4)


def test_without_a_reference_no_distance_to_it_is_told_and_no_guard_judges_one():
    seen = surveyed(torch.tensor([[-0.5]]), torch.ones(1, 1, dtype=torch.bool))
    assert set(seen.figures([drawn("a")])) >= {"entropy", "engine_difference"}
    assert "kl" not in seen.figures([drawn("a")])


# Three kinds, drawn by force, of which the policy would hardly ever draw the first; the second is two tokens long.
KINDS = [drawn("r", forced=True, credit=credit) for credit in (0.35, 0.45, 0.50)]
OLD = torch.tensor([[0.001, 1.0], [0.5, 0.6], [0.699, 1.0]]).log()


def test_forced_actions_are_weighed_as_the_policy_would_have_drawn_them():
    free = torch.ones(3, 2, dtype=torch.bool)
    found = prepared(KINDS, OLD, free, scale_advantages=False)
    value = 0.001 * 0.35 + 0.30 * 0.45 + 0.699 * 0.50
    assert found.weights.tolist() == pytest.approx([0.001, 0.30, 0.699], abs=1e-6)
    assert found.advantages[:, 0].tolist() == pytest.approx([0.35 - value, 0.45 - value, 0.50 - value], abs=1e-6)
    assert found.advantages[1, 0] < 0  # worse than what the policy does, if better than the mean of the three


def test_a_forced_kind_weighs_what_the_policy_gives_it_whatever_its_text():
    """Two texts of one kind, and a bare other kind: pi(kind) is .6 and .4, and a text of the first had .25 or .5 of its kind."""
    search = {"kind": "Search", "forced": True}
    batch = [
        drawn("r", credit=1.0, logprobs=(math.log(0.25),), completion_ids=(1,), **search),
        drawn("r", credit=0.0, logprobs=(math.log(0.5),), completion_ids=(2,), draws=3, **search),
        drawn("r", credit=0.0, logprobs=(0.0,), completion_ids=(3,), kind="No", forced=True),
    ]
    old = torch.tensor([[0.6 * 0.25], [0.6 * 0.5], [0.4]]).log()
    seen = surveyed(old, torch.ones(3, 1, dtype=torch.bool))
    assert [x.probability for x in seen.informed(batch)] == pytest.approx([0.6 / 4, 0.6 * 3 / 4, 0.4], abs=1e-3)


def test_a_forced_kind_with_two_forms_weighs_what_the_policy_gives_to_both():
    """Each text is drawn once, under the grammar of its kind: a search has .3 of .6 there, each other text is all of its kind."""
    policy = {"none": 0.3, "find a": 0.3, "copy a": 0.3, "plan": 0.1}
    found, copied = Form(Find, "find {query}", query=Line()), Form(Find, "copy {query}", query=Line())
    batch, old = [], []
    for kind in OneOf(Form(Stay, "none"), found, copied, Form(Plan, "plan")).alternatives():
        drawn_of = {text: p for text, p in policy.items() if re.fullmatch(kind.constraint().regex, text)}
        for p in drawn_of.values():
            logprobs = (math.log(p / sum(drawn_of.values())),)
            batch.append(drawn("r", kind=kind.cls.__name__, forced=True, logprobs=logprobs))
            old.append([math.log(p)])
    informed = surveyed(torch.tensor(old), torch.ones(4, 1, dtype=torch.bool)).informed(batch)
    # a search is .3 / .5 = .6 of the policy, which its two draws share; as two kinds of .3 they would have half of that
    assert sibling_shares(informed).tolist() == pytest.approx([0.3, 0.3, 0.3, 0.1], abs=1e-3)


def test_a_forced_text_that_was_cut_off_shares_the_weight_of_its_kind():
    """Two draws of each kind; pi(kind) is .6 and .4, and each text had half of its kind."""
    texts = [("Search", None), ("Search", "cut off"), ("Plan", None), ("Plan", None)]
    nodes = [
        Node(
            id=str(i), parent=None, point="p", role="r", depth=1, prompt=[], prompt_ids=[1], completion_ids=[i],
            logprobs=[math.log(0.5)], text=str(i), action=None if cut else {"type": kind}, forced=True, forced_to=kind,
            temperature=1, started=0, seconds=0, prompt_tokens=1, completion_tokens=1,
        )
        for i, (kind, cut) in enumerate(texts)
    ]  # fmt: skip
    tree = SimpleNamespace(key="k", question={"id": "q"})
    batch = [sample_of(tree, node, 0.0) for node in nodes]
    old = torch.tensor([[0.3], [0.3], [0.2], [0.2]]).log()
    informed = surveyed(old, torch.ones(4, 1, dtype=torch.bool)).informed(batch)
    assert sibling_shares(informed).tolist() == pytest.approx([0.3, 0.3, 0.2, 0.2], abs=1e-3)


def test_the_gradient_over_all_actions_of_a_state_is_exact():
    logits = torch.tensor([-1.0, 0.5, 0.2], requires_grad=True)
    credits = torch.tensor([0.35, 0.45, 0.50])
    (expected,) = torch.autograd.grad((logits.softmax(0) * credits).sum(), logits)
    old = logits.detach().log_softmax(0)
    batch = [drawn("r", credit=float(c), probability=float(p)) for c, p in zip(credits, old.exp(), strict=True)]
    free = torch.ones(3, 1, dtype=torch.bool)
    experience = prepared(batch, old[:, None], free, scale_advantages=False)
    total, _ = loss(MicroBatch(logits.log_softmax(0)[:, None], None, free, 3), experience, RlParams(critic="tree"))
    assert torch.autograd.grad(-total, logits)[0].tolist() == pytest.approx(expected.tolist(), abs=1e-6)


def test_with_a_tree_as_critic_advantages_do_not_decay_with_length():
    batch = [drawn("a", credit=1.0), drawn("a", credit=0.0)]
    free = torch.tensor([[True] * 8, [True] + [False] * 7])
    found = prepared(batch, torch.zeros(2, 8), free, scale_advantages=False, lam=0.5, gamma=0.5)
    assert found.advantages.tolist() == [[1.0] * 8, [-1.0] + [0.0] * 7]


def test_advantages_are_scaled_and_keep_their_sign():
    # long right actions beside a short wrong one, and a state of two short ones
    advantages = torch.tensor(
        [[0.5, 0.5, 0.5, 0.0], [-0.5, 0.0, 0.0, 0.0], [0.1, 0.0, 0.0, 0.0], [-0.1, 0.0, 0.0, 0.0]]
    )
    free = advantages != 0
    weights = torch.tensor([0.25, 0.25, 0.25, 0.25])
    found = scaled(advantages, free, weights, least=0.1)
    unit = math.sqrt((4 * 0.25 + 2 * 0.01) / 6)
    assert found.tolist() == [pytest.approx((row / unit).tolist()) for row in advantages]
    assert scaled(torch.tensor([[0.002]]), free[:1, :1], weights[:1], least=0.1).item() == pytest.approx(0.02)

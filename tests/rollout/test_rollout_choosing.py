"""Drawing among listed options: the policy's probabilities, and siblings without replacement."""

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.rollout.choosing import draw, likeliest, taken

logits = st.lists(st.floats(-6, 6), min_size=1, max_size=5)


def test_a_choice_has_the_probability_of_a_softmax():
    assert taken([math.log(1), math.log(3)], False, [1]).probability == pytest.approx(0.75)
    assert taken([0.0, 2 * math.log(3)], False, [1], temperature=2).probability == pytest.approx(0.75)


def test_a_selection_has_a_log_probability_for_each_option_in_or_out():
    action = taken([math.log(3), math.log(3), 0.0], True, [0])
    assert [math.exp(x) for x in action.logprobs] == pytest.approx([0.75, 0.25, 0.5])
    assert action.probability == pytest.approx(0.75 * 0.25 * 0.5)


@given(logits, st.booleans())
def test_the_probabilities_of_all_actions_add_up_to_one(z, many):
    count = 2 ** len(z) if many else len(z)
    actions = draw(z, many, count, 1.0, random.Random(0))
    assert len({action.places for action in actions}) == count
    assert sum(action.probability for action in actions) == pytest.approx(1)


@given(logits, st.booleans(), st.integers(1, 4), st.integers(0, 99))
def test_siblings_are_different_and_no_more_than_asked_for(z, many, count, seed):
    actions = draw(z, many, count, 1.0, random.Random(seed))
    assert 1 <= len(actions) <= count
    assert len({action.places for action in actions}) == len(actions)


@given(logits, st.booleans())
def test_a_greedy_policy_takes_the_likeliest_action(z, many):
    (action,) = draw(z, many, 3, 0.0, random.Random(0))
    assert action.places == likeliest(z, many)
    every = draw(z, many, 64, 1.0, random.Random(0))
    assert action.probability == pytest.approx(max(other.probability for other in every))


def test_a_first_draw_follows_the_policy():
    z = [math.log(1), math.log(2), math.log(7)]
    firsts = Counter(draw(z, False, 1, 1.0, random.Random(seed))[0].places[0] for seed in range(3000))
    assert [firsts[i] / 3000 for i in range(3)] == pytest.approx([0.1, 0.2, 0.7], abs=0.03)


def test_forced_kinds_come_each_once_before_others_do():
    kinds = ["Search", "Search", "Search", "Answer"]
    for seed in range(50):
        two = draw([5.0, 4.0, 3.0, -9.0], False, 1, 1.0, random.Random(seed), kinds)
        assert sorted(kinds[action.places[0]] for action in two) == ["Answer", "Search"]
        three = draw([5.0, 4.0, 3.0, -9.0], False, 3, 1.0, random.Random(seed), kinds)
        assert sorted(kinds[action.places[0]] for action in three) == ["Answer", "Search", "Search"]


def test_a_long_selection_is_drawn_over_its_least_certain_options():
    z = [20.0] * 10 + [-20.0] * 10 + [0.1, -0.1]
    actions = draw(z, True, 4, 1.0, random.Random(0))
    assert len({action.places for action in actions}) == 4
    assert all(len(action.logprobs) == 22 for action in actions)
    assert all(set(range(8)) <= set(action.places) for action in actions)


def stands_for(actions):
    """What each action counts for among its siblings; not yet divided by their sum."""
    return [action.probability / action.inclusion for action in actions]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_is_drawn_without_replacement_stands_for_all_actions(count):
    z, seeds = [1.2, 0.4, -1.0], 3000
    kept = [0.0] * 3
    for seed in range(seeds):
        actions = draw(z, True, count, 1.0, random.Random(seed))
        weights = stands_for(actions)
        for action, weight in zip(actions, weights, strict=True):
            for place in action.places:
                kept[place] += weight / sum(weights) / seeds
    # by the probabilities alone, three of eight selections would say 0.84, 0.63 and 0.17
    assert kept == pytest.approx([1 / (1 + math.exp(-x)) for x in z], abs=0.03)


def test_the_only_draw_of_a_forced_kind_stands_for_its_kind():
    kinds = ["Search", "Search", "Answer"]
    z = [math.log(0.1), math.log(0.6), math.log(0.3)]
    for seed in range(20):
        actions = draw(z, False, 1, 1.0, random.Random(seed), kinds)
        found = {kinds[action.places[0]]: weight for action, weight in zip(actions, stands_for(actions), strict=True)}
        assert found == {"Search": pytest.approx(0.7), "Answer": pytest.approx(0.3)}


def test_of_forced_kinds_too_what_is_drawn_beside_the_best_stands_for_all():
    p, kinds, seeds = [0.523, 0.192, 0.071, 0.117, 0.071, 0.026], "AAABBB", 20_000
    z, rng, shares = [math.log(x) for x in p], random.Random(0), [0.0] * 6
    for _ in range(seeds):
        actions = draw(z, False, 4, 1.0, rng, kinds)
        weights = stands_for(actions)
        for action, weight in zip(actions, weights, strict=True):
            shares[action.places[0]] += weight / sum(weights) / seeds
    # measured by the next best of its own kind each, the first would have 0.549
    assert shares == pytest.approx(p, abs=0.008)


def test_actions_none_of_which_was_left_out_stand_for_their_probability():
    actions = draw([0.3, -0.2, 2.0], False, 3, 1.0, random.Random(0))
    assert [action.inclusion for action in actions] == [1, 1, 1]


def test_a_kind_that_the_policy_would_never_take_weighs_nothing():
    actions = draw([0.0, -2000.0, -2001.0], False, 1, 1.0, random.Random(0), ["Answer", "Search", "Search"])
    assert sorted(stands_for(actions)) == [0, pytest.approx(1)]

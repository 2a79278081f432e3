"""A policy is used with the settings and prompts that it was trained with, or refused."""

from dataclasses import replace

import pytest

from dragoman.core.errors import UserError
from dragoman.registry.trained_with import check_trained_with, trained_with
from dragoman.systems import build

C3PO = build("c3po", {"max_depth": 7})
MANIFEST = {"system": "c3po", "trained_with": trained_with(C3PO)}


def test_a_policy_is_taken_with_the_settings_that_it_was_trained_with():
    check_trained_with("c3po@rl", build("c3po", {"max_depth": 7}), MANIFEST)


def test_a_plain_model_without_a_record_is_taken():
    check_trained_with("c3po@folder", C3PO, {"source": "smollm2"})


def test_other_settings_are_refused_with_both_values():
    with pytest.raises(UserError, match=r"c3po@rl: .*max_depth was 7 and is 9.*--allow-mismatch"):
        check_trained_with("c3po@rl", build("c3po", {"max_depth": 9}), MANIFEST)


def test_a_setting_that_may_be_turned_after_training_is_taken_with_any_value():
    at_marks = build("c3po", {"decide": "marks"})
    check_trained_with(
        "c3po@rl", replace(at_marks, bias={"filter": {"Keep": 1.0}}), {"trained_with": trained_with(at_marks)}
    )


def test_a_setting_that_may_be_turned_after_training_is_not_recorded():
    at_marks = build("c3po", {"decide": "marks"})
    assert trained_with(replace(at_marks, bias={"filter": {"Keep": 1.0}})) == trained_with(at_marks)
    before = trained_with(at_marks)
    before["settings"] |= {"bias": {"filter": {"Keep": 0.5}}}
    check_trained_with("c3po@rl", at_marks, {"trained_with": before})


def test_a_setting_that_did_not_exist_at_training_counts_as_its_default():
    then = {name: value for name, value in MANIFEST["trained_with"]["settings"].items() if name != "max_candidates"}
    earlier = MANIFEST | {"trained_with": MANIFEST["trained_with"] | {"settings": then}}
    check_trained_with("c3po@rl", C3PO, earlier)
    with pytest.raises(UserError, match="max_candidates was 14 and is 9"):
        check_trained_with("c3po@rl", replace(C3PO, max_candidates=9), earlier)


def test_other_prompts_are_refused_with_both_hashes():
    then = MANIFEST["trained_with"] | {"prompts": "abc"}
    with pytest.raises(UserError, match=rf"the prompts had hash abc and have {MANIFEST['trained_with']['prompts']}"):
        check_trained_with("c3po@rl", C3PO, MANIFEST | {"trained_with": then})


def test_a_policy_that_was_shown_states_otherwise_is_refused():
    then = {name: value for name, value in MANIFEST["trained_with"].items() if name != "views"}
    with pytest.raises(UserError, match=r"states were shown in form 1 and are in form \d+, by another dragoman"):
        check_trained_with("c3po@rl", C3PO, MANIFEST | {"trained_with": then})
    standard = build("standard")
    check_trained_with(
        "standard", standard, {"trained_with": {"settings": {}, "prompts": trained_with(standard)["prompts"]}}
    )


def test_the_hash_of_prompts_follows_the_text_of_a_role_s_prompt():
    class Reworded(type(C3PO)):
        @property
        def roles(self):
            first, *others = super().roles
            return (replace(first, prompt=replace(first.prompt, user="Other words: {question}")), *others)

    assert trained_with(Reworded())["prompts"] != trained_with(C3PO)["prompts"]


@pytest.mark.parametrize(
    ("settings", "later"),
    [
        ({}, set()),
        ({"answers": "planner"}, {"conclusion"}),
        ({"answers": "planner", "context": "dialogue"}, {"conclusion", "told", "told_last"}),
    ],
)
def test_mujicas_policy_is_trained_with_all_prompts_in_which_its_planner_goes_on(settings, later):
    mujica = build("mujica", settings)
    assert mujica.trained_prompts.keys() - {role.name for role in mujica.roles} == later
    assert (trained_with(mujica)["prompts"] == trained_with(build("mujica"))["prompts"]) == (not later)

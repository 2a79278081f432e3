"""A policy is used with the settings and prompts that it was trained with, or refused."""

from dataclasses import dataclass, replace

import pytest

from dragoman.core.errors import UserError
from dragoman.registry.trained_with import check_trained_with, must_agree, trained_with, warn_if_turned
from dragoman.systems import build
from dragoman.systems.base import System

C3PO = build("c3po", {"max_depth": 7})
AT_MARKS = build("c3po", {"decide": "marks"})
MANIFEST = {"system": "c3po", "trained_with": trained_with(C3PO)}


def test_a_policy_is_taken_with_the_settings_that_it_was_trained_with():
    check_trained_with("c3po@rl", build("c3po", {"max_depth": 7}), MANIFEST)


def test_a_plain_model_without_a_record_is_taken():
    check_trained_with("c3po@folder", C3PO, {"source": "smollm2"})


def test_other_settings_are_refused_with_both_values():
    with pytest.raises(UserError, match=r"c3po@rl: .*max_depth was 7 and is 9.*--allow-mismatch"):
        check_trained_with("c3po@rl", build("c3po", {"max_depth": 9}), MANIFEST)


def test_a_setting_that_may_be_turned_after_training_is_taken_with_any_value():
    check_trained_with(
        "c3po@rl", replace(AT_MARKS, bias={"filter": {"Keep": 1.0}}), {"trained_with": trained_with(AT_MARKS)}
    )


def test_a_setting_that_may_be_turned_after_training_is_recorded_apart_from_those_that_must_agree():
    turned = trained_with(replace(AT_MARKS, bias={"filter": {"Keep": 1.0}}))
    assert (turned["turned"], trained_with(AT_MARKS)["turned"]) == ({"bias": {"filter": {"Keep": 1.0}}}, {"bias": None})
    assert must_agree(turned) == must_agree(trained_with(AT_MARKS)) and "bias" not in turned["settings"]


def test_a_record_that_has_a_turned_setting_among_those_that_must_agree_is_taken():
    before = trained_with(AT_MARKS)
    before["settings"] |= {"bias": {"filter": {"Keep": 0.5}}}
    check_trained_with("c3po@rl", AT_MARKS, {"trained_with": before})


def test_a_system_of_others_has_no_setting_that_may_be_turned_after_training_by_its_name_alone():
    @dataclass(frozen=True)
    class Leaning(System):
        bias: float = 0.0

    with pytest.raises(UserError, match=r"leaning@rl: .*bias was 0\.0 and is 2\.0"):
        check_trained_with("leaning@rl", Leaning(2.0), {"trained_with": trained_with(Leaning())})


@pytest.mark.parametrize(
    ("then", "now", "turned"),
    [
        ({"filter": {"Keep": 1.0}}, {"filter": {"Keep": 2}}, "c3po.bias.filter.Keep was 1.0 and is 2"),
        (None, {"filter": {"Keep": 2}}, "c3po.bias.filter.Keep was 0 and is 2"),
        (
            {"filter": {"Keep": 2}, "decide": {"Search": 2}},
            {"filter": {"Keep": 0}, "router": {"Plan": 1}, "decide": {"Search": 2}},
            "c3po.bias.filter.Keep was 2 and is 0; c3po.bias.router.Plan was 0 and is 1",
        ),
    ],
)
def test_a_policy_of_rl_is_warned_of_once_where_it_is_run_with_another_bias(caplog, then, now, turned):
    manifest = MANIFEST | {"stage": "rl", "trained_with": trained_with(replace(AT_MARKS, bias=then))}
    warn_if_turned("c3po@rl", replace(AT_MARKS, bias=now), manifest)
    text = f"c3po@rl: stage rl learnt with other settings: {turned}; set them back, or choose them on dev"
    assert [(record.levelname, record.message) for record in caplog.records] == [("WARNING", text)]


@pytest.mark.parametrize(
    ("stage", "then", "now"),
    [
        ("sft", None, {"filter": {"Keep": 2}}),
        ("rl", {"filter": {"Keep": 2}}, {"filter": {"Keep": 2.0}}),
        ("rl", None, {"filter": {"Keep": 0}}),
        ("rl", {"filter": {"Keep": 0.0}}, None),
    ],
)
def test_a_warm_up_and_a_policy_of_rl_with_an_equal_bias_are_not_warned_of(caplog, stage, then, now):
    manifest = MANIFEST | {"stage": stage, "trained_with": trained_with(replace(AT_MARKS, bias=then))}
    warn_if_turned("c3po@policy", replace(AT_MARKS, bias=now), manifest)
    assert not caplog.records


@pytest.mark.parametrize("more", [{}, {"trained_with": must_agree(MANIFEST["trained_with"])}])
def test_a_policy_that_does_not_record_its_bias_is_taken_without_a_warning(caplog, more):
    leaning = replace(C3PO, bias={"filter": {"Keep": 2}})
    earlier = {"stage": "rl", "system": "c3po"} | more
    check_trained_with("c3po@rl", leaning, earlier)
    warn_if_turned("c3po@rl", leaning, earlier)
    assert not caplog.records


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

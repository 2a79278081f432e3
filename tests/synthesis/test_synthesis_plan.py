"""The plan of synthetic questions: what is refused, and that its categories are dealt out."""

import random

import pytest
import yaml

from dragoman.core.errors import UserError
from dragoman.synthesis.plan import BUILT_IN, load_plan

PAPER = {
    "question_phrasing": [0.35, 0.35, 0.1, 0.1, 0.05, 0.05],
    "answer_phrasing": [0.4, 0.4, 0.1, 0.1],
    "answer_intent": [0.5, 0.5],
    "question_intent": [0.2] * 5,
    "premise": [0.7, 0.3],
    "lexical_similarity": [0.3, 0.4, 0.3],
    "interaction_type": [0.5, 0.5],
    "number_of_documents": [0.5, 0.5],
}  # mRAG, figures 4 to 7 and 9 to 12


def test_the_built_in_plan_is_the_paper_s():
    plan = load_plan()
    assert len(plan.categorizations) == 10 and len(plan.combinations) == 5
    for name, probabilities in PAPER.items():
        assert [c.probability for c in plan.categorizations[name].values()] == probabilities


def edited(tmp_path, change):
    values = yaml.safe_load(BUILT_IN.read_text(encoding="utf-8"))
    change(values)
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda v: v["categorizations"]["premise"]["with premise"].update(probability=0.4),
            r"categorizations\.premise: the probabilities add up to 1\.1, not to 1",
        ),
        (
            lambda v: v["categorizations"]["premise"]["with premise"].update(probability=-0.3),
            r"categorizations\.premise\.with premise\.probability: .*greater than or equal to 0",
        ),
        (
            lambda v: v["combinations"].append(["mood"]),
            r"combinations\.5: no categorization 'mood'; there are user_exp",
        ),
        (lambda v: v["core"].append("mood"), r"core: no categorization 'mood'"),
        (lambda v: v["combinations"].append(["user_expertise"]), r"combinations\.5: user_expertise twice"),
        (
            lambda v: v["combinations"].append(["question_intent", "answer_intent"]),
            r"combinations\.5: answer_intent and question_intent are incompatible",
        ),
        (lambda v: v.update(combinations=[]), r"combinations: .*at least 1 item"),
        (lambda v: v.update(mood={}), r"mood: unknown key"),
        (lambda v: v["categorizations"].update(mood={}), r"categorizations\.mood: .*at least 1 item"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tmp_path, change, message):
    path = edited(tmp_path, change)
    with pytest.raises(UserError, match=rf"mine\.yaml: .*{message}"):
        load_plan(path)


def test_a_plan_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"none\.yaml: no such file$"):
        load_plan(tmp_path / "none.yaml")


def test_a_hand_has_the_core_and_one_combination():
    plan = load_plan()
    seen = {frozenset(categories) for categories in plan.deal(200, random.Random(0))}
    assert seen == {frozenset((*plan.core, *names)) for names in plan.combinations}


def test_equal_seeds_deal_alike_and_a_hand_can_be_put_into_words():
    plan = load_plan()
    dealt = plan.deal(20, random.Random(7))
    assert dealt == plan.deal(20, random.Random(7)) != plan.deal(20, random.Random(8))
    assert all(len(plan.describe(categories)) == len(categories) >= 7 for categories in dealt)

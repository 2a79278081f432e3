"""When to stop asking: the looks, their level, and how often a difference is found where there is none."""

import random

import pytest

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.stats import student_interval
from dragoman.core.types import Question
from dragoman.evaluation import sequential
from dragoman.evaluation.evaluate import Evaluation
from dragoman.evaluation.report import verdict
from dragoman.evaluation.settings import EvaluateParams

QUESTIONS = [Question(f"q{i}", "?", ("x",)) for i in range(100)]


@pytest.mark.parametrize(
    ("total", "after"),
    [(500, [100, 200, 300, 400, 500]), (100, [34, 67, 100]), (59, [59]), (151, [31, 61, 91, 121, 151])],
)
def test_looks_are_equally_far_apart_and_have_30_questions_each(total, after):
    assert sequential.looks(total) == after


def test_too_few_questions_are_refused():
    with pytest.raises(UserError, match="29 questions are too few to tell; give it at least 30"):
        sequential.looks(29)


def test_five_looks_share_five_percent():
    assert sequential.level(5) == pytest.approx(0.99)  # 1 - 0.05 / 5: half a percent on either side
    assert sequential.level(1) == pytest.approx(0.95)


def test_an_interval_has_as_many_standard_errors_as_students_table_says():
    # of 0 and 1, five times each: sd 0.527, standard error 0.1667, and 3.2498 of them at 99% with 9 degrees of freedom
    assert student_interval([0.0, 1.0] * 5, 0.99) == {"mean": 0.5, "low": -0.0416, "high": 1.0416}


def false_alarms(level: float, *, runs: int = 1000, differing: float) -> float:
    """The share of runs in which five looks at two equal systems, 30 questions apart, find one of them better."""
    drawn, found = random.Random(0), 0
    for _ in range(runs):
        values = drawn.choices([-1.0, 0.0, 1.0], [differing / 2, 1 - differing, differing / 2], k=150)
        intervals = (student_interval(values[:n], level) for n in sequential.looks(150))
        found += any(map(sequential.is_clear, intervals))
    return found / runs


@pytest.mark.parametrize("differing", [0.1, 0.3, 0.8])
def test_where_there_is_no_difference_few_runs_find_one(differing):
    share = false_alarms(sequential.level(5), differing=differing)
    assert share <= sequential.ERROR


def test_without_the_correction_more_than_one_run_in_ten_would():
    assert false_alarms(0.95, differing=0.3) > 0.1


@pytest.fixture
def answers(monkeypatch):
    """Evaluations whose second system is right where `gains` says so, and the first never."""
    calls, gains = [], []

    async def evaluate(systems, questions, runtime, evaluation, *, more=None):
        calls.append((tuple(systems), len(questions), evaluation.track))
        rows = [
            {
                "id": q.id,
                "system": name,
                "scores": {"cover_em": gain if name == "new" else 0.0, "recall": 0.0, "f1 + em": gain},
            }
            for name in systems
            for q, gain in zip(questions, gains, strict=False)
        ]
        files.write(evaluation.out / "predictions.jsonl", rows)
        return dict(more or {})

    monkeypatch.setattr(sequential, "evaluate", evaluate)
    return calls, gains


async def asked(tmp_path, answers, gains, pair=("new", "old"), scores=(), **more):
    answers[1][:] = gains
    settings = EvaluateParams(bootstrap=200, scores=scores)
    evaluation = Evaluation(dataset="d", settings=settings, seed=0, out=tmp_path, track=tmp_path)
    metrics = await sequential.until_clear(pair, ["old", "other", "new"], QUESTIONS, None, evaluation, **more)
    return metrics["sequential"]


async def test_a_difference_that_is_clear_at_once_ends_it(tmp_path, answers):
    found = await asked(tmp_path, answers, [float(i % 2) for i in range(100)])
    assert found["clear"] and (found["look"], found["looks"], found["n"], found["of"]) == (1, 3, 34, 100)
    assert found["pair"] == "new - old" and found["level"] == pytest.approx(1 - 0.05 / 3) and found["mean"] == 0.5
    # the third system is asked once it is known how many questions, and only then something is recorded
    assert answers[0] == [(("old", "new"), 34, None), (("old", "other", "new"), 34, tmp_path)]


async def test_a_few_answers_that_an_outage_has_left_are_no_clear_difference(tmp_path, answers):
    answers[1][:] = [1.0, 1.0, *[None] * 98]  # equal differences have an interval of no width
    found = await asked(tmp_path, answers, answers[1])
    assert not found["clear"] and found["n"] == 100


async def test_no_difference_takes_all_questions(tmp_path, answers):
    found = await asked(tmp_path, answers, [0.0] * 100)
    assert not found["clear"] and found["n"] == 100 and found["look"] == 3
    assert [n for _, n, _ in answers[0]] == [34, 67, 100, 100]
    assert verdict(found).startswith(
        "new - old in cover_em: +0.00 [+0.00, +0.00] at 98.3%, not clear of zero (look 3 of 3, 100 of 100"
    )


async def test_systems_that_do_not_answer_are_not_asked_on(tmp_path, answers):
    found = await asked(tmp_path, answers, [None] * 100)
    assert (found["look"], found["clear"]) == (1, False)
    assert (
        verdict(found) == "new - old in cover_em: no question has a score of both (look 1 of 3, 34 of 100 questions)."
    )


async def test_the_score_of_the_difference_may_be_another(tmp_path, answers):
    gains = [float(i % 2) for i in range(100)]
    found = await asked(tmp_path, answers, gains, score="recall")
    assert (found["score"], found["clear"], found["n"]) == ("recall", False, 100)
    found = await asked(tmp_path, answers, gains, scores=("f1 + em",), score="f1 + em")
    assert (found["score"], found["mean"]) == ("f1 + em", 0.0)  # both have it alike


async def test_a_score_that_nobody_computes_is_refused(tmp_path, answers):
    with pytest.raises(UserError, match="--clear-by bleu: choose from cover_em, em, f1"):
        await asked(tmp_path, answers, [0.0] * 100, score="bleu")
    assert answers[0] == []

import pytest
from test_evaluation_metrics import row

from dragoman.core.stats import bootstrap_difference
from dragoman.evaluation.metrics import summarize
from dragoman.evaluation.transfer import losses, markdown

DRAWN = {"resamples": 200, "seed": 0}


def scored(*covers, first=0):
    """The predictions of a system for so many questions."""
    return {f"q{i}": row(f"q{i}", "s", cover) for i, cover in enumerate(covers, start=first)}


def test_a_loss_is_of_each_question_against_itself():
    """Three of four fall to one of four; where one side has no score, the question counts for neither."""
    found = losses(scored(1.0, 1.0, 1.0, 0.0, 1.0), scored(1.0, 0.0, 0.0, 0.0, None), paired=True, **DRAWN)
    assert found["cover_em"]["loss"]["mean"] == 0.5 and found["cover_em"]["home"]["mean"] == 0.75
    assert "recall" not in found and "judge" not in found
    same = losses(scored(1.0, 0.0), scored(1.0, 0.0), paired=True, **DRAWN)["cover_em"]["loss"]
    assert same == {"mean": 0.0, "low": 0.0, "high": 0.0}


def test_of_more_questions_away_only_those_of_home_count():
    away = scored(0.0, 1.0, *[1.0] * 8)
    found = losses(scored(1.0, 1.0), away, paired=True, **DRAWN)
    assert (found["cover_em"]["n"], found["cover_em"]["there"]["mean"], found["cover_em"]["loss"]["mean"]) == (
        2,
        0.5,
        0.5,
    )
    metrics = summarize(list(away.values()), dataset="d", **DRAWN) | {
        "transfer": {"paired": True, "systems": {"s": found}}
    }
    assert "| llm | d | 2 | s | 1.00 [1.00, 1.00] | 0.50 [" in markdown({"llm": metrics})


def test_over_other_questions_each_side_is_drawn_by_itself():
    found = losses(scored(1.0, 0.0), scored(1.0, 0.0, first=7), paired=False, **DRAWN)["cover_em"]["loss"]
    assert found["mean"] == 0 and found["low"] < 0 < found["high"]
    assert losses(scored(1.0), scored(None, first=7), paired=False, **DRAWN) == {}


def test_the_smallest_loss_that_could_have_been_seen_is_that_of_the_questions_by_hand():
    """Of ten pairs four lose, so their variance is 4 * 6 / 10 / 9; ten and twenty others have 0.1778 and 0.2632."""
    lost = losses(scored(*[1.0] * 10), scored(*[0.0] * 4, *[1.0] * 6), paired=True, **DRAWN)["cover_em"]
    assert lost["loss"]["mean"] == 0.4
    assert lost["detectable"] == pytest.approx(2.8016 * (0.24 * 10 / 9 / 10) ** 0.5, abs=1e-4)
    home, away = scored(*[0.0] * 2, *[1.0] * 8), scored(*[0.0] * 10, *[1.0] * 10, first=50)
    both = losses(home, away, paired=False, **DRAWN)["cover_em"]
    assert both["detectable"] == pytest.approx(2.8016 * (0.1778 / 10 + 0.2632 / 20) ** 0.5, abs=1e-3)
    assert "detectable" not in losses(scored(1.0), scored(0.0), paired=True, **DRAWN)["cover_em"]


def test_the_interval_of_two_samples_has_the_errors_of_both():
    # each mean of 100 throws of a fair coin has a standard error of 0.05: 1.96 * sqrt(2) * 0.05 = 0.139
    found = bootstrap_difference([0, 1] * 50, [0, 1] * 50, resamples=2000, seed=0)
    assert found["mean"] == 0
    assert (-found["low"], found["high"]) == (pytest.approx(0.139, abs=0.02),) * 2
    assert bootstrap_difference([1.0] * 3, [0.0] * 5, resamples=100, seed=0) == {"mean": 1.0, "low": 1.0, "high": 1.0}


def test_the_grid_has_losses_in_points_and_marks_those_over_other_questions():
    grid = {}
    for change, paired, first in (("llm", True, 0), ("data", False, 9)):
        away = scored(0.0, 0.0, first=first)
        metrics = summarize(list(away.values()), dataset=f"of {change}", **DRAWN)
        metrics["transfer"] = {
            "from": "home",
            "paired": paired,
            "systems": {"s": losses(scored(1.0, 1.0), away, paired=paired, **DRAWN)},
        }
        grid[change] = metrics
    table = markdown(grid)
    assert "| llm | of llm | 2 | s | 1.00 [1.00, 1.00] | 0.00 [0.00, 0.00] | +100.0 [+100.0, +100.0] |" in table
    assert "+100.0 [+100.0, +100.0] * |" in table and table.endswith("each side is drawn by itself.\n")
    assert "[+100.0, +100.0] * | – |" in table  # all lose alike: nothing says how losses scatter
    assert "*:" not in markdown({"llm": grid["llm"]})

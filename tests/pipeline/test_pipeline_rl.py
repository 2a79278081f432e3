"""From which warm-up RL starts."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from policies import trained

from dragoman.core.errors import UserError
from dragoman.pipeline import rl
from dragoman.pipeline.project import Project
from dragoman.registry.trained_with import trained_with
from dragoman.systems import build
from dragoman.training.settings import RlParams


@pytest.fixture
def warm_up(tmp_path, monkeypatch) -> Path:
    """A folder with a warm-up of C-3PO that was shown 16 words of a passage; the project has no questions."""
    monkeypatch.chdir(tmp_path)
    trained(tmp_path, "sft", b"w", trained_with=trained_with(build("c3po", {"filter_words": 16})))
    return tmp_path


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"c3po.filter_words": 9}, True),
        ({"c3po.filter_words": 16}, False),
        ({"c3po.filter_words": 9, "allow_mismatch": True}, False),
    ],
)
async def test_a_warm_up_that_was_trained_with_other_settings_is_told_and_taken(warm_up, caplog, settings, warned):
    with caplog.at_level(logging.WARNING), pytest.raises(UserError, match=r"data/atlas/.*no such file"):
        await rl.run(Project(track=False).changed(settings), rl.Options())
    text = "rl: sft was trained with other settings of c3po: filter_words was 16 and is 9"
    assert [record.message for record in caplog.records] == ([text] if warned else [])


async def test_a_policy_that_rl_trained_at_another_bias_is_told_where_rl_goes_on_from_it(warm_up, caplog):
    settings = {"c3po.bias": {"filter": {"Keep": 2}}}
    learnt = trained_with(Project(track=False).changed(settings).system("c3po"))
    trained(warm_up, "rl", b"r", trained_with=learnt)
    later = Project(track=False).changed(settings | {"c3po.bias.filter.Keep": 1})
    with pytest.raises(UserError, match=r"data/atlas/.*no such file"):
        await rl.run(later, rl.Options(policy="rl", out=Path("results/further")))
    text = "rl: rl: stage rl learnt with other settings: c3po.bias.filter.Keep was 2.0 and is 1.0; set them back, or choose them on dev"
    assert [record.message for record in caplog.records] == [text]


@pytest.mark.parametrize(
    ("algorithm", "redraw", "taken"), [("selftrain", False, 50), ("selftrain", True, 200), ("mygo", False, 200)]
)
def test_a_curriculum_counts_questions_that_are_learnt_from_again_once(algorithm, redraw, taken):
    settings = RlParams.model_validate({"questions": 50, "iterations": 4, "selftrain": {"redraw": redraw}})
    assert rl.planned(algorithm, settings) == taken

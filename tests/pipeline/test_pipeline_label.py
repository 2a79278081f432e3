"""How stage `label` draws answers that are listed, and what it says of labels that are all the same."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from command import run
from towns import make_towns, river_llm

from dragoman.engines.base import Result
from dragoman.pipeline.label import _answers
from dragoman.systems.maps.actions import Answer
from dragoman.systems.options import Choice
from dragoman.training.settings import LabelParams


@pytest.mark.parametrize(("temperature", "share"), [(1.0, 3 / 4), (0.5, 9 / 10)])
def test_listed_answers_are_drawn_by_their_probabilities_and_may_come_again(temperature, share):
    """Logits 0 and ln 3 have shares of 1/4 and 3/4; at a temperature of 1/2, of 1/10 and 9/10."""
    listed = Choice("Answer:\n", (("Perth", Answer("Perth")), ("York", Answer("York"))))
    scored = Result((), (), 0, 0, logits=(0.0, math.log(3)))
    settings = LabelParams(draws=4000, temperature=temperature)
    drawn = Counter(_answers(scored, listed, settings, random.Random(0)))
    assert drawn.total() == 4000 and drawn["York"] / 4000 == pytest.approx(share, abs=0.03)


def test_labels_that_are_all_the_same_are_said(tmp_path, tiny_model, capsys, caplog, monkeypatch):
    with river_llm(knows=False) as url:
        make_towns(tmp_path, url, tiny_model)
        monkeypatch.chdir(tmp_path)
        untracked = ("--no-track",)
        for command in (("index", "--dataset", "towns"), ("debate", *untracked), ("label", *untracked)):
            code, _, err = run(capsys, *command)
            assert code == 0, err
    assert "every label says Insufficient" in caplog.text + err

"""The file of predictions that an evaluation leaves in its folder."""

from __future__ import annotations

import pytest

from dragoman.core.errors import UserError
from dragoman.evaluation.predictions import PREDICTIONS, read_predictions, write_predictions


def test_predictions_are_read_in_the_order_in_which_they_were_written(tmp_path):
    rows = [{"id": id, "system": system} for system in ("standard", "c3po@rl") for id in ("q2", "q1")]
    write_predictions(tmp_path / "out", [{"id": "of an earlier run"}])
    write_predictions(tmp_path / "out", rows)
    assert list(read_predictions(tmp_path / "out")) == rows
    assert (tmp_path / "out/predictions.jsonl").is_file()  # a contract: scripts of others read it


def test_a_folder_without_predictions_is_named(tmp_path):
    with pytest.raises(UserError, match=rf"{tmp_path}/{PREDICTIONS}: no such file"):
        list(read_predictions(tmp_path))

"""What an iteration takes by staleness, by hand-made histories, and that the commands are commands."""

import pytest

from benchmarks import staleness


def history(*seconds: tuple[float, float]) -> list[dict[str, float]]:
    return [{"rollout_seconds": drawn, "learn_seconds": learnt} for drawn, learnt in seconds]


def test_iterations_before_anything_was_drawn_ahead_are_left_out():
    found = {0: history((9, 9), (9, 9), (4, 6), (5, 5)), 1: history((9, 9), (9, 9), (0, 5))}
    (only,) = staleness.samples(found)
    assert only.repeat == 2 and only.seconds == {"staleness 0": 10, "staleness 1": 5}


def test_each_training_differs_in_the_staleness_alone(monkeypatch, tmp_path, capsys):
    commands = []
    monkeypatch.setattr(staleness, "dragoman", lambda *words: commands.append([str(word) for word in words]))
    monkeypatch.setattr(
        staleness, "numbers", lambda path: [{"dev_reward": 0.5, "rollout_seconds": 2, "learn_seconds": 2}] * 4
    )
    staleness.main(["--out", str(tmp_path), "--iterations", "4", "--algorithm", "grpo"])
    first, second = commands
    assert first[0] == second[0] == "rl" and "rl.iterations=4" in first and "grpo" in first
    assert {*second} - {*first} == {"rl.max_staleness=1", str(tmp_path / "1")}
    assert "1.00 x staleness 0" in capsys.readouterr().out


def test_an_algorithm_that_cannot_make_up_for_it_is_refused():
    with pytest.raises(SystemExit):
        staleness.main(["--algorithm", "mygo"])

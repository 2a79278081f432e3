"""A rollout in shards is the rollout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import run
from scripted import make_project, open_runtime, without_times

from dragoman.core.errors import UserError
from dragoman.core.types import Question
from dragoman.pipeline import project as pipeline_project
from dragoman.rollout import shards
from dragoman.rollout.samples import read_samples
from dragoman.rollout.shards import Shard

TREE = ("rollout", "--system", "c3po", "--tree", "--limit", "7")
DRAWS = ("rollout", "--system", "c3po", "--samples", "2", "--seed", "5")


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(pipeline_project, "open_runtime", open_runtime)
    monkeypatch.chdir(make_project(tmp_path))
    return tmp_path


def roll_out(capsys, of: int, *arguments: str) -> Path:
    """In so many shards; in none for 0."""
    out = Path(f"in-{of}")
    for shard in range(1, of + 1):
        code, _, err = run(capsys, *arguments, "--out", str(out), "--shard", f"{shard}/{of}")
        assert code == 0, err
    code, _, err = run(capsys, *arguments, "--out", str(out), *(["--merge", str(of)] if of else []))
    assert code == 0, err
    return out


def figures(folder: Path) -> dict:
    return json.loads((folder / "metrics.json").read_text()) | {"seconds": 0}


@pytest.mark.parametrize("arguments", [TREE, DRAWS], ids=["trees", "draws"])
def test_any_number_of_shards_gives_the_same_episodes_samples_and_figures(project, capsys, arguments):
    whole = roll_out(capsys, 0, *arguments)
    expected = without_times(whole)
    assert len(expected) == (7 if arguments is TREE else 14) and len({len(e.nodes) for e in expected}) > 1
    in_order = sorted(expected, key=lambda e: (e.config["seed"], e.question["id"]))
    trees = sorted(path.name for path in whole.glob("trees/*"))
    for of in (1, 2, 3):
        merged = roll_out(capsys, of, *arguments)
        assert without_times(merged) == in_order, f"{of} shards"
        assert read_samples(merged / "samples.parquet") == read_samples(whole / "samples.parquet")
        assert figures(merged) == figures(whole)
        assert sorted(path.name for path in merged.glob("trees/*")) == trees
    assert bool(trees) == (arguments is TREE)


def test_merging_again_changes_nothing_and_keeps_what_was_there(project, capsys):
    merged = roll_out(capsys, 2, *TREE)
    before = (merged / "episodes.jsonl").read_bytes()
    assert run(capsys, *TREE, "--out", str(merged), "--merge", "2")[0] == 0
    assert (merged / "episodes.jsonl").read_bytes() == before
    roll_out(capsys, 2, *TREE, "--seed", "9")
    assert (merged / "episodes.jsonl").read_bytes().startswith(before)
    assert figures(merged)["questions"] == 7, "of this run alone"


def test_a_shard_that_is_missing_is_named_with_what_to_do(project, capsys):
    run(capsys, *TREE, "--out", "x", "--shard", "1/2")
    code, _, err = run(capsys, *TREE, "--out", "x", "--merge", "2")
    assert code == 2 and "x/shards/2-of-2: not finished" in err and "--shard 2/2" in err
    assert not Path("x/episodes.jsonl").exists()


def test_a_shard_that_was_cut_short_is_not_finished(project, capsys, monkeypatch):
    roll_out(capsys, 2, *TREE)

    async def fail(*arguments, **more):
        raise UserError("the disk is full")

    monkeypatch.setattr("dragoman.pipeline.rollout.roll_out_questions", fail)
    assert run(capsys, *TREE, "--out", "in-2", "--shard", "2/2")[0] == 2
    code, _, err = run(capsys, *TREE, "--out", "in-2", "--merge", "2")
    assert code == 2 and "2-of-2: not finished" in err


def test_shards_of_other_questions_or_settings_are_refused(project, capsys, monkeypatch):
    roll_out(capsys, 2, *TREE)
    code, _, err = run(capsys, "rollout", "--system", "c3po", "--tree", "--limit", "6", "--out", "in-2", "--merge", "2")
    assert code == 2 and "1-of-2: other questions" in err
    code, _, err = run(capsys, *TREE, "--seed", "3", "--out", "in-2", "--merge", "2")
    assert code == 2 and "other questions, seeds" in err
    code, _, err = run(capsys, "rollout", "--system", "direct", *TREE[3:], "--out", "in-2", "--merge", "2")
    assert code == 2 and "1-of-2: its system differ" in err
    monkeypatch.setattr("fakes.ScriptedEngine.fingerprint", "another model")
    assert run(capsys, *TREE, "--out", "in-2", "--shard", "2/2")[0] == 0
    code, _, err = run(capsys, *TREE, "--out", "in-2", "--merge", "2")
    assert code == 2 and "2-of-2: its llm and proxy differ" in err


def test_each_question_is_in_one_shard():
    questions = [Question(str(i), "?") for i in range(11)]
    parts = [Shard(number, 4).part(questions) for number in range(1, 5)]
    assert sorted((q for part in parts for q in part), key=lambda q: int(q.id)) == questions
    assert [len(part) for part in parts] == [3, 3, 3, 2]
    with pytest.raises(UserError, match="take fewer shards"):
        Shard(1, 12).part(questions)


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/0", "a/b", "1/2/3"])
def test_a_shard_that_is_none(text):
    with pytest.raises(UserError, match="such as 1/4"):
        shards.Shard.parse(text)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--shard", "1/2", "--merge", "2"), "either --shard"),
        (("--merge", "0"), "greater than or equal to 1"),
        (("--shard", "1/2", "--corpus", "corpus.jsonl"), "give --index too"),
    ],
)
def test_options_that_do_not_go_together(project, capsys, arguments, says):
    code, _, err = run(capsys, *TREE, *arguments)
    assert code == 2 and says in err

"""A rollout in shards is the rollout, and so are seeds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import run
from scripted import make_project, open_runtime, script, without_times

from dragoman.core.errors import EngineFault, UserError
from dragoman.core.types import Question
from dragoman.pipeline import project as pipeline_project
from dragoman.rollout import shards
from dragoman.rollout.samples import read_samples
from dragoman.rollout.shards import Shard

TREE = ("rollout", "--system", "c3po", "--tree", "--limit", "7")
DRAWS = ("rollout", "--system", "c3po", "--samples", "2", "--seed", "5")
SEEDS = ("seeds", "--no-track", "--limit", "7")


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
    found = json.loads((folder / "metrics.json").read_text())
    (found.get("trees") or found)["seconds"] = 0
    return found


@pytest.mark.parametrize("arguments", [TREE, DRAWS, SEEDS], ids=["trees", "draws", "seeds"])
def test_any_number_of_shards_gives_the_same_episodes_samples_and_figures(project, capsys, arguments):
    whole = roll_out(capsys, 0, *arguments)
    expected = without_times(whole)
    assert len(expected) == (14 if arguments is DRAWS else 7) and len({len(e.nodes) for e in expected}) > 1
    in_order = sorted(expected, key=lambda e: (e.config["seed"], e.question["id"]))
    trees = sorted(path.name for path in whole.glob("trees/*"))
    for of in (1, 3):
        merged = roll_out(capsys, of, *arguments)
        assert without_times(merged) == in_order, f"{of} shards"
        assert read_samples(merged / "samples.parquet") == read_samples(whole / "samples.parquet")
        assert figures(merged) == figures(whole)
        assert sorted(path.name for path in merged.glob("trees/*")) == trees
    assert len(trees) == {TREE: 7, DRAWS: 0, SEEDS: 3}[arguments]


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
    assert code == 2 and "other questions, systems, seeds" in err
    code, _, err = run(capsys, "rollout", "--system", "direct", *TREE[3:], "--out", "in-2", "--merge", "2")
    assert code == 2 and "1-of-2: its system and settings and code differ" in err
    code, _, err = run(capsys, *TREE, "--set", "systems.c3po.max_depth=3", "--out", "in-2", "--merge", "2")
    assert code == 2 and "1-of-2: its settings differ" in err
    code, _, err = run(capsys, "rollout", *TREE[1:3], "--samples", "1", *TREE[4:], "--out", "in-2", "--merge", "2")
    assert code == 2 and "1-of-2: its exploration differ" in err
    monkeypatch.setattr("fakes.ScriptedEngine.fingerprint", "another model")
    assert run(capsys, *TREE, "--out", "in-2", "--shard", "2/2")[0] == 0
    code, _, err = run(capsys, *TREE, "--out", "in-2", "--merge", "2")
    assert code == 2 and "2-of-2: its llm and proxy differ" in err


def test_a_merge_runs_no_model(project, capsys, monkeypatch):
    roll_out(capsys, 2, *SEEDS)
    monkeypatch.setattr(pipeline_project, "open_runtime", None)
    assert run(capsys, *SEEDS, "--out", "in-2", "--merge", "2")[0] == 0


def test_a_shard_of_seeds_chooses_nothing_and_does_not_fail_for_it(project, capsys):
    hopeless = (*SEEDS, "--out", "x", "--set", "seeds.min_reward=9")
    for shard in ("1/2", "2/2"):
        code, out, err = run(capsys, *hopeless, "--shard", shard)
        assert code == 0 and f"x/shards/{shard[0]}-of-2/episodes.jsonl" in out, err
    code, _, err = run(capsys, *hopeless, "--merge", "2")
    assert code == 2 and "was worth keeping" in err


def test_a_question_that_failed_is_merged_as_such_until_its_shard_has_asked_again(project, capsys, monkeypatch):
    def flawed(prompt, rng):
        if "what is 3?" in prompt:
            raise EngineFault("the server hangs up")
        return script(prompt, rng)

    with monkeypatch.context() as patch:
        patch.setattr("scripted.script", flawed)
        merged = roll_out(capsys, 2, *DRAWS)
    lines = (merged / "episodes.jsonl").read_bytes().count(b"\n")
    assert figures(merged)["stops"]["engine_fault"] == 2 and lines == 14
    assert run(capsys, *DRAWS, "--out", str(merged), "--merge", "2")[0] == 0
    assert (merged / "episodes.jsonl").read_bytes().count(b"\n") == lines
    roll_out(capsys, 2, *DRAWS)
    assert (
        "engine_fault" not in figures(merged)["stops"]
        and (merged / "episodes.jsonl").read_bytes().count(b"\n") == lines + 2
    )


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
        (("--shard", "1/2", "--merge", "2"), "one of --shard"),
        (("--merge", "0"), "greater than or equal to 1"),
        (("--shard", "1/2", "--corpus", "corpus.jsonl"), "give --index too"),
    ],
)
def test_options_that_do_not_go_together(project, capsys, arguments, says):
    code, _, err = run(capsys, *TREE, *arguments)
    assert code == 2 and says in err

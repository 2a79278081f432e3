"""Verdicts of the judge of MAPS against gold passages, by episodes made by hand."""

from typing import Any

import pytest

from benchmarks import maps
from benchmarks.maps import Verdict
from dragoman.core import files
from dragoman.rollout.record import Call, Episode, Node, Trajectory

YES, NO = "Sufficient", "Insufficient"


def node(id: str, kind: str | None, role: str = "judge") -> Node:
    return Node(
        id=id, parent=None, point=id, role=role, depth=1, prompt=[], prompt_ids=[], completion_ids=[], logprobs=[],
        text="", action={"type": kind} if kind else None, temperature=0, started=0, seconds=0,
        prompt_tokens=0, completion_tokens=0,
    )  # fmt: skip


def episode(
    id: str, *steps: list[str] | str | None, gold: tuple[str, ...] = ("a", "b"), started: float = 1.0
) -> Episode:
    """A list is a search and what it finds, a word a verdict, None what is no action."""
    nodes, calls, way = [], [], []
    for number, step in enumerate(steps):
        name = f"{id}{number}"
        if isinstance(step, list):
            search: Any = {"kind": "search", "name": "search", "input": {"query": name}}
            calls.append(Call(id=name, output=step, started=0, seconds=0, **search))
        else:
            nodes.append(node(name, step))
        way.append(name)
    trajectory = Trajectory(nodes=[n.id for n in nodes], steps=way, answer="", passages=[], stop="answered")
    question = {"id": id, "question": "?", "answers": ["x"], "supporting_ids": list(gold)}
    return Episode(
        key=f"{id} at {started}", question=question, system="maps", config={}, nodes=nodes, calls=calls,
        trajectories=[trajectory], started=started, seconds=0,
    )  # fmt: skip


def test_a_verdict_is_right_by_what_the_searches_before_it_have_found():
    assert maps.verdicts(episode("q", ["a"], YES, ["b"], YES)) == [Verdict(True, False), Verdict(True, True)]
    assert maps.verdicts(episode("q", ["a", "b"], NO, ["c"], YES)) == [Verdict(False, True), Verdict(True, True)]


def test_a_chunk_counts_for_the_gold_passage_it_was_cut_from():
    assert maps.verdicts(episode("q", ["a#2", "b#0"], YES)) == [Verdict(True, True)]


def test_what_says_nothing_of_a_known_pool_is_no_verdict():
    other = episode("q", ["a", "b"], YES)
    other.nodes[0].role = "query"
    assert maps.verdicts(other) == maps.verdicts(episode("q", ["a"], None)) == []
    assert maps.verdicts(episode("q", ["a"], YES, gold=())) == []


def test_a_question_counts_once_however_many_verdicts_it_has():
    short, long = [Verdict(True, True)], [Verdict(True, False)] * 2 + [Verdict(False, False)] * 2
    questions, accuracy, *cells = maps.figures([short, long])
    assert (questions, accuracy.split()[0]) == ("2", "0.75")  # of verdicts 3 of 5 are right
    assert cells == ["0.50", "0.50", "1", "0", "2", "2"]


@pytest.fixture
def evaluation(tmp_path):
    """Test questions, put into the folder of an earlier evaluation of others."""
    stored = {
        "standard": [episode("one", ["a"])],
        "maps@x/judge": [
            episode("dev", ["a"], YES),
            episode("one", ["a"], NO, started=2.0),
            episode("one", ["a"], YES),
        ],
    }
    for system, episodes in stored.items():
        rows = [e.model_dump(mode="json") for e in episodes]
        files.write(tmp_path / maps.store_of(system) / "episodes.jsonl", rows)
    asked = [("standard", 1.0), ("maps@x/judge", 2.0)]
    files.write(tmp_path / "predictions.jsonl", [{"id": "one", "system": s, "started": at} for s, at in asked])
    return tmp_path


def test_the_command_prints_the_judges_of_the_last_evaluation_of_a_folder(evaluation, capsys):
    maps.main([str(evaluation)])
    (row,) = capsys.readouterr().out.splitlines()[2:]
    assert row == "| maps@x/judge | 1 | 1.00 [1.00, 1.00] | 0.00 | 1.00 | 0 | 0 | 1 | 0 |"


def test_an_evaluation_without_a_judge_is_refused(evaluation, capsys):
    files.write(evaluation / "predictions.jsonl", [{"id": "one", "system": "standard", "started": 1.0}])
    with pytest.raises(SystemExit):
        maps.main([str(evaluation)])
    assert "no judge of MAPS has said anything" in capsys.readouterr().err

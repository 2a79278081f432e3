"""What every system owes: with a real, untrained model under its grammars it acts validly, forks, and resumes."""

import json
from dataclasses import asdict

import pytest
from fakes import ListRetriever

from dragoman.core.types import Passage, Question
from dragoman.rollout.backends import Backends
from dragoman.rollout.exploration import GREEDY, TREE
from dragoman.rollout.scheduler import roll_out
from dragoman.rollout.store import EpisodeStore
from dragoman.systems import build, system_names
from dragoman.systems.base import StopReason

PASSAGES = [Passage(f"p{i}", f"Town {i}", f"Town {i} lies on river {i * 7}.") for i in range(20)]
QUESTIONS = [Question(f"q{i}", f"On which river lies town {i}?", (f"river {i * 7}",)) for i in range(3)]
SMALL = {
    "c3po": {"max_depth": 5, "k": 3, "query_chars": 12, "action_tokens": 40, "roadmap_tokens": 6, "answer_tokens": 4},
    "maps": {"max_rounds": 2, "k": 2, "queries": "span", "answer_tokens": 4},
    "mrag": {"max_calls": 2, "max_reads": 1, "max_items": 1, "line_chars": 6, "validator": False, "answer_tokens": 4},
    "mujica": {"max_iterations": 2, "max_questions": 2, "k": 2, "queries": "span", "answer_tokens": 4},
    "drag": {"training": "train.jsonl", "shots": 1, "k": 1, "answer_tokens": 4},
    "instructrag": {"training": "explained.jsonl", "shots": 1, "k": 1, "rationale_tokens": 4, "answer_tokens": 4},
    "ircot": {"max_thoughts": 2, "k": 1, "thought_tokens": 4, "answer_tokens": 4},
    "r1-searcher": {"max_searches": 1, "k": 1, "turn_tokens": 4, "answer_tokens": 4},
    "search-r1": {"max_searches": 1, "k": 1, "turn_tokens": 4, "answer_tokens": 4},
    "auto-rag": {"max_searches": 1, "max_recalled": 1, "k": 1, "turn_tokens": 4, "answer_tokens": 4},
    "self-rag": {"retrieves": "always", "k": 2, "segment_tokens": 4},
    "slimplm": {"heuristic_tokens": 4, "parse_tokens": 4, "k": 2, "answer_tokens": 4},
    "rerank": {"candidates": 3, "k": 2, "answer_tokens": 4},
    "rewrite": {"queries": 2, "k": 2, "query_tokens": 8, "answer_tokens": 4},
    "self-ask": {"max_questions": 2, "k": 2, "question_tokens": 8, "answer_tokens": 4},
    "skr": {"training": "predictions.jsonl", "answer_tokens": 4},
    "sure": {"candidate_tokens": 8, "summary_tokens": 4, "k": 2},
}
ROWS = {
    "train.jsonl": [{"id": "t", "question": "On which river lies town 9?", "answers": ["river 63"]}],
    "explained.jsonl": [{"system": "instructrag", "question": "Where is town 9?", "answer": "So.\nAnswer: river 63"}],
    "predictions.jsonl": [
        {"system": name, "question": "On which river lies town 9?", "scores": {"cover_em": score}}
        for name, score in (("direct", 0), ("standard", 1))
    ],
}


ANSWERED = {
    "answered", "depth_limit", "document_limit", "circular_plan", "repeated_query", "repeated_call", "empty_pool",
    "unreadable_reply",
}  # fmt: skip


@pytest.fixture
def training_files(tmp_path, monkeypatch):
    """What some systems have seen of training questions, in the folder that the test runs in."""
    for name, rows in ROWS.items():
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", system_names())
@pytest.mark.parametrize("exploration", [GREEDY, TREE], ids=["greedy", "tree"])
async def test_every_system(name, exploration, tiny_engine, tmp_path, training_files):
    system = build(name, SMALL.get(name, {"answer_tokens": 4})).prepared()
    retriever = ListRetriever(PASSAGES)
    backends = Backends(llm=tiny_engine, proxy=tiny_engine, retriever=retriever)
    with EpisodeStore(tmp_path) as store:
        episodes = await roll_out(QUESTIONS, name, system, backends, store, exploration=exploration, seed=1)
    roles = {role.name for role in system.roles}
    for episode in episodes:
        assert not episode.faulty
        nodes = {n.id: n for n in episode.nodes}
        for node in episode.nodes:
            assert node.role in roles
            assert (
                node.action is not None or node.stop is StopReason.TRUNCATED_ACTION
            )  # the grammar leaves nothing else
            assert len(node.completion_ids) == len(node.logprobs) > 0
            assert node.prompt_ids and all(p <= 0 for p in node.logprobs)
        for trajectory in episode.trajectories:
            assert set(trajectory.nodes) <= set(nodes) and set(trajectory.nodes) <= set(trajectory.steps)
            assert (trajectory.answer is not None) and (trajectory.answer != "") == (trajectory.stop in ANSWERED)
            assert set(trajectory.passages) <= {p.id for p in PASSAGES}
        if exploration is TREE and roles:
            assert len(episode.trajectories) > 1
        if exploration is not TREE:
            assert len(episode.trajectories) == 1
    searched = len(retriever.queries)
    with EpisodeStore(tmp_path) as store:
        again = await roll_out(QUESTIONS, name, system, backends, store, exploration=exploration, seed=1)
    assert again == episodes and len(retriever.queries) == searched


def test_an_answer_stands_for_these_reasons_and_no_others():
    assert {stop.value for stop in StopReason if stop.is_answered} == ANSWERED


@pytest.mark.parametrize("name", system_names())
def test_settings_are_the_fields_of_the_system(name):
    system = build(name)
    assert asdict(system) == asdict(build(name, {}))
    for role in system.roles:
        assert role.max_tokens > 0 and role.prompt.slots

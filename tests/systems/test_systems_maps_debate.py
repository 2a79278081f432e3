"""The debate of MAPS by a scripted LLM, and snapshots as a file: what is read back, and what is refused by line and key."""

import json
from dataclasses import asdict

import pytest
from fakes import ListRetriever, ScriptedEngine

from dragoman.core.errors import UserError
from dragoman.core.types import Passage, Question
from dragoman.rollout.backends import Backends
from dragoman.rollout.tree import Tree
from dragoman.systems.base import StopReason
from dragoman.systems.maps.debate import Debate
from dragoman.systems.maps.snapshots import read_snapshots, snapshots, write_snapshots

PASSAGES = [
    Passage("bhutan", "Bhutan", "Thimphu is the capital of Bhutan"),
    Passage("ngultrum", "Ngultrum", "the currency of Bhutan is the ngultrum"),
    Passage("nepal", "Nepal", "Kathmandu is the capital of Nepal"),
]
QUESTION = Question(
    "q", "Which currency has the country whose capital is Thimphu?", ("ngultrum",), triples=(("a", "b", "c"),)
)


async def debate(opponent: list[str], moderator: str = "Opponent", **settings):
    said = iter(opponent)

    def script(prompt: str, rng: object) -> str:
        if "Who is right?" in prompt:
            assert "It is enough." in prompt  # the moderator reads both
            return moderator
        return "It is enough." if "Propose no further search" in prompt else next(said)

    engine = ScriptedEngine(script)
    backends = Backends(llm=engine, proxy=engine, retriever=ListRetriever(PASSAGES))
    (trajectory,) = (await Tree(QUESTION, Debate(**{"k": 1, **settings}), backends).grow()).trajectories
    return trajectory


async def test_a_round_adds_what_the_opponent_asks_for_until_it_concedes():
    trajectory = await debate(["The currency is missing.\n[Query] currency Bhutan ngultrum", "[Concede]"])
    assert (trajectory.passages, trajectory.stop) == (["bhutan", "ngultrum"], StopReason.ANSWERED)


@pytest.mark.parametrize(
    "asked", ["[Query] currency", "[query] [currency]", "[Query]\ncurrency", "[Query] [currency of it]"]
)
async def test_a_query_may_stand_in_brackets_of_its_own(asked):
    assert (await debate([asked, "[Concede]"])).passages == ["bhutan", "ngultrum"]


async def test_a_query_is_asked_without_its_control_characters():
    assert (await debate(["[Query] \x1bcurrency\x00", "[Concede]"])).passages == ["bhutan", "ngultrum"]


@pytest.mark.parametrize("said", ["I would search on.", "[Query]", "[Query] [ ]"])
async def test_an_opponent_that_neither_asks_nor_concedes_is_a_recorded_reason(said):
    assert (await debate([said])).stop is StopReason.UNREADABLE_REPLY


@pytest.mark.parametrize("said", ["[concede]", "[Query]\n[Concede]"])
async def test_a_concession_is_one_in_any_case(said):
    assert (await debate([said])).stop is StopReason.ANSWERED


async def test_the_moderator_may_side_with_the_proponent():
    trajectory = await debate(["[Query] currency"], moderator="Proponent.")
    assert (trajectory.passages, trajectory.stop) == (["bhutan"], StopReason.ANSWERED)


@pytest.mark.parametrize(
    ("opponent", "settings", "stop"),
    [
        (["[Query] currency", "[Query] Nepal"], {"max_rounds": 2}, StopReason.DEPTH_LIMIT),
        (["[Query] currency", "[Query] Currency"], {}, StopReason.REPEATED_QUERY),
        (["[Query] currency Bhutan ngultrum"], {"max_documents": 2}, StopReason.DOCUMENT_LIMIT),
    ],
)
async def test_a_debate_that_does_not_end_by_itself_says_why(opponent, settings, stop):
    assert (await debate(opponent, **settings)).stop is stop


FOUND = snapshots(QUESTION, [(QUESTION.question, PASSAGES[:1]), ("currency", PASSAGES)], most=2)


def test_there_is_a_snapshot_of_each_round_within_the_limit():
    assert [snapshot.round for snapshot in FOUND] == [0, 1]
    assert [[p.id for p in snapshot.pool.passages] for snapshot in FOUND] == [["bhutan"], ["bhutan", "ngultrum"]]


def test_of_a_question_nothing_is_lost(tmp_path):
    more = {"parts": (("a", "b"),), "nuggets": ("n",), "reference": "r", "topics": ("t", "u")}
    full = Question("q", "?", ("a",), "kind", ("p",), (("s", "r", "o"),), **more)
    assert all(asdict(full).values()), "a field that is not set here"
    write_snapshots(tmp_path / "s.jsonl", snapshots(full, [("query", PASSAGES)], most=3))
    assert read_snapshots(tmp_path / "s.jsonl")[0].question == full


def test_snapshots_are_read_as_they_were_written(tmp_path):
    write_snapshots(tmp_path / "snapshots.jsonl", FOUND)
    assert read_snapshots(tmp_path / "snapshots.jsonl") == FOUND


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"round": 2}, "round is 2, and the pool has 1 searches after the first"),
        ({"pool": []}, "pool: "),
        ({"pool": [{"query": "x"}]}, r"pool\.0\.passages: Field required"),
        ({"question": {"id": "q"}}, r"question\.question: Field required"),
        ({"question": "q"}, "question: "),
    ],
)
def test_a_bad_line_is_named_with_its_key(tmp_path, change, message):
    path = tmp_path / "snapshots.jsonl"
    good = FOUND[1].to_json()
    path.write_text(json.dumps(good) + "\n" + json.dumps(good | change) + "\n")
    with pytest.raises(UserError, match=rf"snapshots\.jsonl:2: .*{message}"):
        read_snapshots(path)

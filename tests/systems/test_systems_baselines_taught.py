"""Baselines that have seen training questions: what they take from the file, what they do with it, and what they refuse."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import ListRetriever, ScriptedEngine
from test_systems_baselines import PASSAGES, QUESTION

from dragoman.core.errors import UserError
from dragoman.core.types import Question
from dragoman.rollout.backends import Backends
from dragoman.rollout.exploration import GREEDY
from dragoman.rollout.record import Trajectory
from dragoman.rollout.scheduler import describe
from dragoman.rollout.tree import Tree
from dragoman.runtime import RuntimeParams, find_system
from dragoman.systems import build
from dragoman.systems.base import StopReason, System
from dragoman.systems.baselines import skr


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


def backends(engine: ScriptedEngine, retriever: ListRetriever | None = None) -> Backends:
    return Backends(llm=engine, proxy=engine, retriever=retriever or ListRetriever(PASSAGES))


async def run(
    system: System, script: Any, question: Question = QUESTION
) -> tuple[Trajectory, ScriptedEngine, list[str]]:
    engine, retriever = ScriptedEngine(lambda prompt, rng: script(prompt)), ListRetriever(PASSAGES)
    (trajectory,) = (await Tree(question, system, backends(engine, retriever)).grow()).trajectories
    return trajectory, engine, retriever.queries


# the file


@pytest.mark.parametrize("name", ["drag", "instructrag", "skr"])
def test_a_system_without_its_file_says_how_to_make_one(name, tmp_path):
    with pytest.raises(UserError, match=f"setting `training` of {name} is not set; .*systems.{name}.training"):
        find_system(name, RuntimeParams())
    with pytest.raises(UserError, match=f"setting `training` of {name} .*gone: no such file"):
        build(name, {"training": str(tmp_path / "gone")}).prepared()


def test_other_content_of_the_file_is_another_result(tmp_path):
    path = tmp_path / "train.jsonl"
    configs = []
    for answer in ("Bhutan", "Nepal"):
        write(path, {"id": "t", "question": "Where is Thimphu", "answers": [answer]})
        system, _ = find_system("drag", RuntimeParams(systems={"drag": {"training": str(path)}}))
        engine = ScriptedEngine(lambda prompt, rng: "")
        configs.append(describe("drag", system, backends(engine), GREEDY, 0))
    first, second = configs
    assert first["settings"].pop("training_sha256") != second["settings"].pop("training_sha256")
    assert first == second


# drag


async def test_drag_shows_training_questions_with_passages_and_answers(tmp_path):
    train = write(
        tmp_path / "train.jsonl",
        {"id": "t1", "question": "currency of Nepal", "answers": ["rupee", "NPR"]},
        {"id": "t2", "question": "capital of Nepal", "answers": ["Kathmandu"]},
        {"id": "t3", "question": "not shown", "answers": ["x"]},
    )
    system = build("drag", {"training": train, "shots": 2, "k": 1}).prepared()
    trajectory, engine, queries = await run(system, lambda prompt: "ngultrum")
    (request,) = engine.requests
    turns = [(m["role"], m["content"]) for m in request.messages]
    assert [role for role, _ in turns] == ["user", "assistant"] * 2 + ["user"]
    assert "[1] Rupee" in turns[0][1] and turns[0][1].endswith("Question: currency of Nepal")
    assert turns[1] == ("assistant", "rupee") and turns[3] == ("assistant", "Kathmandu")
    assert turns[4][1].endswith(f"Question: {QUESTION.question}")
    assert sorted(queries) == sorted(["currency of Nepal", "capital of Nepal", QUESTION.question])
    assert (trajectory.answer, trajectory.passages) == (
        "ngultrum",
        ["bhutan"],
    )  # those of the demonstrations do not count


@pytest.mark.parametrize(
    ("taught", "shots", "k", "asked", "shown", "queries", "passages"),
    [
        (  # of two training questions the first alone is wanted, so the second is not searched for. "currency of Bhutan" has
            # three words with Ngultrum, and two with Bhutan and with Rupee, of which Bhutan comes first
            [("currency of Bhutan", "ngultrum"), ("capital of Bhutan", "Thimphu")],
            1,
            2,
            "capital of Nepal",
            [(["[1] Ngultrum", "[2] Bhutan"], "ngultrum")],
            ["currency of Bhutan", "capital of Nepal"],
            ["nepal", "bhutan"],  # three words, and two as Rupee has
        ),
        (  # fewer than are wanted: there is one, and it is the question itself. What is searched for twice is found once
            [("capital of Nepal", "Kathmandu")],
            3,
            1,
            "capital of Nepal",
            [(["[1] Nepal"], "Kathmandu")],
            ["capital of Nepal"],
            ["nepal"],
        ),
    ],
)
async def test_drag_shows_the_first_questions_of_the_file_and_keeps_what_its_own_search_finds(
    taught, shots, k, asked, shown, queries, passages, tmp_path
):
    rows = [{"id": f"t{i}", "question": q, "answers": [a, "other"]} for i, (q, a) in enumerate(taught)]
    train = write(tmp_path / "train.jsonl", *rows)
    system = build("drag", {"training": train, "shots": shots, "k": k}).prepared()
    trajectory, engine, searched = await run(system, lambda prompt: "so", Question("q", asked))
    (request,) = engine.requests
    turns = [message["content"] for message in request.messages]
    assert turns[1::2] == [answer for _, answer in shown] and len(turns) == 2 * len(shown) + 1
    for turn, (numbered, _), (question, _) in zip(turns[::2], shown, taught, strict=False):
        assert re.findall(r"^\[\d\] \w+", turn, re.M) == numbered and turn.endswith(f"Question: {question}")
    assert turns[-1].endswith(f"Question: {asked}") and sorted(searched) == sorted(queries)
    assert (trajectory.answer, trajectory.passages) == ("so", passages)


# instructrag


async def test_instructrag_explains_known_answers_and_shows_that_to_itself(tmp_path):
    writer = build("instructrag", {"writes": "rationales", "k": 1}).prepared()
    trained = Question("t", "currency of Nepal", ("rupee",))
    explained, engine, _ = await run(writer, lambda prompt: "Document 1 names the rupee. ", trained)
    assert "Correct answer: rupee" in engine.requests[0].messages[-1]["content"]
    assert explained.answer == "Document 1 names the rupee.\nAnswer: rupee"

    row = {"id": "t", "system": "instructrag", "question": trained.question, "answer": explained.answer}
    path = write(tmp_path / "predictions.jsonl", row, row | {"question": "second"}, row | {"question": "not shown"})
    reader = build("instructrag", {"training": path, "k": 1}).prepared()
    said = "Document 1 is about Bhutan. The answer is: no.\nAnswer: ngultrum\n"
    trajectory, engine, _ = await run(reader, lambda prompt: said)
    turns = engine.requests[0].messages
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * 2 + ["user"]
    assert "Question: currency of Nepal" in turns[0]["content"] and "[1]" not in turns[0]["content"]
    assert turns[1]["content"] == explained.answer
    assert "[1] Bhutan" in turns[4]["content"] and f"Question: {QUESTION.question}" in turns[4]["content"]
    assert (trajectory.answer, trajectory.stop) == ("ngultrum", StopReason.ANSWERED)


@pytest.mark.parametrize(
    ("said", "answer", "stop"),
    [
        ("It is one.\nAnswer:", "It is one.\nAnswer:", StopReason.UNREADABLE_REPLY),
        ("It is the ngultrum.", "It is the ngultrum.", StopReason.UNREADABLE_REPLY),
        (" \n", "", StopReason.EMPTY_ANSWER),
    ],
)
async def test_instructrag_without_a_marked_answer_takes_the_whole_text(tmp_path, said, answer, stop):
    row = {"system": "instructrag", "question": "q", "answer": "So.\nAnswer: x"}
    system = build("instructrag", {"training": write(tmp_path / "p.jsonl", row)}).prepared()
    trajectory, _, _ = await run(system, lambda prompt: said)
    assert (trajectory.answer, trajectory.stop) == (answer, stop)


def test_instructrag_refuses_predictions_that_explain_nothing(tmp_path):
    good = {"system": "instructrag", "question": "q", "answer": "So.\nAnswer: x"}
    for bad in (good | {"system": "direct"}, good | {"answer": "x"}, good | {"answer": None}):
        path = write(tmp_path / "p.jsonl", good, bad)
        with pytest.raises(UserError, match=r"p.jsonl:2: not an explanation of a known answer; run `dragoman evaluate"):
            build("instructrag", {"training": path}).prepared()
    with pytest.raises(UserError, match="writes 'poems': choose from answers, rationales"):
        build("instructrag", {"writes": "poems"})


# skr


def scored(question: str, direct: float | None, standard: float | None) -> list[dict[str, Any]]:
    of = {"direct": direct, "standard": standard}
    return [{"question": question, "system": name, "scores": {"cover_em": score}} for name, score in of.items()]


def test_labels_are_the_questions_that_one_of_the_two_alone_answers():
    rows = [*scored("a", 0, 1), *scored("b", 1, 1), *scored("c", 1, 0), *scored("d", None, 1), *scored("e", 0, 0)]
    rows += [{"question": "f", "system": "c3po", "scores": {"cover_em": 1}}, scored("g", 0, 1)[1]]
    assert skr.label(rows) == {"a": 1, "c": -1}


@pytest.mark.parametrize(
    ("better", "worse", "near", "search"),
    [
        (6, 4, 1, True),  # int(5 * 2 / 10) = 1
        (6, 4, -1, False),
        (8, 2, 1, False),  # int(5 * 6 / 10) = 3: one of five is less than the average
        (8, 2, 3, True),
        (5, 5, 1, True),  # 0
        (5, 5, -1, False),
        (3, 7, -1, True),  # int(5 * -4 / 10) = -2: it takes more to leave the search out
        (3, 7, -3, False),
        (4, 7, -1, False),  # int(5 * -3 / 11) = int(-1.36) = -1
        (4, 7, 1, True),
    ],
)
def test_the_rule_of_skr_by_hand(better, worse, near, search):
    nearest = [1] * ((5 + near) // 2) + [-1] * ((5 - near) // 2)
    assert sum(nearest) == near
    assert skr.needs_search(nearest, [1] * better + [-1] * worse) is search


ANGLES = {
    "a": 0,
    "b": 10,
    "c": 20,
    "x": 80,
    "y": 90,
    "z": 100,
    "like a": 5,
    "like z": 95,
    "rather c": 44,
    "rather x": 56,
}


@pytest.mark.parametrize(
    ("asked", "passages"),
    [
        ("like a", ["bhutan"]),  # of 5 degrees: a, b and c, with which searching has helped
        ("like z", []),  # of 95: y, z and x, with which it did harm
        ("rather c", ["bhutan"]),  # of 44: c by 24, b by 34 and x by 36, so two to one for it
        ("rather x", []),  # of 56: x by 24, y by 34 and c by 36, so two to one against it
    ],
)
async def test_skr_searches_where_that_has_helped_with_the_nearest_questions(asked, passages, tmp_path, monkeypatch):
    embedded: list[tuple[tuple[str, ...], bool]] = []

    def embed(encoder: str, questions: tuple[str, ...]) -> np.ndarray:
        embedded.append((questions, threading.current_thread() is threading.main_thread()))
        return np.array([[np.cos(np.radians(a := ANGLES[q])), np.sin(np.radians(a))] for q in questions])

    monkeypatch.setattr(skr, "embed", embed)
    helped, harmed = (scored(q, 0, 1) for q in "abc"), (scored(q, 1, 0) for q in "xyz")
    rows = [row for of in (*helped, *harmed, scored("tie", 1, 1)) for row in of]
    system = build("skr", {"training": write(tmp_path / "p.jsonl", *rows), "neighbours": 3, "k": 1}).prepared()
    trajectory, _, queries = await run(system, lambda prompt: "x", Question("q", asked))
    assert trajectory.passages == passages and len(queries) == len(passages)
    # a run embeds its own question alone, and not in the thread where all questions wait
    assert embedded == [(tuple("abcxyz"), True), ((asked,), False)]


def test_skr_without_a_question_that_tells_the_two_apart_says_so(tmp_path):
    path = write(tmp_path / "p.jsonl", *scored("a", 1, 1))
    with pytest.raises(
        UserError, match=r"p.jsonl: no question there has one right answer of direct and standard; take"
    ):
        build("skr", {"training": path}).prepared()


def test_the_encoder_of_skr_puts_questions_of_a_kind_together():
    capital, other_capital, atom = skr.embed(
        skr.BUNDLED_ENCODER,
        ("What is the capital of Peru?", "What is the capital of Chad?", "Who discovered the element radium?"),
    )
    assert capital @ other_capital > capital @ atom and np.isclose(capital @ capital, 1, atol=1e-5)

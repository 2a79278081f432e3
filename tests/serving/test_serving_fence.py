"""What the LLM is shown of passages, by every system: it stands between marks, also where a dialogue goes on."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import ListRetriever, ScriptedEngine

from dragoman.core.types import Passage, Question
from dragoman.rollout.backends import Backends
from dragoman.rollout.tree import Tree
from dragoman.serving.guard import FencedSystem
from dragoman.systems import build, system_names
from dragoman.systems.base import System
from dragoman.systems.baselines import replug, skr

SECRET = "zylophor"
"""Every passage says it, and nobody else does."""
PASSAGES = [
    Passage("brisa", "Brisa", f"The capital of Brisa is Port Salt, {SECRET}"),
    Passage("salt", "Port Salt", f"The river of Port Salt is the Merin, {SECRET}"),
    Passage("wool", "Woolton", f"Woolton is known for its wool, {SECRET}"),
]
QUESTION = Question(
    "q", "Which river has the capital of Brisa, Port Salt?", ("Merin",), supporting_ids=("brisa", "salt")
)
OF_THEIR_OWN = {"search-r1", "r1-searcher", "self-rag", "auto-rag"}
"""Their weights were trained with marks of their own around what is found: docs/serving.md says so."""
SETTINGS: dict[str, dict[str, Any]] = {
    "drag": {"training": "train.jsonl", "shots": 2},
    "instructrag": {"training": "explained.jsonl", "shots": 1},
    "skr": {"training": "predictions.jsonl"},
    "c3po": {"k": 2, "queries": "span"},
    "maps": {"k": 2, "queries": "span"},
    "mujica": {"k": 2, "queries": "span"},
}
ROWS = {
    "train.jsonl": [
        {"id": f"t{i}", "question": question, "answers": ["Merin"]}
        for i, question in enumerate(("Which river has Port Salt?", "What is Woolton known for?"))
    ],
    "explained.jsonl": [{"system": "instructrag", "question": "Where is Brisa?", "answer": "So.\nAnswer: here"}],
    "predictions.jsonl": [
        {"system": name, "question": "Where is Brisa?", "scores": {"cover_em": score}}
        for name, score in (("direct", 0), ("standard", 1))
    ],
}


@pytest.fixture
def training_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What some systems have seen of training questions, in the folder that the test runs in."""
    for name, rows in ROWS.items():
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(skr, "embed", lambda encoder, questions: np.ones((len(questions), 1)))
    monkeypatch.setattr(replug, "loaded_encoder", lambda encoder: None)
    monkeypatch.setattr(replug, "cosines", lambda encoder, question, texts: [0.0] * len(texts))


async def shown(system: System, proxy: list[str] | None = None) -> list[list[dict[str, str]]]:
    """The messages of all that the LLM is asked. An oracle decides, or the proxy says the given texts in turn."""
    llm = ScriptedEngine(lambda prompt, rng: "the Merin\nthe Salt")
    said = iter(proxy or ())
    backends = Backends(
        llm=llm,
        proxy=ScriptedEngine(lambda prompt, rng: next(said)),
        retriever=ListRetriever(PASSAGES),
        oracle_roles=[role.name for role in system.roles] if proxy is None else (),
    )
    (trajectory,) = (await Tree(QUESTION, FencedSystem(system), backends).grow()).trajectories
    assert trajectory.stop.is_answered, trajectory.error
    return [
        replace(request, prompt=prompt).messages
        for request in llm.requests
        for prompt in (request.prompt, *request.beside)
    ]


def unfenced(messages: list[dict[str, str]]) -> str:
    """What stands outside of the marks."""
    text = "\n".join(message["content"] for message in messages)
    return re.sub(r"<(documents-[0-9a-f]{8})>\n.*?\n</\1>", "", text, flags=re.DOTALL)


def check(asked: list[list[dict[str, str]]]) -> None:
    """Each that has passages has them between marks alone, under the rule, which is said once."""
    for messages in asked:
        assert SECRET not in unfenced(messages)
        rules = [m["role"] for m in messages for _ in re.findall("never follow instructions", m["content"])]
        assert rules == (["system"] if SECRET in str(messages) else [])
        assert [message["role"] for message in messages].count("system") <= 1


@pytest.mark.parametrize("name", sorted({*system_names()} - OF_THEIR_OWN))
async def test_no_passage_reaches_the_llm_outside_of_the_fence(name: str, training_files: None) -> None:
    asked = await shown(build(name, SETTINGS.get(name)).prepared().for_oracle())
    check(asked)
    assert any(SECRET in str(messages) for messages in asked) is (name != "direct")


@pytest.mark.parametrize("answers", ["plain", "guided"])
async def test_a_response_that_is_written_anew_has_its_dialogue_fenced(answers: str) -> None:
    def call(agent: str, **fields: Any) -> str:
        return json.dumps({"agent": agent, **fields})

    revise = call("reviser", suggestion="Name the river.")
    page = json.dumps({"next": "end", "relevant": [True, True]})
    searched = [call("searcher", suggestions=["the river"]), json.dumps({"query": "river Port Salt"}), page]
    told = {"guidance": "one word", "important": "the river"} if answers == "guided" else {}
    calls = [*searched, call("answerer", **told), revise, revise, call("finisher")]
    asked = await shown(build("mrag", {"answers": answers}), calls)
    check(asked)
    assert len(asked) == 3 and all(SECRET in str(messages) for messages in asked)
    assert [message["role"] for message in asked[2]] == ["system", *["user", "assistant"] * 2, "user"]


async def test_demonstrations_are_fenced_each_by_itself(training_files: None) -> None:
    (messages,) = await shown(build("drag", SETTINGS["drag"]).prepared())
    check([messages])
    assert [m["role"] for m in messages] == ["system", *["user", "assistant"] * 2, "user"]
    assert all("<documents-" in message["content"] for message in messages if message["role"] == "user")

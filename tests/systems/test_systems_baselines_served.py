"""Protocols of weights that are served behind a URL, against a server that plays them over a real socket."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import ListRetriever
from fastapi import FastAPI
from openai_stub import serving
from test_systems_baselines import PASSAGES, QUESTION

from dragoman.core.errors import UserError
from dragoman.engines.openai import OpenAIEngine
from dragoman.rollout.backends import Backends
from dragoman.rollout.record import Trajectory
from dragoman.rollout.tree import Tree
from dragoman.systems import build
from dragoman.systems.base import StopReason


class Stub(FastAPI):
    """Says one thing after the other, as a server does that stops before the tag, and keeps what it was asked."""

    def __init__(self, *texts: str) -> None:
        super().__init__()
        self.texts, self.bodies = list(texts), list[dict[str, Any]]()
        self.post("/v1/chat/completions")(self.reply)

    async def reply(self, body: dict[str, Any]) -> dict[str, Any]:
        self.bodies.append(body)
        message = {"role": "assistant", "content": self.texts.pop(0)}
        usage = {"prompt_tokens": 1, "completion_tokens": 1}
        return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}

    @property
    def begun(self) -> list[str]:
        """What each reply was to go on with."""
        return [m["content"] for body in self.bodies for m in body["messages"] if m["role"] == "assistant"]


async def run(name: str, stub: Stub, structured: Any = "vllm", **settings: Any) -> tuple[Trajectory, list[str]]:
    retriever = ListRetriever(PASSAGES)
    with serving(stub) as url:
        engine = OpenAIEngine([url], "m", structured=structured)
        backends = Backends(llm=engine, proxy=engine, retriever=retriever)
        episode = await Tree(QUESTION, build(name, {"k": 1, **settings}), backends).grow()
        await engine.close()
    return episode.trajectories[0], retriever.queries


async def test_search_r1_goes_on_with_its_own_message_and_what_was_found():
    stub = Stub("<think>Who?</think>\n<search> capital\nThimphu ", "<think>Now</think>\n<answer> ngultrum ")
    trajectory, queries = await run("search-r1", stub)
    assert (trajectory.answer, trajectory.stop) == ("ngultrum", StopReason.ANSWERED)
    assert (queries, trajectory.passages) == (["capital Thimphu"], ["bhutan"])
    first, second = stub.bodies
    assert [m["role"] for m in first["messages"]] == ["user"] and "continue_final_message" not in first
    assert first["stop"] == ["</search>", "</answer>"] and first["max_tokens"] == 500
    assert (second["continue_final_message"], second["add_generation_prompt"]) == (True, False)
    assert second["messages"][0] == first["messages"][0]
    assert stub.begun == [
        "<think>Who?</think>\n<search> capital\nThimphu </search>\n\n"
        "<information>Doc 1: Bhutan: Thimphu is the capital of Bhutan</information>\n\n"
    ]


async def test_search_r1_is_told_when_it_neither_searches_nor_answers():
    stub = Stub("Let me see.", "<answer>ngultrum</answer>")
    trajectory, queries = await run("search-r1", stub)
    assert (trajectory.answer, queries) == ("ngultrum", [])
    assert stub.begun[0].startswith("Let me see.\nThat was neither a query between <search> and </search> nor")


async def test_search_r1_without_an_answer_after_its_last_search_answers_from_what_it_found():
    stub = Stub("<search>Nepal", "<search>Bhutan", "<search>once more", "the ngultrum")
    trajectory, queries = await run("search-r1", stub, max_searches=2)
    assert (trajectory.answer, trajectory.stop) == ("the ngultrum", StopReason.DEPTH_LIMIT)
    assert queries == ["Nepal", "Bhutan"] and len(trajectory.passages) == 2
    assert stub.bodies[-1]["messages"][-1]["content"].endswith(f"Question: {QUESTION.question}")


async def test_search_r1_tells_weights_what_they_were_trained_with():
    stub = Stub("<answer>x")
    await run("search-r1", stub, instruction="As trained: {question}")
    assert stub.bodies[0]["messages"] == [{"role": "user", "content": f"As trained: {QUESTION.question}"}]
    with pytest.raises(UserError, match=r"instruction: must have \{question\}"):
        build("search-r1", {"instruction": "As trained"})


async def test_a_server_that_cannot_go_on_with_a_message_is_a_fault_with_the_setting():
    trajectory, _ = await run("search-r1", Stub("<search>Nepal"), structured="none")
    assert trajectory.stop is StopReason.ENGINE_FAULT and "set the engine's `structured` to vllm" in trajectory.error


async def test_r1_searcher_has_tags_of_its_own():
    stub = Stub("<think>hm <|begin_of_query|>capital Thimphu", "so</think><answer>ngultrum")
    trajectory, queries = await run("r1-searcher", stub)
    assert (trajectory.answer, queries) == ("ngultrum", ["capital Thimphu"])
    assert stub.bodies[0]["stop"] == ["<|end_of_query|>", "</answer>"]
    assert stub.begun[0].endswith(
        "<|end_of_query|>\n\n<|begin_of_documents|>\nDoc 1: Bhutan: Thimphu is the capital of Bhutan\n<|end_of_documents|>\n\n"
    )

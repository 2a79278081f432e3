"""Servers that read OpenAI's protocol in a way of their own: how an answer has ended, and how many there are."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from openai_stub import serving

from dragoman.core.errors import EngineFault
from dragoman.engines.base import Constraint, Request, Result
from dragoman.engines.local import seed_of
from dragoman.engines.openai import OpenAIEngine

ASK = Request(prompt=(("user", "The capital of France?"),), max_tokens=5, stop=("\n",))
DRAW = replace(ASK, temperature=1.0, n=3)
SEEDS = [seed_of(DRAW, index) >> 31 for index in range(3)]


class Server(FastAPI):
    """Answers with a number that tells one answer from the next, and keeps what it was asked.

    Args:
        most: choices in an answer, whatever is asked for.
        refusal: what it says of more than one, if it refuses them.
        refuses: of a body, what is wrong with it; nothing where it is well.
    """

    def __init__(
        self,
        most: int = 1,
        refusal: Any = None,
        *,
        text: str = "Paris",
        reason: str = "stop",
        refuses: Callable[[dict[str, Any]], str] = lambda body: "",
    ) -> None:
        super().__init__()
        self.bodies: list[dict[str, Any]] = []
        self.most, self.refusal, self.text, self.reason, self.written = most, refusal, text, reason, 0
        self.refuses = refuses
        self.post("/v1/chat/completions")(self.chat)

    async def chat(self, body: dict[str, Any]) -> JSONResponse:
        self.bodies.append(body)
        if self.refusal is not None and body["n"] > 1:
            return JSONResponse({"error": self.refusal}, 400)
        if said := self.refuses(body):
            return JSONResponse({"error": {"message": said}}, 400)
        choices = []
        for index in range(min(self.most, body["n"])):
            self.written += 1
            message = {"content": f"{self.text} {self.written}" if body["temperature"] else self.text}
            choices.append({"index": index, "message": message, "finish_reason": self.reason})
        usage = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
        return JSONResponse({"model": "m", "choices": choices, "usage": usage})


async def asked(server: Server, *requests: Request, **settings: Any) -> list[Result]:
    """The results of requests, one after the other, by one engine."""
    with serving(server) as url:
        engine = OpenAIEngine([url], "m", **({"retries": 0, "structured": "none"} | settings))
        try:
            return [result for request in requests for result in await engine.generate([request])]
        finally:
            await engine.close()


@pytest.mark.parametrize("reason", ["stop", "eos", "eos_token", "stop_sequence", "end_turn", "tool_calls"])
async def test_an_answer_that_its_server_says_has_ended_is_cut_at_a_stop_string_that_it_left(reason: str) -> None:
    [result] = await asked(Server(text="Paris\n", reason=reason), ASK)
    assert [(c.text, c.finish_reason) for c in result.completions] == [("Paris", "stop")]


async def test_completions_that_a_server_does_not_draw_at_once_are_drawn_one_by_one_with_their_own_seeds() -> None:
    server = Server()
    first, second = await asked(server, DRAW, DRAW)
    assert {c.text for c in first.completions} == {"Paris 1", "Paris 2", "Paris 3"}
    assert len({c.text for c in second.completions}) == 3
    assert (first.prompt_tokens, first.completion_tokens, first.cached_tokens) == (21, 6, 3)
    assert [body["n"] for body in server.bodies] == [3, 1, 1, 1, 1, 1]
    assert sorted(body["seed"] for body in server.bodies) == sorted(SEEDS * 2) and len({*SEEDS}) == 3


async def test_completions_that_are_still_missing_are_asked_for_where_a_server_draws_some_of_them() -> None:
    server = Server(most=2)
    [result] = await asked(server, DRAW)
    assert len({c.text for c in result.completions}) == 3
    assert [(body["n"], body["seed"]) for body in server.bodies] == [(3, SEEDS[0]), (1, SEEDS[2])]


async def test_a_server_that_draws_all_at_once_is_asked_once() -> None:
    server = Server(most=9)
    [result] = await asked(server, DRAW)
    assert [c.text for c in result.completions] == ["Paris 1", "Paris 2", "Paris 3"]
    assert (len(server.bodies), result.prompt_tokens) == (1, 7)


@pytest.mark.parametrize(
    "error",
    [{"message": "'n' : number must be at most 1 with this model"}, {"message": "unsupported value", "param": "n"}],
)
async def test_a_server_that_refuses_to_draw_several_is_asked_for_one_at_a_time_from_then_on(error: Any) -> None:
    server = Server(refusal=error)
    for result in await asked(server, DRAW, DRAW):
        assert len(result.completions) == 3
    assert [body["n"] for body in server.bodies] == [3, 1, 1, 1, 1, 1, 1]


async def test_a_refusal_that_repeats_the_request_is_not_one_of_several_completions() -> None:
    server = Server(refusal={"message": "bad field: top_p", "input": {"n": 3, "top_p": 1}})
    with pytest.raises(EngineFault, match="bad field: top_p"):
        await asked(server, DRAW)
    assert len(server.bodies) == 1


async def test_a_server_without_any_choice_is_a_fault_that_is_not_asked_for_the_rest() -> None:
    server = Server(most=0)
    with pytest.raises(EngineFault, match="0 choices where 3 were asked for"):
        await asked(server, DRAW)
    assert len(server.bodies) == 1


TOLD = replace(ASK, prompt=(("system", "Be brief."), ("user", "The capital of France?")))


@pytest.mark.parametrize(
    "said",
    [
        "System role not supported",
        "Conversation roles must alternate user/assistant/...",
        "Only user and assistant roles!",
    ],
)
async def test_a_model_without_a_system_role_is_told_by_the_user_from_then_on(said: str) -> None:
    server = Server(refuses=lambda body: said if body["messages"][0]["role"] == "system" else "")
    results = await asked(server, TOLD, TOLD, ASK)
    assert [result.completions[0].text for result in results] == ["Paris"] * 3
    told = {"role": "user", "content": "Be brief.\n\nThe capital of France?"}
    assert [body["messages"] for body in server.bodies[1:]] == [[told], [told], [told | {"content": ASK.prompt[0][1]}]]
    assert len(server.bodies) == 4


async def test_a_model_that_refuses_its_roles_without_a_system_message_is_a_fault() -> None:
    server = Server(refuses=lambda body: "System role not supported")
    with pytest.raises(EngineFault, match="System role not supported"):
        await asked(server, ASK)
    assert len(server.bodies) == 1


SCHEMA = {
    "type": "object",
    "properties": {
        "maxLength": {"type": "string", "minLength": 1, "maxLength": 9},
        "names": {"type": "array", "items": {"type": "string", "maxLength": 5}, "minItems": 1, "maxItems": 2},
    },
}
UNBOUNDED = {
    "type": "object",
    "properties": {"maxLength": {"type": "string"}, "names": {"type": "array", "items": {"type": "string"}}},
}


async def test_a_server_that_takes_no_lengths_in_a_schema_gets_none_from_then_on() -> None:
    def refuses(body: dict[str, Any]) -> str:
        said = "Invalid schema for response_format 'completion': In context=('properties', 'names'), 'maxItems' is not permitted."
        return said if "minItems" in json.dumps(body) else ""

    server = Server(refuses=refuses)
    held = replace(ASK, grammar=Constraint(json_schema=json.dumps(SCHEMA)))
    await asked(server, held, held, structured="response_format")
    sent = [body["response_format"]["json_schema"]["schema"] for body in server.bodies]
    assert sent == [SCHEMA, UNBOUNDED, UNBOUNDED]


async def test_a_schema_that_is_refused_without_lengths_too_is_a_fault() -> None:
    server = Server(refuses=lambda body: "Invalid schema: 'maxLength' is not permitted")
    held = replace(ASK, grammar=Constraint(json_schema=json.dumps(SCHEMA)))
    with pytest.raises(EngineFault, match="is not permitted"):
        await asked(server, held, structured="response_format")
    assert len(server.bodies) == 2

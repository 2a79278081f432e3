"""The official `openai` client, over a real socket."""

from __future__ import annotations

import asyncio

import openai
import pytest
from serving_parts import QUESTION, Held, Model, Parts, answering, eventually

from dragoman.core.errors import EngineFault
from dragoman.core.keys import Keys, make_key

MESSAGES = [{"role": "user", "content": QUESTION}]


def connect(url: str, key: str = "none", retries: int = 0) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=retries)


async def test_chat():
    async with Parts().server() as url, connect(url) as client:
        answer = await client.chat.completions.create(model="c3po", messages=MESSAGES, temperature=0)
    assert answer.choices[0].message.content == "Port Salt" and answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens > 0
    assert answer.dragoman["citations"] == [{"id": "brisa", "title": "Brisa"}]
    assert answer._request_id == answer.dragoman["trace_id"]


async def test_a_conversation():
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me about Brisa."}]
    said += [{"role": "assistant", "content": "It is a country."}, {"role": "user", "content": "What is its capital?"}]
    async with Parts().server() as url, connect(url) as client:
        answer = await client.chat.completions.create(model="standard", messages=said)
    assert answer.dragoman["question"] == QUESTION


async def test_streaming_with_steps_and_usage():
    async with Parts().server() as url, connect(url) as client:
        stream = await client.chat.completions.create(
            model="c3po",
            messages=MESSAGES,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"dragoman": {"trace": True}},
        )
        chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    steps = [c.dragoman["step"]["name"] for c in chunks if "step" in (getattr(c, "dragoman", None) or {})]
    assert text == "Port Salt" and steps == ["router", "search", "filter", "answer"]
    assert chunks[-1].usage.total_tokens > 0 and chunks[-2].choices[0].finish_reason == "stop"


async def test_the_streaming_helper_puts_the_answer_together():
    async with (
        Parts().server() as url,
        connect(url) as client,
        client.chat.completions.stream(model="c3po", messages=MESSAGES) as stream,
    ):
        answer = await stream.get_final_completion()
    assert answer.choices[0].message.content == "Port Salt"


async def test_models():
    async with Parts().server() as url, connect(url) as client:
        assert [model.id async for model in client.models.list()] == ["c3po", "standard", "direct"]
        assert (await client.models.retrieve("c3po")).dragoman == {"system": "c3po", "policy": "base"}
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("c3po@nobody")


async def test_errors_are_those_of_the_client(tmp_path):
    key = make_key(tmp_path / "keys", "alice")
    parts = Parts(keys=Keys(tmp_path / "keys"), settings={"max_body_bytes": 10_000})
    async with parts.server() as url:
        async with connect(url, "wrong") as client:
            with pytest.raises(openai.AuthenticationError) as refused:
                await client.chat.completions.create(model="c3po", messages=MESSAGES)
            assert refused.value.code == "invalid_api_key"
        async with connect(url, key) as client:
            assert (await client.chat.completions.create(model="c3po", messages=MESSAGES)).choices
            with pytest.raises(openai.NotFoundError) as missing:
                await client.chat.completions.create(model="gpt-4", messages=MESSAGES)
            assert missing.value.code == "model_not_found" and missing.value.param == "model"
            with pytest.raises(openai.BadRequestError) as bad:
                await client.chat.completions.create(model="c3po", messages=[{"role": "user", "content": "x" * 3000}])
            assert bad.value.code == "question_too_long"
            with pytest.raises(openai.APIStatusError) as large:
                await client.chat.completions.create(model="c3po", messages=[{"role": "user", "content": "x" * 20_000}])
            assert large.value.status_code == 413


async def test_a_busy_server_is_asked_again_by_the_client():
    llm = Held(answering)
    parts = Parts(llm=llm, settings={"concurrency": 1, "queue": 0, "deadline_s": 600})
    async with parts.server() as url, connect(url, retries=10) as patient, connect(url) as hasty:
        first = asyncio.create_task(hasty.chat.completions.create(model="direct", messages=MESSAGES))
        await eventually(lambda: llm.running == 1)
        with pytest.raises(openai.RateLimitError) as busy:
            await hasty.chat.completions.create(model="direct", messages=MESSAGES)
        assert busy.value.response.headers["retry-after"] == "1"
        again = asyncio.create_task(patient.chat.completions.create(model="direct", messages=MESSAGES))
        await eventually(lambda: parts.metric("dragoman_errors_total", code="queue_full") == 2)
        llm.go_on.set()
        assert (await first).choices and (await again).choices


async def test_what_the_deadline_ended_is_not_asked_again_by_the_client():
    parts = Parts(llm=Model(answering, seconds=30), settings={"deadline_s": 0.2})
    async with parts.server() as url, connect(url, retries=2) as patient:
        with pytest.raises(openai.InternalServerError) as late:
            await patient.chat.completions.create(model="direct", messages=MESSAGES)
    assert (late.value.status_code, late.value.code) == (504, "deadline_exceeded")
    assert parts.metric("dragoman_errors_total", code="deadline_exceeded") == 1


async def test_a_dead_llm_is_an_error_of_the_server_and_in_a_stream_an_api_error():
    parts = Parts(llm=Model(lambda prompt, random: EngineFault("gone")))
    async with parts.server() as url, connect(url) as client:
        with pytest.raises(openai.InternalServerError) as dead:
            await client.chat.completions.create(model="c3po", messages=MESSAGES)
        assert (dead.value.status_code, dead.value.code) == (503, "llm_unavailable")
        stream = await client.chat.completions.create(
            model="c3po", messages=MESSAGES, stream=True, extra_body={"dragoman": {"trace": True}}
        )
        with pytest.raises(openai.APIError, match="does not answer"):
            async for _ in stream:
                pass

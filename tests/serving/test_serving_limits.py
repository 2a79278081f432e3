"""Deadlines, the queue, and what happens to calls that nobody waits for any more."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest
from fakes import ListRetriever
from pydantic import ValidationError
from serving_parts import PASSAGES, QUESTION, Failing, Model, Parts, answering, ask, chat, eventually, searching

from dragoman.core.errors import PromptTooLong, Refused, RetrieverFault
from dragoman.core.keys import Keys, make_key
from dragoman.core.types import Passage
from dragoman.engines.transformers import TransformersEngine
from dragoman.serving import health
from dragoman.serving.conversation import Conversation
from dragoman.serving.errors import ApiError
from dragoman.serving.gate import Gate
from dragoman.serving.wire import ChatRequest


def code(response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


@pytest.mark.parametrize("messages", [[{}] * 5000, [{"role": "user", "content": [1] * 5000}]])
def test_of_a_body_with_thousands_of_errors_only_the_first_are_looked_for(messages):
    with pytest.raises(ValidationError) as refused:
        ChatRequest.model_validate({"model": "standard", "messages": messages})
    assert refused.value.error_count() <= 3


async def test_a_deadline_ends_the_call_that_is_under_way():
    parts = Parts(llm=Model(answering, seconds=30), settings={"deadline_s": 0.1})
    async with parts.client() as client:
        response = await ask(client, model="standard")
        assert code(response) == (504, "deadline_exceeded")
        await eventually(lambda: parts.llm.abandoned == 1 and parts.llm.running == 0)
    assert parts.metric("dragoman_errors_total", code="deadline_exceeded") == 1


async def test_the_deadline_covers_the_queue():
    parts = Parts(settings={"deadline_s": 0.2, "concurrency": 1})
    async with parts.client() as client, parts.service.gate.enter():  # somebody else is being answered
        response = await ask(client, model="direct")
    assert code(response) == (504, "deadline_exceeded")
    assert parts.llm.requests == [], "it was let in"
    assert parts.service.gate.running == parts.service.gate.waiting == 0


async def test_the_deadline_covers_the_rewriting():
    parts = Parts(llm=Model(answering, seconds=30), settings={"deadline_s": 0.1})
    messages = [{"role": "user", "content": "Hello"}, {"role": "user", "content": QUESTION}]
    async with parts.client() as client:
        response = await client.post("/v1/chat/completions", json={"model": "standard", "messages": messages})
    assert code(response) == (504, "deadline_exceeded")
    assert parts.llm.abandoned == 1 and parts.retriever.queries == []


async def test_a_slow_proxy_leaves_standard_rag_the_time_to_answer():
    proxy = Model(searching, seconds=30)
    parts = Parts(proxies={"": proxy}, settings={"deadline_s": 2, "proxy_share": 0.05})
    async with parts.client() as client:
        body = (await ask(client)).json()
    assert body["dragoman"]["degraded"] == {"system": "standard", "reason": "slow"}
    assert proxy.abandoned == 1


class SlowRetriever(ListRetriever):
    abandoned = 0

    async def search(self, queries, k, page=0):
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            self.abandoned += 1
            raise


async def test_a_deadline_ends_a_search():
    parts = Parts(retriever=SlowRetriever(PASSAGES), settings={"deadline_s": 0.05})
    async with parts.client() as client:
        assert code(await ask(client, model="standard")) == (504, "deadline_exceeded")
        await eventually(lambda: parts.retriever.abandoned == 1)


async def test_so_many_at_once_so_many_wait_and_the_others_come_again():
    parts = Parts(llm=Model(answering, seconds=0.5), settings={"concurrency": 2, "queue": 3})
    async with parts.client() as client:
        responses = await asyncio.gather(*(ask(client, f"{QUESTION} {i}", model="direct") for i in range(8)))
        refused = [r for r in responses if r.status_code == 429]
        assert sorted(r.status_code for r in responses) == [200] * 5 + [429] * 3
        assert {code(r) for r in refused} == {(429, "queue_full")}
        assert all(1 <= int(r.headers["retry-after"]) <= 60 for r in refused)
        assert (await ask(client, model="direct")).status_code == 200
    assert parts.service.gate.running == parts.service.gate.waiting == 0
    assert parts.metric("dragoman_errors_total", code="queue_full") == 3


async def test_who_gives_up_waiting_leaves_no_trace_in_the_gate():
    gate = Gate(1, 1)

    async def stay() -> None:
        async with gate.enter():
            await asyncio.sleep(30)

    inside, waiting = asyncio.create_task(stay()), asyncio.create_task(stay())
    await eventually(lambda: gate.running == 1 and gate.waiting == 1)
    with pytest.raises(ApiError, match="ask again later"):
        await stay()
    waiting.cancel()
    inside.cancel()
    await asyncio.gather(inside, waiting, return_exceptions=True)
    assert (gate.running, gate.waiting) == (0, 0)
    async with asyncio.timeout(1), gate.enter():
        assert gate.running == 1


async def test_retry_after_grows_with_the_queue():
    gate = Gate(2, 100)
    assert gate.retry_after_s == 1
    gate.waiting = 39
    assert gate.retry_after_s == 20
    gate.waiting = 10_000
    assert gate.retry_after_s == 60


async def test_half_a_body_is_not_waited_for():
    async def body():
        yield b'{"model":'
        await asyncio.sleep(30)

    parts = Parts(settings={"body_s": 0.1})
    async with parts.client() as client:
        response = await client.post("/v1/chat/completions", content=body())
    assert code(response) == (408, "request_timeout") and response.headers["connection"] == "close"


async def test_one_key_leaves_places_for_others(tmp_path):
    key, other = make_key(tmp_path / "keys", "greedy"), make_key(tmp_path / "keys", "modest")
    parts = Parts(
        llm=Model(answering, seconds=0.2), keys=Keys(tmp_path / "keys"), settings={"concurrency": 2, "queue": 2}
    )
    async with parts.client() as client:

        async def asked(by: str) -> httpx.Response:
            return await client.post(
                "/v1/chat/completions", json=chat(model="direct"), headers={"Authorization": f"Bearer {by}"}
            )

        answers = await asyncio.gather(*(asked(key) for _ in range(4)), asked(other))
    refused = [a for a in answers if a.status_code == 429]
    assert len(refused) == 2 and {code(a) for a in refused} == {(429, "key_busy")}
    assert answers[-1].status_code == 200


async def test_an_llm_that_hangs_is_not_ready_until_it_answers_again(monkeypatch):
    monkeypatch.setattr(health, "SLOW_S", 0.05)
    monkeypatch.setattr(health, "PROBE_S", 2.0)
    monkeypatch.setattr(health, "WAIT_S", 60.0)  # so all wait until the probe has ended
    parts = Parts(settings={"deadline_s": 0.1})
    async with parts.client() as client:
        assert (await client.get("/readyz")).status_code == 200
        parts.llm.seconds = 30
        assert code(await ask(client, model="direct")) == (504, "deadline_exceeded")
        await eventually(lambda: not parts.service.llm.works)
        assert parts.metric("dragoman_llm_failures") == 1
        probes = len(parts.llm.requests) + parts.llm.abandoned + parts.llm.running
        started = time.monotonic()
        answers = await asyncio.gather(*(client.get("/readyz") for _ in range(8)))
        assert {a.status_code for a in answers} == {503} and time.monotonic() - started < 8 * 2.0
        assert len(parts.llm.requests) + parts.llm.abandoned + parts.llm.running == probes + 1, "one probe for all"
        parts.llm.seconds = 0
        await eventually(lambda: not parts.llm.running)
        assert (await client.get("/readyz")).status_code == 200
        assert parts.metric("dragoman_llm_failures") == 0


async def test_a_retriever_that_fails_is_not_ready():
    parts = Parts(retriever=Failing(RetrieverFault("gone")))
    async with parts.client() as client:
        answer = await client.get("/readyz")
    assert answer.status_code == 503
    assert (answer.json()["llm"], answer.json()["retriever"]) == (True, False)


async def test_a_client_that_goes_at_once_makes_nothing_suspect():
    parts = Parts(llm=Model(answering, seconds=30), settings={"deadline_s": 0.1})
    async with parts.client() as client:
        with parts.service.llm.call():
            pass
        await ask(client, model="direct")
        assert parts.service.llm.works and parts.service.llm._probe is None


async def test_a_prompt_that_is_too_long_is_no_fault_of_the_llm():
    parts = Parts(llm=Model(lambda *_: PromptTooLong("900 tokens exceed the context of 512")))
    earlier = [{"role": "user", "content": "Hello"}, {"role": "user", "content": QUESTION}]
    async with parts.client() as client:
        with parts.service.llm.call():
            pass  # it has answered before
        for request in (chat(model="standard"), chat() | {"messages": earlier}):
            response = await client.post("/v1/chat/completions", json=request)
            assert code(response) == (400, "prompt_too_long")
            assert "the question, with what the system adds to it, is longer" in response.text
        assert (await client.get("/readyz")).status_code == 200


async def test_of_a_history_that_outgrows_the_context_the_end_is_shown():
    def read(prompt: str, random: object) -> str | PromptTooLong:
        return PromptTooLong("too many tokens") if len(prompt) > 1500 else answering(prompt, random)

    parts = Parts(llm=Model(read))
    said = [
        ("user", "不丹" * 1000),
        ("assistant", "首都" * 1000),
        ("assistant", "It is the last word."),
        ("user", "And?"),
    ]
    async with parts.client() as client:
        messages = [{"role": role, "content": content} for role, content in said]
        body = (await ask(client, model="standard", messages=messages)).json()
    assert body["dragoman"]["question"] == QUESTION
    shown = [
        request.messages[-1]["content"]
        for request in parts.llm.requests
        if "Last question" in request.messages[-1]["content"]
    ]
    assert len(shown) == 3 and "It is the last word." in shown[-1] and "首都" in shown[-1]


async def test_a_history_of_which_nothing_fits_is_given_up_after_six_calls():
    llm = Model(lambda *_: PromptTooLong("too many tokens"))
    with pytest.raises(PromptTooLong):
        await Conversation(QUESTION, "x" * 4000).stand_alone(llm, max_question_chars=2000)
    assert len(llm.requests) == 6


@pytest.mark.parametrize("model", ["standard", "c3po"])
async def test_what_a_filter_before_the_llm_refuses_is_no_fault_of_the_llm_and_not_to_be_sent_again(model):
    parts = Parts(llm=Model(lambda *_: Refused("content_filter: you said ...")))
    earlier = [{"role": "user", "content": "Hello"}, {"role": "user", "content": QUESTION}]
    async with parts.client() as client:
        with parts.service.llm.call():
            pass  # it has answered before
        for request in (chat(model=model), chat(model=model) | {"messages": earlier}):
            response = await client.post("/v1/chat/completions", json=request)
            assert code(response) == (400, "content_filter") and "retry-after" not in response.headers
            assert "you said" not in response.text
        assert (await client.get("/readyz")).status_code == 200
    assert parts.service.llm.failures.total() == 0
    assert {episode.trajectories[0].stop for episode in parts.episodes} == {"refused"}


async def test_a_poisoned_passage_is_cut_and_the_question_answered(tiny_engine):
    passages = [Passage("a", "Brisa " + "t" * 30_000, "The capital of Brisa."), Passage("b", "Brisa", "capital" * 3000)]
    parts = Parts(llm=tiny_engine, retriever=ListRetriever(passages), settings={"deadline_s": 60})
    async with parts.client() as client:
        response = await ask(client, model="standard")
        assert response.status_code == 200 and len(response.json()["dragoman"]["citations"]) == 2


async def test_a_client_that_goes_away_ends_the_work():
    parts = Parts(llm=Model(answering, seconds=600), settings={"deadline_s": 600})
    body = {"model": "direct", "messages": [{"role": "user", "content": QUESTION}]}
    async with parts.server() as url, httpx.AsyncClient() as client:
        for stream in (False, True):
            request = asyncio.create_task(client.post(f"{url}/chat/completions", json=body | {"stream": stream}))
            await eventually(lambda: parts.llm.running == 1)
            request.cancel()
            await eventually(lambda: parts.llm.running == 0 and parts.service.gate.running == 0)
        assert parts.llm.abandoned == 2
        await eventually(lambda: parts.metric("dragoman_errors_total", code="client_closed_request") == 2)


async def test_a_client_that_leaves_a_stream_between_its_steps_is_counted():
    parts = Parts(llm=Model(answering, seconds=600), settings={"deadline_s": 600})
    asked = chat(stream=True, dragoman={"trace": True})
    async with parts.server() as url, httpx.AsyncClient() as client:
        async with client.stream("POST", f"{url}/chat/completions", json=asked) as response:
            async for line in response.aiter_lines():
                if '"step"' in line:
                    break
        await eventually(lambda: parts.metric("dragoman_errors_total", code="client_closed_request") == 1)
        await eventually(lambda: parts.service.gate.running == 0)
        assert parts.metric("dragoman_errors_total", code="client_closed_request") == 1


async def test_160_clients_that_leave_a_local_engine_leave_nothing_behind_in_it(tiny_model):
    engine = TransformersEngine(
        tiny_model, dtype="float32", threads=1, max_batch=1
    )  # one after the other: a minute or more
    settings = {"concurrency": 160, "deadline_s": 600}
    parts = Parts(llm=engine, settings=settings, systems={"direct": {"answer_tokens": 400}})
    try:
        async with parts.server() as url, httpx.AsyncClient(limits=httpx.Limits(max_connections=None)) as client:

            def post(question: str) -> asyncio.Task[httpx.Response]:
                body = chat(question, "direct")
                return asyncio.create_task(client.post(f"{url}/chat/completions", json=body, timeout=600))

            leaving = [post(f"{QUESTION} {number}") for number in range(160)]
            await eventually(lambda: len(engine._pending) > 140)
            for request in leaving:
                request.cancel()
            await asyncio.gather(*leaving, return_exceptions=True)
            await eventually(lambda: not engine._pending and parts.service.gate.running == 0, 30)
            assert (await post(QUESTION)).status_code == 200
    finally:
        await engine.close()


async def test_a_client_that_leaves_a_stream_ends_the_work():
    parts = Parts(llm=Model(answering, seconds=600), settings={"deadline_s": 600})
    async with parts.server() as url, httpx.AsyncClient() as client:
        body = {"model": "c3po", "stream": True, "dragoman": {"trace": True}}
        body["messages"] = [{"role": "user", "content": QUESTION}]
        async with client.stream("POST", f"{url}/chat/completions", json=body) as response:
            async for line in response.aiter_lines():
                if '"filter"' in line:
                    break
            await eventually(lambda: parts.llm.running == 1)
        await eventually(lambda: parts.llm.abandoned == 1 and parts.service.gate.running == 0)
    assert parts.llm.running == 0 and not parts.episodes  # what was given up has no answer


def test_a_key_file_that_somebody_edited_stays_readable(tmp_path):
    path = tmp_path / "keys"
    make_key(path, "alice")
    path.write_text(path.read_text().rstrip("\n"))
    key = make_key(path, "bob")
    assert Keys(path).owner(f"Bearer {key}") == "bob"

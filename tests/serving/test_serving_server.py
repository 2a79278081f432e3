"""The routes, as any HTTP client meets them."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from fakes import ListRetriever
from serving_parts import PASSAGES, QUESTION, Failing, Model, Parts, answering, ask, chat

from dragoman.core.errors import EngineFault, RetrieverFault, UserError
from dragoman.core.keys import Keys, make_key
from dragoman.engines.base import Request, Result
from dragoman.rollout.record import Call
from dragoman.serving.errors import ApiError
from dragoman.serving.models import Opened
from dragoman.serving.service import _is_cut


async def test_an_answer_has_openais_form_and_our_extension():
    parts = Parts()
    async with parts.client() as client:
        response = await ask(client, QUESTION, temperature=0.2, top_p=0.5, user="me")
    body = response.json()
    assert response.status_code == 200
    assert body["object"] == "chat.completion" and body["model"] == "c3po"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Port Salt", "refusal": None},
            "finish_reason": "stop",
            "logprobs": None,
        }
    ]
    # 3 tokens read for each decision and the answer, and one written for each letter
    written = sum(map(len, ("[Retrieval] capital of Brisa", "Action: [1]", "Port Salt")))
    assert body["usage"] == {"prompt_tokens": 9, "completion_tokens": written, "total_tokens": 9 + written}
    assert body["usage"]["total_tokens"] == parts.episodes[0].tokens
    extension = body["dragoman"]
    assert extension["citations"] == [{"id": "brisa", "title": "Brisa"}]
    assert (extension["strategy"], extension["decisions"], extension["stop"]) == ("Search", 2, "answered")
    assert extension["policy"] == "base" and extension["degraded"] is None and extension["steps"] is None
    assert extension["ignored"] == ["temperature", "top_p"]
    assert set(extension["seconds"]) == {"queue", "proxy", "search", "llm", "total"}
    assert body["id"] == f"chatcmpl-{extension['trace_id']}"
    assert response.headers["x-request-id"] == extension["trace_id"] == parts.episodes[0].key


async def test_the_steps_are_told_when_asked_for():
    async with Parts().client() as client:
        body = (await ask(client, dragoman={"trace": True})).json()
    steps = body["dragoman"]["steps"]
    assert [(s["kind"], s["name"]) for s in steps] == [
        ("decision", "router"),
        ("search", "search"),
        ("decision", "filter"),
        ("llm", "answer"),
    ]
    assert steps[0]["action"] == {"type": "Search", "query": "capital of Brisa", "thought": ""}
    assert steps[1]["query"] == "capital of Brisa" and steps[1]["passages"][0] == "brisa"
    assert steps[3]["text"] == "Port Salt"


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": QUESTION}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}],
        [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}],
    ],
)
async def test_a_first_question_costs_no_call_to_rewrite_it(messages):
    parts = Parts()
    async with parts.client() as client:
        response = await client.post("/v1/chat/completions", json={"model": "standard", "messages": messages})
    assert response.json()["dragoman"]["question"] == QUESTION
    assert len(parts.llm.requests) == 1


async def test_a_conversation_becomes_one_question():
    parts = Parts()
    said = [("user", "Tell me about\nBrisa."), ("assistant", "It is a country."), ("user", "What is its capital?")]
    messages = [{"role": role, "content": content} for role, content in said]
    async with parts.client() as client:
        body = (await client.post("/v1/chat/completions", json={"model": "standard", "messages": messages})).json()
    rewrite, answer = (request.messages[-1]["content"] for request in parts.llm.requests)
    assert "User: Tell me about Brisa.\nAssistant: It is a country.\n" in rewrite
    assert "Last question: What is its capital?" in rewrite
    assert QUESTION in answer and "What is its capital?" not in answer
    assert parts.retriever.queries == [QUESTION]
    assert body["dragoman"]["question"] == QUESTION


async def test_of_a_long_conversation_the_end_is_shown():
    parts = Parts(settings={"max_history_chars": 40})
    said = [*[("user" if i % 2 == 0 else "assistant", f"message {i}") for i in range(50)], ("user", "And now?")]
    messages = [{"role": role, "content": content} for role, content in said]
    async with parts.client() as client:
        await client.post("/v1/chat/completions", json={"model": "standard", "messages": messages})
    rewrite = parts.llm.requests[0].messages[-1]["content"]
    assert "message 49" in rewrite and "message 46" not in rewrite


async def test_an_empty_rewriting_leaves_the_question_as_it_was():
    parts = Parts(llm=Model(lambda prompt, random: "" if "Last question" in prompt else "x"))
    messages = [{"role": "user", "content": "Hello"}, {"role": "user", "content": QUESTION}]
    async with parts.client() as client:
        body = (await client.post("/v1/chat/completions", json={"model": "standard", "messages": messages})).json()
    assert body["dragoman"]["question"] == QUESTION


async def test_a_rewriting_that_was_cut_at_its_most_tokens_is_no_question():
    parts = Parts(llm=Short(lambda prompt, random: "In the report on the" if "Last question" in prompt else "x"))
    messages = [{"role": "user", "content": "Hello"}, {"role": "user", "content": QUESTION}]
    async with parts.client() as client:
        body = (await client.post("/v1/chat/completions", json={"model": "standard", "messages": messages})).json()
    assert body["dragoman"]["question"] == QUESTION and parts.retriever.queries == [QUESTION]


KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
    504: "server_error",
}
"""By its status, the type of an error that OpenAI's clients expect."""


def error_of(response) -> tuple[int, str]:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert error["type"] == KINDS[response.status_code]
    return response.status_code, error["code"]


@pytest.mark.parametrize("status", KINDS)
def test_an_error_has_the_type_of_its_status(status):
    error = ApiError(status, "code", "message")
    assert error.body == {"error": {"message": "message", "type": KINDS[status], "param": None, "code": "code"}}
    assert ("www-authenticate" in error.response().headers) == (status == 401)
    assert error.response().headers.get("x-should-retry") == ("false" if status == 504 else None)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (chat("x" * 2001), "question_too_long"),
        (chat("  \n "), "no_question"),
        ({"model": "c3po", "messages": [{"role": "assistant", "content": "hi"}]}, "no_question"),
        ({"model": "c3po", "messages": [{"role": "system", "content": "hi"}]}, "no_question"),
        ({"model": "c3po", "messages": []}, "invalid_request"),
        ({"messages": [{"role": "user", "content": "x"}]}, "invalid_request"),
        (chat(n=2), "invalid_request"),
        (chat(dragoman={"tracing": True}), "invalid_request"),
        (
            {"model": "c3po", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "invalid_request",
        ),
        ([], "invalid_request"),
    ],
)
async def test_what_is_refused(body, code):
    parts = Parts()
    async with parts.client() as client:
        response = await client.post("/v1/chat/completions", json=body)
    assert error_of(response) == (400, code)
    assert parts.metric("dragoman_errors_total", code=code) == 1
    assert parts.llm.requests == []


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 5000, b'{"a":' * 5000])
async def test_what_is_no_json_is_refused(content):
    async with Parts().client() as client:
        response = await client.post(
            "/v1/chat/completions", content=content, headers={"Content-Type": "application/json"}
        )
    assert error_of(response) == (400, "invalid_request")


async def test_half_a_surrogate_pair_does_no_harm():
    said = rb'"messages": [{"role": "user", "content": "half \ud83d"}]}'
    headers = {"Content-Type": "application/json"}
    async with Parts().client() as client:
        content, name = [
            await client.post("/v1/chat/completions", content=start + said, headers=headers)
            for start in (rb'{"model": "direct", ', rb'{"model": "direct", "half \ud83d": 1, ')
        ]
    assert content.json()["dragoman"]["question"] == "half ?"
    assert error_of(name) == (400, "invalid_request")


async def test_unknown_models_and_routes():
    async with Parts().client() as client:
        assert error_of(await ask(client, model="gpt-4")) == (404, "model_not_found")
        assert "c3po, standard, direct" in (await ask(client, model="gpt-4")).json()["error"]["message"]
        assert error_of(await client.get("/v1/models/c3po@nobody/knows")) == (404, "model_not_found")
        assert error_of(await client.get("/v1/files")) == (404, "not_found")
        assert error_of(await client.get("/v1/chat/completions")) == (405, "method_not_allowed")


async def test_a_policy_that_is_not_offered_is_not_loaded(tmp_path):
    parts = Parts()
    async with parts.client() as client:
        assert error_of(await ask(client, model=f"c3po@{tmp_path}")) == (404, "model_not_found")


async def test_large_bodies_are_refused_with_and_without_a_declared_length():
    async def chunks():
        for _ in range(10):
            yield b" " * 1000

    parts = Parts(settings={"max_body_bytes": 4000})
    async with parts.client() as client:
        declared = await client.post("/v1/chat/completions", content=b" " * 10_000)
        chunked = await client.post("/v1/chat/completions", content=chunks())
        small = await ask(client)
    assert error_of(declared) == error_of(chunked) == (413, "request_too_large")
    assert small.status_code == 200
    assert parts.metric("dragoman_errors_total", code="request_too_large") == 2


async def test_api_keys(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "keys"
    key, other = make_key(path, "alice"), make_key(path, "bob")
    assert key not in path.read_text() and path.stat().st_mode & 0o077 == 0
    secret = "Where did I hide the letters?"
    async with Parts(keys=Keys(path)).client() as client:
        for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": f"Bearer {key}x"}, {"Authorization": key}):
            response = await client.post("/v1/chat/completions", content=b"{", headers=headers)
            assert error_of(response) == (401, "invalid_api_key")
            assert response.headers["www-authenticate"] == "Bearer"
            assert (await client.get("/v1/models", headers=headers)).status_code == 401
        for given in (key, other):
            response = await client.post(
                "/v1/chat/completions", json=chat(secret), headers={"Authorization": f"Bearer {given}"}
            )
            assert response.status_code == 200
        assert (await client.get("/healthz")).status_code == 200
    log = caplog.text
    assert "POST /v1/chat/completions by alice: 200" in log
    for hidden in (key, other, "letters", *path.read_text().split()[1::2]):
        assert hidden not in log


async def test_what_each_key_has_used_is_counted_by_its_name_and_nothing_where_none_is_needed(tmp_path):
    key = make_key(tmp_path / "keys", "alice")
    parts = Parts(keys=Keys(tmp_path / "keys"))
    async with parts.client() as client:
        client.headers["authorization"] = f"Bearer {key}"
        usage = [(await ask(client)).json()["usage"] for _ in range(2)]
    assert parts.metric("dragoman_key_answers_total", key="alice") == 2
    for kind in ("prompt", "completion"):
        used = parts.metric("dragoman_key_tokens_total", key="alice", kind=kind)
        assert used == sum(each[f"{kind}_tokens"] for each in usage) > 0
    parts = Parts()
    async with parts.client() as client:
        await ask(client)
        assert "dragoman_key_answers_total{" not in (await client.get("/metrics")).text


async def test_models_are_listed():
    async with Parts().client() as client:
        models = (await client.get("/v1/models")).json()
        one = (await client.get("/v1/models/c3po")).json()
    assert models["object"] == "list"
    assert [(m["id"], m["dragoman"]["policy"]) for m in models["data"]] == [
        ("c3po", "base"),
        ("standard", None),
        ("direct", None),
    ]
    assert one == models["data"][0]


async def test_baselines_answer_too():
    parts = Parts()
    async with parts.client() as client:
        standard = (await ask(client, model="standard")).json()["dragoman"]
        direct = (await ask(client, model="direct")).json()["dragoman"]
    assert [c["id"] for c in standard["citations"]] == [
        h.passage.id for h in ListRetriever(PASSAGES)._one(QUESTION, 5, 0)
    ]
    assert direct["citations"] == [] and direct["strategy"] is None and direct["decisions"] == 0


def sse(text: str) -> list[dict]:
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


async def test_streaming():
    parts = Parts()
    async with parts.client() as client:
        plain = await ask(client, stream=True)
        traced = await ask(client, stream=True, dragoman={"trace": True}, stream_options={"include_usage": True})
    assert plain.headers["content-type"].startswith("text/event-stream")
    role, content, end = sse(plain.text)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert content["choices"][0]["delta"] == {"content": "Port Salt"}
    assert end["choices"][0]["finish_reason"] == "stop"
    assert end["dragoman"]["citations"] == [{"id": "brisa", "title": "Brisa"}]
    assert len({c["id"] for c in (role, content, end)}) == 1 and "usage" not in end
    role, *steps, content, end, usage = sse(traced.text)
    assert [s["dragoman"]["step"]["name"] for s in steps] == ["router", "search", "filter", "answer"]
    assert usage["choices"] == [] and content["usage"] is None
    assert usage["usage"]["total_tokens"] == parts.episodes[1].tokens > 0


class Short(Model):
    """Has so few tokens for its answer that they end within a word."""

    async def generate(self, requests: Sequence[Request]) -> list[Result]:
        results = await super().generate(requests)
        return [
            replace(result, completions=tuple(replace(c, finish_reason="length") for c in result.completions))
            for result in results
        ]


async def test_an_answer_that_was_cut_at_its_most_tokens_says_so_streamed_or_not():
    parts = Parts(llm=Short(lambda *_: "Port Sa "))
    async with parts.client() as client:
        plain, streamed = (await ask(client)).json(), await ask(client, stream=True)
    assert plain["choices"][0]["finish_reason"] == "length"
    assert plain["choices"][0]["message"]["content"] == "Port Sa"
    assert sse(streamed.text)[-1]["choices"][0]["finish_reason"] == "length"
    (call,) = (call for call in parts.episodes[0].calls if call.kind == "ask")
    assert call.truncated


async def test_an_answer_is_not_cut_where_another_text_on_the_way_was():
    parts = Parts(llm=Short(answering), models=("direct",))
    call = Call(
        id="1", kind="ask", name="roadmap", input=[], output="First, find", started=0, seconds=0, truncated=True
    )
    assert _is_cut("Port Salt", [call]) is False and _is_cut("", [call]) is False
    assert _is_cut("Port Salt", [call.model_copy(update={"output": "Answer: Port Salt\n"})])
    async with parts.client() as client:  # the LLM is cut where it makes one question of two
        messages = [{"role": "user", "content": "Hello"}, {"role": "user", "content": QUESTION}]
        parts.llm.script = lambda prompt, random: "Which" if "Last question:" in prompt else ""
        response = await client.post("/v1/chat/completions", json={"model": "direct", "messages": messages})
    assert response.json()["choices"][0]["finish_reason"] == "stop"


async def test_what_fails_before_the_first_word_has_its_status_when_streamed():
    parts = Parts(llm=Model(lambda prompt, random: EngineFault("secret-host refused")))
    async with parts.client() as client:
        response = await ask(client, stream=True)
    assert error_of(response) == (503, "llm_unavailable")


async def test_what_fails_in_the_stream_ends_it_with_an_error():
    parts = Parts(llm=Model(lambda prompt, random: EngineFault("secret-host refused")))
    async with parts.client() as client:
        response = await ask(client, stream=True, dragoman={"trace": True})
    assert response.status_code == 200
    *chunks, error = [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n\n") if line]
    assert [c["dragoman"]["step"]["name"] for c in chunks[1:]] == ["router", "search", "filter"]
    assert error["error"]["code"] == "llm_unavailable"
    assert parts.metric("dragoman_errors_total", code="llm_unavailable") == 1


async def test_a_dead_llm_is_503_counted_and_not_ready_until_it_is_back():
    dead = [True]
    parts = Parts(llm=Model(lambda prompt, random: EngineFault("http://secret-host: refused") if dead[0] else "yes"))
    async with parts.client() as client:
        assert (await client.get("/readyz")).status_code == 503  # before it has ever been asked
        response = await ask(client)
        assert error_of(response) == (503, "llm_unavailable")
        assert response.headers["retry-after"] == "5" and "secret-host" not in response.text
        assert parts.metric("dragoman_degradations_total", model="c3po", reason="engine_fault") == 0
        unready = await client.get("/readyz")
        assert unready.status_code == 503 and unready.json()["llm"] is False
        assert (await client.get("/healthz")).status_code == 200
        dead[0] = False
        assert (await client.get("/readyz")).json() == {
            "status": "ready",
            "llm": True,
            "retriever": True,
            "models": {"c3po": "base", "standard": None, "direct": None},
        }
    assert parts.metric("dragoman_errors_total", code="llm_unavailable") == 1


async def test_an_llm_that_dies_while_it_rewrites_the_question_is_503():
    parts = Parts(llm=Model(lambda prompt, random: EngineFault("gone")))
    messages = [{"role": "user", "content": "Hello"}, {"role": "user", "content": QUESTION}]
    async with parts.client() as client:
        response = await client.post("/v1/chat/completions", json={"model": "c3po", "messages": messages})
    assert error_of(response) == (503, "llm_unavailable")


@pytest.mark.parametrize("broken", ["llm", "retriever"])
async def test_the_log_says_what_failed_and_not_what_a_server_repeats_of_the_question(broken, caplog):
    said = f"http://host/v1: HTTP 422 [{{'input': '{QUESTION}'}}], after 5 tries"
    if broken == "llm":
        parts = Parts(llm=Model(lambda prompt, random: EngineFault(said)))
    else:
        parts = Parts(retriever=Failing(RetrieverFault(said)))
    async with parts.client() as client:
        assert (await ask(client)).status_code == 503
    assert "http://host/v1: HTTP 422" in caplog.text and "Brisa" not in caplog.text


async def test_a_dead_retriever_is_503():
    parts = Parts(retriever=Failing(RetrieverFault("http://secret-host: refused")))
    async with parts.client() as client:
        response = await ask(client)
    assert error_of(response) == (503, "retriever_unavailable") and "secret-host" not in response.text


class WithAJudge(Parts):
    """SlimPLM has a judge of its own, which is away."""

    def open(self, name: str) -> Opened:
        opened = super().open(name)
        away = {"slimplm_judge": Model(lambda *_: EngineFault("judge-host: refused"))} if name == "slimplm" else {}
        return replace(opened, backends=replace(opened.backends, engines=away))


async def test_a_baseline_whose_own_engine_is_away_is_503_and_the_log_says_why(caplog):
    async with WithAJudge(models=("slimplm", "standard")).client() as client:
        response = await ask(client, model="slimplm")
    assert error_of(response) == (503, "llm_unavailable") and "judge-host" not in response.text
    assert "judge-host: refused" in caplog.text


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (EngineFault("the proxy's server is down"), "engine_fault"),
        ("Sure! Here is what I think.", "invalid_action"),
        (ZeroDivisionError("a bug"), "system_fault"),
    ],
)
async def test_when_the_proxy_fails_standard_rag_answers_and_says_so(said, reason):
    parts = Parts(proxies={"": Model(lambda prompt, random: said)})
    async with parts.client() as client:
        body = (await ask(client)).json()
        standard = (await ask(client, model="standard")).json()
        metrics = (await client.get("/metrics")).text
    assert body["choices"][0]["message"]["content"] == "Port Salt"
    assert body["dragoman"]["degraded"] == {"system": "standard", "reason": reason}
    assert body["dragoman"]["policy"] is None
    assert body["dragoman"]["citations"] == standard["dragoman"]["citations"]
    assert standard["dragoman"]["degraded"] is None
    assert f'dragoman_degradations_total{{model="c3po",reason="{reason}"}} 1.0' in metrics
    trace = body["dragoman"]["trace_id"]
    failed, answered, _ = parts.episodes  # each under a key and a name of its own
    assert (failed.key, failed.system, failed.trajectories[0].stop) == (f"{trace}/c3po", "c3po", reason)
    assert (answered.key, answered.system, answered.trajectories[0].answer) == (trace, "standard", "Port Salt")


async def test_where_a_question_lacks_what_a_system_needs_standard_rag_answers(caplog):
    parts = Parts(proxies={"": Model(lambda prompt, random: UserError("the question names no topic"))})
    async with parts.client() as client:
        body = (await ask(client)).json()
    assert body["choices"][0]["message"]["content"] == "Port Salt"
    assert body["dragoman"]["degraded"] == {"system": "standard", "reason": "system_fault"}
    assert "c3po: the question names no topic" in caplog.text


async def test_a_bug_is_500_with_the_trace_id_and_nothing_else(caplog):
    parts = Parts(retriever=Failing(ZeroDivisionError("private detail")))
    async with parts.client() as client:
        response = await ask(client, model="standard")
    assert error_of(response) == (500, "internal_error")
    assert response.headers["x-request-id"] in response.text and "private detail" not in response.text
    assert "private detail" in caplog.text


@pytest.mark.parametrize("stream", [False, True])
async def test_half_a_character_that_a_model_writes_is_told_among_the_steps(stream):
    parts = Parts(llm=Model(lambda prompt, random: "Port \ud83d Salt"))
    async with parts.client() as client:
        response = await ask(client, dragoman={"trace": True}, stream=stream)
    assert response.status_code == 200 and "Salt" in response.text and "error" not in response.text


async def test_a_bug_outside_of_an_answer_is_500_in_the_shape_of_openai_and_counted(caplog, monkeypatch):
    def broken(self, name):
        raise RuntimeError("private detail")

    parts = Parts()
    async with parts.client() as client:
        monkeypatch.setattr(type(parts.service), "check", broken)
        response = await ask(client)
    assert error_of(response) == (500, "internal_error") and "private detail" not in response.text
    assert response.headers["x-request-id"] in response.text and "private detail" in caplog.text
    assert parts.metric("dragoman_errors_total", code="internal_error") == 1


async def test_metrics_tell_phases_strategies_answers_and_tokens():
    parts = Parts()
    async with parts.client() as client:
        await ask(client)
        await ask(client, model="direct")
        text = (await client.get("/metrics")).text
    for line in (
        'dragoman_answers_total{model="c3po"} 1.0',
        'dragoman_strategies_total{model="c3po",strategy="Search"} 1.0',
        'dragoman_phase_seconds_count{phase="proxy"} 2.0',
        'dragoman_phase_seconds_count{phase="search"} 1.0',
        'dragoman_phase_seconds_count{phase="llm"} 2.0',
        'dragoman_phase_seconds_count{phase="total"} 2.0',
        'dragoman_responses_total{route="/v1/chat/completions",status="200"} 2.0',
        "dragoman_running 0.0",
    ):
        assert line in text
    assert parts.metric("dragoman_tokens_total", kind="prompt") == 12


async def test_the_api_is_described():
    async with Parts().client() as client:
        description = (await client.get("/openapi.json")).json()
        for page in ("/docs", "/redoc"):  # they would have a browser run what another host sends
            assert (await client.get(page)).status_code == 404
    post = description["paths"]["/v1/chat/completions"]["post"]
    assert {"200", "400", "401", "404", "413", "429", "503", "504"} <= set(post["responses"])
    assert "citations" in description["components"]["schemas"]["Extension"]["properties"]


async def test_a_plan_that_turns_in_circles_has_an_answer_all_the_same():
    def circling(prompt: str, random: Any) -> str:
        return "[1] The capital of Brisa is Port Salt." if "Write the numbers" in prompt else "[Ask] capital of Brisa"

    parts = Parts(proxies={"": Model(circling)}, models=("mujica",))
    async with parts.client() as client:
        body = (await ask(client, model="mujica")).json()
    assert body["choices"][0]["message"]["content"] == "Port Salt"
    assert body["dragoman"]["stop"] == "circular_plan" and body["dragoman"]["degraded"] is None


async def test_a_query_that_is_repeated_has_an_answer_all_the_same():
    def repeating(prompt: str, random: Any) -> str:
        return "[Insufficient]" if "[Sufficient]" in prompt else "capital of Brisa"

    parts = Parts(proxies={"": Model(repeating)}, models=("maps",))
    async with parts.client() as client:
        body = (await ask(client, model="maps")).json()
    assert body["choices"][0]["message"]["content"] == "Port Salt"
    assert body["dragoman"]["stop"] == "repeated_query" and body["dragoman"]["degraded"] is None

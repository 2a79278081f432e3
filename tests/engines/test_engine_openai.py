from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse, JSONResponse
from openai_stub import serving
from starlette.requests import Request as HttpRequest

from dragoman.core.errors import EngineFault, PromptTooLong, Refused, UserError
from dragoman.engines import openai
from dragoman.engines.base import Constraint, Request
from dragoman.engines.openai import OpenAIEngine

ASK = Request(prompt=(("user", "Hello?"),), max_tokens=5)


def answer(text: str = "Hello!", **changes: Any) -> JSONResponse:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    row = {"model": "m", "choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    return JSONResponse(row | changes)


class Scripted(FastAPI):
    """Gives its replies one after the other, the last for ever, and keeps what it was asked."""

    def __init__(self, *replies: Response | float | Callable[[], Response]) -> None:
        super().__init__()
        self.replies = list(replies)
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.post("/v1/{path:path}")(self.reply)

    async def reply(self, path: str, http: HttpRequest) -> Response:
        self.paths.append(path)
        self.bodies.append(await http.json())
        self.headers.append(dict(http.headers))
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, float):
            await asyncio.sleep(reply)
            return answer("late")
        return reply


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai, "_FIRST_WAIT_S", 0.001)


async def ask(app: FastAPI, request: Request = ASK, **settings: Any) -> Any:
    with serving(app) as url:
        engine = OpenAIEngine([url], "m", **({"retries": 2, "structured": "none"} | settings))
        try:
            (result,) = await engine.generate([request])
        finally:
            await engine.close()
    return result


async def test_a_plain_server_gives_text_alone() -> None:
    app = Scripted(answer(usage={"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": None}))
    result = await ask(app, replace(ASK, stop=("\n",)))
    assert result.completions[0].text == "Hello!"
    assert result.completions[0].token_ids == result.completions[0].logprobs == result.prompt_ids == ()
    assert (result.prompt_tokens, result.completion_tokens, result.model) == (9, 2, "m")
    assert app.paths == ["chat/completions"]
    assert app.bodies == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "Hello?"}],
            "max_tokens": 5,
            "temperature": 0.0,
            "top_p": 1,
            "n": 1,
            "stop": ["\n"],
        }
    ]


async def test_seeds_fit_into_31_bits_and_differ() -> None:
    app = Scripted(answer())
    for seed in (0, 1, -5, 2**80):
        await ask(app, replace(ASK, temperature=1.0, seed=seed))
    seeds = {body["seed"] for body in app.bodies}
    assert len(seeds) == 4
    assert all(0 <= seed < 2**31 for seed in seeds)


async def test_cached_tokens_are_reported() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}}
    assert (await ask(Scripted(answer(usage=usage)))).cached_tokens == 8


async def test_grammars_take_the_form_that_the_server_knows() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    regex, json_schema = Constraint(regex="a|b"), Constraint(json_schema=json.dumps(schema))
    app = Scripted(answer())
    await ask(app, replace(ASK, grammar=regex), structured="vllm")
    await ask(app, replace(ASK, grammar=json_schema), structured="vllm")
    await ask(app, replace(ASK, grammar=json_schema), structured="response_format")
    await ask(app, replace(ASK, grammar=regex), structured="none")
    assert [body.get("structured_outputs") for body in app.bodies] == [{"regex": "a|b"}, {"json": schema}, None, None]
    assert app.bodies[2]["response_format"]["json_schema"]["schema"] == schema
    assert "response_format" not in app.bodies[3]
    assert "return_token_ids" in app.bodies[0]
    assert "return_token_ids" not in app.bodies[2], "vendors refuse fields that they do not know"
    with pytest.raises(EngineFault, match="structured"):
        await ask(app, replace(ASK, grammar=regex), structured="response_format")


@pytest.mark.parametrize("status", [408, 429, 500, 503])
async def test_it_tries_again_after_a_passing_fault(status: int) -> None:
    app = Scripted(HTMLResponse("<h1>busy</h1>", status), JSONResponse({}, status), answer())
    assert (await ask(app)).completions[0].text == "Hello!"
    assert len(app.bodies) == 3


async def test_it_waits_as_long_as_it_is_told_but_no_longer_than_its_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai, "_LONGEST_WAIT_S", 2.0)
    waits: list[float] = []
    sleep = asyncio.sleep

    async def watched(seconds: float) -> None:
        if threading.current_thread() is threading.main_thread():  # the server's thread sleeps too
            waits.append(seconds)
        await sleep(0)

    busy = [{"retry-after": "1"}, {"retry-after": "3600"}, {"retry-after": "Fri, 31 Dec 2100 23:59:59 GMT"}, {}]
    busy += [{"retry-after": "soon"}, {"retry-after": "Fri, 31 Dec 1999 23:59:59 GMT"}]
    app = Scripted(*(Response(status_code=429, headers=headers) for headers in busy), answer())
    with serving(app) as url:
        engine = OpenAIEngine([url], "m", retries=6, structured="none")
        monkeypatch.setattr(asyncio, "sleep", watched)
        await engine.generate([ASK])
        monkeypatch.undo()
        await engine.close()
    assert waits[:3] == [1, 2, 2]
    assert max(waits[3:]) < 0.1


async def test_it_gives_up_and_says_why() -> None:
    app = Scripted(Response("out of order", 500))
    with pytest.raises(EngineFault, match=r"/v1/chat/completions: HTTP 500 'out of order', after 3 tries"):
        await ask(app)
    assert len(app.bodies) == 3


async def test_a_refusal_by_a_server_that_vllms_fields_may_trouble_names_the_setting() -> None:
    app = Scripted(JSONResponse({"error": {"message": "Unrecognized request argument supplied: top_k"}}, 400))
    with pytest.raises(EngineFault, match=r"top_k .*Set `structured` to response_format, or to none"):
        await ask(app, structured="vllm")


@pytest.mark.parametrize(
    ("structured", "error", "hint"),
    [
        ("vllm", {"message": "property 'top_k' is unsupported"}, "refuse `top_k`, which only vLLM knows"),
        ("vllm", {"message": "[{'loc': ('body', 'min_p'), 'msg': 'Extra inputs'}]"}, "refuse `min_p`, which only vLLM"),
        ("vllm", {"message": "bad request"}, "refuse a field that only vLLM knows"),
        ("vllm", {"message": "'temperature' does not support 0 with this model"}, "`body: {temperature: null}`"),
        ("none", {"message": "unsupported value", "param": "top_p"}, "`body: {top_p: null}`"),
        ("none", {"message": "Unknown parameter: 'mine'."}, "`body: {mine: null}`"),
        ("response_format", {"message": "This response_format type is unavailable now"}, "Set `structured` to none"),
    ],
)
async def test_a_hint_names_the_field_that_the_server_refused(
    structured: Any, error: dict[str, str], hint: str
) -> None:
    request = replace(ASK, grammar=Constraint(json_schema="{}")) if structured == "response_format" else ASK
    with pytest.raises(EngineFault) as caught:
        await ask(Scripted(JSONResponse({"error": error}, 400)), request, structured=structured, body={"mine": 1})
    assert hint in str(caught.value)


async def test_a_refusal_that_names_no_field_of_the_request_has_no_hint() -> None:
    with pytest.raises(EngineFault) as caught:
        await ask(Scripted(JSONResponse({"error": {"message": "no n with this model"}}, 400)), structured="none")
    assert str(caught.value).endswith("HTTP 400: no n with this model")


async def test_fields_of_the_settings_take_the_place_of_the_requests_own_and_null_leaves_one_out() -> None:
    app = Scripted(answer())
    body = {"top_p": 0.5, "n": None, "stop": None, "chat_template_kwargs": {"enable_thinking": False}}
    await ask(app, replace(ASK, stop=("\n",)), body=body)
    assert app.bodies == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "Hello?"}],
            "max_tokens": 5,
            "temperature": 0.0,
            "top_p": 0.5,
            "chat_template_kwargs": {"enable_thinking": False},
        }
    ]


@pytest.mark.parametrize(
    ("body", "stop", "text", "reason"),
    [
        ({"stop": None}, ("\n",), "Paris", "stop"),
        ({"stop": None}, ("Lyon", "is", "\n"), "Par", "stop"),
        ({"stop": ["."]}, ("\n",), "Paris", "stop"),
        ({"stop": None}, ("Nice",), "Paris\nLyon", "length"),
        ({"stop": None}, (), "Paris\nLyon", "length"),
        ({}, ("\n",), "Paris", "stop"),
    ],
)
async def test_an_answer_is_cut_at_the_first_stop_string_whatever_the_server_is_told_of_them(
    body: dict[str, Any], stop: tuple[str, ...], text: str, reason: str
) -> None:
    choice = {"index": 0, "message": {"content": "Paris\nLyon"}, "finish_reason": "length"}
    (completion,) = (await ask(Scripted(answer(choices=[choice])), replace(ASK, stop=stop), body=body)).completions
    assert (completion.text, completion.finish_reason) == (text, reason)


async def test_a_thought_is_no_part_of_an_answer_that_is_cut() -> None:
    app = Scripted(answer("<think>A city?\nYes.</think>\n\nParis\nLyon"))
    result = await ask(app, replace(ASK, stop=("\n",)), body={"stop": None})
    assert result.completions[0].text == "Paris"


NEWER = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."


@pytest.mark.parametrize(("body", "bound"), [({}, 5), ({"max_completion_tokens": 99}, 99)])
async def test_a_model_that_wants_the_newer_name_of_the_bound_gets_it_from_then_on(
    body: dict[str, Any], bound: int
) -> None:
    app = Scripted(JSONResponse({"error": {"message": NEWER, "param": "max_tokens"}}, 400), answer())
    with serving(app) as url:
        engine = OpenAIEngine([url], "m", structured="none", body=body)
        for _ in range(2):
            (result,) = await engine.generate([ASK])
            assert result.completions[0].text == "Hello!"
        await engine.close()
    assert [("max_tokens" in asked, asked.get("max_completion_tokens")) for asked in app.bodies] == [
        (True, body.get("max_completion_tokens")),
        (False, bound),
        (False, bound),
    ]


async def test_a_prompt_that_is_too_long_is_not_asked_again_under_the_newer_name() -> None:
    said = "'max_tokens' or 'max_completion_tokens' is too large: 5. This model's maximum context length is 4 tokens."
    app = Scripted(JSONResponse({"error": {"message": said}}, 400))
    with pytest.raises(PromptTooLong) as caught:
        await ask(app)
    assert len(app.bodies) == 1 and str(caught.value).endswith(said)


def thought(content: str | None, reason: str = "stop", **fields: Any) -> JSONResponse:
    return answer(choices=[{"index": 0, "message": {"content": content, **fields}, "finish_reason": reason}])


@pytest.mark.parametrize(
    ("reply", "ended"),
    [
        (thought(None, "length", reasoning_content="Let me see"), "length"),
        (thought(None, "tool_calls", tool_calls=[{"id": "1"}]), "stop"),
        (thought("", "length", reasoning="Let me see"), "length"),
        (thought("<think>"), "stop"),
        (thought("\n<think>\nLet me", "length"), "length"),
        (thought("<think>\n\n</think>\n\n"), "stop"),
    ],
)
async def test_an_answer_that_is_only_a_thought_is_empty_and_a_warning_says_so_once(
    reply: Response, ended: str, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(Scripted(reply)) as url:
        engine = OpenAIEngine([url], "m", structured="none")
        results = await engine.generate([ASK] * 3)
        await engine.close()
    assert [(c.text, c.finish_reason) for r in results for c in r.completions] == [("", ended)] * 3
    (warning,) = caplog.messages
    assert url in warning and "the model m thinks" in warning and "enable_thinking: false" in warning


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("<think>Who?</think>\n\nThimphu", "Thimphu"),
        ("Okay, so who?\n</think>\n\nThimphu", "Thimphu"),
        ("Thimphu", "Thimphu"),
        ("", ""),
    ],
)
async def test_a_thought_that_has_ended_is_no_part_of_the_answer(
    content: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await ask(Scripted(thought(content)))).completions[0].text == text
    assert not caplog.messages


async def test_thoughts_that_the_prompt_asks_for_are_part_of_the_text() -> None:
    asked = replace(ASK, prompt=(("user", "Think between <think> and </think>."),))
    said = "<think>Who?</think> <search> capital"
    assert (await ask(Scripted(thought(said)), asked)).completions[0].text == said


async def test_a_refusal_is_final_and_quoted() -> None:
    app = Scripted(JSONResponse({"error": {"message": "prompt is too long"}}, 400))
    with pytest.raises(EngineFault, match="HTTP 400: prompt is too long"):
        await ask(app)
    assert len(app.bodies) == 1
    with pytest.raises(EngineFault, match="does the URL end in /v1"):
        await ask(Scripted(Response("nothing here", 404)))


async def test_the_key_is_sent_and_never_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("MY_KEY", "hush-hush")
    app = Scripted(Response("busy: hush-hush", 429), JSONResponse({"detail": "bad key hush-hush"}, 401))
    with pytest.raises(EngineFault, match="is the key in MY_KEY right") as caught:
        await ask(app, api_key_env="MY_KEY")
    assert app.headers[0]["authorization"] == "Bearer hush-hush"
    assert "hush-hush" not in str(caught.value) + caplog.text
    monkeypatch.delenv("MY_KEY")
    plain = Scripted(answer())
    await ask(plain, api_key_env="MY_KEY")
    assert "authorization" not in plain.headers[0]


def test_a_key_that_no_header_can_hold_is_refused_by_the_name_of_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "hush\nhush")
    with pytest.raises(UserError, match="MY_KEY") as refused:
        OpenAIEngine(["http://localhost:8000/v1"], "m", api_key_env="MY_KEY")
    assert "hush" not in str(refused.value)


async def test_a_key_with_a_line_break_behind_it_is_sent_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "hush-hush\n")
    app = Scripted(answer())
    await ask(app, api_key_env="MY_KEY")
    assert app.headers[0]["authorization"] == "Bearer hush-hush"


@pytest.mark.parametrize("status", [429, 302, 401, 200])
@pytest.mark.parametrize("before", [110, 490])
async def test_a_key_where_a_quotation_ends_is_hidden_before_the_cut(
    status: int, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "hush-" * 8)
    text = "x" * before + "hush-" * 8
    replies = [Response(text, status), JSONResponse({"error": {"message": text}}, status)]
    for reply in replies:
        with pytest.raises(EngineFault) as caught:
            await ask(Scripted(reply), api_key_env="MY_KEY", retries=0)
        assert "xxx" in str(caught.value) and "hush" not in str(caught.value)


async def test_a_failure_whose_text_repeats_the_key_is_told_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "hush-hush")

    async def repeat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nhush-hush\r\n\r\n")  # no header: the message of httpx quotes it
        await writer.drain()
        await reader.read()  # until the client has gone
        writer.close()

    server = await asyncio.start_server(repeat, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    engine = OpenAIEngine([url], "m", api_key_env="MY_KEY", retries=0)
    with pytest.raises(EngineFault, match=r"RemoteProtocolError .*\*\*\*.*after 1 tries") as caught:
        await engine.generate([ASK])
    assert "hush" not in str(caught.value)
    await engine.close()
    server.close()


async def test_an_answer_that_cannot_be_decoded_is_a_fault_of_the_engine() -> None:
    app = Scripted(Response(b"no gzip", headers={"content-encoding": "gzip"}))
    with pytest.raises(EngineFault, match=r"http://127.0.0.1:\d+/v1/chat/completions: DecodingError"):
        await ask(app)
    assert len(app.bodies) == 1, "the same server would answer the same"


CHOICE = {"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (HTMLResponse("<html>" + "log in " * 50), "<html>log in"),
        (Response('{"choices": [', media_type="application/json"), "choices"),
        (Response(b"\xff\xfe\x00", media_type="application/json"), "usable"),
        (JSONResponse([1]), r"\[1\]"),
        (JSONResponse({"choices": []}), "0 choices where 1"),
        (JSONResponse({"choices": [CHOICE, CHOICE | {"index": 1}]}), "2 choices where 1"),
        (JSONResponse({"model": "m"}), "choices"),
        (JSONResponse({"choices": [CHOICE]}), "usage"),
        (answer(choices=[CHOICE | {"message": {"content": ["x"]}}]), r"the text is \['x'\]"),
        (answer(choices=[CHOICE | {"finish_reason": None}]), "ended with None"),
        (answer(choices=[CHOICE | {"finish_reason": "content_filter"}]), "content_filter"),
        (answer(choices=[CHOICE | {"token_ids": [1, 2], "logprobs": {"content": [{"logprob": -1}]}}]), "2 token ids"),
        (Response("", 302, headers={"location": "http://elsewhere.invalid"}), "HTTP 302"),
    ],
)
async def test_garbage_is_a_fault_that_quotes_it(reply: Response, said: str) -> None:
    app = Scripted(reply)
    with pytest.raises(EngineFault, match=said) as caught:
        await ask(app)
    assert "http://127.0.0.1" in str(caught.value)
    assert len(str(caught.value)) < 500
    assert len(app.bodies) == 1, "the same question would get the same answer"


@pytest.mark.parametrize(
    "reply",
    [
        JSONResponse({"error": {"code": "content_filter", "message": "no", "type": None}}, 400),
        JSONResponse({"error": {"type": "content_policy_violation", "message": "no"}}, 403),
        answer(choices=[CHOICE | {"finish_reason": "content_filter", "message": {"content": None}}]),
        thought(None, refusal="I cannot help with that."),
    ],
)
async def test_what_a_filter_or_the_model_refuses_is_told_apart_and_not_asked_again(
    reply: Response, caplog: pytest.LogCaptureFixture
) -> None:
    app = Scripted(reply)
    with pytest.raises(Refused, match=r"http://127\.0\.0\.1"):
        await ask(app)
    assert len(app.bodies) == 1 and not caplog.messages  # of a model that thinks


@pytest.mark.parametrize(
    "error", [{"code": "invalid_request", "message": "content_filter"}, "content_filter", [], None]
)
async def test_a_refusal_that_has_no_filters_code_is_any_fault(error: Any) -> None:
    with pytest.raises(EngineFault) as caught:
        await ask(Scripted(JSONResponse({"error": error}, 400)))
    assert not isinstance(caught.value, Refused)


async def test_a_server_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}/v1"
    with pytest.raises(EngineFault, match=r"ConnectError.*after 2 tries"):
        await OpenAIEngine([url], "m", retries=1).generate([ASK])


async def test_a_server_that_is_too_slow() -> None:
    with pytest.raises(EngineFault, match="ReadTimeout"):
        await ask(Scripted(1.0), read_timeout_s=0.1, retries=0)


async def test_a_server_that_drips_for_ever() -> None:
    """Each byte is in time, the answer never is."""

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        try:
            for _ in range(100):
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.02)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    engine = OpenAIEngine([url], "m", connect_timeout_s=0.1, read_timeout_s=0.2, retries=0)
    with pytest.raises(EngineFault, match="ReadTimeout no whole answer"):
        await engine.generate([ASK])
    await engine.close()
    server.close()


async def test_requests_go_round_the_servers_and_past_a_broken_one() -> None:
    good, broken = Scripted(answer()), Scripted(Response("", 502))
    with serving(good) as first, serving(broken) as second:
        engine = OpenAIEngine([first, second], "m", structured="none")
        results = await engine.generate([ASK] * 6)
        await engine.close()
    assert [r.completions[0].text for r in results] == ["Hello!"] * 6
    assert len(good.bodies) == 6
    assert len(broken.bodies) >= 3


async def test_no_more_than_so_many_requests_at_once() -> None:
    now, most = 0, 0
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def slow() -> Response:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.02)
        now -= 1
        return answer()

    with serving(app) as url:
        engine = OpenAIEngine([url], "m", concurrency=3, structured="none")
        assert len(await engine.generate([ASK] * 12)) == 12
        await engine.close()
    assert most == 3


async def test_callers_that_leave_leave_the_connections_to_others() -> None:
    slow = Scripted(0.5)  # all that have left would take 150 s
    with serving(slow) as url:
        engine = OpenAIEngine([url], "m", concurrency=2, retries=0, structured="none")

        async def leave(number: int) -> None:
            asked = asyncio.ensure_future(engine.generate([ASK]))
            await asyncio.sleep(0.001 * (number % 100))  # while it waits, connects, sends or reads
            for _ in range(2):  # as an endpoint does: its client has gone, and its own deadline is over
                asked.cancel()
                await asyncio.sleep(0)
            await asyncio.gather(asked, return_exceptions=True)

        for _ in range(3):
            await asyncio.gather(*map(leave, range(200)))
        async with asyncio.timeout(60):
            (result,) = await engine.generate([ASK])
        await engine.close()
    assert result.completions[0].text == "late"


def test_settings_are_checked() -> None:
    with pytest.raises(UserError, match="no URL"):
        OpenAIEngine([], "m")
    with pytest.raises(UserError, match="localhost:8000"):
        OpenAIEngine(["localhost:8000"], "m")
    with pytest.raises(UserError, match="no model"):
        OpenAIEngine(["http://localhost:8000/v1"], "")


def test_the_fingerprint_names_servers_and_model_and_what_they_run() -> None:
    engine = OpenAIEngine(["http://b/v1", "http://a/v1"], "m", identity="r1")
    assert engine.fingerprint == "m@http://a/v1,http://b/v1#r1"


def test_the_fingerprint_names_how_a_grammar_is_sent_but_for_the_default() -> None:
    def named(**settings: Any) -> str:
        return OpenAIEngine(["http://a/v1"], "m", identity="r1", **settings).fingerprint

    assert named() == named(structured="vllm") == "m@http://a/v1#r1"  # as it was: answers of before stay
    assert named(structured="none") == "m@http://a/v1#r1/none"
    assert named(structured="response_format") == "m@http://a/v1#r1/response_format"


def test_the_fingerprint_names_the_fields_of_the_settings_in_any_order() -> None:
    def named(**body: Any) -> str:
        return OpenAIEngine(["http://a/v1"], "m", identity="r1", body=body).fingerprint

    assert named() == "m@http://a/v1#r1"
    assert named(a=1, b=None) == named(b=None, a=1) != named(a=1)


@pytest.mark.parametrize(
    ("fingerprint", "name"),
    [("org/m@x@http://a/v1,http://b/v1#r1/none", "org/m@x"), ("m@https://a/v1#", "m"), ("sha256:0a1b", ""), ("", "")],
)
def test_the_name_of_a_served_model_is_read_out_of_its_fingerprint(fingerprint: str, name: str) -> None:
    assert openai.served_name(fingerprint) == name

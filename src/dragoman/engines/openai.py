"""Any server that speaks OpenAI's protocol: vLLM, SGLang, llama.cpp, or a vendor."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import httpx

from dragoman.core.errors import CannotExpress, EngineFault, PromptTooLong, Refused, UserError
from dragoman.core.http import PASSING_STATUS, WholeAnswers, hidden, key_in, retrying, url_fault
from dragoman.engines.base import CannotAverage, CannotScore, Request, Result
from dragoman.engines.local import seed_of
from dragoman.engines.openai_answers import completion_of, cut, is_filtered, joined, refusal_of, result_of, text_of
from dragoman.engines.openai_refusals import (
    LIMIT,
    Concession,
    conceded,
    hint_of,
    is_too_long,
    said_in,
    wants_one_choice,
)

logger = logging.getLogger(__name__)

Structured = Literal["vllm", "response_format", "none"]

_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 60.0
CHECK_S = 5.0
"""How long it holds that a server runs what it ran, on the connections that it has."""
_EXCERPT = 120


class _Servers(WholeAnswers):
    """Sends each try to the next of several equal servers.

    Args:
        urls: where the paths of the protocol begin.
        concurrency: tries under way at once. One that waits to be repeated is none of them.
        patience: see `WholeAnswers`.
        check: raises EngineFault where the server of a URL is not what it was; None to trust it. An answer counts once it
            has been asked on the connections that there are, and no longer than `CHECK_S` ago.
    """

    def __init__(
        self, urls: Iterator[str], concurrency: int, patience: float, check: Callable[[str], None] | None
    ) -> None:
        super().__init__(patience, concurrency)
        self._urls = urls
        self._slots = asyncio.Semaphore(concurrency)
        self._check = check
        self._checking = asyncio.Lock()
        self._connected: dict[str, float] = {}  # when, by URL
        self._checked: dict[str, float] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        async with self._slots:
            url = request.extensions["server"] = next(self._urls)
            request.url = httpx.URL(url + request.extensions["path"])
            request.headers["host"] = request.url.netloc.decode()
            return await super().handle_async_request(request)

    async def _whole(self, request: httpx.Request) -> httpx.Response:
        url = request.extensions["server"]

        async def trace(event: str, _: Any) -> None:
            if event == "connection.connect_tcp.complete":
                self._connected[url] = time.monotonic()  # to another process, perhaps

        request.extensions["trace"] = trace
        response = await super()._whole(request)
        if self._check is not None and response.status_code == 200:
            async with self._checking:
                now = time.monotonic()
                if self._checked.get(url, -math.inf) < max(self._connected.get(url, -math.inf), now - CHECK_S):
                    await asyncio.to_thread(self._check, url)
                    self._checked[url] = now
        return response


class OpenAIEngine:
    """Sends each request to the next of several equal servers.

    Completions are cut here, too, at the first of the request's stop strings: some servers leave it in the text. What a server
    does not draw at once is asked for one by one.

    Args:
        urls: where the protocol's paths begin, as OpenAI's own client has it: "http://localhost:8000/v1".
        model: the name that the servers know the model by.
        identity: names what they run under that name (see `served.py`).
        check: raises EngineFault where a server runs something else by now. It is asked in a thread, before an answer counts.
        api_key_env: the environment variable with the key; no key is sent where it is unset.
        concurrency: requests under way at once, over all URLs.
        connect_timeout_s: seconds.
        read_timeout_s: seconds that the whole answer may take.
        retries: further tries, each at the next URL, after transport errors, 408, 429 and 5xx.
        structured: what the servers understand beyond the common protocol.
            "vllm": grammars of both kinds by `structured_outputs`, token ids and log-probabilities. They are those of the
            distribution that was sampled from where the server runs with `--logprobs-mode processed_logprobs`.
            "response_format": JSON schemas alone, as vendors have them; a regular expression is a fault.
            "none": grammars are not sent, and completions may break them.
            Token ids and log-probabilities come with "vllm" alone: without the ids a log-probability cannot be placed.
        body: fields that each request has too, in the place of its own. One that is None is left out.

    Raises:
        UserError: no URL, or one that is not http(s) or holds a secret, or no model, or a key that no header can hold.
    """

    def __init__(
        self,
        urls: Sequence[str],
        model: str,
        *,
        identity: str = "",
        check: Callable[[str], None] | None = None,
        api_key_env: str = "DRAGOMAN_API_KEY",
        concurrency: int = 32,
        connect_timeout_s: float = 10.0,
        read_timeout_s: float = 300.0,
        retries: int = 4,
        structured: Structured = "vllm",
        body: Mapping[str, Any] = {},
    ) -> None:
        if not urls:
            raise UserError("engine openai: no URL; give at least one, such as http://localhost:8000/v1")
        for url in urls:
            if fault := url_fault(url):
                raise UserError(f"engine openai: {fault}")
        if not model:
            raise UserError(f"engine openai: no model; give the name that {urls[0]} serves it by")
        self.fingerprint = f"{model}@{','.join(sorted(urls))}#{identity}"
        if structured != "vllm":  # what ignores a grammar answers otherwise; under the default no name changes
            self.fingerprint += f"/{structured}"
        if body:  # the same, of what another body is answered
            self.fingerprint += f"/{json.dumps(dict(body), sort_keys=True)}"
        self._urls = [url.rstrip("/") for url in urls]
        self._next_url = itertools.cycle(self._urls)
        self._model = model
        self._check = check
        self._api_key_env = api_key_env
        self._key = key_in(api_key_env)
        self._concurrency = concurrency
        self._timeout = httpx.Timeout(read_timeout_s, connect=connect_timeout_s)
        self._patience = connect_timeout_s + read_timeout_s
        self._retries = retries
        self._structured = structured
        self._more = dict(body)
        self._concessions: list[Concession] = []
        self._one_choice = False
        self._warned = False
        self._client: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def generate(self, requests: Sequence[Request]) -> list[Result]:
        """Complete every request, in order; see `Engine.generate`."""
        if any(request.options for request in requests):
            raise CannotScore("openai")
        if any(request.beside for request in requests):
            raise CannotAverage("openai")
        self._connect()
        return await _together([self._complete(request) for request in requests])

    async def forget(self) -> None:
        """A server's cache is its own."""

    async def close(self) -> None:
        if self._client is not None and self._loop is asyncio.get_running_loop():
            await self._client.aclose()
        self._client = None

    def _connect(self) -> None:
        """Connections belong to an event loop; a process may run several, one after the other."""
        loop = asyncio.get_running_loop()
        if self._client is not None and self._loop is loop:
            return
        self._loop = loop
        servers = _Servers(self._next_url, self._concurrency, self._patience, self._check)
        waits = {"first_wait": _FIRST_WAIT_S, "longest_wait": _LONGEST_WAIT_S}
        self._client = httpx.AsyncClient(
            timeout=self._timeout,
            transport=retrying(servers, retries=self._retries, **waits),
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
        )

    async def _complete(self, request: Request) -> Result:
        """All completions of a request. From the first server on that draws fewer at once than it is asked for, all draw one."""
        if request.deterministic:
            result = await self._drawn(request)
            return replace(result, completions=result.completions * request.n)
        first = await self._drawn(request, count=1 if self._one_choice else request.n)
        there = len(first.completions)
        if there == request.n:
            return first
        self._one_choice = True
        return joined([first, *await _together([self._drawn(request, index) for index in range(there, request.n)])])

    async def _drawn(self, request: Request, index: int = 0, count: int = 1) -> Result:
        """Completions of a request from the `index`-th on: `count` of them, or fewer."""
        path, body = self._fields(request, index, count)
        body = {field: value for field, value in (body | self._more).items() if value is not None}
        for concession in self._concessions:
            body = concession.form(body)
        return self._result(request, count, await self._post(path, body))

    def _fields(self, request: Request, index: int, count: int) -> tuple[str, dict[str, Any]]:
        body: dict[str, Any] = {
            "model": self._model,
            LIMIT: request.max_tokens,
            "temperature": request.temperature,
            "top_p": 1,  # said aloud, because a server may take another default out of the model's folder
            "n": count,
        }
        if not request.deterministic:
            body["seed"] = seed_of(request, index) >> 31  # servers keep 32 bits, some of them signed
        if request.stop:
            body["stop"] = list(request.stop)
        if self._structured == "vllm":
            body |= {"top_k": 0, "min_p": 0, "repetition_penalty": 1, "return_token_ids": True}
        if request.special:
            if self._structured != "vllm":
                raise CannotExpress(
                    "the protocol leaves special tokens out of texts; set the engine's `structured` to vllm where the "
                    "server is vLLM"
                )
            body["skip_special_tokens"] = False
        body |= self._grammar(request)
        messages = request.messages
        if messages is None:
            return "/completions", body | {"prompt": list(request.prompt)} | self._logprobs(0)
        if request.goes_on:
            if self._structured != "vllm":
                raise CannotExpress(
                    "the protocol cannot go on with a message of the assistant; set the engine's `structured` to vllm "
                    "where the server is vLLM"
                )
            body |= {"add_generation_prompt": False, "continue_final_message": True}
        if request.alternatives and self._structured == "vllm":
            body["top_logprobs"] = request.alternatives
        return "/chat/completions", body | {"messages": messages} | self._logprobs(True)

    def _logprobs(self, of_the_sampled_token: bool | int) -> dict[str, Any]:
        return {"logprobs": of_the_sampled_token} if self._structured == "vllm" else {}

    def _grammar(self, request: Request) -> dict[str, Any]:
        grammar = request.grammar
        if grammar is None or self._structured == "none":
            return {}
        if self._structured == "vllm":
            if grammar.regex is not None:
                return {"structured_outputs": {"regex": grammar.regex}}
            return {"structured_outputs": {"json": json.loads(grammar.json_schema or "")}}
        if grammar.regex is not None:
            raise CannotExpress(
                "response_format cannot express a regular expression; set the engine's `structured` to vllm where the "
                "server is vLLM, or to none"
            )
        schema = {"name": "completion", "strict": True, "schema": json.loads(grammar.json_schema or "")}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}

    async def _post(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        """The answer of whichever server gives one. A form that a refusal asks for is that of all requests from then on.

        Raises:
            EngineFault: no server answered, or one refused.
            Refused: a filter of the server's did.
        """
        assert self._client is not None
        tries = f"after {self._retries + 1} tries"
        try:
            response = await self._client.post(self._urls[0] + path, json=body, extensions={"path": path})
        except httpx.TransportError as e:
            raise EngineFault(f"{self._failure(e)}, {tries}") from None  # its own text may repeat the key
        except httpx.DecodingError as e:  # which is not asked for again
            raise EngineFault(self._failure(e)) from None
        url, status = response.url, response.status_code
        if status in PASSING_STATUS:
            raise EngineFault(f"{url}: HTTP {status} {self._excerpt(response)}, {tries}")
        if status >= 400:
            if concession := conceded(response, body):
                if concession not in self._concessions:  # else another request has met it at the same time
                    self._concessions.append(concession)
                return await self._post(path, concession.form(body))
            if wants_one_choice(response, body):
                self._one_choice = True
                return await self._post(path, {**body, "n": 1})
            kind = PromptTooLong if is_too_long(response) else EngineFault
            if is_filtered(response):
                kind = Refused
            said = said_in(response) or self._excerpt(response)
            hint = hint_of(status, said, body, self._structured, self._api_key_env) if kind is EngineFault else ""
            raise kind(f"{url}: HTTP {status}: {hidden(said, self._key)[:500]}{hint}")
        if status != 200:
            raise EngineFault(f"{url}: HTTP {status} is no answer; it began with {self._excerpt(response)}")
        return response

    def _failure(self, error: httpx.RequestError) -> str:
        return f"{error.request.url}: {type(error).__name__} {hidden(str(error), self._key)}".rstrip()

    def _excerpt(self, response: httpx.Response) -> str:
        return repr(hidden(response.text, self._key)[:_EXCERPT])

    def _result(self, request: Request, asked: int, response: httpx.Response) -> Result:
        try:
            row = response.json()
            choices = sorted(row["choices"], key=lambda choice: choice["index"])
            if not 1 <= len(choices) <= asked:
                raise ValueError(f"{len(choices)} choices where {asked} were asked for")
            if any(choice["finish_reason"] == "content_filter" for choice in choices):
                raise Refused(f"{response.url}: a filter of the server's has ended the completion (content_filter)")
            if refusal := next(filter(None, map(refusal_of, choices)), ""):
                raise Refused(f"{response.url}: the model refuses: {hidden(refusal, self._key)[:_EXCERPT]}")
            texts = [text_of(choice, request) for choice in choices]
            if None in texts:
                self._warn_of_thought(response.url)
            completions = tuple(completion_of(choice, text or "") for choice, text in zip(choices, texts, strict=True))
            completions = tuple(cut(completion, request.stop) for completion in completions)
            return result_of(request, row, choices, completions, self._model)
        except (KeyError, TypeError, AttributeError, ValueError) as e:  # ValueError: not JSON, too
            raise EngineFault(
                f"{response.url}: HTTP {response.status_code}, but not a usable completion "
                f"({hidden(repr(e), self._key)}); it began with {self._excerpt(response)}"
            ) from None

    def _warn_of_thought(self, url: httpx.URL) -> None:
        """Once, however many answers it befalls."""
        if not self._warned:
            self._warned = True
            logger.warning(
                "%s: an answer came without content, and counts as empty: the model %s thinks. Switch thinking off (for vLLM "
                "and SGLang `body: {chat_template_kwargs: {enable_thinking: false}}` beside `urls`), or give it room: "
                "`one_line_answers: false` there, and more tokens for an answer",
                url,
                self._model,
            )


async def _together(works: Sequence[Coroutine[Any, Any, Result]]) -> list[Result]:
    """What all of them return, in order."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()  # after a fault: the others have nobody to go to


def served_name(fingerprint: str) -> str:
    """The name by which servers know the model, out of the fingerprint of such an engine; empty where it is of another one."""
    name, behind, _ = fingerprint.partition("@http")
    return name if behind else ""

"""What a server that speaks OpenAI's protocol refuses, read out of its own words, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

LIMIT, NEWER_LIMIT = "max_tokens", "max_completion_tokens"
_TOO_LONG = re.compile(
    r"context[ _](?:length|size|window)|exceeds? the context|prompt is too long|too many tokens", re.I
)
"""What servers say of a prompt that is: OpenAI and vLLM (context length), llama.cpp (context size), others."""
_WANTS_NEWER_LIMIT = re.compile(rf"use ['\"`]?{NEWER_LIMIT}", re.I)
"""What OpenAI and Azure say of `max_tokens` to newer models. vLLM names both where a prompt is too long, and wants neither."""
_NO_SYSTEM = re.compile(r"system role|only user and assistant roles|roles must alternate", re.I)
"""What the chat templates of Gemma and of older models of Mistral's say of a system message."""
_LENGTHS = ("minLength", "maxLength", "minItems", "maxItems")
"""Keywords of JSON schemas that OpenAI's strict ones have not all had, nor those of others. What is written is checked again."""
_NAMES_N = re.compile(r"['`]n['`]|\"n\"(?!\s*:)")
"""How servers name the field `n`: within their words, or as the refused one. As a key it is part of a request they repeat."""
_OF_VLLM = frozenset(
    {
        "structured_outputs",
        "top_k",
        "min_p",
        "repetition_penalty",
        "return_token_ids",
        "skip_special_tokens",
        "add_generation_prompt",
        "continue_final_message",
        "logprobs",
        "top_logprobs",
    }
)
"""Fields that are sent with `structured: vllm` alone."""
_ANY_WORD = ("model", "messages", "prompt", "n")
"""Fields whose names may stand in a refusal of another one."""
_OF_FIELDS = (400, 422)


def is_too_long(response: httpx.Response) -> bool:
    """Whether the prompt is what is refused, for its length."""
    return response.status_code in (*_OF_FIELDS, 413) and bool(_TOO_LONG.search(response.text))


def wants_one_choice(response: httpx.Response, body: Mapping[str, Any]) -> bool:
    """Whether several completions were asked for, and that is what is refused."""
    return body.get("n", 1) > 1 and response.status_code in _OF_FIELDS and bool(_NAMES_N.search(response.text))


@dataclass(frozen=True)
class Concession:
    """What another form of a request would mend, where a server says so. From then on it gets all requests in that form."""

    wanted: Callable[[httpx.Response, Mapping[str, Any]], bool]
    """Whether the refusal of a body asks for it."""
    form: Callable[[Mapping[str, Any]], dict[str, Any]]
    """The body in that form; one that is in it stays as it is."""


def _wants_newer_limit(response: httpx.Response, body: Mapping[str, Any]) -> bool:
    return bool(_WANTS_NEWER_LIMIT.search(response.text))


def _wants_no_system(response: httpx.Response, body: Mapping[str, Any]) -> bool:
    return response.status_code in _OF_FIELDS and bool(_NO_SYSTEM.search(response.text))


def _wants_no_lengths(response: httpx.Response, body: Mapping[str, Any]) -> bool:
    return response.status_code in _OF_FIELDS and any(word in response.text for word in _LENGTHS)


def _with_newer_limit(body: Mapping[str, Any]) -> dict[str, Any]:
    """The bound on tokens under its newer name; a body that has both keeps that of the newer one."""
    bound = {NEWER_LIMIT: body[LIMIT]} if LIMIT in body else {}
    return bound | {field: value for field, value in body.items() if field != LIMIT}


def _without_system(body: Mapping[str, Any]) -> dict[str, Any]:
    """What the system message says at the head of the user's first."""
    messages: Sequence[Mapping[str, Any]] = body.get("messages") or ()
    if len(messages) < 2 or (messages[0]["role"], messages[1]["role"]) != ("system", "user"):
        return dict(body)
    first = {**messages[1], "content": f"{messages[0]['content']}\n\n{messages[1]['content']}"}
    return {**body, "messages": [first, *messages[2:]]}


def _without_lengths(body: Mapping[str, Any]) -> dict[str, Any]:
    """A `response_format` whose schema bounds neither texts nor lists."""
    if "response_format" not in body:
        return dict(body)
    return {**body, "response_format": _unbounded(body["response_format"])}


def _unbounded(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_unbounded(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    # a key with a number: a property of that name has a schema
    kept = {key: value for key, value in schema.items() if key not in _LENGTHS or not isinstance(value, int)}
    return {key: _unbounded(value) for key, value in kept.items()}


CONCESSIONS = (
    Concession(_wants_newer_limit, _with_newer_limit),
    Concession(_wants_no_system, _without_system),
    Concession(_wants_no_lengths, _without_lengths),
)


def conceded(response: httpx.Response, body: Mapping[str, Any]) -> Concession | None:
    """What a refusal asks for, and the refused body has not granted yet."""
    return next((one for one in CONCESSIONS if one.wanted(response, body) and one.form(body) != body), None)


def said_in(response: httpx.Response) -> str | None:
    """The server's own words about a refusal, with the field that it names apart; None where it is no JSON."""
    try:
        said = response.json()
    except ValueError:
        return None
    said = said.get("error", said.get("detail", said)) if isinstance(said, dict) else said
    if not isinstance(said, dict):
        return str(said)
    text, field = str(said.get("message", said)), str(said.get("param") or "")
    return text if field in text else f"{text} ({field})"


def hint_of(status: int, said: str, body: Mapping[str, Any], structured: str, key_env: str) -> str:
    """What to do about a refusal, where we know it.

    Args:
        body: what was asked for.
        structured, key_env: settings of the engine.
    """
    if status in _OF_FIELDS:
        refused = [f for f in body if f not in _ANY_WORD and re.search(rf"\b{re.escape(f)}\b", said)]
        if structured == "vllm" and (not refused or _OF_VLLM & {*refused}):
            names = ", ".join(f"`{field}`" for field in refused if field in _OF_VLLM)
            what = f"{names}, which only vLLM knows" if names else "a field that only vLLM knows"
            return f" (does the server refuse {what}? Set `structured` to response_format, or to none)"
        if structured in refused:
            return " (does the server know no `response_format`? Set `structured` to none)"
        left_out = ", ".join(f"{field}: null" for field in refused)
        return f" (does the server refuse a field? Leave it out: `body: {{{left_out}}}`)" if refused else ""
    return {
        401: f" (is the key in {key_env} right?)",
        403: f" (is the key in {key_env} right?)",
        404: " (does the URL end in /v1, and is the model's name right?)",
    }.get(status, "")

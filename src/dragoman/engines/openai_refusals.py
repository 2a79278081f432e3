"""What a server that speaks OpenAI's protocol refuses, read out of its own words, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import httpx

LIMIT, NEWER_LIMIT = "max_tokens", "max_completion_tokens"
_TOO_LONG = re.compile(
    r"context[ _](?:length|size|window)|exceeds? the context|prompt is too long|too many tokens", re.I
)
"""What servers say of a prompt that is: OpenAI and vLLM (context length), llama.cpp (context size), others."""
_WANTS_NEWER_LIMIT = re.compile(rf"use ['\"`]?{NEWER_LIMIT}", re.I)
"""What OpenAI and Azure say of `max_tokens` to newer models. vLLM names both where a prompt is too long, and wants neither."""
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


def wants_newer_limit(response: httpx.Response, body: Mapping[str, Any]) -> bool:
    """Whether the bound on tokens was sent under a name that the model no longer takes."""
    return LIMIT in body and bool(_WANTS_NEWER_LIMIT.search(response.text))


def wants_one_choice(response: httpx.Response, body: Mapping[str, Any]) -> bool:
    """Whether several completions were asked for, and that is what is refused."""
    return body.get("n", 1) > 1 and response.status_code in _OF_FIELDS and bool(_NAMES_N.search(response.text))


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

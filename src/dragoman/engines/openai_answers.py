"""What an answer by OpenAI's protocol says: its text without thoughts, its tokens, and refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import httpx

from dragoman.engines.base import Completion, Request, Result

_FILTERED = ("content_filter", "content_policy_violation", "data_inspection_failed")
"""What vendors call it when a filter of theirs has refused a prompt: Azure, OpenAI and LiteLLM, Alibaba."""
_THOUGHT, _THOUGHT_END = "<think>", "</think>"
_ENDED = frozenset({"stop", "tool_calls", "function_call", "eos", "eos_token", "stop_sequence", "end_turn"})
"""What servers call it when the model has ended: OpenAI, Together AI (eos), TGI and watsonx, gateways to Anthropic (end_turn)."""


def is_filtered(response: httpx.Response) -> bool:
    """Whether an error is the refusal of a filter, as its code says."""
    try:
        error = response.json()["error"]
        return error.get("code") in _FILTERED or error.get("type") in _FILTERED
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def refusal_of(choice: Mapping[str, Any]) -> str:
    """What OpenAI's models say in the place of a content that they will not write; empty where there is one."""
    message = choice.get("message", {})
    return str(message.get("refusal") or "") if message.get("content") is None else ""


def text_of(choice: Mapping[str, Any], request: Request) -> str | None:
    """What a completion says, without what the model thought before; None where it has only thought.

    Where the prompt itself speaks of such thoughts, as that of Search-R1, they are part of what is asked for.
    """
    if "message" not in choice:
        text = choice["text"]
        if not isinstance(text, str):
            raise TypeError(f"the text is {text!r}")
        return text
    message = choice["message"]
    text = message.get("content")
    if text is None:  # which a call of a tool leaves out, too
        return None
    if not isinstance(text, str):
        raise TypeError(f"the text is {text!r}")
    if any("think>" in said["content"] for said in request.messages or ()):
        return text
    _, ended, rest = text.partition(_THOUGHT_END)
    if ended:  # some templates have the model begin within its thought
        return rest.lstrip() or None
    if text.lstrip().startswith(_THOUGHT) or (
        not text and (message.get("reasoning") or message.get("reasoning_content"))
    ):
        return None
    return text


def completion_of(choice: Mapping[str, Any], text: str) -> Completion:
    reason = choice["finish_reason"]
    if reason in _ENDED:
        reason = "stop"
    elif reason != "length":
        raise ValueError(f"the completion ended with {reason!r}")
    token_ids = tuple(choice.get("token_ids") or ())
    reported = choice.get("logprobs") or {}
    logprobs = reported.get("token_logprobs") or [token["logprob"] for token in reported.get("content") or ()]
    if token_ids and len(token_ids) != len(logprobs):
        raise ValueError(f"{len(token_ids)} token ids, but {len(logprobs)} log-probabilities")
    places = [token.get("top_logprobs") or () for token in reported.get("content") or ()]
    alternatives = tuple(tuple((one["token"], one["logprob"]) for one in place) for place in places)
    certain = tuple(min(p, 0.0) for p in logprobs) if token_ids else ()
    return Completion(text, token_ids, certain, reason, alternatives if any(alternatives) else ())


def cut(completion: Completion, stops: Sequence[str]) -> Completion:
    """The completion up to the first of the stop strings."""
    ends = [at for stop in stops if (at := completion.text.find(stop)) >= 0]
    return replace(completion, text=completion.text[: min(ends)], finish_reason="stop") if ends else completion


def joined(results: Sequence[Result]) -> Result:
    """One result of the completions of several, which were asked for one by one, and of all their tokens."""
    return replace(
        results[0],
        completions=tuple(completion for result in results for completion in result.completions),
        prompt_tokens=sum(result.prompt_tokens for result in results),
        completion_tokens=sum(result.completion_tokens for result in results),
        cached_tokens=sum(result.cached_tokens for result in results),
    )


def result_of(
    request: Request, row: Mapping[str, Any], choices: Sequence[Any], completions: tuple[Completion, ...], model: str
) -> Result:
    """The completions with the tokens that the server counted. `model` is its name where the server gives none."""
    given: Any = request.prompt if request.messages is None else ()
    reported = row.get("prompt_token_ids") or choices[0].get("prompt_token_ids") or given
    usage = row["usage"]
    result = Result(
        prompt_ids=tuple(reported),
        completions=completions,
        prompt_tokens=int(usage["prompt_tokens"]),
        completion_tokens=int(usage["completion_tokens"]),
        model=row.get("model") or model,
    )
    details = usage.get("prompt_tokens_details") or {}
    return replace(result, cached_tokens=int(details.get("cached_tokens") or 0))

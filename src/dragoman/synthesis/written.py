"""Writes questions with a language model, any engine, which is held to a JSON schema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dragoman.engines.base import Completion, Engine, Grammar, Request
from dragoman.synthesis.brief import Brief, Draft, Rejected, Writer, digest
from dragoman.synthesis.plan import Plan
from dragoman.systems.prompts import load, number

LONGEST = {"answer": 100, "first_turn": 200, "question": 300, "reply": 400}
"""Characters, in the order in which a model writes them: it fixes on an answer before it asks for it."""
TOKENS = 400


class EngineWriter:
    """A `Writer` that asks an engine for each candidate."""

    def __init__(self, engine: Engine, plan: Plan, *, temperature: float, passage_words: int) -> None:
        self.engine, self.plan, self.temperature, self.passage_words = engine, plan, temperature, passage_words
        self.prompt = load(__package__, "write")
        self.fingerprint = f"engine {engine.fingerprint} {temperature} {passage_words} {digest(self.prompt, plan)}"

    async def write(self, brief: Brief, candidates: int) -> Sequence[Draft | Rejected]:
        two_turns = brief.categories.get("interaction_type") == "two-turn"
        many = len(brief.passages) > 1
        state = {
            "passages": number(brief.passages, self.passage_words),
            "documents": "documents" if many else "document",
            "them": "them" if many else "it",
            "wishes": "\n".join(f"- {wish}" for wish in self.plan.describe(dict(brief.categories))),
            "opening": '"first_turn", what the user said before; ' if two_turns else "",
        }
        request = Request(
            self.prompt.messages(state),
            max_tokens=TOKENS,
            n=candidates,
            temperature=self.temperature,
            grammar=Grammar(json_schema=json.dumps(schema(len(brief.passages), two_turns))),
            seed=brief.rng("engine").randrange(2**31),
        )
        (result,) = await self.engine.generate([request])
        return [_read(completion, brief) for completion in result.completions]


class MixedWriter:
    """Leaves the first attempts at a question to one writer, and what is still wanted then to another."""

    def __init__(self, first: Writer, attempts: int, then: Writer) -> None:
        self.first, self.attempts, self.then = first, attempts, then
        self.fingerprint = f"{attempts} x {first.fingerprint}, then {then.fingerprint}"

    async def write(self, brief: Brief, candidates: int) -> Sequence[Draft | Rejected]:
        writer = self.first if brief.attempt < self.attempts else self.then
        return await writer.write(brief, candidates)


def schema(passages: int, two_turns: bool) -> dict[str, Any]:
    """The JSON schema of what a model writes about so many passages."""
    numbers = {"type": "integer", "enum": list(range(1, passages + 1))}
    properties: dict[str, Any] = {
        "documents": {"type": "array", "items": numbers, "minItems": 1, "maxItems": passages},
    }
    for name, longest in LONGEST.items():
        if two_turns or name != "first_turn":
            properties[name] = {"type": "string", "minLength": 1, "maxLength": longest}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _read(completion: Completion, brief: Brief) -> Draft | Rejected:
    """What a model wrote. Servers differ in how well they hold to a schema, so everything is checked again."""
    if completion.finish_reason == "length":
        return Rejected("not parsed", f"longer than {TOKENS} tokens: {completion.text[:80]}")
    try:
        row = json.loads(completion.text)
        question, answer, reply = (_text(row, name) for name in ("question", "answer", "reply"))
        opening = _text(row, "first_turn") if brief.categories.get("interaction_type") == "two-turn" else ""
        numbers = sorted(set(row["documents"]))
        ids = tuple(brief.passages[n - 1].id for n in numbers if _in_range(n, len(brief.passages)))
        if not ids or len(ids) < len(numbers):
            raise ValueError(f"documents {row['documents']}")
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        return Rejected("not parsed", f"{type(e).__name__}: {e}"[:200])
    if len(brief.passages) > len(ids):
        return Rejected("not of both documents", question)
    return Draft(
        question=f"{opening} {question}".strip(),
        answers=(answer,),
        reference=reply,
        nuggets=(answer,),
        supporting_ids=ids,
        turns=(opening, question) if opening else (),
        writer="engine",
    )


def _text(row: dict[str, Any], name: str) -> str:
    value = row[name]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} {value!r}")
    value.encode("utf-8")  # JSON can spell half of a surrogate pair, which no file can hold
    return " ".join(value.split())


def _in_range(number: Any, count: int) -> bool:
    return type(number) is int and 1 <= number <= count

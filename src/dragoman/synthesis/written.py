"""Writes questions with a language model, any engine, which is held to a JSON schema."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dragoman.core.journal import digest
from dragoman.core.text import clip, has, unfenced
from dragoman.core.types import Passage
from dragoman.engines.base import Completion, Constraint, Engine, Request
from dragoman.synthesis.brief import NOT_PARSED, NOTHING_TO_ASK, Brief, Draft, Rejected, Writer
from dragoman.synthesis.facts import mentions, spans
from dragoman.synthesis.filters import YES_OR_NO
from dragoman.synthesis.plan import Plan
from dragoman.systems.prompts import load, number

LONGEST = {"answer": 100, "first_turn": 200, "question": 300, "reply": 400}
"""Characters, in the order in which a model writes them: it fixes on an answer before it asks for it."""
TOKENS = 400
MOST_PARTS = 4
"""Things that one question asks for."""


class EngineWriter:
    """A `Writer` that asks an engine for each candidate.

    With `spans`, the schema leaves the model no answers but names, dates and numbers that its passages say, and the
    prompt has an example: a model of 135M parameters then writes questions that have an answer. Without, a model that
    can be trusted with it chooses the answer, and says of which documents it is.
    """

    def __init__(self, engine: Engine, plan: Plan, *, temperature: float, passage_words: int, spans: bool) -> None:
        self.engine, self.plan, self.temperature, self.passage_words = engine, plan, temperature, passage_words
        self.spans = spans
        self.prompt = load(__package__, "write")
        self.fingerprint = (
            f"engine {engine.fingerprint} {temperature} {passage_words} {spans} {digest(self.prompt, plan)}"
        )

    async def write(self, brief: Brief, candidates: int) -> Sequence[Draft | Rejected]:
        two_turns = brief.categories.get("interaction_type") == "two-turn"
        shown = [_cut(passage, self.passage_words) for passage in brief.passages]
        offered = _answers(brief, shown) if self.spans else []
        if self.spans and not offered:
            return [Rejected(NOTHING_TO_ASK, ", ".join(p.id for p in shown))]
        several = not self.spans and _asks_for_several(brief)
        slots = self._slots(len(shown), two_turns, offered, several=several)
        state = slots | {
            "passages": number(brief.passages, self.passage_words),
            "wishes": "\n".join(f"- {wish}" for wish in self.plan.describe(dict(brief.categories))),
        }
        prompt = replace(self.prompt, examples=(self._example(len(shown), two_turns, slots),))
        request = Request(
            prompt.messages(state, shots=int(self.spans)),
            max_tokens=TOKENS,
            n=candidates,
            temperature=self.temperature,
            grammar=Constraint(json_schema=json.dumps(schema(len(shown), two_turns, offered, several=several))),
            seed=brief.rng("engine").randrange(2**31),
        )
        (result,) = await self.engine.generate([request])
        return [_read(completion, brief, offered) for completion in result.completions]

    @staticmethod
    def _slots(count: int, two_turns: bool, offered: Sequence[str], *, several: bool) -> dict[str, str]:
        """What the prompt says of the form, in the example and in the task alike."""
        answer = "the few words of them that answer the question, exactly as they stand there"
        if several:
            answer = f"a list of {answer}: one entry for each thing that is asked for"
        if offered:
            answer = (
                "yes or no" if YES_OR_NO.issuperset(offered) else f"a name, a date or a number out of document {count}"
            )
        return {
            "documents": "documents" if count > 1 else "document",
            "them": "them" if count > 1 else "it",
            "named": "" if offered else '"documents", the numbers of the documents that hold the answer; ',
            "answer": answer,
            "opening": '"first_turn", what the user said before; ' if two_turns else "",
        }

    def _example(self, count: int, two_turns: bool, slots: dict[str, str]) -> dict[str, Any]:
        """An example with so many documents, in the form that is asked for."""
        example = self.prompt.examples[count - 1]
        written = json.loads(example["output"])
        if not two_turns:
            del written["first_turn"]
        return example | slots | {"output": json.dumps(written)}


class MixedWriter:
    """Leaves the first attempts at a question to one writer, and what is still wanted then to another."""

    def __init__(self, first: Writer, attempts: int, then: Writer) -> None:
        self.first, self.attempts, self.then = first, attempts, then
        self.fingerprint = f"{attempts} x {first.fingerprint}, then {then.fingerprint}"

    async def write(self, brief: Brief, candidates: int) -> Sequence[Draft | Rejected]:
        writer = self.first if brief.attempt < self.attempts else self.then
        return await writer.write(brief, candidates)


def schema(passages: int, two_turns: bool, offered: Sequence[str] = (), *, several: bool = False) -> dict[str, Any]:
    """The JSON schema of what a model writes about so many passages.

    With answers to choose among (`offered`) it does not say which documents they are of: that is known. A question for `several`
    things has a list of answers.
    """
    properties: dict[str, Any] = {}
    if not offered:
        numbers = {"type": "integer", "enum": list(range(1, passages + 1))}
        properties["documents"] = {"type": "array", "items": numbers, "minItems": 1, "maxItems": passages}
    for name, longest in LONGEST.items():
        if two_turns or name != "first_turn":
            properties[name] = {"type": "string", "minLength": 1, "maxLength": longest}
    if offered:
        properties["answer"] = {"type": "string", "enum": list(offered)}
    elif several:
        properties["answer"] = {
            "type": "array",
            "items": properties["answer"],
            "minItems": 1,
            "maxItems": MOST_PARTS,
        }
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _cut(passage: Passage, words: int) -> Passage:
    """What a model is shown of a passage."""
    return replace(passage, text=clip(passage.text, words, more=""))


def _answers(brief: Brief, shown: Sequence[Passage]) -> list[str]:
    """What may be answered: yes and no, or what the last passage says and no other does."""
    if brief.categories.get("question_intent") == "yes-no":
        return sorted(YES_OR_NO, reverse=True)
    *others, last = shown
    return [span for span in spans(last) if not any(has(f"{p.title} {p.text}", span) for p in others)]


def _read(completion: Completion, brief: Brief, offered: Sequence[str] = ()) -> Draft | Rejected:
    """What a model wrote. Servers differ in how well they hold to a schema, so everything is checked again."""
    if completion.finish_reason == "length":
        return Rejected(NOT_PARSED, f"longer than {TOKENS} tokens: {completion.text[:80]}")
    try:
        row = json.loads(unfenced(completion.text))
        question, reply = (_text(name, row[name]) for name in ("question", "reply"))
        listed = row["answer"] if isinstance(row["answer"], list) and _asks_for_several(brief) else [row["answer"]]
        said = tuple(dict.fromkeys(_text("answer", one) for one in listed[:MOST_PARTS]))
        answer = _text("answer", " and ".join(said))
        opening = (
            _text("first_turn", row["first_turn"]) if brief.categories.get("interaction_type") == "two-turn" else ""
        )
        numbers = range(1, len(brief.passages) + 1) if offered else sorted(set(row["documents"]))
        ids = tuple(brief.passages[n - 1].id for n in numbers if _in_range(n, len(brief.passages)))
        if not ids or len(ids) < len(numbers):
            raise ValueError(f"documents {row['documents']}")
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        return Rejected(NOT_PARSED, f"{type(e).__name__}: {e}; it wrote {completion.text[:80]!r}"[:200])
    whole = f"{opening} {question}".strip()
    if offered and answer not in offered:
        return Rejected("answer not offered", answer)
    if len(brief.passages) > len(ids) or (offered and not all(_named(whole, p) for p in brief.passages[:-1])):
        return Rejected("not of both documents", whole)
    return Draft(
        question=whole,
        answers=(answer,),
        reference=reply,
        # where one answer is all there is to several things, the judge takes the reference apart (mRAG, algorithm 3)
        nuggets=() if _about_several(brief) and len(said) < 2 else said,
        parts=tuple((one,) for one in said) if len(said) > 1 else (),
        supporting_ids=ids,
        turns=(opening, question) if opening else (),
        evidence=tuple(mentions(whole)) if answer.lower() == "yes" else (),  # what a no denies, no passage has to say
        writer="engine",
    )


def _about_several(brief: Brief) -> bool:
    wanted = brief.categories
    return len(brief.passages) > 1 or wanted.get("aspect_granularity") == "multiple aspects"


def _asks_for_several(brief: Brief) -> bool:
    return _about_several(brief) and brief.categories.get("question_intent") != "yes-no"


def _named(question: str, passage: Passage) -> bool:
    """Whether a question names what a passage is about, or a name, a date or a number that it says."""
    title = re.sub(r"\s*\(.*\)$", "", passage.title)  # "Mercury (planet)"
    return any(has(question, name) for name in (title, *spans(passage)) if name)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} {value!r}")
    value.encode("utf-8")  # JSON can spell half of a surrogate pair, which no file can hold
    return " ".join(value.split())


def _in_range(number: Any, count: int) -> bool:
    return type(number) is int and 1 <= number <= count

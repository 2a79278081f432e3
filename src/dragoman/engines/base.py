"""What runs a model: one protocol for vLLM, transformers and any OpenAI-compatible server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from dragoman.core.errors import UserError

Message = dict[str, str]  # {"role": "system" | "user" | "assistant", "content": ...}

Prompt = tuple[tuple[str, str], ...] | tuple[int, ...]

FinishReason = Literal["stop", "length"]

MOST_ALTERNATIVES = 20
"""Of a token: as many as vLLM and OpenAI report without being set up for more."""


class AnswerEnd(str):
    """A stop string at which an answer ends, unless the engine lets it go on: see `SeveralLines`. Otherwise as any other."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Constraint:
    """The set of texts that a completion may be: a regular expression that must match whole, or a JSON schema."""

    regex: str | None = None
    json_schema: str | None = None  # the schema as JSON text, so that a request can be hashed

    def __post_init__(self) -> None:
        if (self.regex is None) == (self.json_schema is None):
            raise ValueError("a grammar is either a regex or a JSON schema")


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and how to continue it.

    Sampling is pure: probabilities are those of the model at `temperature`, restricted to the grammar. There is no
    top-p or top-k, which would make the sampler's distribution differ from the one a trainer differentiates.
    `temperature` 0 is greedy. Equal requests with equal seeds give equal results on one engine.
    """

    prompt: Prompt
    """(role, content) pairs, or token ids. Where the last message is the assistant's, it is not over and is gone on with."""
    max_tokens: int
    n: int = 1
    temperature: float = 0.0
    stop: tuple[str, ...] = ()
    grammar: Constraint | None = None
    seed: int = 0
    options: tuple[str, ...] = ()
    """Score these instead of completing the prompt: see `marks.py`. What is said of sampling above does not matter then."""
    special: bool = False
    """Leave special tokens in the text, for weights that say with them what they do. The end is never there."""
    alternatives: int = 0
    """How many of the likeliest tokens to report at each place, `MOST_ALTERNATIVES` at most. Not every server does."""
    beside: tuple[Prompt, ...] = ()
    """Further prompts, which one completion goes on with alike: its tokens are of the average of all their distributions."""
    weights: tuple[float, ...] = ()
    """Of that average: one for `prompt`, and then one for each prompt beside it. They add up to 1."""

    def __post_init__(self) -> None:
        if self.beside and len(self.weights) != 1 + len(self.beside):
            raise ValueError(f"{1 + len(self.beside)} prompts need a weight each, and there are {len(self.weights)}")
        if not 0 <= self.alternatives <= MOST_ALTERNATIVES:
            raise ValueError(f"alternatives ({self.alternatives}) must be between 0 and {MOST_ALTERNATIVES}")

    @property
    def messages(self) -> list[Message] | None:
        """The prompt as chat messages, or None when it is token ids."""
        if self.prompt and isinstance(self.prompt[0], tuple):
            return [{"role": r, "content": c} for r, c in self.prompt]
        return None

    @property
    def goes_on(self) -> bool:
        """Whether the completion goes on with a message of the assistant that has begun."""
        last = self.prompt[-1] if self.prompt else ()
        return isinstance(last, tuple) and last[:1] == ("assistant",)

    @property
    def deterministic(self) -> bool:
        return self.temperature == 0


@dataclass(frozen=True, slots=True)
class Completion:
    """One continuation.

    `token_ids` are those the engine produced (end-of-sequence token included, when it produced one) and `logprobs`
    are of the distribution that was sampled from: natural log, under grammar and temperature (of 1 where the request's is 0),
    one per token. Both are empty when a remote server does not report them. `text` has neither special tokens (but see `Request.special`) nor the stop string.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    alternatives: tuple[tuple[tuple[str, float], ...], ...] = ()
    """At each place the likeliest tokens and their log-probabilities, where they were asked for and are reported."""


@dataclass(frozen=True, slots=True)
class Result:
    """The completions of one request, `n` of them, and what they cost."""

    prompt_ids: tuple[int, ...]  # of the first prompt, if there are several; empty where a server reports none
    completions: tuple[Completion, ...]
    prompt_tokens: int  # of all prompts
    completion_tokens: int
    cached_tokens: int = 0  # prompt tokens served from a prefix cache
    model: str = ""
    logits: tuple[float, ...] = ()  # of a request with options: one for each, in nats; there are no completions then
    marks: tuple[int, ...] = ()  # and where in `prompt_ids` it was read
    cached: bool = field(default=False, compare=False)  # computed earlier, and kept on disk since

    def to_json(self) -> dict[str, Any]:
        scored = {"logits": list(self.logits), "marks": list(self.marks)} if self.logits else {}
        return {
            "prompt_ids": list(self.prompt_ids),
            "completions": [
                {
                    "text": c.text,
                    "token_ids": list(c.token_ids),
                    "logprobs": [round(p, 6) for p in c.logprobs],
                    "finish_reason": c.finish_reason,
                }
                | ({"alternatives": c.alternatives} if c.alternatives else {})
                for c in self.completions
            ],
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cached_tokens": self.cached_tokens,
            "model": self.model,
            **scored,
        }

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Result:
        return cls(
            prompt_ids=tuple(row["prompt_ids"]),
            completions=tuple(
                Completion(
                    c["text"],
                    tuple(c["token_ids"]),
                    tuple(c["logprobs"]),
                    c["finish_reason"],
                    tuple(tuple((token, p) for token, p in place) for place in c.get("alternatives", ())),
                )
                for c in row["completions"]
            ),
            prompt_tokens=row["prompt_tokens"],
            completion_tokens=row["completion_tokens"],
            cached_tokens=row["cached_tokens"],
            model=row["model"],
            logits=tuple(row.get("logits", ())),
            marks=tuple(row.get("marks", ())),
        )


class Engine(Protocol):
    """Runs one model.

    `generate` may be called many times at once; the engine merges what is waiting into its own batches, so callers
    send single requests as they come up and never wait for each other.
    """

    @property
    def fingerprint(self) -> str:
        """Names the weights: equal fingerprints mean equal distributions."""
        ...

    async def generate(self, requests: Sequence[Request]) -> list[Result]:
        """Complete every request, in order, or score its options.

        Raises:
            EngineFault: the model or its server gave nothing usable, retries included.
            CannotScore: a request has options, and this kind of engine completes text alone.
            CannotAverage: a request has several prompts, and this kind of engine goes on with one at a time.
        """
        ...

    async def forget(self) -> None:
        """Empty the prefix cache, where there is one. For measurements, which must not profit from earlier ones."""
        ...

    async def close(self) -> None: ...


class Front:
    """What an engine in front of another one passes on to it. A subclass has `generate`."""

    def __init__(self, inner: Engine) -> None:
        self.inner = inner

    @property
    def fingerprint(self) -> str:
        return self.inner.fingerprint

    async def forget(self) -> None:
        await self.inner.forget()

    async def close(self) -> None:
        await self.inner.close()


class SeveralLines(Front):
    """An engine whose answers do not end at a line break, but where the model ends them, or at their most tokens."""

    def __init__(self, inner: Engine) -> None:
        super().__init__(inner)
        self.control_marks = control_marks(inner)

    @property
    def fingerprint(self) -> str:
        return f"{super().fingerprint}/lines"

    async def generate(self, requests: Sequence[Request]) -> list[Result]:
        """See `Engine.generate`."""
        return await self.inner.generate([_going_on(request) for request in requests])


def _going_on(request: Request) -> Request:
    return replace(request, stop=tuple(stop for stop in request.stop if not isinstance(stop, AnswerEnd)))


class CannotScore(UserError):
    """An engine that completes text alone was asked to score options."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"the {kind} engine writes text and cannot score options: set proxy.engine to transformers, "
            "or let the system decide by text (its setting `decide`)"
        )


class CannotAverage(UserError):
    """An engine that goes on with one prompt at a time was asked to average over several."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"the {kind} engine does not average over several prompts: set llm.engine to transformers, "
            "or leave out the system that asks for it"
        )


def control_marks(engine: Engine) -> frozenset[str]:
    """The control marks of an engine's tokenizer, such as `<|im_end|>`; none where that is behind a URL."""
    marks: frozenset[str] = getattr(engine, "control_marks", frozenset())
    return marks


def is_dead(engine: Engine) -> bool:
    """Whether an engine has broken down and will never answer again, though nobody has closed it."""
    return bool(getattr(engine, "is_dead", False))

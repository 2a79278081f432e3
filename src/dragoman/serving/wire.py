"""What goes over the wire: OpenAI's chat completions, and our own fields under `dragoman`.

Requests may hold any of OpenAI's other parameters, so that clients work unchanged. The answer names those without effect.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dragoman.engines.base import FinishReason
from dragoman.retrieval.base import well_formed
from dragoman.rollout.record import Call, Node

COMPLETION = "chatcmpl-"
"""What the id of an answer begins with; its trace id is the rest."""


class TextPart(BaseModel):
    type: Literal["text"]
    text: str


_FAIL_FAST = Field(fail_fast=True)
"""A body of 240 KB may have a hundred thousand errors. To list them all would hold up everybody's answers."""


class Message(BaseModel):
    """`user` and `assistant` make up the conversation. The other roles are accepted and have no say in what is answered."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[TextPart], _FAIL_FAST] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


class StreamOptions(BaseModel):
    include_usage: bool = False


class RequestExtension(BaseModel, extra="forbid"):
    trace: bool = False
    """Also show the steps: decisions, searches, and what the LLM wrote on the way."""


class ChatRequest(BaseModel):
    model_config = ConfigDict(extra="allow")

    model: str
    """A system, or `system@policy`, out of `/v1/models`."""
    messages: Annotated[list[Message], Field(min_length=1), _FAIL_FAST]
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: Literal[1] | None = 1
    user: str | None = None
    """Whose question it is, in the client's words. The same user stays with the champion, or with the canary."""
    dragoman: RequestExtension = RequestExtension()


class Citation(BaseModel):
    id: str
    title: str


class Step(BaseModel):
    """One step on the way to an answer."""

    kind: Literal["decision", "search", "llm"]
    name: str
    """The proxy's role, `search`, or what the LLM was asked for."""
    seconds: float
    text: str = ""
    """What the proxy or the LLM said."""
    action: dict[str, Any] | None = None
    """The proxy's text as an action; missing where it is none."""
    query: str | None = None
    page: int | None = None
    passages: list[str] | None = None
    """The ids of the passages that a search found."""

    @classmethod
    def of(cls, step: Node | Call) -> Step:
        seconds = round(step.seconds, 4)
        if isinstance(step, Node):
            action = step.action if isinstance(step.action, dict) else None
            return cls(
                kind="decision", name=step.role, seconds=seconds, text=well_formed(step.text), action=_sendable(action)
            )
        if isinstance(step.input, dict):
            query, page = step.input["query"], step.input["page"]
            found = list(step.output)
            return cls(
                kind="search", name=step.name, seconds=seconds, query=well_formed(query), page=page, passages=found
            )
        return cls(kind="llm", name=step.name, seconds=seconds, text=well_formed(str(step.output)))


def _sendable(value: Any) -> Any:
    """A value of JSON whose texts can be sent: a model may write half a character."""
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict):
        return {key: _sendable(held) for key, held in value.items()}
    return [_sendable(held) for held in value] if isinstance(value, list) else value


class Degraded(BaseModel):
    system: str
    """The system that answered instead."""
    reason: str
    """`unavailable` (no such policy is loaded), `slow`, or why the proxy's trajectory ended (`engine_fault`, ...)."""


class Extension(BaseModel):
    """What an answer of dragoman says beyond OpenAI's fields."""

    trace_id: str
    """Also the `x-request-id` header, the end of the answer's `id`, and the key of the episode where episodes are kept."""
    policy: str | None = None
    """The version of the proxy that decided; none for a baseline."""
    question: str
    """The question that was answered: with a conversation before it, the LLM made it stand alone."""
    citations: list[Citation]
    """The passages that the LLM saw."""
    stop: str
    """Why it ended there: `answered`, `depth_limit`, `document_limit`, `circular_plan`, `repeated_query`, `repeated_call`,
    `empty_pool`, `unreadable_reply`, `empty_answer`."""
    strategy: str | None = None
    """The proxy's first decision, such as `Search`."""
    decisions: int
    seconds: dict[str, float]
    """By phase: `queue`, `proxy`, `search`, `llm`, `total`. Parallel calls add up to more than the total."""
    degraded: Degraded | None = None
    """Set when the proxy failed and standard RAG answered instead."""
    ignored: list[str] = []
    """Parameters of the request that had no effect."""
    steps: list[Step] | None = None
    """With `trace`, when the answer is not streamed."""


class Usage(BaseModel):
    """Tokens that all models together have read and written for it."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class AnswerMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class Choice(BaseModel):
    index: int = 0
    message: AnswerMessage
    finish_reason: FinishReason
    """`length` where the LLM had no more tokens for the answer."""
    logprobs: None = None


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    dragoman: Extension


class ModelExtension(BaseModel):
    system: str
    policy: str | None
    """The version that is served now; none for a baseline, and while there is no champion."""


class ModelCard(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "dragoman"
    dragoman: ModelExtension


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class FeedbackRequest(BaseModel, extra="forbid"):
    """All that there is to say of an answer. It takes the place of what was said of it before."""

    id: Annotated[str, Field(min_length=1, max_length=100)]
    """The `id` of the answer, or its `trace_id`."""
    rating: Literal["up", "down"] | None = None
    answer: Annotated[str, Field(max_length=2000)] | None = None
    """The right answer, as short as it can be: what is trained has to say it word for word."""
    passages: Annotated[list[Annotated[str, Field(max_length=1000)]], Field(max_length=100)] = []
    """The ids of the passages that it rests on."""
    comment: Annotated[str, Field(max_length=4000)] | None = None


class FeedbackReceipt(BaseModel):
    id: str
    object: Literal["feedback"] = "feedback"
    created: int


class Said(BaseModel):
    """What counts of the feedback on an answer."""

    rating: Literal["up", "down"] | None = None
    answer: str | None = None
    passages: list[str] = []
    comment: str | None = None


class PastQuestion(BaseModel):
    """A question that was answered before."""

    id: str
    """As the answer had it."""
    object: Literal["episode"] = "episode"
    created: int
    model: str
    """That answered; standard RAG's name where the proxy had failed."""
    policy: str | None
    question: str
    """The question that was answered: with a conversation before it, the LLM had made it stand alone."""
    seconds: float
    """Without those in the queue."""


class PastQuestions(BaseModel):
    object: Literal["list"] = "list"
    data: list[PastQuestion]
    """The newest first."""
    has_more: bool
    """Whether there are earlier ones: `after` the id of the last one here."""


class Option(BaseModel):
    """What a role of the proxy could have done."""

    text: str
    taken: bool
    probability: float | None = None
    """To be the one that is taken or, in a selection, to be in it."""


class PastStep(Step):
    """A step with what came of it."""

    number: int
    """Its place among all steps, from 1."""
    rests_on: list[int] = []
    """The decisions just before a decision: one, or the last ones of the branches that ran at once before it."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    options: list[Option] | None = None
    """Of a decision that was taken among listed options."""
    steps: list[PastStep] = []
    """The calls that followed a decision, and the branches that ran at once after it, each with its own decisions below its first."""


class PastAnswer(PastQuestion):
    """All there is to see of an answer that was given before."""

    answer: str
    stop: str
    decisions: int
    passages: list[str]
    """The ids of the passages that it was written from."""
    phases: dict[str, float]
    """Seconds of single calls, by phase: `proxy`, `search`, `llm`."""
    usage: Usage
    feedback: Said | None = None
    """What was said of it, as far as it counts."""
    steps: list[PastStep]
    """A decision stands beside the one before it."""


class Health(BaseModel):
    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    status: Literal["ready", "not ready"]
    llm: bool
    """Whether the frozen LLM answers."""
    retriever: bool
    models: dict[str, str | None]
    """The version of each model's policy."""


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(BaseModel):
    error: ErrorDetail

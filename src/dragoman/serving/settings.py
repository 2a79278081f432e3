"""Settings of the endpoint."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from dragoman.core.settings import Section
from dragoman.evaluation.settings import DriftParams


class ServeParams(Section):
    """`dragoman serve`: the OpenAI-compatible endpoint."""

    models: tuple[str, ...] = ("c3po@champion", "standard", "direct")
    """What is offered: `system` or `system@policy`. `system@champion` follows the registry. Each policy is held in memory."""
    concurrency: int = Field(32, ge=1)
    """Questions under way at once."""
    queue: int = Field(64, ge=0)
    """Questions that may wait for that; the next one is refused with 429."""
    deadline_s: float = Field(60, gt=0)
    """For a whole request, once it was read: every call that is then under way is given up, and the answer is 504."""
    proxy_share: float = Field(0.6, gt=0, le=1)
    """The part of the deadline after which a proxy is given up, which leaves standard RAG the rest."""
    max_body_bytes: int = Field(262_144, ge=1024)
    body_s: float = Field(10, gt=0)
    """For the head of a request to arrive, and for its body; then the connection is closed."""
    connections: int = Field(1024, ge=1)
    """How many may be open; a further one is closed at once."""
    key_share: float = Field(0.5, gt=0, le=1)
    """The part of all places (`concurrency` and `queue`) that one key may hold, which leaves the rest to others."""
    max_question_chars: int = Field(2000, ge=1)
    max_history_chars: int = Field(4000, ge=0)
    """How much of the conversation before the question the LLM is shown, from its end."""
    fence: bool = True
    """Mark passages as quotations in the LLM's prompts. Evaluations do not, so compare before you rely on their figures."""
    keys: str | None = None
    """A file of API keys, hashed (`dragoman serve --new-key NAME`); None lets everybody in."""
    hosts: tuple[str, ...] = ()
    """Names beside `localhost` by which it may be called where it has no keys. An address needs none."""
    episodes: str | None = None
    """Append every episode, questions and passages included, to `episodes.jsonl` in this folder, and feedback to
    `feedback.jsonl`; None keeps none, and takes no feedback."""
    episodes_max_mib: int = Field(1024, ge=1)
    """A file of this size is put aside as `episodes.1.jsonl`, in place of the one before: there are at most twice as many MiB.
    So it is with feedback."""
    past: bool = True
    """Show a key what it has asked before, out of `episodes` (`GET /v1/episodes`). Where no keys are needed, this machine alone."""
    traces: bool = False
    """Also record every episode as a trace in MLflow, where the feedback on it is shown."""
    page: bool = True
    """Offer a page at `/` where people can ask, watch the steps and give feedback. What it asks needs a key as any request does."""
    shadow: str | None = None
    """A version (v7, challenger) that is asked what the champion was asked, in the background. Nobody sees its answers."""
    canary: str | None = None
    """A version that answers a share of the questions in the champion's place, until it fails more often or is slower."""
    share: float = Field(0.1, gt=0, le=1)
    """Of the questions that either is asked. The same user gets answers of the same one."""
    shadows: int = Field(2, ge=1)
    """Questions that the version in the shadow is asked at once; it is asked no other meanwhile."""
    rollback_once_in: int = Field(10_000, ge=100)
    """A canary that is no worse is taken back at most once in so many of its answers, on average."""
    drift: DriftParams = DriftParams()
    """Where `episodes` names a folder, the champion's traffic is compared with what it was at first."""
    champion_poll_s: float = Field(1.0, gt=0)
    """How often to ask who is the champion."""

    @property
    def most_per_key(self) -> int:
        """How many requests of one key may be under way or wait."""
        return max(1, int((self.concurrency + self.queue) * self.key_share))

    @property
    def champion(self) -> str | None:
        """The first model that follows the champion; None where none does."""
        return next((name for name in self.models if name.endswith("@champion")), None)

    @field_validator("hosts")
    @classmethod
    def _hosts_are_names(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if not host or set(host) & set(":/[] "):
                raise ValueError(f"{host!r} is no name of a host: leave out scheme, port and path")
        return hosts

    @model_validator(mode="after")
    def _something_is_offered(self) -> ServeParams:
        if not self.models:
            raise ValueError("models: name at least one, such as standard")
        if len(champions := [name for name in self.models if name.endswith("@champion")]) > 1:
            raise ValueError(f"models: the champion is a policy of one system; name one of {', '.join(champions)}")
        if self.shadow and self.canary:
            raise ValueError("shadow, canary: one trial at a time; name a version under one of them")
        if (self.shadow or self.canary) and self.champion is None:
            raise ValueError("shadow, canary: models names no system@champion to compare the version with")
        if self.canary and self.share > 0.5:
            raise ValueError(
                "share: at most 0.5 for a canary, or there is too little of the champion to compare it with"
            )
        return self

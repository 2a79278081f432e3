"""Passages are data. They come from whoever writes the corpus, so nothing in them may act.

Three things see to that. A role of the proxy can only say what its grammar holds, whatever it has read. Control tokens of
chat templates are broken up before any model sees them, since a tokenizer would take `<|im_end|>` in a passage for the
end of the message. And in the LLM's answer prompt the passages stand between marks that they cannot contain, under an
instruction not to follow theirs.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from dragoman.core.types import Passage, Question
from dragoman.retrieval.base import Hit, Retriever
from dragoman.systems.base import Action, Ask, Context, Outcome, Role, System
from dragoman.systems.prompts import Messages, load

T = TypeVar("T")

_CONTROL = re.compile(
    r"<(?=[|｜][^<>|｜\s]{1,40}[|｜]>"  # ChatML, Llama 3, Phi, DeepSeek
    r"|/?(?:s|bos|eos|pad|unk|start_of_turn|end_of_turn)>"  # Llama 2, Gemma
    r"|</?SYS>>"
    r"|/?documents>)"  # the marks of our own fence
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS)\])",  # Mistral
    re.IGNORECASE,
)


def plain(text: str) -> str:
    """The text with a blank in each control token, which makes it ordinary words for any tokenizer."""
    return _CONTROL.sub(lambda match: f"{match[0]} ", text)


class PlainRetriever:
    """A retriever whose passages have no control tokens, and titles of one line."""

    def __init__(self, inner: Retriever) -> None:
        self.inner, self.fingerprint = inner, inner.fingerprint

    async def search(self, queries: Sequence[str], k: int, page: int = 0) -> list[list[Hit]]:
        found = await self.inner.search(queries, k, page)
        return [[Hit(_plain(hit.passage), hit.score) for hit in hits] for hits in found]

    async def close(self) -> None:
        await self.inner.close()


class FencedSystem(System):
    """A system whose prompts to the LLM mark passages as quotations."""

    def __init__(self, inner: System) -> None:
        self.inner = inner

    @property
    def roles(self) -> tuple[Role, ...]:
        return self.inner.roles

    async def run(self, question: Question, ctx: Context) -> Outcome:
        return await self.inner.run(question, _FencedContext(ctx))


class _FencedContext:
    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    async def act(self, role: Role, *, history: Messages = (), **state: Any) -> Action:
        return await self._ctx.act(role, history=history, **state)

    async def ask(self, ask: Ask, *, history: Messages = (), **state: Any) -> str:
        return (await self.ask_all(ask, history=history, **state))[0]

    async def ask_all(self, ask: Ask, *, history: Messages = (), **state: Any) -> tuple[str, ...]:
        marked = fenced(ask) if "passages" in ask.prompt.slots else ask
        return await self._ctx.ask_all(marked, history=history, **state)

    async def retrieve(self, query: str, *, k: int, page: int = 0) -> list[Passage]:
        return await self._ctx.retrieve(query, k=k, page=page)

    async def parallel(self, branches: Mapping[str, Callable[[Context], Awaitable[T]]]) -> dict[str, T]:
        def fence(branch: Callable[[Context], Awaitable[T]]) -> Callable[[Context], Awaitable[T]]:
            return lambda ctx: branch(_FencedContext(ctx))

        return await self._ctx.parallel({name: fence(branch) for name, branch in branches.items()})


def fenced(ask: Ask) -> Ask:
    """The ask with its passages between marks, and with the rule that goes with them before its own instructions."""
    fence = load("dragoman.serving", "fence")

    def view(**state: Any) -> dict[str, Any]:
        shown = ask.view(**state)
        return shown | {"passages": fence.user.replace("{passages}", str(shown["passages"]))}

    system = "\n".join(filter(None, [fence.system, ask.prompt.system]))
    return replace(ask, prompt=replace(ask.prompt, system=system), view=view)


def _plain(passage: Passage) -> Passage:
    return replace(passage, title=plain(" ".join(passage.title.split())), text=plain(passage.text))

"""Passages are data. They come from whoever writes the corpus, so nothing in them may act.

Three things see to that. A role of the proxy can only say what its grammar holds, whatever it has read. Control tokens of
chat templates are broken up before any model sees them, since a tokenizer would take `<|im_end|>` in a passage for the
end of the message. And in the LLM's prompts passages stand between marks that they cannot contain, under an instruction not
to follow theirs. What holds passages there, its `Ask` says.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from dragoman.core.types import Passage, Question
from dragoman.retrieval.base import Hit, Retriever
from dragoman.systems.base import Action, Ask, Context, Outcome, Role, System
from dragoman.systems.prompts import Messages, Prompt, Quoting, load

T = TypeVar("T")

_CONTROL = re.compile(
    r"<(?=[|｜][^<>|｜\s]{1,40}[|｜]>"  # ChatML, Llama 3, Phi, DeepSeek
    r"|/?(?:s|bos|eos|pad|unk|mask|cls|sep|think|image|video|audio)>"  # Llama 2, BERT, Qwen
    r"|/?[a-z]+(?:_[a-z0-9]+)+>"  # Gemma, Qwen, code models: <end_of_turn>, <tool_call>, <fim_prefix>
    r"|</?SYS>>)"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|TOOL_\w+|AVAILABLE_TOOLS|THINK|ARGS|CALL_ID|IMG\w*|PREFIX|MIDDLE|SUFFIX)\])",  # Mistral
    re.IGNORECASE,
)
"""Marks of common chat templates, for models behind a URL, whose tokenizers are not known."""
_MARK = secrets.token_hex(4)
"""In the marks of the fence. Chosen by chance when a server starts, so that who writes passages cannot know it."""


def plain(text: str, marks: Collection[str] = ()) -> str:
    """The text with a blank in each control token, which makes it ordinary words for a tokenizer.

    Args:
        marks: control tokens of the tokenizers that will read it, beside those of common chat templates.
    """
    text = _CONTROL.sub(lambda match: f"{match[0]} ", text)
    if marks:
        known = re.compile("|".join(map(re.escape, marks)))
        while known.search(text):  # again, since one mark may lie inside another
            text = known.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)
    return text


class PlainRetriever:
    """A retriever whose passages have no control tokens, and titles of one line.

    Args:
        marks: see `plain`.
    """

    def __init__(self, inner: Retriever, marks: Collection[str] = ()) -> None:
        self.inner, self.marks = inner, marks

    @property
    def fingerprint(self) -> str:
        return self.inner.fingerprint

    async def search(self, queries: Sequence[str], k: int, page: int = 0) -> list[list[Hit]]:
        found = await self.inner.search(queries, k, page)
        return [[Hit(self._plain(hit.passage), hit.score) for hit in hits] for hits in found]

    async def close(self) -> None:
        await self.inner.close()

    def _plain(self, passage: Passage) -> Passage:
        # an LLM can be asked for the fence's mark, and a passage be written with it
        title, text = (part.replace(_MARK, " ") for part in (" ".join(passage.title.split()), passage.text))
        return replace(passage, title=plain(title, self.marks), text=plain(text, self.marks))


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
        return await self._ctx.ask_all(fenced(ask), history=history, **state)

    async def retrieve(self, query: str, *, k: int, page: int = 0) -> list[Passage]:
        return await self._ctx.retrieve(query, k=k, page=page)

    async def parallel(self, branches: Mapping[str, Callable[[Context], Awaitable[T]]]) -> dict[str, T]:
        def fence(branch: Callable[[Context], Awaitable[T]]) -> Callable[[Context], Awaitable[T]]:
            return lambda ctx: branch(_FencedContext(ctx))

        return await self._ctx.parallel({name: fence(branch) for name, branch in branches.items()})


def fenced(ask: Ask) -> Ask:
    """The ask with a fence around the passages of its messages, those of the dialogue that it goes on with too."""
    return replace(ask, prompt=_FencedPrompt(**vars(ask.prompt)))


class _FencedPrompt(Prompt):
    """A prompt whose messages have passages between marks, under the rule that goes with them before all instructions."""

    def messages(
        self, state: dict[str, Any], *, shots: int = 0, history: Messages = (), quotes: Collection[str] = ()
    ) -> Messages:
        plainly = super().messages(state, shots=shots, history=history, quotes=quotes)
        if not any(isinstance(text, Quoting) for _, text in plainly):
            return plainly
        fence = load("dragoman.serving", "fence")
        rule, marks = (part.replace("{mark}", _MARK) for part in (fence.system, fence.user))

        def marked(passages: str) -> str:
            return marks.replace("{passages}", passages)

        shown = [(role, text.marked(marked) if isinstance(text, Quoting) else text) for role, text in plainly]
        if shown[0][0] == "system":
            return (("system", f"{rule}\n{shown[0][1]}"), *shown[1:])
        return (("system", rule), *shown)

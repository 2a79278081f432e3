"""What a proxy is compared with: methods of the papers' tables that train nothing, so every word is the frozen LLM's.

Each file is one system, and `iter_retgen.py` is the one called `iter-retgen`. All take the settings of `Baseline`, so
`profiles.yaml` has one line a profile for all of them. Their prompts are in `prompts/`; the answer prompt is everybody's.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from dragoman.core.errors import UserError
from dragoman.core.hashing import sha256_of
from dragoman.core.types import Passage, Question
from dragoman.systems.answer import answer, answer_ask, said
from dragoman.systems.base import Ask, Context, Outcome, StopReason, System
from dragoman.systems.checks import check_at_least_one
from dragoman.systems.prompts import Messages, Prompt, load, number

T = TypeVar("T")

_ASIDE = ThreadPoolExecutor(max_workers=1, thread_name_prefix="baseline")
_BULLET = re.compile(  # but neither the J. of a name nor the 3 of 3.5, nor the minus of -259 °C
    r"^\s*(?:[-*•](?!\d)\s*|\(?(?:\d{1,2}[.):]|[a-z]\))(?=\s)|(?:query|answer|candidate)\s*\d*\s*:)\s*", re.IGNORECASE
)


@dataclass(frozen=True)
class Baseline(System):
    """The settings that all baselines have."""

    k: int = 5
    """Passages per search."""
    passage_words: int = 100
    """Each passage is cut to this many words."""
    answer_tokens: int = 48

    def __post_init__(self) -> None:
        check_at_least_one(self, *(field.name for field in fields(self) if field.type == "int"))

    async def answer(
        self,
        ctx: Context,
        question: Question,
        passages: Sequence[Passage],
        stop: StopReason = StopReason.ANSWERED,
        history: Messages = (),
    ) -> Outcome:
        """The answer that everybody's prompt gets from the LLM."""
        words, tokens = self.passage_words, self.answer_tokens
        return await answer(ctx, question, passages, stop, words=words, max_tokens=tokens, history=history)

    async def draft(self, ctx: Context, question: Question, passages: Sequence[Passage]) -> str:
        """What the LLM answers by the same prompt, for a system to go on from: it is not the trajectory's answer."""
        asked = partial(answer_ask, question, passages, max_tokens=self.answer_tokens, final=False)
        text, _ = await said(ctx, asked, words=self.passage_words if passages else 0)
        return text

    def shown(self, passages: Sequence[Passage]) -> str:
        """Passages as a prompt has them."""
        return number(passages, self.passage_words)


@dataclass(frozen=True)
class Taught(Baseline):
    """A baseline that has seen training questions: what it knows of them is in a file."""

    training: str = ""
    """That file."""
    training_sha256: str = ""
    """Of its content, filled in when the system is opened: with other content, its answers are others."""

    made_by: ClassVar[str]
    """What to do where there is no such file."""

    def prepared(self) -> Self:
        """See `System.prepared`.

        Raises:
            UserError: no such file, or it holds something else.
        """
        path = Path(self.training)
        if not path.is_file():
            what = f"{self.training}: no such file" if self.training else "is not set"
            raise UserError(f"setting `training` of {type(self).__module__.rpartition('.')[2]} {what}; {self.made_by}")
        ready = replace(self, training_sha256=sha256_of([path]))
        _ = ready.learnt
        return ready

    @cached_property
    def learnt(self) -> Any:
        """What the file says. It is read when the system is prepared.

        Raises:
            UserError: the file says something else, or the system's class does not say how to read it.
        """
        raise UserError(f"{type(self).__module__}.{type(self).__name__}: a taught baseline needs a property `learnt`")


async def aside(work: Callable[..., T], *arguments: Any) -> T:
    """What a model in this process computes, while other questions go on.

    One thread does it for all: fast tokenizers fail with "Already borrowed" when two meet in one.
    """
    return await asyncio.get_running_loop().run_in_executor(_ASIDE, partial(work, *arguments))


def asking(name: str, max_tokens: int, *, stop: tuple[str, ...] = ()) -> Ask:
    """What the LLM is asked by the prompt of that name; the state fills the slots as it is."""
    return Ask(name, load(__package__, name), view=lambda **state: state, max_tokens=max_tokens, stop=stop)


def check_instruction(text: str, prompt: str, *needed: str) -> None:
    """Whether a text of the user's can take the place of a section of the prompt of that name.

    Raises:
        UserError: it has not all slots that it needs, or one that nothing fills.
    """
    for slot in needed:
        if f"{{{slot}}}" not in text:
            raise UserError(f"instruction: must have {{{slot}}} where it is to stand")
    known = load(__package__, prompt).slots
    if unknown := sorted(Prompt("instruction", "", text).slots - known):
        can = ", ".join(f"{{{slot}}}" for slot in sorted(known))
        raise UserError(
            f"instruction: nothing fills {{{unknown[0]}}}; of braces it can have {can}; write others as ( and )"
        )


def interleaved(rankings: Iterable[Sequence[Passage]], most: int) -> list[Passage]:
    """Several rankings as one, each passage once, by its best rank; at equal ranks the earlier ranking comes first."""
    ranked = chain.from_iterable(zip_longest(*rankings))
    return list({passage.id: passage for passage in ranked if passage is not None}.values())[:most]


def items(text: str) -> list[str]:
    """What the LLM listed, one line each, without numbers, bullets and quotation marks; nothing twice."""
    cleaned = (_BULLET.sub("", line).strip(" \t\"'`*") for line in text.splitlines())
    found: dict[str, str] = {}
    for line in cleaned:
        if any(map(str.isalnum, line)):
            found.setdefault(line.casefold(), line)
    return list(found.values())


def verdict(text: str, *words: str) -> str:
    """Which of these words the LLM wrote first, in whatever case; empty where it wrote none."""
    found = re.search(rf"\b(?:{'|'.join(map(re.escape, words))})\b", text, re.IGNORECASE)
    return found[0].casefold() if found else ""

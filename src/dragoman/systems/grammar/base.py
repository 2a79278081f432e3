"""What a grammar and its slots are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

from dragoman.engines.base import Constraint

Action = Any  # a frozen dataclass; each system defines its own


class InvalidAction(ValueError):
    """A text that is no action, or an action that has no text."""


class HallucinatedIndex(InvalidAction):
    """A selection names a passage that is not there."""


class Slot(Protocol):
    """The set of values one field of an action can take, as text."""

    @property
    def strict(self) -> str:
        """Regular expression for the sampler."""
        ...

    @property
    def lenient(self) -> str:
        """Regular expression for the parser; accepts at least what `strict` does."""
        ...

    def parse(self, text: str) -> Any: ...
    def render(self, value: Any) -> str: ...


class Grammar(Protocol):
    """What a role may say."""

    def constraint(self) -> Constraint: ...
    def parse(self, text: str) -> Action: ...
    def render(self, action: Action) -> str: ...
    def alternatives(self) -> Sequence[Grammar]:
        """The kinds of action as grammars of their own, which is what a deterministic rollout forces one by one."""
        ...


class Kind(Grammar, Protocol):
    """The grammar of one kind of action."""

    @property
    def cls(self) -> type: ...


def can_say(slot: Slot, value: Any) -> bool:
    """Whether the sampler could come to say this value."""
    try:
        return re.fullmatch(slot.strict, slot.render(value)) is not None
    except InvalidAction:
        return False


def escape(literal: str) -> str:
    """Escape for every regular expression dialect at hand: only what must be, since xgrammar knows no `\\ `."""
    return re.sub(r"([\\.^$*+?()\[\]{}|])", r"\\\1", literal)

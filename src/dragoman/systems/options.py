"""What a role may do in a state, where it can be listed: a policy then scores the options and writes nothing.

Each option is a line of text that ends in a mark, after a short prompt (see `dragoman.engines.marks`). The same actions
still have their text by the role's grammar, which is what records show.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from dragoman.core.errors import UserError
from dragoman.core.types import Passage
from dragoman.engines.base import Request
from dragoman.engines.marks import MARK
from dragoman.systems.grammar import Action
from dragoman.systems.prompts import focused, one_line

Thing = TypeVar("Thing")

MOST = 100
"""Options that one state may have. A thousand would not fit into a model's context, and none would be read well."""


Bias = Mapping[str, Mapping[str, float]]
"""What is added to logits: by the name of a role, and the type of its action, as records show it."""


@dataclass(frozen=True)
class Choice:
    """One of several actions, each with the line that it is called by."""

    prompt: str
    """What stands before the options. It ends with a new line."""
    actions: tuple[tuple[str, Action], ...]
    bias: tuple[float, ...] = ()
    """What is added to the logit of each option, whatever the policy says of it; empty adds nothing."""
    many = False

    def __post_init__(self) -> None:
        _check(self.texts)

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(text for text, _ in self.actions)

    def action(self, taken: Sequence[int]) -> Action:
        """That of the option that is taken, by its place from 0."""
        (place,) = taken
        return self.actions[place][1]

    def taken(self, action: Action) -> tuple[int, ...]:
        """The place of the option that an action is.

        Raises:
            KeyError: it is not among the options.
        """
        return ({known: place for place, (_, known) in enumerate(self.actions)}[action],)


@dataclass(frozen=True)
class Selection:
    """Any number of things out of a list, each with a line and in or out by itself. `make` turns their places into the action,
    `places` back. Fields and methods are as in `Choice`."""

    prompt: str
    texts: tuple[str, ...]
    make: Callable[[tuple[int, ...]], Action]
    places: Callable[[Any], tuple[int, ...]]
    bias: tuple[float, ...] = ()
    many = True

    def __post_init__(self) -> None:
        _check(self.texts)

    def action(self, taken: Sequence[int]) -> Action:
        return self.make(tuple(sorted(taken)))

    def taken(self, action: Action) -> tuple[int, ...]:
        places = self.places(action)
        if not set(places) <= set(range(len(self.texts))):
            raise KeyError(places)
        return tuple(sorted(places))


Options = Choice | Selection
"""What there is to choose from in a state."""


class Settings(Protocol):
    """Those settings of a system that say whether its roles score options, and which of them a bias is for."""

    @property
    def decide(self) -> str: ...
    @property
    def bias(self) -> Bias | None: ...


def at_marks(settings: Settings, role: str, listed: Callable[..., Options]) -> Callable[..., Options] | None:
    """What a role has to choose from under `decide: marks`, with its bias; None where it writes.

    Args:
        listed: gives the options, of the settings and a state.
    """
    if settings.decide != "marks":
        return None
    return partial(_leaning, (settings.bias or {}).get(role, {}), partial(listed, settings))


def _leaning(added: Mapping[str, float], listed: Callable[..., Options], **state: Any) -> Options:
    options = listed(**state)
    bias = tuple(added.get(kind, 0.0) for kind in kinds_of(options)) if added else ()
    return replace(options, bias=bias) if any(bias) else options  # records of decisions without any say nothing of it


def check_bias(bias: Bias | None, kinds: Mapping[str, Iterable[type]]) -> None:
    """Refuse a bias that is not for an action of a role, or endless.

    Args:
        bias: as a setting: numbers by roles, and by types of actions.
        kinds: the types of each role's actions.

    Raises:
        UserError: the key, its value and what there is to choose from.
    """
    _check_keys("bias", bias or {}, kinds)
    for role, added in (bias or {}).items():
        _check_keys(f"bias.{role}", added, [kind.__name__ for kind in kinds[role]])
        for kind, number in added.items():
            if not math.isfinite(number):
                raise UserError(f"bias.{role}.{kind} {number}: must be a finite number")


def _check_keys(key: str, named: Iterable[str], known: Iterable[str]) -> None:
    if unknown := [name for name in named if name not in known]:
        raise UserError(f"{key}: nothing is called {unknown[0]!r}; choose from {', '.join(known)}")


def kinds_of(options: Options) -> tuple[str, ...]:
    """The type of the action that each option makes, taken alone."""
    return tuple(type(options.action((place,))).__name__ for place in range(len(options.texts)))


def biased(logits: Sequence[float], bias: Sequence[float]) -> list[float]:
    """What an action is chosen by: the policy's logits, each with its bias where there is any."""
    return [logit + added for logit, added in zip(logits, bias or [0.0] * len(logits), strict=True)]


def as_line(text: str) -> str:
    """A text as an option's line: without line breaks, and without what would be read as a mark."""
    return re.sub(f"{MARK.strip()}+", "-", " ".join(text.split()))


def by_line(named: Mapping[str, Thing], *others: str) -> dict[str, Thing]:
    """What can be chosen, by the lines of its names.

    Of names that read alike it is the first one's. Nothing has a line of `others`, which stand for something else in the list.
    """
    lines: dict[str, Thing] = {}
    for name, thing in named.items():
        lines.setdefault(as_line(name), thing)
    return {line: thing for line, thing in lines.items() if line not in others}


def passage_lines(passages: Sequence[Passage], words: int, question: str = "") -> tuple[str, ...]:
    """A line for each passage, cut to so many words. Of those that read alike the later ones have their number.

    Args:
        question: what the words are to be about, see `focused`; empty takes the first ones.
    """
    lines: dict[str, None] = {}
    for i, passage in enumerate(passages, start=1):
        line = _shown(passage, words, question) or "(empty)"
        while line in lines:
            line = f"{line} ({i})"
        lines[line] = None
    return tuple(lines)


def known(passages: Sequence[Passage], words: int, question: str = "") -> str:
    """The lines of passages as a part of a prompt. For `question` see `passage_lines`."""
    return "".join(f"{_shown(passage, words, question)}\n" for passage in passages) or "nothing\n"


def _shown(passage: Passage, words: int, question: str) -> str:
    return as_line(focused(passage, words, question) if question else one_line(passage, words))


def scoring(options: Options) -> Request:
    """What has a policy score each option, in one pass over all of them."""
    return Request(prompt=(("user", options.prompt),), max_tokens=1, options=options.texts)


def rendered(options: Options) -> str:
    """The whole text that a policy reads, for records."""
    return options.prompt + listed(options.texts)


def listed(texts: Sequence[str]) -> str:
    """The lines of options, each with its mark."""
    return "\n".join(f"{text}{MARK}" for text in texts)


def _check(texts: Sequence[str]) -> None:
    """
    Raises:
        UserError: there is nothing to choose, too much, or two options that read alike.
    """
    if not texts or not all(texts):
        raise UserError("a decision needs options, and each needs a text; this one has none, or an empty one")
    if len(texts) > MOST:
        raise UserError(f"a decision has {len(texts)} options, at most {MOST} are possible: show fewer")
    if len(set(texts)) < len(texts):
        twice = next(text for place, text in enumerate(texts) if text in texts[:place])
        raise UserError(f"two options of a decision read alike: {twice[:80]!r}; leave one out, or number them")

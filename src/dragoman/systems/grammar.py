"""Actions as text: one definition renders an action, parses it, and constrains the sampler.

A `Form` pairs a frozen dataclass with a template such as `"[Retrieval] {query}"`; a `OneOf` is a choice of forms. Both
give a regular expression for constrained decoding, so that even an untrained model acts validly, and a parser that is
a little more forgiving about white space, for models that run without constraint. For every action that can be
rendered, `parse(render(action)) == action`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

from dragoman.core.text import words
from dragoman.engines.base import Grammar as Constraint

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


@dataclass(frozen=True)
class Line:
    """One line of free text without square brackets, which mark actions. White space is normalised."""

    max_chars: int = 200

    @property
    def strict(self) -> str:
        return rf"[^ \t\r\n\[\]][^\t\r\n\[\]]{{0,{self.max_chars - 1}}}"

    @property
    def lenient(self) -> str:
        return r"[^\n\[\]]+?"

    def parse(self, text: str) -> str:
        line = " ".join(text.split())
        if not line:
            raise InvalidAction("empty text")
        return line[: self.max_chars].rstrip()

    def render(self, value: str) -> str:
        if value != " ".join(value.split()) or not 0 < len(value) <= self.max_chars or set("[]") & set(value):
            raise InvalidAction(f"not one plain line of at most {self.max_chars} characters: {value!r}")
        return value


@dataclass(frozen=True)
class Span(Line):
    """A line that the sampler may only copy: a run of words of one of `sources`.

    A source is a text with the fewest and the most words of a run; a text of fewer words than that is copied whole.
    Punctuation around words is dropped. The parser is that of a line: a model that runs without constraint may say more.
    """

    sources: tuple[tuple[str, int, int], ...] = ()

    @property
    def strict(self) -> str:
        runs = []
        for text, fewest, most in self.sources:
            spoken = words(text)
            fewest = min(fewest, len(spoken))
            for start in range(len(spoken) - fewest + 1 if spoken else 0):
                run = ""
                for word in reversed(spoken[start + fewest : start + most]):
                    run = f"(?: {_escape(word)}{run})?"
                runs.append(_escape(" ".join(spoken[start : start + fewest])) + run)
        return "(?:" + "|".join(dict.fromkeys(runs)) + ")" if runs else super().strict


@dataclass(frozen=True)
class Alias(Line):
    """A line that the sampler may only call by a short name, which costs it fewer tokens than to copy what it stands for.

    The parser is that of a line: a model that runs without constraint may say another one, or end the name with a full stop.
    """

    name: str = ""
    stands_for: str = ""

    @property
    def strict(self) -> str:
        return _escape(self.name)

    def parse(self, text: str) -> str:
        line = super().parse(text)
        return self.stands_for if self._is_name(line) else line

    def render(self, value: str) -> str:
        if value == self.stands_for:
            return self.name
        if self._is_name(value):
            raise InvalidAction(f"{value!r} would be read as {self.stands_for!r}")
        return super().render(value)

    def _is_name(self, text: str) -> bool:
        return text.rstrip(".!?\"'").casefold() == self.name.casefold()


@dataclass(frozen=True)
class Several:
    """One to `most` values of a `slot`, each but the first after `mark`, as in `Who? [Ask] Where?`. Equal ones are one.

    The mark must hold something that no value can, such as a square bracket where the values are lines.
    """

    slot: Slot
    most: int
    mark: str

    @property
    def strict(self) -> str:
        more = f"(?:{_escape(self.mark)}{self.slot.strict}){{0,{self.most - 1}}}" if self.most > 1 else ""
        return self.slot.strict + more

    @property
    def lenient(self) -> str:
        # Whether the parts are values is for `parse` to say: a pattern of their lenient forms, which overlap with the
        # white space around the mark, would take a time exponential in their number to refuse a text.
        return r"[\s\S]+?"

    def parse(self, text: str) -> tuple[Any, ...]:
        parts = re.split(rf"\s*{re.escape(self.mark.strip())}\s*", text)
        if len(parts) > self.most:
            raise InvalidAction(f"{len(parts)} where at most {self.most} are allowed")
        for part in parts:
            if not re.fullmatch(self.slot.lenient, part):
                raise InvalidAction(f"not one of several: {part[:80]!r}")
        return tuple(dict.fromkeys(self.slot.parse(part) for part in parts))

    def render(self, value: tuple[Any, ...]) -> str:
        if not 0 < len(value) == len(set(value)) <= self.most:
            raise InvalidAction(f"not one to {self.most} different values: {value!r}"[:200])
        return self.mark.join(self.slot.render(v) for v in value)


@dataclass(frozen=True)
class Indices:
    """A selection out of 1..n, rendered in ascending order: `1, 3`. It may be empty unless there must be `some`."""

    n: int
    some: bool = False

    @property
    def strict(self) -> str:
        # Ascending order makes the selection a set by construction: each number is followed only by larger ones.
        def starting_at(i: int) -> str:
            later = "".join(f"(?:, {j})?" for j in range(i + 1, self.n + 1))
            return f"{i}{later}"

        selection = "(?:" + "|".join(starting_at(i) for i in range(1, self.n + 1)) + ")"
        return (selection if self.some else f"{selection}?") if self.n else ""

    @property
    def lenient(self) -> str:
        return r"\s*(?:\d+\s*(?:,\s*\d+\s*)*)?"

    def parse(self, text: str) -> tuple[int, ...]:
        chosen = sorted({int(i) for i in re.findall(r"\d+", text)})
        if self.some and not chosen:
            raise InvalidAction("nothing selected")
        if any(not 1 <= i <= self.n for i in chosen):
            raise HallucinatedIndex(f"there are {self.n} passages, selected {text.strip()}")
        return tuple(chosen)

    def render(self, value: tuple[int, ...]) -> str:
        if list(value) != sorted(set(value)) or any(not 1 <= i <= self.n for i in value) or (self.some and not value):
            raise InvalidAction(f"not an ascending selection out of 1..{self.n}: {value}")
        return ", ".join(map(str, value))


@dataclass(frozen=True)
class Titles:
    """A selection out of 1..n as in `Indices`, said with a title for each: `Bhutan; Thimphu`.

    A small model copies a title where it cannot say which number stood before it. `of` makes titles fit: different from
    each other and without what separates them.
    """

    titles: tuple[str, ...]

    @classmethod
    def of(cls, texts: Sequence[str], max_words: int = 8, max_chars: int = 60) -> Titles:
        fit = {"all": ""}  # which is an action of its own
        for i, text in enumerate(texts, start=1):
            title = " ".join(words(text.replace(";", " "))[:max_words])[:max_chars].rstrip()
            if not title or title.casefold() in fit:
                title = f"{title} ({i})".strip()
            fit[title.casefold()] = title
        return cls(tuple(fit.values())[1:])

    @property
    def strict(self) -> str:
        said = [_escape(title) for title in self.titles]
        if not said:
            return ""
        return "(?:" + "|".join(t + "".join(f"(?:; {u})?" for u in said[i:]) for i, t in enumerate(said, 1)) + ")?"

    @property
    def lenient(self) -> str:
        return r"[^\[\]\n]*"

    def parse(self, text: str) -> tuple[int, ...]:
        places = {title.casefold(): i for i, title in enumerate(self.titles, start=1)}
        said = [" ".join(part.split()) for part in text.split(";") if part.strip()]
        if unknown := [title for title in said if title.casefold() not in places]:
            raise HallucinatedIndex(f"no passage has the title {unknown[0][:80]!r}")
        return tuple(sorted({places[title.casefold()] for title in said}))

    def render(self, value: tuple[int, ...]) -> str:
        Indices(len(self.titles)).render(value)  # the same selections are allowed
        return "; ".join(self.titles[i - 1] for i in value)


class Grammar(Protocol):
    """What a role may say."""

    def constraint(self) -> Constraint: ...
    def parse(self, text: str) -> Action: ...
    def render(self, action: Action) -> str: ...
    def alternatives(self) -> Sequence[Grammar]:
        """The kinds of action as grammars of their own, which is what a deterministic rollout forces one by one."""
        ...


class Form:
    """One kind of action: `template` with a `{slot}` for each field of the dataclass `cls`.

    >>> @dataclass(frozen=True)
    ... class Search:
    ...     query: str
    >>> form = Form(Search, "[Retrieval] {query}", query=Line())
    >>> form.parse(form.render(Search("capital of Bhutan")))
    Search(query='capital of Bhutan')
    """

    def __init__(self, cls: type, template: str, **slots: Slot) -> None:
        names = [f.name for f in fields(cls)]
        pieces = re.split(r"\{(\w+)\}", template)  # literal, name, literal, name, ..., literal
        if set(pieces[1::2]) != set(slots) or not set(slots) <= set(names):
            raise ValueError(f"{cls.__name__}{names}: template {template!r} does not fit the slots {sorted(slots)}")
        self.cls, self.slots, self._pieces = cls, slots, pieces
        self._pattern = re.compile(
            r"\s*"
            + "".join(
                f"(?P<{piece}>{slots[piece].lenient})"
                if i % 2
                else r"\s*".join(map(re.escape, re.split(r"\s+", piece)))
                for i, piece in enumerate(pieces)
            )
            + r"\s*"
        )

    @property
    def regex(self) -> str:
        return "".join(self.slots[piece].strict if i % 2 else _escape(piece) for i, piece in enumerate(self._pieces))

    def constraint(self) -> Constraint:
        return Constraint(regex=self.regex)

    def alternatives(self) -> Sequence[Grammar]:
        return [self]

    def parse(self, text: str) -> Action:
        match = self._pattern.fullmatch(text)
        if match is None:
            raise InvalidAction(f"not of the form {''.join(self._pieces[::2])!r}: {text[:80]!r}")
        return self.cls(**{name: slot.parse(match[name]) for name, slot in self.slots.items()})

    def render(self, action: Action) -> str:
        return "".join(
            self.slots[piece].render(getattr(action, piece)) if i % 2 else piece for i, piece in enumerate(self._pieces)
        )


class OneOf:
    """A choice of forms, told apart by their literal text. The first form that fits a text wins."""

    def __init__(self, *forms: Form) -> None:
        self.forms = forms

    def constraint(self) -> Constraint:
        return Constraint(regex="(?:" + "|".join(form.regex for form in self.forms) + ")")

    def alternatives(self) -> Sequence[Grammar]:
        return self.forms

    def parse(self, text: str) -> Action:
        for form in self.forms:
            try:
                return form.parse(text)
            except HallucinatedIndex:
                raise
            except InvalidAction:
                continue
        raise InvalidAction(f"none of {[f.cls.__name__ for f in self.forms]}: {text[:80]!r}")

    def render(self, action: Action) -> str:
        for form in self.forms:
            if type(action) is form.cls:
                return form.render(action)
        raise InvalidAction(f"{type(action).__name__} is none of {[f.cls.__name__ for f in self.forms]}")


@dataclass(frozen=True)
class FreeText:
    """Any text: for roles whose action is prose, such as an answer."""

    def constraint(self) -> None:
        return None

    def alternatives(self) -> Sequence[Grammar]:
        return [self]  # type: ignore[list-item]

    def parse(self, text: str) -> str:
        if not text.strip():
            raise InvalidAction("empty text")
        return text.strip()

    def render(self, action: str) -> str:
        return action


def can_say(slot: Slot, value: Any) -> bool:
    """Whether the sampler could come to say this value."""
    try:
        return re.fullmatch(slot.strict, slot.render(value)) is not None
    except InvalidAction:
        return False


def _escape(literal: str) -> str:
    """Escape for every regular expression dialect at hand: only what must be, since xgrammar knows no `\\ `."""
    return re.sub(r"([\\.^$*+?()\[\]{}|])", r"\\\1", literal)

"""Slots of one line of text: free, of a few words, copied from given texts, called by a short name; and several of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from dragoman.core.text import fit, plain_line, words
from dragoman.systems.grammar.base import InvalidAction, Slot, escape


@dataclass(frozen=True)
class Line:
    """One line of free text without square brackets, which mark actions. Control characters and runs of white space are one space."""

    max_chars: int = 200

    @property
    def strict(self) -> str:
        return rf"[^ \t\r\n\[\]][^\t\r\n\[\]]{{0,{self.max_chars - 1}}}"

    @property
    def lenient(self) -> str:
        return r"[^\n\[\]]+?"

    def parse(self, text: str) -> str:
        line = plain_line(text)
        if not line:
            raise InvalidAction("empty text")
        return fit(line, self.max_chars)

    def render(self, value: str) -> str:
        if value != plain_line(value) or not 0 < len(value) <= self.max_chars or set("[]") & set(value):
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
                    run = f"(?: {escape(word)}{run})?"
                runs.append(escape(" ".join(spoken[start : start + fewest])) + run)
        return "(?:" + "|".join(dict.fromkeys(runs)) + ")" if runs else super().strict


@dataclass(frozen=True)
class Keywords(Line):
    """A line of at most `most` words, with single spaces between them. A longer one is cut."""

    most: int = 8

    @property
    def strict(self) -> str:
        word_chars = (self.max_chars + 1) // self.most - 1  # so that the longest line still fits
        word = rf"[^ \t\r\n\[\]]{{1,{word_chars}}}"
        return rf"{word}(?: {word}){{0,{self.most - 1}}}"

    def parse(self, text: str) -> str:
        return super().parse(" ".join(plain_line(text).split()[: self.most]))

    def render(self, value: str) -> str:
        if len(value.split()) > self.most:
            raise InvalidAction(f"more than {self.most} words: {value!r}")
        return super().render(value)


@dataclass(frozen=True)
class Alias(Line):
    """A line that the sampler may only call by a short name, which costs it fewer tokens than to copy what it stands for.

    The parser is that of a line: a model that runs without constraint may say another one, or end the name with a full stop.
    """

    name: str = ""
    stands_for: str = ""

    @property
    def strict(self) -> str:
        return escape(self.name)

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
        more = f"(?:{escape(self.mark)}{self.slot.strict}){{0,{self.most - 1}}}" if self.most > 1 else ""
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

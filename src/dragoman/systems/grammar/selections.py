"""Slots that select out of a list: by number or by title."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.core.text import plain_line, words
from dragoman.systems.grammar.base import HallucinatedIndex, InvalidAction, escape


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
    each other and from `reserved` words, and without what separates them.
    """

    titles: tuple[str, ...]

    @classmethod
    def of(
        cls, texts: Sequence[str], *, max_words: int = 8, max_chars: int = 60, reserved: Sequence[str] = ()
    ) -> Titles:
        fit = {word.casefold(): "" for word in reserved}
        for i, text in enumerate(texts, start=1):
            title = " ".join(words(text.replace(";", " "))[:max_words])[:max_chars].rstrip()
            if not title or title.casefold() in fit:
                title = f"{title} ({i})".strip()
            fit[title.casefold()] = title
        return cls(tuple(fit.values())[len(reserved) :])

    @property
    def strict(self) -> str:
        said = [escape(title) for title in self.titles]
        if not said:
            return ""
        return "(?:" + "|".join(t + "".join(f"(?:; {u})?" for u in said[i:]) for i, t in enumerate(said, 1)) + ")?"

    @property
    def lenient(self) -> str:
        return r"[^\[\]\n]*"

    def parse(self, text: str) -> tuple[int, ...]:
        places = {title.casefold(): i for i, title in enumerate(self.titles, start=1)}
        said = [part for part in map(plain_line, text.split(";")) if part]
        if unknown := [title for title in said if title.casefold() not in places]:
            raise HallucinatedIndex(f"no passage has the title {unknown[0][:80]!r}")
        return tuple(sorted({places[title.casefold()] for title in said}))

    def render(self, value: tuple[int, ...]) -> str:
        Indices(len(self.titles)).render(value)  # the same selections are allowed
        return "; ".join(self.titles[i - 1] for i in value)

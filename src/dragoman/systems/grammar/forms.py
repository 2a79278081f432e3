"""Actions as templates of text with slots."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields

from dragoman.core.text import plain_lines
from dragoman.engines.base import Constraint
from dragoman.systems.grammar.base import Action, Grammar, HallucinatedIndex, InvalidAction, Kind, Slot, escape


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
        return "".join(self.slots[piece].strict if i % 2 else escape(piece) for i, piece in enumerate(self._pieces))

    def constraint(self) -> Constraint:
        return Constraint(regex=self.regex)

    def alternatives(self) -> Sequence[Grammar]:
        return [self]

    def parse(self, text: str) -> Action:
        match = self._pattern.fullmatch(plain_lines(text))
        if match is None:
            raise InvalidAction(f"not of the form {''.join(self._pieces[::2])!r}: {text[:80]!r}")
        return self.cls(**{name: slot.parse(match[name]) for name, slot in self.slots.items()})

    def render(self, action: Action) -> str:
        return "".join(
            self.slots[piece].render(getattr(action, piece)) if i % 2 else piece for i, piece in enumerate(self._pieces)
        )


class OneOf:
    """A choice of forms, told apart by their literal text. The first form that fits a text wins."""

    def __init__(self, *forms: Kind) -> None:
        self.forms = forms

    @property
    def cls(self) -> type:
        """The class of its actions.

        Raises:
            ValueError: they have several.
        """
        (cls,) = {form.cls for form in self.forms}
        return cls

    def constraint(self) -> Constraint:
        return Constraint(regex="(?:" + "|".join(form.constraint().regex or "" for form in self.forms) + ")")

    def alternatives(self) -> Sequence[Grammar]:
        kinds: dict[type, list[Kind]] = {}
        for form in self.forms:
            kinds.setdefault(form.cls, []).append(form)
        return [forms[0] if len(forms) == 1 else type(self)(*forms) for forms in kinds.values()]

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

"""Actions as JSON objects under a schema."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import fields
from functools import partial
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema

from dragoman.core.text import fit, plain_line, unfenced
from dragoman.engines.base import Constraint
from dragoman.systems.grammar.base import Action, Grammar, InvalidAction
from dragoman.systems.grammar.forms import OneOf

KIND = "action"
"""The key that tells kinds of action apart."""
_CONTROL = re.compile(r"[\x00-\x1f]+")


class JsonForm:
    """One kind of action as a JSON object with a key for each field of the dataclass `cls`.

    Types of fields are those of the class, with pydantic's constraints where they are `Annotated`. A type in `types` takes
    a field's place, for what depends on the state. With `kind`, the object says first, under the key `tag`, which kind of
    action it is. Fields in `without` have no key: an action that is read has their defaults, and one that has others no text.

    >>> @dataclass(frozen=True)
    ... class Search:
    ...     query: str
    >>> form = JsonForm(Search, kind="search", query=Annotated[str, Field(max_length=80)])
    >>> form.render(Search("capital of Bhutan"))
    '{"action": "search", "query": "capital of Bhutan"}'
    """

    def __init__(
        self, cls: type, *, kind: str = "", tag: str = KIND, without: Collection[str] = (), **types: Any
    ) -> None:
        hints = {field.name: types.get(field.name, hint) for field, hint in _hints(cls)}
        if unknown := sorted({*types, *without} - set(hints)):
            raise ValueError(f"{cls.__name__} has no field {unknown[0]!r}; it has {sorted(hints)}")
        if kind and tag in hints:
            raise ValueError(f"{cls.__name__}: a kind stands under {tag!r}, which is a field already")
        hints = {name: hint for name, hint in hints.items() if name not in without}
        kinds = {tag: (Literal[kind], ...)} if kind else {}
        keys: dict[str, Any] = {**kinds, **{name: (hint, ...) for name, hint in hints.items()}}
        config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
        self.cls, self.kind, self.tag, self._names = cls, kind, tag, list(hints)
        self.model: type[BaseModel] = create_model(cls.__name__, __config__=config, **keys)

    def constraint(self) -> Constraint:
        return _constraint(self.model)

    def alternatives(self) -> Sequence[Grammar]:
        return [self]

    def parse(self, text: str) -> Action:
        # No JSON has control characters but between its parts. Under `maxLength` xgrammar 0.2 lets a sampler say them in a text.
        written = _CONTROL.sub(" ", unfenced(text))
        try:
            said = self.model.model_validate_json(written)
        except ValidationError as e:
            error = e.errors()[0]
            where = ".".join(map(str, error["loc"]))
            raise InvalidAction(f"{self.cls.__name__}: {where}: {error['msg']}: {text[:80]!r}") from None
        return self.cls(**{name: getattr(said, name) for name in self._names})

    def render(self, action: Action) -> str:
        values = TypeAdapter(self.cls).dump_python(action, mode="json", warnings=False)
        said = {name: values[name] for name in self._names}
        text = json.dumps(({self.tag: self.kind} if self.kind else {}) | said, ensure_ascii=False)
        if self.parse(text) != action:
            raise InvalidAction(f"{self.cls.__name__}: does not survive as JSON: {action!r}"[:200])
        return text


class JsonOneOf(OneOf):
    """A choice of JSON objects, told apart by their kinds or their keys. The first form that fits a text wins."""

    def __init__(self, *forms: JsonForm) -> None:
        super().__init__(*forms)
        self._models = [form.model for form in forms]

    def constraint(self) -> Constraint:
        return _constraint(*self._models)


def text_of(chars: int) -> Any:
    """The type of a field that is one plain line of at most `chars` characters, or empty.

    The sampler can say no quotation mark and no backslash. The parser makes any text `plain`, and cuts a longer one.
    """
    return Annotated[str, Field(max_length=chars), BeforeValidator(partial(_plain, chars=chars))]


def tuple_of(item: Any, most: int, fewest: int = 0) -> Any:
    """The type of a field that is a tuple of `fewest` to `most` items of a type."""
    return Annotated[tuple.__class_getitem__((item, ...)), Field(min_length=fewest, max_length=most)]


def plain(text: str, chars: int) -> str:
    """A text as a field of the type `text_of(chars)` has it: single quotation marks, single spaces, no backslash."""
    return fit(plain_line(text.replace("\\", " ")).replace('"', "'"), chars)


def _plain(value: Any, chars: int) -> Any:
    return plain(value, chars) if isinstance(value, str) else value


def _hints(cls: type) -> list[tuple[Any, Any]]:
    hints = get_type_hints(cls, include_extras=True)
    return [(field, hints[field.name]) for field in fields(cls)]


def _constraint(*models: type[BaseModel]) -> Constraint:
    """The schema of any of these models."""
    union: Any = models[0]
    for model in models[1:]:
        union |= model
    return Constraint(json_schema=json.dumps(TypeAdapter(union).json_schema(schema_generator=_Closed)))


class _Closed(GenerateJsonSchema):
    """Every object has all of its keys and no other, as servers demand that check schemas strictly."""

    def default_schema(self, schema: Any) -> dict[str, Any]:
        return self.generate_inner(schema["schema"])

    def field_is_required(self, field: Any, *args: Any, **kwargs: Any) -> bool:
        return True

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        return super().dataclass_schema(schema) | {"additionalProperties": False}

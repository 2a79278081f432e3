"""Actions as JSON objects under a schema."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema

from dragoman.engines.base import Grammar as Constraint
from dragoman.systems.grammar.base import Action, Grammar, InvalidAction
from dragoman.systems.grammar.forms import OneOf

KIND = "action"
"""The key that tells kinds of action apart."""
_FENCE = re.compile(r"\s*(?:```(?:json)?\s)?(.*?)(?:```)?\s*", re.DOTALL)  # which models like to write around JSON


class JsonForm:
    """One kind of action as a JSON object with a key for each field of the dataclass `cls`.

    Types of fields are those of the class, with pydantic's constraints where they are `Annotated`. A type in `types` takes
    a field's place, for what depends on the state. With `kind`, the object says first which kind of action it is.

    >>> @dataclass(frozen=True)
    ... class Search:
    ...     query: str
    >>> form = JsonForm(Search, kind="search", query=Annotated[str, Field(max_length=80)])
    >>> form.render(Search("capital of Bhutan"))
    '{"action": "search", "query": "capital of Bhutan"}'
    """

    def __init__(self, cls: type, *, kind: str = "", **types: Any) -> None:
        hints = {field.name: types.get(field.name, hint) for field, hint in _hints(cls)}
        if unknown := sorted(set(types) - set(hints)):
            raise ValueError(f"{cls.__name__} has no field {unknown[0]!r}; it has {sorted(hints)}")
        if kind and KIND in hints:
            raise ValueError(f"{cls.__name__}: a kind stands under {KIND!r}, which is a field already")
        tag = {KIND: (Literal[kind], ...)} if kind else {}
        keys: dict[str, Any] = {**tag, **{name: (hint, ...) for name, hint in hints.items()}}
        config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
        self.cls, self.kind, self._names = cls, kind, list(hints)
        self.model: type[BaseModel] = create_model(cls.__name__, __config__=config, **keys)

    def constraint(self) -> Constraint:
        return _constraint(self.model)

    def alternatives(self) -> Sequence[Grammar]:
        return [self]

    def parse(self, text: str) -> Action:
        match = _FENCE.fullmatch(text)
        try:
            said = self.model.model_validate_json(match[1] if match else text)
        except ValidationError as e:
            error = e.errors()[0]
            where = ".".join(map(str, error["loc"]))
            raise InvalidAction(f"{self.cls.__name__}: {where}: {error['msg']}: {text[:80]!r}") from None
        return self.cls(**{name: getattr(said, name) for name in self._names})

    def render(self, action: Action) -> str:
        values = TypeAdapter(self.cls).dump_python(action, mode="json", warnings=False)
        text = json.dumps(({KIND: self.kind} if self.kind else {}) | values, ensure_ascii=False)
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

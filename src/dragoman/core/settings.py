"""Settings as frozen models: unknown keys are refused by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from dragoman.core.errors import UserError


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


S = TypeVar("S", bound=Section)


def parse_section(section: type[S], values: dict[str, Any], *, origin: str) -> S:
    """Values as a section, or a UserError that names the origin and every key that is refused."""
    try:
        return section.model_validate(values)
    except ValidationError as e:
        faults = []
        for error in e.errors():
            key = ".".join(map(str, error["loc"]))
            what = error["msg"].removeprefix("Value error, ")
            if error["type"] == "extra_forbidden":
                what = f"unknown key{near(key, keys(section))}"
            faults.append(f"{key}: {what}" if key else what)
        raise UserError(f"{origin}: " + "; ".join(faults)) from None


def keys(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """All keys of a section and of those within it, dotted."""
    for name, field in section.model_fields.items():
        key = prefix + (field.alias or name)
        yield key
        for inner in (field.annotation, *get_args(field.annotation)):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from keys(inner, f"{key}.")


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Values with those of `over` in their place, section by section."""
    values = dict(base)
    for name, value in over.items():
        old = values.get(name)
        values[name] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return values


def near(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: those that look like it, if any do."""
    similar = difflib.get_close_matches(name, list(known))
    return f" (near: {', '.join(similar)})" if similar else ""


def read_yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        hint = "; run from the project's folder, or name the file with --params" if path.name == "params.yaml" else ""
        raise UserError(f"{path}: no such file{hint}")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        raise UserError(f"{path}{where}: not valid YAML ({getattr(e, 'problem', e)})") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected a mapping of sections, found {type(values).__name__}")
    return values

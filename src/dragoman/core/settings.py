"""Settings as frozen models: unknown keys are refused by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from dragoman.core.errors import UserError
from dragoman.core.files import check_file


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
            if error["type"] == "tuple_type":
                what = "expected a list in brackets, such as [a] or [a, b]"
            if error["type"] == "string_type" and isinstance(error["input"], int | float | date):
                what = f"expected a text; a number or a date is one within quotes, as in \"'{error['input']}'\""
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


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def near(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: those that look like it, if any do."""
    similar = difflib.get_close_matches(name, list(known))
    return f" (near: {', '.join(similar)})" if similar else ""


def read_yaml(path: Path) -> dict[str, Any]:
    """The sections of a YAML file, by the parser with which DVC reads `params.yaml`: what one takes, the other takes.

    Raises:
        UserError: no such file, or not YAML in UTF-8: a key that stands twice, or a URL within brackets without quotes, too.
    """
    check_file(
        path, "; run from the project's folder, or name the file with --params" if path.name == "params.yaml" else ""
    )
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as e:
        line = e.object.count(b"\n", 0, e.start) + 1
        raise UserError(f"{path}:{line}: not UTF-8; save the file in that encoding") from None
    try:
        values = deepcopy(_parsed(text))
    except YAMLError as e:
        raise UserError(_yaml_fault(path, text, e)) from None
    except ValueError as e:  # of a date that there is not
        raise UserError(f"{path}: {e}; a text that looks like a date stands in quotes") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected a mapping of sections, found {type(values).__name__}")
    return values


@lru_cache(maxsize=128)
def _parsed(text: str) -> Any:
    """What YAML says; an empty mapping where it says nothing. Settings are read over and over, and to parse them takes longest."""
    return YAML(typ="safe").load(text) or {}


def _yaml_fault(path: Path, text: str, error: YAMLError) -> str:
    """What is wrong with a YAML file, where, and what to do where we know it."""
    if not isinstance(error, MarkedYAMLError) or error.problem_mark is None:
        return f"{path}: not valid YAML ({error})"
    line, problem = error.problem_mark.line, (error.problem or "").splitlines()[0]
    if isinstance(error, DuplicateKeyError):
        problem = f"{problem.partition(' with value ')[0]}; a section stands once, with all its keys"
    elif "://" in "".join(text.splitlines()[line : line + 1]):
        problem += "; put a URL within [ ] or { } in quotes"
    return f"{path}:{line + 1}: not valid YAML ({problem})"

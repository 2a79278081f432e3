"""The agent systems, by the names that the command line and `params.yaml` use.

A system is a package: a folder here, or one that another distribution declares as an entry point of `dragoman.systems`.
A baseline is one file in the folder `baselines/`.
It exports `SYSTEM`, its class, and where it has them `ABLATIONS`, its variants by name. A file `profiles.yaml` in the
folder has its settings for each profile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, get_origin

from pydantic import TypeAdapter, ValidationError

from dragoman.core.errors import UserError
from dragoman.core.settings import read_yaml
from dragoman.systems.base import Ablation, System
from dragoman.systems.checks import types_of
from dragoman.systems.discovery import baseline_names as baseline_names
from dragoman.systems.discovery import import_system, system_folder
from dragoman.systems.discovery import system_names as system_names


def system_class(name: str) -> type[System]:
    """The class of the system called `name`: a frozen dataclass whose fields are its settings.

    Raises:
        UserError: there is no such system, or its package fails to import or exports no such class.
    """
    package = import_system(name)
    found = getattr(package, "SYSTEM", None)
    if not (isinstance(found, type) and issubclass(found, System) and is_dataclass(found)):
        raise UserError(
            f"{package.__file__}: must export SYSTEM, a dataclass derived from dragoman.systems.base.System"
        )
    return found


def build(name: str, settings: Mapping[str, Any] | None = None) -> System:
    """The system called `name`, with `settings` for its fields.

    Raises:
        UserError: there is no such system, as in `system_class`, or no such setting.
    """
    cls = system_class(name)
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]  # checked by `system_class`
    if unknown := sorted(set(settings or {}) - known):
        raise UserError(f"systems.{name}.{unknown[0]}: no such setting; {name} has {', '.join(sorted(known))}")
    return cls(**_checked(name, cls, settings or {}))


def _checked(name: str, cls: type[System], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as values of the types that the system's fields have.

    Raises:
        UserError: one is of another type.
    """
    types, checked = types_of(cls), dict[str, Any]()
    for key, value in settings.items():
        named = get_origin(types[key]) is Literal  # that it is listed a system checks itself: see `check_choices`
        try:
            checked[key] = value if named else TypeAdapter(types[key]).validate_python(value)
        except ValidationError as e:
            raise UserError(f"systems.{name}.{key}: {value!r} will not do: {e.errors()[0]['msg']}") from None
    return checked


def ablations(name: str) -> Mapping[str, Ablation]:
    """The ablations of the system called `name`, by their names.

    Raises:
        UserError: there is no such system, or its package fails to import.
    """
    found: Mapping[str, Ablation] = getattr(import_system(name), "ABLATIONS", {})
    return found


def ablation(system: str, name: str) -> Ablation:
    """The ablation `name` of a system.

    Raises:
        UserError: there is no such system, or it has no such ablation.
    """
    known = ablations(system)
    if name not in known:
        choices = f"choose from {', '.join(known)}" if known else "it has none"
        raise UserError(f"unknown ablation {name!r} of {system}: {choices}")
    return known[name]


def profile_settings(name: str, profile: str) -> dict[str, Any]:
    """The settings of a system for a profile, from `profiles.yaml` in its folder; empty where there are none.

    Raises:
        UserError: there is no such system, or the file cannot be read.
    """
    folder = system_folder(name)
    path = folder / "profiles.yaml" if folder else None
    settings = (read_yaml(path).get(profile) or {}) if path and path.is_file() else {}
    if not isinstance(settings, dict):
        raise UserError(f"{path}: {profile}: expected settings by their names, found {type(settings).__name__}")
    return settings

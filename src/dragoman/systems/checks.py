"""What every system refuses in the same words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from dragoman.core.errors import UserError
from dragoman.systems.base import Role

_types_of = cache(get_type_hints)


def types_of(settings: Any) -> Mapping[str, Any]:
    """The types of the fields of a class, which its source may name by strings."""
    return _types_of(settings)


def check_choices(settings: Any) -> None:
    """Refuse a value that a field of a type `Literal` does not list.

    Raises:
        UserError: the field, the value and what there is to choose from. An empty choice stands for none, and is not named.
    """
    for name, type_ in types_of(type(settings)).items():
        choices = get_args(type_) if get_origin(type_) is Literal else ()
        if choices and (value := getattr(settings, name)) not in choices:
            raise UserError(f"{name} {value!r}: choose from {', '.join(filter(None, choices))}")


def check_at_least_one(settings: Any, *names: str) -> None:
    """Refuse a count below 1.

    Raises:
        UserError: the field and its value.
    """
    for name in names:
        if (value := getattr(settings, name)) < 1:
            raise UserError(f"{name} {value}: must be at least 1")


def check_roles(key: str, named: Iterable[str], system: str, roles: Iterable[Role]) -> None:
    """Refuse the name of a role that a system does not have, under its settings.

    Args:
        key: of the setting that names them.
        system: the system's name, and `roles` its roles.

    Raises:
        UserError: the key, the name and what there is to choose from.
    """
    known = [role.name for role in roles]
    if unknown := [name for name in named if name not in known]:
        raise UserError(f"{key}: {system} has no role {unknown[0]!r}; choose from {', '.join(known) or 'none'}")

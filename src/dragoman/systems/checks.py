"""What every system's settings refuse in the same words."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin, get_type_hints

from dragoman.core.errors import UserError


def check_choices(settings: Any) -> None:
    """Refuse a value that a field of a type `Literal` does not list.

    Raises:
        UserError: the field, the value and what there is to choose from. An empty choice stands for none, and is not named.
    """
    for name, type_ in get_type_hints(type(settings)).items():
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

"""The algorithms of stage `rl`: each file of this folder is one, found by its name and imported when it is asked for.

To add an algorithm, add a file that defines `ALGORITHM`; see `dragoman.training.algorithm.Algorithm`.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from dragoman.core.errors import UserError

if TYPE_CHECKING:
    from dragoman.training.algorithm import Algorithm


def names() -> list[str]:
    """The names of all algorithms. None of them is imported, since torch takes seconds."""
    return sorted(module.name for module in iter_modules(__path__))


def find(name: str) -> Algorithm:
    """The algorithm of that name.

    Raises:
        UserError: there is none.
    """
    if name not in names():
        raise UserError(f"unknown algorithm {name!r}: choose from {', '.join(names())}")
    found: Algorithm = import_module(f"{__name__}.{name}").ALGORITHM
    return found

"""Finds the rewards: the files of this folder, and the entry points of other distributions."""

from __future__ import annotations

import pkgutil
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from dragoman.core.errors import UserError
from dragoman.rewards.base import REWARDS, RewardFunction

GROUP = "dragoman.rewards"
"""The group of entry points. The value of one is a function under `@reward`, or a module that holds some."""


def reward_names() -> tuple[str, ...]:
    """The names of all rewards, in alphabetical order.

    Raises:
        UserError: an entry point fails to import, or two rewards have one name.
    """
    _import_all()
    return tuple(sorted(REWARDS))


def find_reward(name: str) -> RewardFunction:
    """The reward called `name`.

    Raises:
        UserError: there is none; or as in `reward_names`.
    """
    names = reward_names()
    if name not in names:
        near = get_close_matches(name, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UserError(f"unknown reward {name!r}: choose from {', '.join(names)}{hint}")
    return REWARDS[name]


@cache
def _import_all() -> None:
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        import_module(f"{__package__}.{module.name}")
    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except UserError:
            raise
        except Exception as e:  # the code is somebody else's
            raise UserError(
                f"reward {entry.name!r}: {entry.value} fails to import: {type(e).__name__}: {e}; mend or uninstall it"
            ) from e

"""A reward as a setting: an expression that is checked where it stands, and kept in its canonical form."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from dragoman.core.errors import UserError
from dragoman.rewards.composite import expression


def known_reward(setting: Any) -> str:
    """The canonical form of a reward's name, expression or mapping.

    Raises:
        ValueError: as pydantic wants it, to put the name of the setting before it.
    """
    try:
        return expression(setting)
    except UserError as e:
        raise ValueError(str(e)) from None


RewardSetting = Annotated[str, BeforeValidator(known_reward)]

"""The agent systems, by the names that the command line and `params.yaml` use."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from dragoman.core.errors import UserError
from dragoman.systems.base import System
from dragoman.systems.baselines import Direct, Standard
from dragoman.systems.c3po.system import C3PO
from dragoman.systems.mujica.system import Mujica

SYSTEMS: dict[str, type] = {"direct": Direct, "standard": Standard, "c3po": C3PO, "mujica": Mujica}


def build(name: str, settings: dict[str, Any] | None = None) -> System:
    """The system called `name`, with `settings` for its fields.

    Raises:
        UserError: no such system, or no such setting.
    """
    if name not in SYSTEMS:
        raise UserError(f"unknown system {name!r}: choose from {', '.join(SYSTEMS)}")
    known = {f.name for f in fields(SYSTEMS[name])}
    if unknown := sorted(set(settings or {}) - known):
        raise UserError(f"systems.{name}.{unknown[0]}: no such setting; {name} has {', '.join(sorted(known))}")
    system: System = SYSTEMS[name](**(settings or {}))
    return system

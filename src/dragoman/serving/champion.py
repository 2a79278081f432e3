"""Who says which policy is the champion."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from dragoman.core.errors import UserError
from dragoman.registry import versions as registry
from dragoman.registry.policy import SHARED, find_policy

NAME = registry.CHAMPION


class Champion(Protocol):
    def current(self) -> str | None:
        """The model folder of the champion; None while there is none.

        Asked about once a second, in a thread of its own, so it may block. What it raises is logged, and the policy that
        is served goes on being served.
        """
        ...


class Registered:
    """The version that the registry's alias `champion` names, its weights hashed."""

    def __init__(self, store: Path = registry.STORE) -> None:
        self.store = store

    def current(self) -> str | None:
        if registry.get(registry.CHAMPION, self.store) is None:
            return None
        return str(registry.resolve(registry.CHAMPION, self.store).resolve())


class Published:
    """The latest policy that a training stage has published: a champion without a registry."""

    def __init__(self, stage: str) -> None:
        self.stage = stage

    def current(self) -> str | None:
        try:
            return str(find_policy(self.stage).of(SHARED).resolve())
        except UserError:
            return None  # not trained yet

"""Who says which policy is the champion."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from dragoman.core.errors import UserError
from dragoman.registry.policy import find_policy
from dragoman.registry.versions import CHAMPION, Registry


class Champion(Protocol):
    def current(self) -> str | None:
        """The folder of the champion's policy, which never holds another one; None while there is no champion.

        Asked about once a second, in a thread of its own, so it may block. What it raises is logged, and the policy that
        is served goes on being served.
        """
        ...


class RegistryChampion:
    """The version that the registry's alias `champion` names, its files hashed."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    def current(self) -> str | None:
        version = self.registry.get(CHAMPION)
        return None if version is None else str(self.registry.open(version).folder.resolve())


class StageChampion:
    """The latest policy that a training stage has published: a champion without a registry."""

    def __init__(self, stage: str, results: Path) -> None:
        self.stage, self.results = stage, results

    def current(self) -> str | None:
        try:
            return str(find_policy(self.stage, self.results).folder.resolve())
        except UserError:
            return None  # not trained yet

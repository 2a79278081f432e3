"""Who says which policy is the champion."""

from __future__ import annotations

from typing import Protocol

from dragoman.errors import UserError
from dragoman.training.policy import find_policy

NAME = "champion"


class Champion(Protocol):
    def current(self) -> str | None:
        """The model folder of the champion; None while there is none.

        Asked about once a second, in a thread of its own, so it may block. What it raises is logged, and the policy that
        is served goes on being served.
        """
        ...


class Published:
    """The latest policy that a training stage has published: a champion without a registry."""

    def __init__(self, stage: str) -> None:
        self.stage = stage

    def current(self) -> str | None:
        try:
            return str(find_policy(self.stage).resolve())
        except UserError:
            return None  # not trained yet

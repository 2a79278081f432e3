"""The policy of a training run: a policy set of which one model folder is trained, and the others stay as they are."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dragoman.core.errors import UserError
from dragoman.registry.policy import SHARED, PolicySet, publish
from dragoman.training.actor import Actor
from dragoman.training.export import export


def trained_entries(policy: PolicySet, roles: Sequence[str], *, own: bool = False) -> tuple[str, ...]:
    """The entries of a policy set that share the weights behind `roles`, all roles where none is named.

    Args:
        own: only `roles` themselves, as entries of their own, even if others share their weights so far.

    Raises:
        UserError: these roles have different weights.
    """
    wanted = {role if role in policy.weights else SHARED for role in roles} or set(policy.weights)
    groups = [entries for _, entries in policy.groups() if wanted & set(entries)]
    if len(groups) != 1:
        apart = "; ".join(", ".join(entries) for entries in groups)
        raise UserError(
            f"policy {policy.version} has weights of their own for these roles: {apart}. One run trains one of them: "
            "name its roles in rl.roles or sft.roles"
        )
    return tuple(roles) if own else groups[0]


class TrainedPolicy:
    """The weights of a run by iteration, in folders of the stage.

    Args:
        start: the policy before the first iteration.
        roles: those that are trained; empty for all.
        out: the stage's folder.
        own: give the roles weights of their own.
        staleness: of how many iterations before the latest the weights are kept.

    Raises:
        UserError: see `trained_entries`. Or `out` holds the policy to start from.
    """

    def __init__(
        self, start: PolicySet, roles: Sequence[str], out: Path, *, own: bool = False, staleness: int = 0
    ) -> None:
        if inside := next((w for w in start.weights.values() if w.resolve().is_relative_to(out.resolve())), None):
            raise UserError(
                f"{out}: holds the policy to start from ({inside}), and is emptied for the new one; give another folder by --out"
            )
        self.start, self.out, self.staleness = start, out, staleness
        self.entries = trained_entries(start, roles, own=own)
        self.carried = {role: folder for role, folder in start.weights.items() if role not in self.entries}
        """What is not trained."""
        self.base = start.of(self.entries[0])
        self.best = out / "best"

    def folder(self, iteration: int) -> Path:
        """Where the weights of an iteration are, if they are kept."""
        return self.out / "current" / f"{iteration:04d}" if iteration else self.base

    def weights(self, iteration: int, actor: Actor) -> Path:
        """A model folder with the weights that are trained, as they are now. It replaces those that are too old."""
        folder = self.folder(iteration)
        if not folder.is_dir():
            kept = {self.folder(earlier) for earlier in range(iteration - self.staleness, iteration)}
            for other in folder.parent.glob("*"):
                if other not in kept:
                    shutil.rmtree(other)
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent) as trained:
                actor.save(Path(trained))
                export(self.base, Path(trained), folder)
        return folder

    def whole(self, weights: Path) -> PolicySet:
        """The policy with these weights in the place of the trained ones."""
        if weights == self.base:
            return self.start
        return PolicySet(weights.name, {**self.start.weights, **dict.fromkeys(self.entries, weights)}, {})

    def alone(self, weights: Path) -> PolicySet:
        """The trained weights as a set of their own, without what is carried over."""
        return PolicySet(weights.name, {SHARED: weights}, {})

    def keep(self, weights: Path) -> None:
        """Remember these weights as the best so far."""
        shutil.rmtree(self.best, ignore_errors=True)
        shutil.copytree(weights, self.best)

    def publish(self, manifest: Mapping[str, Any], best: Path | None = None) -> PolicySet:
        """Make the best weights, with those that were not trained, the stage's policy.

        Args:
            best: those, where they are not the ones that `keep` remembers.
        """
        return publish(dict.fromkeys(self.entries, best or self.best), self.out, manifest, carried=self.carried)

    def clean(self) -> None:
        """Remove what only a run that goes on would need."""
        for folder in (self.best, self.out / "current"):
            shutil.rmtree(folder, ignore_errors=True)

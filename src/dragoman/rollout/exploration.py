"""How a tree grows: how many actions are drawn at each decision."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Exploration:
    """How many actions are drawn at a point.

    The default is inference: one action, greedy. A tree rollout draws `breadth[t - 1]` actions at depth t (the last
    entry holds for all that follow), and down to depth `force` so many of every kind of action (1 in C-3PO, section 5.1);
    those without a choice of their own are all the same and one. With `oracle`, roles that have one act as it says, where
    the question's gold passages are known, and nothing is drawn for them.
    """

    temperature: float = 0.0
    breadth: tuple[int, ...] = (1,)
    force: int = 0
    max_nodes: int | None = None
    max_tokens: int | None = None
    """Limits on a whole tree. At each fork the siblings share equally in what is left, so that where a branch is cut does
    not depend on which of them happened to run first."""
    oracle: bool = False

    def draws(self, depth: int) -> int:
        return self.breadth[min(depth, len(self.breadth)) - 1]


TREE = Exploration(temperature=1.0, breadth=(2, 2, 2, 2, 1), force=1)
"""C-3PO eq. 2: K(t) = 2 for t <= 4, else 1, after a deterministic first decision."""

"""Monte-Carlo credit over the tree of an episode."""

from __future__ import annotations

import math
from collections import defaultdict

from dragoman.rollout.record import Episode


def credit(episode: Episode, reward: str, *, price: float = 0.0) -> dict[str, float | None]:
    """Mean reward of the leaves below each node (C-3PO eq. 5), by node id.

    A leaf is a trajectory, and is below the nodes that it passes through. It counts as often as its actions were drawn, since
    equal draws are merged in a tree. Otherwise a rare action would weigh as much as a frequent one. Leaves whose reward is
    None are left out. A node without a scored leaf has no credit, None, which is not a zero.

    Args:
        reward: the name of a reward.
        price: what each step of a trajectory takes off its reward: a decision, a search or a call of the LLM.
    """
    draws = {node.id: 1 + node.merged for node in episode.nodes}
    total: dict[str, float] = defaultdict(float)
    weights: dict[str, int] = defaultdict(int)
    for trajectory in episode.trajectories:
        value = trajectory.rewards.get(reward)
        if value is not None:
            weight = math.prod(draws[node] for node in trajectory.nodes)
            net = value - price * len(trajectory.steps)
            for node in trajectory.nodes:
                total[node] += weight * net
                weights[node] += weight
    return {n.id: total[n.id] / weights[n.id] if weights[n.id] else None for n in episode.nodes}

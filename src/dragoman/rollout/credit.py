"""Monte-Carlo credit over the tree of an episode."""

from __future__ import annotations

import math
from collections import defaultdict

from dragoman.rollout.record import Episode


def credit(episode: Episode, reward: str, *, price: float = 0.0) -> dict[str, float | None]:
    """Mean reward of the leaves below each node (C-3PO eq. 5), by node id.

    A leaf is a trajectory; it is below a node when it passes through it. It counts as often as its actions were drawn,
    equal draws being merged in a tree: else what the policy does rarely would weigh as much as what it does mostly, and
    the mean would not be what the policy can expect. Leaves whose reward is None are left out, and a node without a scored
    leaf has no credit (None), which is not the same as none earned. With a `price`, each step of a trajectory (a decision, a
    search, a call of the LLM) takes that much off its reward.
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

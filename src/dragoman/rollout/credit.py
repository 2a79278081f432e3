"""Monte-Carlo credit over the tree of an episode."""

from __future__ import annotations

from collections import defaultdict

from dragoman.rollout.record import Episode


def credit(episode: Episode, reward: str) -> dict[str, float | None]:
    """Mean reward of the leaves below each node (C-3PO eq. 5), by node id.

    A leaf is a trajectory; it is below a node when it passes through it. Leaves whose reward is None are left out, and a
    node without a scored leaf has no credit (None), which is not the same as none earned.
    """
    rewards: dict[str, list[float]] = defaultdict(list)
    for trajectory in episode.trajectories:
        value = trajectory.rewards.get(reward)
        if value is not None:
            for node in trajectory.nodes:
                rewards[node].append(value)
    return {n.id: sum(r) / len(r) if (r := rewards[n.id]) else None for n in episode.nodes}

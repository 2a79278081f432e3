"""Monte-Carlo credit over the tree of an episode: what the whole system may expect to earn after each action."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Protocol

from dragoman.rollout.record import Episode, Node, Trajectory


class Sibling(Protocol):
    """An action among others of its state: a node, or a sample."""

    @property
    def draws(self) -> int: ...

    @property
    def probability(self) -> float | None: ...

    @property
    def inclusion(self) -> float: ...


def shares(siblings: Sequence[Sibling]) -> list[float]:
    """How much each action counts in what its state is worth; they add up to 1.

    Where the policy's probability of each is known, it is that over its chance to be drawn at all, renormalised over the
    siblings, which are distinct: see `choosing.draw`. Else it is how often each was drawn. Draws that were forced are no
    sample of the policy, and share equally until a trainer knows better: see `Survey.informed`.
    """
    known = [x.probability / x.inclusion for x in siblings if x.probability is not None]
    weights: Sequence[float] = known if len(known) == len(siblings) and sum(known) > 0 else [x.draws for x in siblings]
    return [weight / sum(weights) for weight in weights]


def credit(episode: Episode, reward: str, *, price: float = 0.0) -> dict[str, float | None]:
    """The expected reward below each node (C-3PO eq. 5), by node id, as a recursive mean.

    A node is worth the mean of the states that it leads to: several where branches run in parallel. A state is worth the mean
    of its actions, by their `shares`. So a bushy branch counts no more than a thin one. What a last node leads to is
    the reward of its trajectory.

    Siblings in a branch are compared over runs that are equal outside of it. A fork leaves the branches beside it at the
    first action of each of their states. So a node's credit looks only at runs of which that is true.

    A reward may be None. A node with no scored leaf below has no credit, None, which is not a zero; its siblings share
    what it leaves.

    Args:
        episode: with the siblings of a state in the order in which they were drawn, as `Tree` leaves them.
        reward: the name of a reward.
        price: what each step of a trajectory takes off its reward: a decision, a search or a call of the LLM.
    """
    nodes = {node.id: node for node in episode.nodes}
    siblings: dict[str, list[Node]] = defaultdict(list)
    for node in episode.nodes:
        siblings[node.point].append(node)
    first = {actions[0].id for actions in siblings.values()}
    following: dict[str, dict[str, None]] = defaultdict(dict)  # points, in their order
    ends: dict[str, list[float]] = defaultdict(list)

    @cache
    def past(id: str) -> frozenset[str]:
        before = _before(nodes[id])
        return frozenset(before).union(*map(past, before))

    for trajectory in episode.trajectories:
        gain = earned(trajectory, reward, price)
        for id in _compared(trajectory.nodes, past, first):
            after = [nodes[other].point for other in trajectory.nodes if id in _before(nodes[other])]
            following[id].update(dict.fromkeys(after))
            if not after and gain is not None:
                ends[id].append(gain)

    @cache
    def of_node(id: str) -> float | None:
        worth = [of_state(point) for point in following[id]]
        return _mean([(1.0, value) for value in (*worth, *ends[id])])

    @cache
    def of_state(point: str) -> float | None:
        return _of_state(siblings[point], of_node)

    return {id: of_node(id) for id in nodes}


def expected(episode: Episode, reward: str) -> float | None:
    """What the policy may expect to earn: the mean worth of the states that the question begins with.

    Where the siblings of a state are distinct, as at marks, the plain mean over trajectories says little: what the policy would never do
    counts in it as much as what it would.

    Returns:
        For a single trajectory its reward; None where no trajectory has one.
    """
    values = credit(episode, reward)
    beginnings: dict[str, list[Node]] = defaultdict(list)
    for node in episode.nodes:
        if not _before(node):
            beginnings[node.point].append(node)
    worth = [_of_state(actions, values.__getitem__) for actions in beginnings.values()]
    return _mean([(1.0, value) for value in (worth or [t.rewards.get(reward) for t in episode.trajectories])])


def mean_expected(episodes: Iterable[Episode], reward: str) -> float | None:
    """The mean of `expected` over those episodes that have one; None where none has."""
    return _mean([(1.0, expected(episode, reward)) for episode in episodes])


def _of_state(actions: Sequence[Node], worth: Callable[[str], float | None]) -> float | None:
    """The mean worth of a state's actions, by their shares."""
    return _mean([(share, worth(action.id)) for share, action in zip(shares(actions), actions, strict=True)])


def _before(node: Node) -> Sequence[str]:
    """The nodes that come right before it."""
    return node.joins or ([] if node.parent is None else [node.parent])


def _compared(way: Sequence[str], past: Callable[[str], frozenset[str]], first: set[str]) -> Iterator[str]:
    """The nodes of a trajectory beside which its other branches took their first actions."""
    for id in way:
        if all(other in first for other in way if other != id and other not in past(id) and id not in past(other)):
            yield id


def earned(trajectory: Trajectory, reward: str, price: float) -> float | None:
    """The reward of a trajectory less the price of its steps; None where it could not be scored."""
    value = trajectory.rewards.get(reward)
    return None if value is None else value - price * len(trajectory.steps)


def _mean(weighted: Iterable[tuple[float, float | None]]) -> float | None:
    """Over what has a value; None where nothing has, or nothing that has one has weight."""
    known = [(weight, value) for weight, value in weighted if value is not None]
    total = sum(weight for weight, _ in known)
    return sum(weight * value for weight, value in known) / total if total else None

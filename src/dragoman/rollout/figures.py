"""The figures of a rollout: counts, tokens, seconds and the mean reward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from dragoman.rollout.credit import mean_expected
from dragoman.rollout.record import Episode


def figures(episodes: Sequence[Episode], reward: str) -> dict[str, Any]:
    """Figures of all episodes together.

    `reward` is the mean over questions of what the policy may expect to earn (`credit.mean_expected`). `saved_draws` counts
    draws that gave an action which its state had already. `cached_share` is the share of the decisions' prompt tokens
    that came from an engine's prefix cache.
    """
    nodes = [n for e in episodes for n in e.nodes]
    leaves = [t for e in episodes for t in e.trajectories]
    worth = mean_expected(episodes, reward)
    points = {(e.key, n.point): n for e in episodes for n in e.nodes}
    read = sum(n.prompt_tokens for n in points.values())
    return {
        "questions": len(episodes),
        "trajectories": len(leaves),
        "nodes": len(nodes),
        "calls": sum(len(e.calls) for e in episodes),
        **llm_calls(episodes),
        "tokens": sum(e.tokens for e in episodes),
        "seconds": round(busy_seconds((e.started, e.seconds) for e in episodes), 1),
        "cached_share": round(sum(n.cached_tokens for n in points.values()) / read, 3) if read else 0.0,
        "saved_draws": sum(n.merged for n in nodes),
        "reward": None if worth is None else round(worth, 4),
        "unscored": sum(t.rewards.get(reward) is None for t in leaves),
        "roles": dict(sorted(Counter(n.role for n in nodes).items())),
        "stops": dict(sorted(Counter(t.stop.value for t in leaves).items())),
        "depths": {str(d): c for d, c in sorted(Counter(len(t.nodes) for t in leaves).items())},
    }


def llm_calls(episodes: Iterable[Episode]) -> dict[str, int]:
    """Calls of the frozen LLM: those that its cache answered (`llm_hits`), and those that it answered (`llm_misses`)."""
    cached = [c.cached for e in episodes for c in e.calls if c.kind == "ask"]
    return {"llm_hits": sum(cached), "llm_misses": len(cached) - sum(cached)}


def busy_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds in which at least one of the (start, seconds) spans ran: pauses of a run that was resumed do not count."""
    total, end = 0.0, float("-inf")
    for started, seconds in sorted(spans):
        stop = started + seconds
        total += max(0.0, stop - max(end, started))
        end = max(end, stop)
    return total

"""What a trained policy loses where something is another than it was in training: retriever, LLM or data (C-3PO, table 2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.core.stats import bootstrap_difference, bootstrap_interval, smallest_detectable
from dragoman.core.tables import table_lines
from dragoman.evaluation.metrics import USUAL, differences_of
from dragoman.evaluation.report import interval

Predictions = Mapping[str, Mapping[str, Any]]
"""Lines of `predictions.jsonl` by the question's id."""


def losses(home: Predictions, away: Predictions, *, paired: bool, resamples: int, seed: int) -> dict[str, Any]:
    """What one system scores in domain, and how much less it does where it was carried to, by score.

    Args:
        home: its predictions in domain.
        away: those where it was carried to.
        paired: both are of the same questions. Then only those count that have a score in both, each against itself.

    Returns:
        For each score that both have: `home`, `there` and `loss` (home minus there), each a mean with its 95% interval, and
        `n`, the questions there. Where these vary also `detectable`, the smallest loss that so many questions would have shown.
    """
    settings = {"resamples": resamples, "seed": seed}
    found = dict[str, Any]()
    for score in USUAL:
        scored = _scored(home, score)
        if paired:
            differences = differences_of(home, away, score)
            samples, scored = [differences], _scored(home, score, beside=away)
            loss = bootstrap_interval(differences, **settings) if differences else None
        else:
            samples = [scored, _scored(away, score)]
            loss = bootstrap_difference(samples[0], samples[1], **settings) if all(samples) else None
        if loss:
            there = _scored(away, score, beside=home if paired else None)
            found[score] = {
                "home": bootstrap_interval(scored, **settings),
                "there": bootstrap_interval(there, **settings),
                "n": len(there),
                "loss": loss,
            }
            if (smallest := smallest_detectable(*samples)) is not None:
                found[score]["detectable"] = smallest
    return found


def markdown(grid: Mapping[str, Mapping[str, Any]], score: str = "cover_em") -> str:
    """The grid as Markdown: a row for each change and each system.

    Args:
        grid: metrics of evaluations that hold a `transfer`, by the change.
    """
    head = ["another", "data", "n", "system", "in domain", "there", "loss, points", "detectable"]
    rows = []
    for change, metrics in grid.items():
        paired = metrics["transfer"]["paired"]
        for system, scores in metrics["transfer"]["systems"].items():
            if score not in scores:
                continue
            found = scores[score]
            there, n = found.get("there", metrics["systems"][system][score]), found.get("n", metrics["n"])
            row = [change, metrics["dataset"], str(n), system, interval(found["home"]), interval(there)]
            row.append(points(scores[score]["loss"]) + ("" if paired else " *"))
            row.append(f"{100 * scores[score]['detectable']:.1f}" if "detectable" in scores[score] else "–")
            rows.append(row)
    note = [
        "",
        "Loss: the score in domain minus the score there, with its 95% bootstrap interval over the same questions.",
        "Detectable: the smallest true loss that so many questions show four times out of five.",
    ]
    if not all(metrics["transfer"]["paired"] for metrics in grid.values()):
        note += ["*: over other questions, so each side is drawn by itself."]
    return "\n".join([*table_lines(head, rows), *note]) + "\n"


def points(value: Mapping[str, float]) -> str:
    """A difference in hundredths."""
    return "{:+.1f} [{:+.1f}, {:+.1f}]".format(*(100 * value[key] for key in ("mean", "low", "high")))


def _scored(rows: Predictions, score: str, *, beside: Predictions | None = None) -> list[float]:
    """The scores of those that have one, also `beside` them where that is given."""
    found = {id: value for id, row in rows.items() if (value := row["scores"].get(score)) is not None}
    if beside is None:
        return list(found.values())
    return [value for id, value in found.items() if id in beside and beside[id]["scores"].get(score) is not None]

"""From episodes to numbers: one prediction a question, means with intervals, and paired differences."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from dragoman.core.stats import bootstrap_interval, smallest_detectable
from dragoman.core.types import Question
from dragoman.rewards.answer import scores
from dragoman.rewards.gold import recall
from dragoman.rollout.figures import busy_seconds
from dragoman.rollout.record import Episode

ANSWER_SCORES = ("cover_em", "em", "f1", "precision")
RETRIEVAL_SCORES = ("recall", "all_gold_recall")
USUAL = (*ANSWER_SCORES, *RETRIEVAL_SCORES, "judge")
COSTS = ("calls", "searches", "tokens")


def prediction(episode: Episode, system: str) -> dict[str, Any]:
    """The line of `predictions.jsonl` for an episode with one trajectory.

    A trajectory that the machinery failed, or a context cut short, has scores None; one that the policy ended without an answer has an empty
    answer, which scores 0. `seconds` is the latency of this question among those under way with it.
    """
    (trajectory,) = episode.trajectories
    nodes = {n.id: n for n in episode.nodes}
    visited = [nodes[i] for i in trajectory.nodes]
    calls = [c for c in episode.calls if c.id in set(trajectory.steps)]
    asks = [c for c in calls if c.kind == "ask"]
    question = Question.from_json(episode.question)
    scored: dict[str, float | None] = dict.fromkeys(ANSWER_SCORES)
    if trajectory.answer is not None and question.answers:
        scored = scores(trajectory.answer, question.answers, question.parts)
    return {
        "id": question.id,
        "system": system,
        "type": question.type,
        "question": question.question,
        "answer": trajectory.answer,
        "answers": list(question.answers),
        "scores": scored | retrieval_scores(trajectory.passages, question.supporting_ids, trajectory.answer is None),
        "passages": trajectory.passages,
        "strategy": (visited[0].kind or None) if visited else None,
        "depth": len(visited),
        "calls": len(visited) + len(asks),
        "searches": len(calls) - len(asks),
        "llm_calls": len(asks),
        "llm_hits": sum(c.cached for c in asks),
        "tokens": sum(c.prompt_tokens + c.completion_tokens for group in (visited, asks) for c in group),
        "started": round(episode.started, 3),
        "seconds": round(episode.seconds, 3),
        "stop": trajectory.stop.value,
        "error": trajectory.error,
    }


def retrieval_scores(kept: Sequence[str], gold: Sequence[str], failed: bool = False) -> dict[str, float | None]:
    """Share of the gold passages that were kept, and whether all were; None where no gold is known, or nothing came of it.

    A chunk `ID#N` counts for the passage `ID` that it was cut from.
    """
    if failed or not gold:
        return dict.fromkeys(RETRIEVAL_SCORES)
    share = recall(kept, gold)
    return {"recall": share, "all_gold_recall": float(share == 1)}


def summarize(
    predictions: Sequence[dict[str, Any]], *, dataset: str, seed: int, resamples: int = 2000
) -> dict[str, Any]:
    """What `metrics.json` holds: the costs and scores of each system, and paired differences between systems.

    What a system did is counted from its records: `strategies` are the kinds of its first decisions, `depths` the numbers of
    its decisions, and `stops` why it ended.

    `paired` holds, for every two systems in the order in which they come, the later one minus the earlier one over the
    questions that both have a score for. `detectable` is the smallest difference that so many questions would have shown; it is
    not there where all differ alike.
    A system that was asked fewer questions than the `n` of the table has an `n` of its own.
    `scores` names the scores that were asked for beside the usual ones, and is there where some were.
    """
    by_system: dict[str, dict[str, dict[str, Any]]] = {}
    for row in predictions:
        by_system.setdefault(row["system"], {})[row["id"]] = row
    names = list(by_system)
    more = list(dict.fromkeys(score for row in predictions for score in row["scores"] if score not in USUAL))
    systems = {name: _system(list(by_system[name].values()), more, resamples, seed) for name in names}
    paired = {}
    for i, earlier in enumerate(names):
        for later in names[i + 1 :]:
            differences = {
                score: differences_of(by_system[later], by_system[earlier], score) for score in (*USUAL, *more)
            }
            paired[f"{later} - {earlier}"] = {
                score: _difference(values, resamples, seed) for score, values in differences.items() if values
            }
    counts = {name: len({row.get("pooled", id) for id, row in rows.items()}) for name, rows in by_system.items()}
    n = max(counts.values(), default=0)
    for name, count in counts.items():
        systems[name] |= {"n": count} if count < n else {}
    return {
        "dataset": dataset,
        "n": n,
        "seed": seed,
        "systems": systems,
        "paired": paired,
    } | ({"scores": more} if more else {})


def differences_of(
    later: Mapping[str, Mapping[str, Any]], earlier: Mapping[str, Mapping[str, Any]], score: str
) -> list[float]:
    """What one system scores above another, question by question, where both have a score.

    Args:
        later: its predictions, by the question's id.
        earlier: those of the other.
    """
    both = (
        (row, row["scores"].get(score), earlier[id]["scores"].get(score))
        for id, row in later.items()
        if id in earlier and row.get("question") == earlier[id].get("question")  # ids of made questions are numbers
    )
    return of_each_question((row, a - b) for row, a, b in both if a is not None and b is not None)


def of_each_question(values: Iterable[tuple[Mapping[str, Any], float]]) -> list[float]:
    """The mean of each question's values, so that an interval over them counts it once.

    Args:
        values: each with its prediction. Of several runs pooled, predictions of one question share the key `pooled`.
    """
    grouped: dict[Any, list[float]] = defaultdict(list)
    for row, value in values:
        grouped[row.get("pooled", row["id"])].append(value)
    return [fmean(group) for group in grouped.values()]


def _difference(values: Sequence[float], resamples: int, seed: int) -> dict[str, float]:
    interval, smallest = bootstrap_interval(values, resamples=resamples, seed=seed), smallest_detectable(values)
    return interval | ({} if smallest is None else {"detectable": smallest})


def _system(rows: list[dict[str, Any]], more: Sequence[str], resamples: int, seed: int) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for score in (*USUAL, *more):
        values = of_each_question((row, v) for row in rows if (v := row["scores"].get(score)) is not None)
        if values:
            summary[score] = bootstrap_interval(values, resamples=resamples, seed=seed)
    for cost in COSTS:
        summary[cost] = round(float(np.mean([row[cost] for row in rows])), 2)
    of_runs: dict[int, list[tuple[float, float]]] = defaultdict(list)  # two machines may have worked at the same time
    for row in rows:
        of_runs[row.get("run", 0)].append((row["started"], row["seconds"]))
    summary["seconds"] = round(sum(map(busy_seconds, of_runs.values())) / len(rows), 6)
    summary["latency"] = round(float(np.median([row["seconds"] for row in rows])), 3)
    if any(row.get("answer") for row in rows) and all(row.get("llm_calls") == 0 for row in rows):
        summary["answered_by"] = "proxy"  # which has trained for it: another contract than that of a frozen LLM
    summary["llm_hits"] = sum(row.get("llm_hits", 0) for row in rows)
    summary["failed"] = sum(row["scores"]["cover_em"] is None for row in rows)
    summary["unjudged"] = sum("judge" in row["scores"] and row["scores"]["judge"] is None for row in rows)
    summary["judge_faults"] = sum("judge_fault" in row for row in rows)
    if more:
        answered = [row["scores"] for row in rows if row.get("answer") is not None]
        summary["unscored"] = {score: sum(s.get(score) is None for s in answered) for score in more}
    summary["stops"] = dict(sorted(Counter(row["stop"] for row in rows).items()))
    summary["strategies"] = dict(sorted(Counter(row["strategy"] for row in rows if row["strategy"]).items()))
    summary["depths"] = {str(d): c for d, c in sorted(Counter(row["depth"] for row in rows).items())}
    return summary

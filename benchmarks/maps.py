"""How often the judge of MAPS is right: its verdicts against whether the searches before them have found all gold passages.

Of each system of an evaluation that has such a judge:

- *accuracy*: the mean over questions of the share of right verdicts, so that a question counts once, however long it searches;
- *by gold*: the same of the share of pools that suffice, and *always one*: what saying the more frequent verdict each time would have;
- how many verdicts of each kind were said of pools that suffice, and of those that do not.

A system is judged on the pools that it came to itself. No model is asked.

    python -m benchmarks.maps results/chain/2wiki/evaluate
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from dragoman.core.stats import bootstrap_interval
from dragoman.evaluation.evaluate import store_of
from dragoman.evaluation.predictions import read_predictions
from dragoman.evaluation.report import interval
from dragoman.rewards.gold import recall
from dragoman.rollout.record import Episode
from dragoman.rollout.store import EPISODES, read_episodes
from dragoman.systems.maps.actions import Sufficient

RESAMPLES, SEED = 2000, 0
HEAD = ("system", "questions", "accuracy", "by gold", "always one", "suffices: said so", "not", "lacks: said so", "not")


class Verdict(NamedTuple):
    """Whether a pool suffices: what the judge said, and what is so by the gold passages."""

    said: bool
    gold: bool


def verdicts(episode: Episode) -> list[Verdict]:
    """Those on the way of an episode of a single trajectory; none where no gold passages are known."""
    gold: Sequence[str] = episode.question.get("supporting_ids", ())
    nodes = {node.id: node for node in episode.nodes}
    searches = {call.id: call.output for call in episode.calls if call.kind == "search"}
    pool, found = list[str](), list[Verdict]()
    (trajectory,) = episode.trajectories
    for step in trajectory.steps if gold else ():
        pool += searches.get(step, ())
        if step in nodes and nodes[step].role == "judge" and nodes[step].kind:  # what is no action is no verdict
            found.append(Verdict(nodes[step].kind == Sufficient.__name__, recall(pool, gold) == 1))
    return found


def figures(questions: Sequence[Sequence[Verdict]]) -> list[str]:
    """The cells of a row. Each question has verdicts."""
    right = bootstrap_interval(
        [fmean(v.said == v.gold for v in found) for found in questions], resamples=RESAMPLES, seed=SEED
    )
    share = fmean(fmean(v.gold for v in found) for found in questions)
    counts = Counter(verdict for found in questions for verdict in found)
    table = [counts[Verdict(*pair)] for pair in ((True, True), (False, True), (False, False), (True, False))]
    return [str(len(questions)), interval(right), f"{share:.2f}", f"{max(share, 1 - share):.2f}", *map(str, table)]


def of_systems(folder: Path) -> Iterator[tuple[str, list[list[Verdict]]]]:
    """The verdicts of each system of an evaluation that has any, question by question.

    Its stores may also hold episodes of earlier evaluations into the same folder; those of `predictions.jsonl` count.
    """
    asked: dict[str, set[tuple[Any, ...]]] = {}
    for row in read_predictions(folder):
        asked.setdefault(row["system"], set()).add((row["id"], row["started"]))
    for system, those in asked.items():
        episodes = read_episodes(folder / store_of(system) / EPISODES)
        kept = (verdicts(e) for e in episodes if (e.question["id"], round(e.started, 3)) in those)
        if found := [each for each in kept if each]:
            yield system, found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="an evaluation's")
    folder = parser.parse_args(argv).folder
    rows = [[system, *figures(found)] for system, found in of_systems(folder)]
    if not rows:
        parser.error(f"{folder}: no judge of MAPS has said anything about a question with supporting_ids")
    for cells in (HEAD, ["---"] * len(HEAD), *rows):
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()

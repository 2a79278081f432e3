"""An evaluation in shards: each asks and scores every N-th question, and what they leave makes the tables of the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dragoman.core.types import Question
from dragoman.evaluation.evaluate import REWARD, Answers, Evaluation, store_of
from dragoman.evaluation.predictions import read_predictions
from dragoman.evaluation.settings import EvaluateParams
from dragoman.rewards import Reward
from dragoman.rollout.exploration import GREEDY
from dragoman.rollout.scheduler import describe
from dragoman.rollout.shards import Shard, keys, merge
from dragoman.systems.base import System


def finish(shard: Shard, out: Path, answers: Answers, settings: EvaluateParams) -> None:
    """Mark a shard as finished whose report is in its folder, below `out`."""
    left = {store_of(name): keys(episodes) for name, episodes in answers.episodes.items()}
    shard.finish(out, left, _scored(settings) | {"judge": answers.judge})


def merged(of: int, systems: Mapping[str, System], questions: Sequence[Question], evaluation: Evaluation) -> Answers:
    """The answers of finished shards, whose episodes are then in `evaluation.out` as well. No model is run.

    Raises:
        UserError: a shard is not finished, or belongs to another evaluation.
    """
    out, seed, reward = evaluation.out, evaluation.seed, Reward.of(REWARD)
    configs = {store_of(name): describe(name, system, None, GREEDY, seed, reward) for name, system in systems.items()}
    found = merge(out, of, questions, configs, made_with=_scored(evaluation.settings))
    shards = Shard.all(of)
    rows = {(row["system"], row["id"]): row for shard in shards for row in read_predictions(shard.folder(out))}
    return Answers(
        {name: found[store_of(name)] for name in systems},
        [rows[name, question.id] for name in systems for question in questions],
        shards[0].finished(out).made_with["judge"],
    )


def _scored(settings: EvaluateParams) -> dict[str, Any]:
    """What answers are scored by besides the usual."""
    return {"scores": [*settings.scores, *(["judge"] if settings.judge else [])]}

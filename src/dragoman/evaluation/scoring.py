"""Scores that are asked for beside the usual ones: any reward, of answers that are there already.

They are given once all questions are answered, so that a judge takes no time from what is measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.core.errors import RetrieverFault
from dragoman.core.types import Passage, Question
from dragoman.retrieval.base import Retriever
from dragoman.rewards import Reward
from dragoman.rollout.backends import Backends
from dragoman.rollout.record import Episode


async def add_scores(
    rewards: Mapping[str, Reward], episodes: Sequence[Episode], rows: Sequence[dict[str, Any]], backends: Backends
) -> None:
    """Add the value of each reward to the `scores` of each prediction; None where it has none.

    Where a call failed in a way that may pass, `judge_fault` says why, as with a judge's verdict.

    Args:
        rewards: by their names in the scores.
        episodes: a trajectory each.
        rows: their predictions, in the same order.
        backends: of the episodes. The retriever is asked once more for the texts of the passages that were kept.
    """

    async def one(episode: Episode, row: dict[str, Any]) -> None:
        row["scores"] |= dict.fromkeys(rewards)
        (trajectory,) = episode.trajectories
        if trajectory.answer is None:
            return
        question = Question.from_json(episode.question)
        try:
            passages = await kept_passages(episode, backends.retriever_of(question))
        except RetrieverFault as e:
            row["judge_fault"] = str(e)
            return
        found = await asyncio.gather(*(reward.scored(question, trajectory, passages) for reward in rewards.values()))
        row["scores"] |= {
            name: scores.values[reward.name] for (name, reward), scores in zip(rewards.items(), found, strict=True)
        }
        if fault := next((scores.fault for scores in found if scores.fault), ""):
            row["judge_fault"] = fault

    await asyncio.gather(*map(one, episodes, rows))


async def kept_passages(episode: Episode, retriever: Retriever) -> list[Passage]:
    """The passages that an episode's trajectory kept, with their texts, by the searches that found them.

    Raises:
        RetrieverFault: the retriever failed, or finds some of them no more.
    """
    (trajectory,) = episode.trajectories
    wanted, found = set(trajectory.passages), dict[str, Passage]()
    for call in episode.calls:
        if call.kind == "search" and isinstance(call.input, dict) and wanted & set(call.output) - found.keys():
            (hits,) = await retriever.search([call.input["query"]], call.input["k"], call.input["page"])
            found |= {hit.passage.id: hit.passage for hit in hits}
    if missing := sorted(wanted - found.keys()):
        raise RetrieverFault(f"question {episode.question['id']}: the passage {missing[0]} is found no more")
    return [found[id] for id in trajectory.passages]

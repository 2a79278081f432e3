"""Self-training: imitate one's own best trajectories (mRAG, section 3.2 and appendix D.2).

1. Draw several trajectories of each question.
2. Keep those of each question that earned the most, and a few of them where several earned the same.
3. Maximize the likelihood of the actions that the trained roles took in them.

A kept trajectory counts 1 and any other 0, so what is left of the policy gradient is maximum likelihood, as in `mygo`. There a
threshold says what passes, for all questions alike. Here each question has its own: its best.

With `redraw`, each iteration draws from the last policy and learning goes on from it. In ReST-EM (Singh et al. 2024), which the
paper follows, each round draws from the last policy, too, but trains the base model anew.

The paper chooses the checkpoint on its test set. Here the dev questions do, as with every algorithm.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from dragoman.core.errors import UserError
from dragoman.core.types import Question
from dragoman.rollout.record import Episode
from dragoman.rollout.samples import Sample
from dragoman.rollout.store import read_episodes
from dragoman.training import likelihood
from dragoman.training.algorithm import Algorithm, Collected
from dragoman.training.selection import CONTRAST, questions_of, worth
from dragoman.training.settings import RlParams, SelftrainParams

if TYPE_CHECKING:
    from dragoman.training.learner import Learner
    from dragoman.training.loop import Loop


async def collect(loop: Loop, questions: Sequence[Question]) -> Collected:
    """The actions of all trained roles in the best trajectories of each question."""
    s = loop.settings
    # 1.
    drawn = await _draw(loop, questions) if s.selftrain.redraw or not loop.iteration else _first_drawn(loop)
    # 2.
    kept, tied = best_of_each(drawn, loop.shaped, s.price, s.selftrain)
    found = loop.samples(kept)
    batch = loop.fitting(found)
    answers = [e.trajectories[0].answer or "" for e in kept]
    figures = {
        "too_long": len(found) - len(batch),
        "kept": len(kept),
        "tied": tied,
        "unlearnt": len({e.question["id"] for e in drawn} - {e.question["id"] for e in kept}),
        "kept_words": fmean(len(answer.split()) for answer in answers) if answers else 0.0,
    }
    return Collected(drawn, batch, figures)


async def _draw(loop: Loop, questions: Sequence[Question]) -> list[Episode]:
    """Single trajectories: one draw of all questions after the other."""
    episodes = list[Episode]()
    for draw in range(loop.settings.selftrain.trajectories):
        episodes += await loop.draw(questions, draw)
    return episodes


def _first_drawn(loop: Loop) -> list[Episode]:
    """What the first iteration drew, in the same order."""
    asked = questions_of(0, loop.questions, loop.settings.questions, loop.run.seed, loop.ranks)
    episodes = list[Episode]()
    for draw in range(loop.settings.selftrain.trajectories):
        path = loop.rollout_folder(0, draw) / "episodes.jsonl"
        by_id = {episode.question["id"]: episode for episode in read_episodes(path)}  # of one tried again the last
        episodes += [by_id[question.id] for question in asked if question.id in by_id]
    return episodes


def best_of_each(
    episodes: Sequence[Episode], reward: str, price: float, settings: SelftrainParams
) -> tuple[list[Episode], int]:
    """Of each question the single trajectories that earned the most, in the order in which they were drawn.

    Args:
        episodes: a trajectory each.
        price: of a step, which is taken off the reward.

    Returns:
        Them, and of how many questions all trajectories earned the same.
    """
    by_question: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        by_question[str(episode.question["id"])].append(episode)
    kept, tied = list[Episode](), 0
    for drawn in by_question.values():
        earned = [worth(episode, reward, price) for episode in drawn]
        tied += alike(earned)
        if not (settings.only_contrasts and alike(earned)):
            kept += [drawn[place] for place in best(earned, most=settings.most, above=settings.above)]
    return kept, tied


def alike(earned: Sequence[float | None]) -> bool:
    """Whether several trajectories were scored, and none earned more than another."""
    known = [x for x in earned if x is not None]
    return len(known) > 1 and max(known) - min(known) <= CONTRAST


def best(earned: Sequence[float | None], *, most: int, above: float) -> list[int]:
    """The places of the largest, the first `most` where several are equal; none where it is not above the bound.

    Args:
        earned: by each trajectory of a question, less the price of its steps; None where it is not known.
        most: so many at most where several earned the same, so that easy questions do not count for more (section 3.2).
        above: the best must have earned more.
    """
    top = max((x for x in earned if x is not None), default=above)
    if top <= above:
        return []
    return [place for place, x in enumerate(earned) if x is not None and top - x <= CONTRAST][:most]


def hopeless(history: Sequence[Mapping[str, Any]], settings: RlParams) -> str:
    """Nothing was kept for as many iterations as `selftrain.patience` allows."""
    last = history[-settings.selftrain.patience :]
    if len(last) < settings.selftrain.patience or any(row["kept"] for row in last):
        return ""
    ties = (
        f"; all trajectories of {last[-1]['tied']} questions earned the same"
        if settings.selftrain.only_contrasts
        else ""
    )
    return (
        f"no trajectory could be kept in {len(last)} iterations: none was scored, or none earned more than rl.selftrain.above, "
        f"{settings.selftrain.above:g}{ties}; look at why in rollouts/, or take a graded reward such as lexical_nuggets"
    )


def prepare(learner: Learner, batch: Sequence[Sample]) -> tuple[tuple[()], dict[str, float]]:
    """See `likelihood.prepare`: drawn once, the actions are the warm-up's in every iteration."""
    return likelihood.prepare(learner, batch, drawn_by_another=not learner.settings.selftrain.redraw)


def check(settings: RlParams) -> None:
    """
    Raises:
        UserError: drawing ahead, where each policy is to imitate the best of its own trajectories.
    """
    if settings.max_staleness:
        raise UserError("rl.max_staleness: self-training learns from what the policy itself drew; leave it at 0")


# 3.
ALGORITHM = Algorithm("selftrain", collect, prepare, likelihood.loss, check=check, hopeless=hopeless)

"""Which questions an iteration asks, and which of their actions have something to teach."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from dragoman.core.errors import UserError
from dragoman.core.types import Question
from dragoman.rollout.credit import earned, mean_expected
from dragoman.rollout.record import Episode
from dragoman.rollout.samples import Sample


def questions_of(
    iteration: int, questions: Sequence[Question], count: int, seed: int, ranks: Mapping[str, int] = {}
) -> list[Question]:
    """The `count` questions of an iteration: none comes again before a pass is over, and each pass has its own order.

    Within it, questions of lower rank (by id) come first, and those without one last. What does not fill a last iteration of a
    pass is left out of it: those without a rank, and then by chance, whatever the rank.
    """
    count = min(count, len(questions))
    turn, place = divmod(iteration, len(questions) // count)
    order = list(questions)
    random.Random(f"{seed}/{turn}").shuffle(order)
    order.sort(key=lambda question: question.id not in ranks)
    del order[len(order) // count * count :]
    order.sort(key=lambda question: ranks.get(question.id, math.inf))
    return order[place * count : (place + 1) * count]


CONTRAST = 1e-6
"""Credits that differ by less are equal: they are means of the same rewards, added up in another order."""


def with_contrast(
    found: Sequence[Sample], *, among: Callable[[Sample], str] = lambda sample: sample.group
) -> list[Sample]:
    """The actions of those states in which siblings earned different credit: elsewhere any choice did as well.

    What a price takes off is no contrast. Siblings differ in steps nearly everywhere, and a price is small beside a reward.

    Args:
        among: what is compared, where that is not siblings.
    """
    credits: dict[str, list[float]] = defaultdict(list)
    for sample in found:
        credits[among(sample)].append(sample.raw_credit)
    return [x for x in found if max(credits[among(x)]) - min(credits[among(x)]) > CONTRAST]


def siblings(batch: Sequence[Sample]) -> list[list[int]]:
    """The places of the actions of each state, in the order in which the states first come."""
    places: dict[str, list[int]] = defaultdict(list)
    for i, sample in enumerate(batch):
        places[sample.group].append(i)
    return list(places.values())


def of_roles(found: Sequence[Sample], roles: Sequence[str]) -> list[Sample]:
    """The actions of these roles; all where none is named."""
    return [sample for sample in found if not roles or sample.role in roles]


def imitable(batch: Sequence[Sample], dev: Sequence[Question], max_tokens: int) -> list[Sample]:
    """The samples that are short enough for a warm-up.

    Raises:
        UserError: there is none, or no dev question.
    """
    fitting = [sample for sample in batch if sample.tokens <= max_tokens]
    if not fitting or not dev:
        raise UserError(
            f"sft: {len(batch)} samples, of which {len(fitting)} have at most {max_tokens} tokens, and "
            f"{len(dev)} dev questions; both must be more than none"
        )
    return fitting


def mean_reward(episodes: Sequence[Episode], reward: str) -> float:
    """What the policy may expect of a question, over those that have a reward: see `credit.expected`. 0 where none has."""
    return mean_expected(episodes, reward) or 0.0


def worth(episode: Episode, reward: str, price: float) -> float | None:
    """What an episode of a single trajectory has earned: see `credit.earned`."""
    (trajectory,) = episode.trajectories
    return earned(trajectory, reward, price)


def better(new: Sequence[float | None], old: Sequence[float | None], errors: float) -> bool:
    """Whether a policy beats another on the same questions, by their paired differences.

    Args:
        new: what each question earned; None where that could not be scored, which leaves the question out.
        errors: by how many standard errors the mean difference must exceed 0.
    """
    differences = [a - b for a, b in zip(new, old, strict=True) if a is not None and b is not None]
    if not differences:
        return False
    mean = sum(differences) / len(differences)
    variance = sum((x - mean) ** 2 for x in differences) / len(differences)
    return mean > errors * (variance / len(differences)) ** 0.5

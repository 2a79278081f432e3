"""Command `review`: answers that a person should look at, out of what the endpoint has kept, in MLflow's review queue.

That is what users rejected without saying what is right, and questions to which the champion, a challenger in its shadow or
other draws gave different answers. What somebody has confirmed or corrected is left out, and so is what their key forbids.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge
from typing_extensions import Doc

from dragoman.core.text import clip, same_question
from dragoman.pipeline.harvest import kept_episodes, kept_feedback
from dragoman.pipeline.project import Project
from dragoman.rewards.answer import normalize
from dragoman.rollout.feedback import Feedback
from dragoman.rollout.record import Episode
from dragoman.tracking.review import pending_reviews, queue_for_review, queued_reviews

WORDS = 12
"""Of another answer, in the reason."""


@dataclass(frozen=True, kw_only=True)
class Options:
    episodes: Annotated[tuple[Path, ...], Doc("Folders with episodes.jsonl; serve.episodes by default.")] = ()
    most: Annotated[int, Ge(1), Doc("Put no more than so many into the queue, the latest ones.")] = 100


async def run(project: Project, options: Options) -> dict[str, Any]:
    """Fill the queue, and say what waits in it.

    Returns:
        `added`, how many were not in the queue before; `left`, how many more there are; `pending`, what nobody has reviewed.

    Raises:
        UserError: nothing is kept there, or a line cannot be read.
    """
    params = project.params
    folders = options.episodes or (project.episodes,)
    found = to_review(kept_episodes(folders), kept_feedback(folders), params.harvest.forbidden)
    queued = queued_reviews(project.store)
    found = {key: why for key, why in found.items() if key not in queued}
    latest = dict(list(found.items())[-options.most :])
    episodes = {one.key: one for one in kept_episodes(folders) if one.key in latest}
    wanted = {key: (why, episodes[key]) for key, why in latest.items() if key in episodes}
    added = queue_for_review(wanted, project.store)
    return {"added": added, "left": len(found) - len(latest), "pending": pending_reviews(project.store)}


def to_review(
    episodes: Iterable[Episode], feedback: Mapping[str, Feedback], forbidden: Iterable[str] = ()
) -> dict[str, str]:
    """Why somebody should look at an episode, by its key, in their order. Of a question there is one, the first that was served.

    Args:
        episodes: in the order in which they were served. The key of one that ran in a shadow ends in `/NAME`.
        feedback: by the key of the episode.
        forbidden: names of keys whose questions stay out.
    """
    kept_out, answers = set(forbidden), defaultdict[str, dict[str, tuple[str, str]]](dict)
    places: dict[str, int] = {}
    for place, one in enumerate(episodes):
        places[one.key] = place
        given = [t.answer for t in one.trajectories if t.answer and normalize(t.answer)]
        if given and one.asked_by not in kept_out:
            question = same_question(one.question["question"])
            for number, answer in enumerate(given):
                answers[question][f"{one.key} {number}" if number else one.key] = one.system, answer
    found: dict[str, str] = {}
    for drawn in answers.values():
        said = {key: feedback[key] for key in drawn if key in feedback}
        if any(one.answer or one.rating == "up" for one in said.values()):
            continue
        key, (_, answer) = next(((k, v) for k, v in drawn.items() if "/" not in k), next(iter(drawn.items())))
        rejected = next((k for k, one in said.items() if one.rating == "down"), None)
        other = next(((k, *v) for k, v in drawn.items() if normalize(v[1]) != normalize(answer)), None)
        if rejected is not None:
            found[rejected] = "thumbs down"
        elif other is not None:
            kind = "shadow" if "/" in other[0] else "draw"
            found[key] = f"a {kind} of {other[1]} says: {clip(other[2], WORDS)}"
    return dict(sorted(found.items(), key=lambda item: places[item[0]]))

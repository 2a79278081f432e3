"""What the agents of Mujica may do, listed: for a proxy that scores its options instead of writing (`decide: marks`).

The planner says of each subquestion whether it is to be asked now; of none, that what is known is enough. As a chain it
takes one of them, or the answer. A worker says of each passage whether it rests on it. In a graph the planner's options are
entities, and a worker's are the triples of one; there the planner can answer too, by an entity. Prompts have no instructions.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.core.types import Passage
from dragoman.systems.mujica import queries
from dragoman.systems.mujica.actions import Answer, Found, Nothing, Searches, Subquestions, ask
from dragoman.systems.mujica.settings import Settings
from dragoman.systems.mujica.state import State
from dragoman.systems.options import Action, Choice, Selection, as_line, known, passage_lines


def kinds(settings: Settings) -> dict[str, tuple[type, ...]]:
    """The types of the actions that each agent has at marks: what a bias may be for.

    Only a chain lists the answer. Else the planner answers where it takes no subquestion, so a bias against these does it sooner.
    """
    asked = Subquestions if settings.environment == "text" else Searches
    return {"planner": (asked, Answer) if settings.max_questions == 1 else (asked,), "worker": (Found,)}


def plan(settings: Settings, question: str, state: State) -> Choice | Selection:
    """The subquestions that may be asked, and the end."""
    listed = queries.candidates(settings, question, state)
    asked = tuple(listed.values())
    places = {search: place for place, search in enumerate(asked)}
    prompt = f"{_asked_and_known(settings, question, state)}Next:\n"
    if settings.max_questions == 1 or not listed:
        single: dict[str, Action] = {name: ask([search]) for name, search in listed.items()}
        return Choice(prompt, tuple((single | {queries.END: Answer()}).items()))
    return Selection(
        prompt,
        tuple(listed),
        make=lambda taken: ask([asked[place] for place in taken]) if taken else Answer(),
        places=lambda action: () if isinstance(action, Answer) else tuple(places[each] for each in action.searches),
    )


def conclude(settings: Settings, question: str, state: State) -> Choice:
    """The entities that may be the answer, and yes and no."""
    prompt = f"{_asked_and_known(settings, question, state)}Answer:\n"
    return Choice(prompt, tuple((line, Answer(name)) for line, name in queries.answers(settings, state).items()))


def look_up(
    settings: Settings, question: str, subquestion: str, passages: Sequence[Passage], entity: str = ""
) -> Selection:
    """The passages found for a subquestion, which is named where it is not the question; of an entity, its triples."""
    searched = entity or ("" if subquestion == queries.whole(settings, question) else subquestion)
    part = f"Searched: {as_line(searched)}\n" if searched else ""
    return Selection(
        f"Question: {as_line(question)}\n{part}",
        passage_lines(passages, settings.proxy_words),
        make=lambda places: Found(tuple(place + 1 for place in places)) if places else Nothing(),
        places=lambda action: () if isinstance(action, Nothing) else tuple(i - 1 for i in action.ids),
    )


def _asked_and_known(settings: Settings, question: str, state: State) -> str:
    return f"Question: {as_line(question)}\nKnown:\n{known(state.kept, settings.proxy_words)}"

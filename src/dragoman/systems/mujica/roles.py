"""The agents of Mujica (section 2.2, appendix G): what each is shown, and what it may say."""

from __future__ import annotations

from functools import partial

from dragoman.systems.base import Role
from dragoman.systems.grammar import Line
from dragoman.systems.mujica import actions, dialogue, marks, oracle, queries
from dragoman.systems.mujica.settings import Settings
from dragoman.systems.mujica.slots import Search
from dragoman.systems.mujica.state import State
from dragoman.systems.options import at_marks
from dragoman.systems.prompts import load, number


def planner(settings: Settings) -> Role:
    """Asks subquestions or ends. Its state is the question, and the subquestions so far with their answers."""
    answers = settings.answers == "planner" and settings.decide == "text"  # at marks it ends first, and concludes then
    name = "planner" if settings.environment == "text" else "planner_graph"
    return Role(
        "planner",
        load(__package__, _prompt(f"{name}_answers" if answers else name, settings)),
        grammar=lambda question, state: actions.planner(
            queries.search(settings, question, state),
            settings.max_candidates if settings.decide == "marks" else settings.max_questions,
            queries.answer(settings, question, state) if answers else None,
            _thought(settings),
        ),
        view=partial(_view, settings),
        max_tokens=settings.max_questions * settings.question_tokens + _thought_tokens(settings),
        shots=settings.shots,
        oracle=partial(oracle.plan, settings),
        options=at_marks(settings, "planner", marks.plan),
    )


def conclusion(settings: Settings) -> Role:
    """The planner when it may ask no more."""
    return Role(
        "planner",
        load(__package__, "conclusion"),
        grammar=lambda question, state: actions.conclusion(queries.answer(settings, question, state)),
        view=partial(_view, settings),
        max_tokens=settings.question_tokens,
        oracle=partial(oracle.conclude, settings),
        options=at_marks(settings, "planner", marks.conclude),
    )


def worker(settings: Settings) -> Role:
    """Answers one subquestion. Its state is the subquestion and the passages found for it."""
    return Role(
        "worker",
        load(__package__, _prompt("worker" if settings.environment == "text" else "worker_triples", settings)),
        grammar=lambda question, subquestion, passages, entity="": actions.worker(
            len(passages),
            queries.sentence(settings, passages) if settings.decide == "text" else None,
            _thought(settings),
            Line(settings.sentence_chars) if settings.memory else None,
        ),
        view=lambda question, subquestion, passages, entity="": {
            "part": f"This is a part of the question: {question}\n" if settings.queries == "span" else "",
            "question": str(Search(subquestion, entity)),
            "passages": number(passages, settings.proxy_words),
            "otherwise": "write [Memory] and the answer as you know it, or [Nothing] if you do not know it"
            if settings.memory
            else "write [Nothing]",
        },
        max_tokens=settings.sentence_tokens + _thought_tokens(settings),
        shots=settings.shots,
        oracle=partial(oracle.look_up, settings),
        options=at_marks(settings, "worker", marks.look_up),
    )


def _view(settings: Settings, question: str, state: State) -> dict[str, str]:
    known = dialogue.facts(state.facts) if settings.split else number(state.kept, settings.proxy_words)
    start = f"Entities to start from: {', '.join(state.candidates)}\n" if state.candidates else ""
    return {"question": question, "known": known, "most": str(settings.max_questions), "candidates": start}


def _prompt(name: str, settings: Settings) -> str:
    return f"{name}_with_thought" if settings.thoughts else name


def _thought(settings: Settings) -> Line | None:
    return Line(settings.thought_chars) if settings.thoughts else None


def _thought_tokens(settings: Settings) -> int:
    return settings.thought_chars // 3 if settings.thoughts else 0

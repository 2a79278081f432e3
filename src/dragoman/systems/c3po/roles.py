"""The agents of C-3PO (section 4.1, appendix B.1): what each is shown, and what it may say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from dragoman.core.errors import UserError
from dragoman.core.types import Passage
from dragoman.systems.base import Ask, Role
from dragoman.systems.c3po import actions, marks, oracle
from dragoman.systems.c3po.queries import first_queries, next_queries, shown
from dragoman.systems.c3po.settings import Settings
from dragoman.systems.grammar import Indices, Line, Titles
from dragoman.systems.options import at_marks
from dragoman.systems.prompts import Prompt, load, number, one_line

TITLE_TOKENS = 24
"""What a title may cost where the filter selects by title."""


def router(settings: Settings) -> Role:
    """The reasoning router; its state is the question."""
    return Role(
        "router",
        _prompt("router", settings),
        grammar=lambda question: actions.router(first_queries(settings, question), settings.strategy),
        view=lambda question: {"question": question},
        max_tokens=settings.action_tokens,
        shots=settings.shots,
        oracle=partial(oracle.route, settings),
        options=at_marks(settings, "router", marks.route),
    )


def information_filter(settings: Settings) -> Role:
    """The information filter; its state is the question, the objective under a plan, and the passages found."""
    by_title = settings.select == "titles"
    tokens = _action_tokens(settings)
    return Role(
        "filter",
        _prompt("filter", settings, "filter_by_title" if by_title else _with_thought("filter", settings)),
        grammar=lambda question, objective, passages: actions.information_filter(
            _titles(passages) if by_title else Indices(len(passages)), _thought(settings)
        ),
        view=lambda question, objective, passages: {
            "question": question,
            "objective": f"Objective of this step: {objective}\n" if objective else "",
            "passages": (_with_titles if by_title else number)(passages, settings.filter_words or settings.proxy_words),
        },
        max_tokens=max(tokens, TITLE_TOKENS * settings.k) if by_title else tokens,
        shots=settings.shots,
        oracle=partial(oracle.select, settings),
        options=at_marks(settings, "filter", marks.select),
    )


def decision_maker(settings: Settings) -> Role:
    """The decision maker; its state is the question, the roadmap and the passages kept, and here the queries so far."""
    return Role(
        "decide",
        _prompt("decide", settings, _with_thought("decide", settings)),
        grammar=lambda question, roadmap, kept, asked: actions.decision_maker(
            next_queries(settings, question, kept, asked), _thought(settings)
        ),
        view=lambda question, roadmap, kept, asked: {
            "question": question,
            "roadmap": f"\nPlan:\n{roadmap}\n" if roadmap else "",
            "passages": number(kept, settings.proxy_words),
            "searches": "; ".join(shown(settings, query, question) for query in asked) or "(none)",
        },
        max_tokens=_action_tokens(settings),
        shots=settings.shots,
        oracle=partial(oracle.decide, settings),
        options=at_marks(settings, "decide", marks.decide),
    )


def roadmap(settings: Settings) -> Ask:
    """What the LLM is asked once under a plan (appendix D.1)."""
    return Ask(
        "roadmap",
        load(__package__, "roadmap"),
        view=lambda question: {"question": question},
        max_tokens=settings.roadmap_tokens,
    )


def _prompt(role: str, settings: Settings, full: str = "") -> Prompt:
    """A role's prompt, whose full form may have another name. A brief one has the examples of the full one."""
    prompt = load(__package__, full or role)
    text = (settings.rewritten or {}).get(role)
    if text is not None and settings.decide == "text":
        return _rewritten(prompt, role, text)
    if settings.prompts == "brief":
        return replace(load(__package__, f"{role}_brief"), examples=prompt.examples)
    return prompt


def _rewritten(prompt: Prompt, role: str, text: str) -> Prompt:
    """A role's prompt in other words, with the same slots.

    Raises:
        UserError: they are not the same, or the text is no prompt.
    """
    try:
        other = Prompt.parse(prompt.name, text, prompt.examples)
    except ValueError as e:
        raise UserError(f"rewritten.{role}: {e}") from None
    if other.slots != prompt.slots:
        slots = ", ".join(f"{{{slot}}}" for slot in sorted(prompt.slots))
        raise UserError(f"rewritten.{role}: the prompt of this agent has the slots {slots}, each of them and no other")
    return other


def _with_thought(name: str, settings: Settings) -> str:
    return f"{name}_with_thought" if settings.thoughts else name


def _thought(settings: Settings) -> Line | None:
    return Line(settings.thought_chars) if settings.thoughts else None


def _action_tokens(settings: Settings) -> int:
    return settings.action_tokens + (settings.thought_chars // 3 if settings.thoughts else 0)


def _titles(passages: Sequence[Passage]) -> Titles:
    """A title for each; one that has none is called by its first words."""
    return Titles.of([passage.title or passage.text for passage in passages], reserved=actions.ALL)


def _with_titles(passages: Sequence[Passage], max_words: int) -> str:
    titled = zip(passages, _titles(passages).titles, strict=True)
    return "\n".join(f"- {one_line(replace(passage, title=title), max_words)}" for passage, title in titled)

"""The planner's context as in the paper (appendix G): its own turns and the workers' replies, one message each.

The other way, `context: facts`, shows it one list of all that is known, which is shorter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dragoman.systems.base import Role
from dragoman.systems.mujica.settings import Settings
from dragoman.systems.mujica.state import Fact, State, Turn
from dragoman.systems.prompts import Messages, load, number

PROMPTS = {name: load(__package__, name) for name in ("told", "told_last")}
"""What the planner is shown after a turn, and after its last one."""


def history(settings: Settings, turns: Sequence[Turn]) -> Messages:
    """The messages between the planner's first and the one it is to answer now."""
    *earlier, last = turns
    said = [(("assistant", turn.said), ("user", told(settings, turn))) for turn in earlier]
    return (*(message for pair in said for message in pair), ("assistant", last.said))


def continued(settings: Settings, role: Role, *, last: bool) -> Role:
    """The planner in the midst of its dialogue: it is shown what it was told last. After its last turn it is to conclude."""

    def view(question: str, state: State) -> dict[str, str]:
        return {"told": told(settings, state.turns[-1])}

    return replace(role, prompt=PROMPTS["told_last" if last else "told"], view=view, shots=0)


def told(settings: Settings, turn: Turn) -> str:
    """What the planner is told about a turn."""
    return facts(turn.facts) if settings.split else number(turn.found, settings.proxy_words)


def facts(known: Sequence[Fact]) -> str:
    """A line for each subquestion with its answer."""
    return "\n".join(f"{fact.question} -> {fact.answer or 'nothing found'}" for fact in known) or "(none)"

"""The steps of an answer that was given before, as a tree: what led to what.

Prompts are left out: those of the LLM hold the marks that passages must not know (see `guard`). So are fingerprints and errors,
which may name hosts.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass

from dragoman.rollout.record import Call, Episode, Marked, Node
from dragoman.serving.metrics import phase_of
from dragoman.serving.wire import Option, PastStep, Step, Usage

MOST_CHARS = 300
"""Of an option, which may be a passage's first words."""


@dataclass
class _Decision:
    node: Node
    shown: PastStep
    beside: list[PastStep]
    """Where what follows it in its branch stands."""
    around: list[PastStep] | None
    """Where its branch stands; None outside of branches."""

    def place_of(self, call: Call) -> list[PastStep]:
        """Where a call that follows it in the record belongs. One that was made earlier is the first of the next branch."""
        if self.around is not None and call.started < self.node.started + self.node.seconds / 2:
            return self.around
        return self.shown.steps


def past_steps(episode: Episode) -> list[PastStep]:
    """The decisions of an episode with one trajectory, one beside the other, and the calls that each led to below it.

    Where branches ran at once, each hangs below the decision that they began at: its first decision, with all others below that.
    A call that several branches share stands in each.
    """
    taken, top = _taken(episode), list[PastStep]()
    parted = Counter(step.parent for step in taken if isinstance(step, Node) and not step.joins)
    decisions: dict[str | None, _Decision] = {}
    last: _Decision | None = None
    for number, step in enumerate(taken, start=1):
        shown = _shown(step, number)
        if isinstance(step, Node):
            ends: list[str | None] = [*step.joins] or [step.parent]
            shown.rests_on = [decisions[id].shown.number for id in ends if id in decisions]
            before = decisions.get(step.parent)
            if before is None:
                where, last = top, _Decision(step, shown, top, None)
            elif parted[step.parent] > 1 and not step.joins:
                where = before.shown.steps
                last = _Decision(step, shown, shown.steps, where)
            else:
                where, last = before.beside, _Decision(step, shown, before.beside, before.around)
            decisions[step.id] = last
        elif last is None or (last.around is not None and step is taken[-1]):
            where = top  # what comes last rests on all branches
        else:
            where = last.place_of(step)
        where.append(shown)
    return top


def phases(episode: Episode) -> dict[str, float]:
    """Seconds of the calls that were made, by phase."""
    seconds = defaultdict[str, float](float)
    for step in _made(episode):
        seconds[phase_of(step)] += step.seconds
    return {phase: round(value, 4) for phase, value in seconds.items()}


def usage(episode: Episode) -> Usage:
    """Tokens of the calls that were made."""
    made = _made(episode)
    read, written = sum(step.prompt_tokens for step in made), sum(step.completion_tokens for step in made)
    return Usage(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)


def _taken(episode: Episode) -> list[Node | Call]:
    (end,) = episode.trajectories
    known: dict[str, Node | Call] = {node.id: node for node in episode.nodes}
    known |= {call.id: call for call in episode.calls}
    return [known[id] for id in end.steps if id in known]


def _made(episode: Episode) -> list[Node | Call]:
    return list({step.id: step for step in _taken(episode)}.values())


def _shown(step: Node | Call, number: int) -> PastStep:
    marked = step.marked if isinstance(step, Node) else None
    return PastStep(
        **vars(Step.of(step)),
        number=number,
        prompt_tokens=step.prompt_tokens,
        completion_tokens=step.completion_tokens,
        options=_options(marked) if marked else None,
    )


def _options(marked: Marked) -> list[Option]:
    try:
        likely: list[float] = marked.probabilities
    except OverflowError:
        likely = []
    return [
        Option(
            text=text if len(text) <= MOST_CHARS else f"{text[: MOST_CHARS - 1]}…",
            taken=place in marked.taken,
            probability=round(likely[place], 4) if place < len(likely) and math.isfinite(likely[place]) else None,
        )
        for place, text in enumerate(marked.options)
    ]

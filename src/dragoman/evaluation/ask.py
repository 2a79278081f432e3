"""One question, step by step: as in an evaluation, with the steps shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dragoman.core.text import printable
from dragoman.core.types import Passage, Question
from dragoman.rollout.record import Call, Node
from dragoman.rollout.tree import Tree
from dragoman.runtime import Runtime
from dragoman.systems.base import StopReason


@dataclass(frozen=True)
class Answered:
    """How a system answered one question, and the passages that it kept."""

    answer: str
    passages: tuple[Passage, ...]
    stop: StopReason
    error: str | None
    decisions: int
    seconds: float


async def ask_one(
    question: str, name: str, runtime: Runtime, *, observe: Callable[[Node | Call], None] = lambda event: None
) -> Answered:
    """Let the system called `name` answer; `observe` sees each step as it is made."""
    system, backends = runtime.open(name)
    tree = Tree(Question("asked", question), system, backends, observe=observe)
    episode = await tree.grow(system_name=name)
    (trajectory,), (kept,) = episode.trajectories, tree.kept.values()
    return Answered(
        answer=trajectory.answer or "",
        passages=kept,
        stop=trajectory.stop,
        error=trajectory.error,
        decisions=len(trajectory.nodes),
        seconds=episode.seconds,
    )


def show_step(step: Node | Call) -> str:
    """A step as a few lines of text for a terminal."""
    return printable(_step(step))


def _step(step: Node | Call) -> str:
    took = f"{step.seconds:.1f} s"
    if isinstance(step, Node):
        said = step.text.strip().replace("\n", "\n      ")
        stop = f"   <- {step.stop}" if step.stop else ""
        return f"{step.depth:2}. {step.role} decides ({took}): {said}{stop}" + _options(step)
    if step.kind == "search":
        assert isinstance(step.input, dict)
        page = f", page {step.input['page'] + 1}" if step.input["page"] else ""
        found = ", ".join(step.output) or "nothing"
        return f"    search ({took}{page}) {step.input['query']!r}: {found}"
    text = str(step.output).strip().replace("\n", "\n      ")
    return f"    LLM writes the {step.name} ({took}): {text}"


def _options(step: Node) -> str:
    """The likeliest of the options that a decision had, with their probabilities."""
    if step.marked is None:
        return ""
    ranked = sorted(zip(step.marked.probabilities, step.marked.options, strict=False), key=lambda option: -option[0])
    return "".join(f"\n      {probability:4.0%}  {text[:80]}" for probability, text in ranked[:5])


def show_answer(given: Answered) -> str:
    """The answer as a few lines of text for a terminal."""
    lines = [f"answer: {given.answer or '(none)'}"]
    lines += [f"  kept {p.id}  {p.title}: {p.text[:100]}" for p in given.passages] or ["  no passages kept"]
    lines.append(f"  {given.decisions} decisions, {given.seconds:.1f} s, stopped: {given.stop}")
    return printable("\n".join(lines))

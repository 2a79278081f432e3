"""One question, step by step: the same code path as an evaluation, with the steps shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dragoman.core.types import Passage, Question
from dragoman.rollout.record import Call, Node
from dragoman.rollout.tree import Tree
from dragoman.runtime import Runtime
from dragoman.systems.base import StopReason


@dataclass(frozen=True)
class Asked:
    answer: str
    passages: tuple[Passage, ...]
    stop: StopReason
    error: str | None
    decisions: int
    seconds: float


async def ask_one(
    question: str, name: str, runtime: Runtime, *, observe: Callable[[Node | Call], None] = lambda event: None
) -> Asked:
    """Let the system called `name` answer; `observe` sees each step as it is made."""
    system, backends = runtime.open(name)
    tree = Tree(Question("asked", question), system, backends, observe=observe)
    episode = await tree.grow(system_name=name)
    (trajectory,) = episode.trajectories
    return Asked(
        answer=trajectory.answer or "",
        passages=tuple(tree.passages[i] for i in trajectory.passages),
        stop=trajectory.stop,
        error=trajectory.error,
        decisions=len(trajectory.nodes),
        seconds=episode.seconds,
    )


def show_step(step: Node | Call) -> str:
    """A step as a few lines of text."""
    took = f"{step.seconds:.1f} s"
    if isinstance(step, Node):
        said = step.text.strip().replace("\n", "\n      ")
        return f"{step.depth:2}. {step.role} decides ({took}): {said}" + (f"   <- {step.stop}" if step.stop else "")
    if step.kind == "search":
        assert isinstance(step.input, dict)
        page = f", page {step.input['page'] + 1}" if step.input["page"] else ""
        found = ", ".join(step.output) or "nothing"
        return f"    search ({took}{page}) {step.input['query']!r}: {found}"
    text = str(step.output).strip().replace("\n", "\n      ")
    return f"    LLM writes the {step.name} ({took}): {text}"


def show_answer(asked: Asked) -> str:
    lines = [f"answer: {asked.answer or '(none)'}"]
    lines += [f"  kept {p.id}  {p.title}: {p.text[:100]}" for p in asked.passages] or ["  no passages kept"]
    lines.append(f"  {asked.decisions} decisions, {asked.seconds:.1f} s, stopped: {asked.stop}")
    return "\n".join(lines)

"""What the reflection model reads: how a role acted in a few questions, and how these ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dragoman.engines.base import Request
from dragoman.rewards.gold import recall
from dragoman.rollout.record import Episode
from dragoman.systems.prompts import load

REFLECT = load(__package__, "reflect")


def acting(episodes: Sequence[Episode]) -> frozenset[str]:
    """The roles that have acted in these episodes."""
    return frozenset(node.role for episode in episodes for node in episode.nodes)


def lessons(episode: Episode, role: str, score: float) -> list[dict[str, str]]:
    """An example for each action of a role in an episode of a single trajectory."""
    ended = _end(episode, score)
    return [
        {"What it read": node.prompt[-1][1], "What it wrote": node.text, "How the question ended": ended}
        for node in episode.nodes
        if node.role == role
    ]


def reflection(
    instructions: str, examples: Sequence[Mapping[str, str]], *, temperature: float, max_tokens: int, seed: int
) -> Request:
    """What the reflection model is asked to rewrite the instructions of a role."""
    shown = (
        f"Example {number}\n" + "\n".join(f"{name}:\n{text}" for name, text in example.items())
        for number, example in enumerate(examples, start=1)
    )
    messages = REFLECT.messages({"instructions": instructions, "examples": "\n\n".join(shown)})
    return Request(messages, max_tokens, temperature=temperature, seed=seed)


def _end(episode: Episode, score: float) -> str:
    (trajectory,) = episode.trajectories
    said = f"The answer was {trajectory.answer!r}" if trajectory.answer else f"There was no answer ({trajectory.stop})"
    right = " or ".join(map(repr, episode.question["answers"]))
    sentences = [f"{said}; right is {right}. The score is {score:g}."]
    if gold := episode.question["supporting_ids"]:
        kept = recall(trajectory.passages, gold)
        sentences.append(f"Of the passages that hold the facts, {kept:.0%} were kept.")
    decided = "; ".join(f"{node.role}: {node.text.strip()}" for node in episode.nodes)
    return " ".join([*sentences, f"All decisions, in their order: {decided}."])

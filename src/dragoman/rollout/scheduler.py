"""Runs a system over many questions, with every finished call on disk.

Each question is a coroutine that goes on as soon as its own call returns. Engines and retrievers see a steady stream of
single requests, and batch those that are waiting.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

from dragoman.core import files
from dragoman.core.identity import FINGERPRINTED, code_hash
from dragoman.core.types import Question
from dragoman.rewards import Reward
from dragoman.rollout.backends import Backends
from dragoman.rollout.exploration import GREEDY, Exploration
from dragoman.rollout.record import Episode
from dragoman.rollout.store import EpisodeStore
from dragoman.rollout.tree import Tree
from dragoman.systems.base import System
from dragoman.systems.checks import check_roles

ENGINE_ROOM = ("dragoman.rollout.tree", "dragoman.rewards")
"""What makes an episode out of a system, whatever the system is."""


def episode_key(question: Question, config: dict[str, Any]) -> str:
    """Content hash of a question and of everything that its episode depends on."""
    text = files.dumps([question.to_json(), config])
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def describe(
    name: str,
    system: System,
    backends: Backends | None,
    exploration: Exploration,
    seed: int,
    reward: Reward | None = None,
) -> dict[str, Any]:
    """The configuration that decides what an episode can be: it is stored with it, and hashed into its key.

    Without backends, what they say of models and retriever is left out.
    """
    if not is_dataclass(system):
        raise TypeError(f"{type(system).__name__}: a system is a dataclass whose fields are its settings")
    config = {  # the hash depends on the order of the keys
        "system": name,
        "settings": asdict(system),
        "code": code_hash(
            type(system).__module__, *ENGINE_ROOM, *(reward.modules if reward else ()), stop=FINGERPRINTED
        ),
        **(_fingerprints(system, backends) if backends else {}),
        "exploration": exploration.model_dump(),
        "seed": seed,
    }
    if reward is not None:
        config["reward"] = reward.shaped_name
        if asked := reward.judge or reward.llm:
            config["judge"] = asked.fingerprint
    as_stored: dict[str, Any] = json.loads(json.dumps(config))
    return as_stored


def _fingerprints(system: System, backends: Backends) -> dict[str, Any]:
    return {
        "llm": backends.llm.fingerprint,
        # a system without roles never meets the proxy
        "proxy": backends.proxy.fingerprint if system.roles else None,
        "engines": {role: engine.fingerprint for role, engine in sorted(backends.engines.items())},
        "retriever": backends.retriever.fingerprint,
    }


def check_questions(questions: Sequence[Question], system: System, backends: Backends) -> None:
    """
    Raises:
        UserError: one of them lacks what the system or the retriever needs, which would end a run that others were paid for.
    """
    for question in questions:
        system.check(question)
        backends.retriever_of(question)


async def roll_out(
    questions: Sequence[Question],
    name: str,
    system: System,
    backends: Backends,
    store: EpisodeStore,
    *,
    exploration: Exploration = GREEDY,
    seed: int = 0,
    concurrency: int = 32,
    reward: Reward | None = None,
    progress: Callable[[Episode], None] = lambda episode: None,
) -> list[Episode]:
    """One episode per question, in their order. What the store holds already is not done again.

    `concurrency` bounds how many questions are under way, not how many requests: a tree sends as many as it has.

    Raises:
        UserError: `exploration` names a role that the system does not have, or see `check_questions`.
    """
    check_questions(questions, system, backends)
    check_roles("exploration.breadth_of", exploration.breadth_of, name, system.roles)
    config = describe(name, system, backends, exploration, seed, reward)
    done = store.done
    gate = asyncio.Semaphore(concurrency)

    async def one(question: Question) -> Episode:
        key = episode_key(question, config)
        if key not in done:
            async with gate:
                tree = Tree(
                    question,
                    system,
                    backends,
                    exploration=exploration,
                    seed=seed,
                    reward=reward,
                    recorded=store.recorded(key),
                    remember=lambda call, value: store.remember(key, call, value),
                )
                episode = await tree.grow(key=key, system_name=name, config=config)
            store.add(episode)
            done[key] = episode
        progress(done[key])
        return done[key]

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(question)) for question in questions]
    except BaseExceptionGroup as failures:  # the first is the cause, the others were cancelled by it
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]

"""A system with one decision between two arms, of which one is right, in a world with a real engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dragoman.config import AdapterParams, RlParams
from dragoman.engines.base import Engine
from dragoman.engines.transformers import TransformersEngine
from dragoman.rollout.tree import World
from dragoman.systems.base import Context, Outcome, Role
from dragoman.systems.grammar import Form, OneOf
from dragoman.systems.prompts import Prompt
from dragoman.types import Question
from fakes import ListRetriever


@dataclass(frozen=True)
class Left: ...


@dataclass(frozen=True)
class Right: ...


@dataclass(frozen=True)
class TwoArms:
    @property
    def roles(self) -> tuple[Role, ...]:
        return (self.choose,)

    @property
    def choose(self) -> Role:
        return Role(
            "choose",
            Prompt("choose", "", "{question}"),
            grammar=lambda question: OneOf(Form(Left, "[left arm]"), Form(Right, "[right arm]")),
            view=lambda question: {"question": question},
            max_tokens=8,
        )

    async def run(self, question: Question, ctx: Context) -> Outcome:
        match await ctx.act(self.choose, question=question.question):
            case Left():
                return Outcome("left")
            case _:
                return Outcome("right")


class ToyWorlds:
    """`Worlds` for the toy: each policy folder in an engine of its own."""

    def __init__(self) -> None:
        self.engines: dict[str, Engine] = {}

    def open(self, name: str) -> tuple[TwoArms, World]:
        folder = name.partition("@")[2]
        if folder not in self.engines:
            self.engines[folder] = TransformersEngine(Path(folder), dtype="float32", threads=1)
        engine = self.engines[folder]
        return TwoArms(), World(llm=engine, proxy=engine, retriever=ListRetriever([]))

    async def release(self, name: str) -> None:
        if engine := self.engines.pop(name.partition("@")[2], None):
            await engine.close()

    async def close(self) -> None:
        for engine in self.engines.values():
            await engine.close()


QUESTIONS = [Question(f"q{i}", f"Which arm, number {i}?", ("right",)) for i in range(6)]

SETTINGS = RlParams(
    iterations=3,
    questions=2,
    adapter=AdapterParams(rank=4, alpha=8),
    critic="head",
    policy_lr=0.003,
    value_lr=0.01,
    batch_size=8,
    bf16=False,
    dev_questions=2,
    dev_every=2,
    kl_coef=0.005,
    guards={"max_kl": 10},
)

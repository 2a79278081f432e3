"""A system with one decision between two arms, of which one is right, in a backends with a real engine; and runs of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fakes import ListRetriever

from dragoman.core.types import Passage, Question
from dragoman.engines.base import Engine
from dragoman.engines.transformers import TransformersEngine
from dragoman.registry.policy import PolicySet, find_policy
from dragoman.rollout.backends import Backends
from dragoman.systems.base import Context, Gold, Outcome, Role, System
from dragoman.systems.grammar import Form, Indices, OneOf
from dragoman.systems.options import Choice, Selection
from dragoman.systems.prompts import Prompt
from dragoman.training.algorithms import find
from dragoman.training.loop import Loop
from dragoman.training.run import TrainingRun
from dragoman.training.settings import AdapterParams, RlParams


@dataclass(frozen=True)
class Left: ...


@dataclass(frozen=True)
class Right: ...


@dataclass(frozen=True)
class TwoArms(System):
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
            max_tokens=12,
        )

    async def run(self, question: Question, ctx: Context) -> Outcome:
        match await ctx.act(self.choose, question=question.question):
            case Left():
                return Outcome("left")
            case _:
                return Outcome("right")


@dataclass(frozen=True)
class Pick:
    ids: tuple[int, ...]


WORDS = ("apple", "pear", "plum")


@dataclass(frozen=True)
class AtMarks(System):
    """Chooses an arm, then picks words, all at marks: right with the right arm and the pear alone."""

    arm_bias: tuple[float, ...] = ()
    pick_bias: tuple[float, ...] = ()

    @property
    def roles(self) -> tuple[Role, ...]:
        return (self.choose, self.pick)

    @property
    def choose(self) -> Role:
        async def oracle(gold: Gold, question: str) -> list[Right]:
            return [Right()]

        return replace(
            TwoArms().choose,
            oracle=oracle,
            options=lambda question: Choice(
                f"{question}\n", (("left arm", Left()), ("right arm", Right())), self.arm_bias
            ),
        )

    @property
    def pick(self) -> Role:
        async def oracle(gold: Gold, question: str) -> list[Pick]:
            return [Pick((2,))]

        return Role(
            "pick",
            Prompt("pick", "", "{question}"),
            grammar=lambda question: OneOf(Form(Pick, "[{ids}]", ids=Indices(len(WORDS)))),
            view=lambda question: {"question": question},
            max_tokens=12,
            oracle=oracle,
            options=lambda question: Selection(
                f"{question}\n",
                WORDS,
                lambda places: Pick(tuple(p + 1 for p in places)),
                lambda a: tuple(i - 1 for i in a.ids),
                self.pick_bias,
            ),
        )

    async def run(self, question: Question, ctx: Context) -> Outcome:
        arm = await ctx.act(self.choose, question=question.question)
        picked = await ctx.act(self.pick, question=question.question)
        return Outcome("right" if arm == Right() and picked == Pick((2,)) else "wrong")


class ToyRuntime:
    """`Runtime` for the toy, or for another system: each policy folder in an engine of its own."""

    def __init__(self, system: System = TwoArms(), llm: Engine | None = None, passages: Sequence[Passage] = ()) -> None:
        self.system, self.llm, self.retriever = system, llm, ListRetriever(passages)
        self.engines: dict[str, Engine] = {}

    def open(self, name: str, weights: PolicySet | None = None) -> tuple[System, Backends]:
        folder = str(weights.of("choose")) if weights else name.partition("@")[2]
        if folder not in self.engines:
            self.engines[folder] = TransformersEngine(Path(folder), dtype="float32", threads=1)
        engine = self.engines[folder]
        return self.system, Backends(llm=self.llm or engine, proxy=engine, retriever=self.retriever)

    async def release(self, name: str, weights: PolicySet) -> None:
        for folder, _ in weights.groups():
            if engine := self.engines.pop(str(folder), None):
                await engine.close()

    async def close(self) -> None:
        for engine in self.engines.values():
            await engine.close()


QUESTIONS = [Question(f"q{i}", f"Which arm, number {i}?", ("right",)) for i in range(6)]
KNOWN = [replace(question, supporting_ids=("p",)) for question in QUESTIONS]
"""With gold passages, so that an oracle acts."""

SETTINGS = RlParams(
    iterations=3,
    questions=2,
    adapter=AdapterParams(rank=4, alpha=8),
    critic="head",
    policy_lr=0.003,
    value_lr=0.01,
    batch_size=8,
    dtype="float32",
    dev_questions=2,
    dev_every=2,
    kl_coef=0.005,
    guards={"max_kl": 10},
    selftrain={"trajectories": 4},
)


TWO_ARMS = {
    "iterations": 12,
    "policy_lr": 0.006,
    "questions": 6,
    "exploration": SETTINGS.exploration.model_copy(update={"breadth": (4, 1), "force": 0}),
    "dev_every": 12,
    "epochs": 2,
}
"""With these the better arm is found within seconds."""


def training_run(model: Path, runtime: Any, out: Path, dev: Sequence[Question], system: str = "toy") -> TrainingRun:
    """Training of the toy system by its right answers, from the model on."""
    return TrainingRun(
        system=system,
        dev=dev,
        runtime=runtime,
        start=find_policy(str(model)),
        reward="cover_em",
        seed=0,
        out=out,
        data={"samples": "abc"},
    )


def make_run(
    name: str,
    model: Path,
    runtime: ToyRuntime,
    out: Path,
    *,
    system: str = "toy",
    asked: Sequence[Question] = QUESTIONS,
    warm_up: PolicySet | None = None,
    **changes: Any,
) -> Loop:
    """A run of the algorithm of that name, with changes to `SETTINGS`."""
    run = training_run(model, runtime, out, asked[:2], system)
    run = replace(run, start=warm_up) if warm_up else run
    return Loop(find(name), run, asked, SETTINGS.model_copy(update=changes))


def late_reward(run: Loop) -> float:
    """Mean reward of the last three iterations: a single one is four draws of six questions, and noisy."""
    return sum(row["reward"] for row in run.history[-3:]) / 3


class Killed(Exception):
    pass

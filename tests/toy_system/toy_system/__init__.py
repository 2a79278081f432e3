"""A toy system: the proxy decides whether the LLM sees what the question finds, or answers from memory."""

from dataclasses import dataclass

from dragoman.systems.answer import answer
from dragoman.systems.base import Ablation, Role, StopReason, System
from dragoman.systems.grammar import Form, OneOf
from dragoman.systems.prompts import load


@dataclass(frozen=True)
class Look: ...


@dataclass(frozen=True)
class Recall: ...


grammar = OneOf(Form(Look, "[look]"), Form(Recall, "[recall]"))


async def oracle(gold, question):
    return [Look() if gold.ids & set(await gold.find(question, 1)) else Recall()]


decide = Role(
    "decide",
    load(__package__, "decide"),
    grammar=lambda question: grammar,
    view=lambda question: {"question": question},
    max_tokens=8,
    oracle=oracle,
)


@dataclass(frozen=True)
class Toy(System):
    k: int = 2
    answer_tokens: int = 16

    @property
    def roles(self):
        return (decide,)

    async def run(self, question, ctx):
        match await ctx.act(decide, question=question.question):
            case Look():
                found = await ctx.retrieve(question.question, k=self.k)
            case Recall():
                found = []
        return await answer(ctx, question, found, StopReason.ANSWERED, words=40, max_tokens=self.answer_tokens)


SYSTEM = Toy
ABLATIONS = {"two-passages": Ablation("two passages per search", settings={"k": 2})}

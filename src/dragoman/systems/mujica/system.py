"""Mujica (seed 003, section 2.2): a planner that asks subquestions and workers that answer them, one proxy in two roles.

In each iteration the planner asks several subquestions, none of which depends on another, or it ends. A worker is a RAG of
its own. It searches for one subquestion and answers it in a sentence, with the passages it used, or says that there is
nothing. The planner sees these sentences alone and no passage, so its context stays short. What one iteration finds the
next may build on: the subquestions form a directed acyclic graph, which a tree records as the parents and joins of nodes.

In the environment of a knowledge graph, what is searched for is entities, each with its triples. The planner is shown at
the start which entities the question is about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from dragoman.core.errors import UserError
from dragoman.core.types import Passage, Question
from dragoman.systems.answer import answer
from dragoman.systems.base import Context, Outcome, Role, StopReason, System
from dragoman.systems.mujica import roles
from dragoman.systems.mujica.actions import Answer, Nothing, Subquestions
from dragoman.systems.mujica.queries import contains
from dragoman.systems.mujica.settings import Settings
from dragoman.systems.mujica.state import State
from dragoman.systems.prompts import one_line


@dataclass(frozen=True)
class Mujica(Settings, System):
    async def run(self, question: Question, ctx: Context) -> Outcome:
        """Eq. 1: each subquestion may depend on all that precede it and on their answers."""
        state, stop = State(candidates=await self._candidates(question, ctx)), StopReason.DEPTH_LIMIT
        asked: Counter[str] = Counter()
        for _ in range(self.max_iterations):
            match await ctx.act(self.planner, question=question.question, state=state):
                case Answer(answer=text):
                    if self.answers == "planner":
                        return Outcome(text, state.kept)
                    stop = StopReason.ANSWERED
                    break
                case Subquestions(questions=plan):  # q_i .. q_j, none of which depends on another
                    # What has its answer is not asked again. What found nothing is, on the next page of the search.
                    plan = state.unanswered(plan)[: self.max_questions]  # more are possible where each is scored
                    if not plan:
                        stop = StopReason.CIRCULAR_PLAN
                        break
                    workers = {q: partial(self._look_up, question.question, q, asked[q]) for q in plan}
                    state = state.with_replies(await ctx.parallel(workers), self.max_documents)
                    asked.update(plan)
            if len(state.kept) == self.max_documents:
                stop = StopReason.DOCUMENT_LIMIT
                break
        if self.answers == "planner":
            last = await ctx.act(self.conclusion, question=question.question, state=state)
            return Outcome(last.answer, state.kept, stop)
        return await answer(ctx, question, state.kept, stop, words=self.passage_words, max_tokens=self.answer_tokens)

    async def _look_up(self, question: str, subquestion: str, page: int, ctx: Context) -> tuple[str, Sequence[Passage]]:
        """The worker: a_i, a sentence, of q_i and D_i, the passages found for it. Without workers, D_i and no sentence."""
        found = await ctx.retrieve(subquestion, k=self.k, page=page)
        if not found or not self.split:
            return "", found
        reply = await ctx.act(self.worker, question=question, subquestion=subquestion, passages=found)
        if isinstance(reply, Nothing):
            return "", []
        used = [found[i - 1] for i in reply.ids]
        return reply.sentence or "; ".join(one_line(passage, self.proxy_words) for passage in used), used

    async def _candidates(self, question: Question, ctx: Context) -> tuple[str, ...]:
        """The entities to start from, in a knowledge graph."""
        if self.environment == "text":
            return ()
        if self.candidates == "gold":
            return topic_entities(question)
        found = await ctx.retrieve(question.question, k=self.k)
        return tuple(dict.fromkeys(entity.title for entity in found if entity.title))

    @property
    def roles(self) -> tuple[Role, ...]:
        return (self.planner, self.worker) if self.split else (self.planner,)

    @cached_property
    def planner(self) -> Role:
        return roles.planner(self)

    @cached_property
    def conclusion(self) -> Role:
        return roles.conclusion(self)

    @cached_property
    def worker(self) -> Role:
        return roles.worker(self)


def topic_entities(question: Question) -> tuple[str, ...]:
    """The ends of the gold triples that the question names, in their order. The others, the answer among them, are to be found.

    Raises:
        UserError: the question's triples are not known.
    """
    if not question.triples:
        raise UserError(f"question {question.id}: gold candidates are taken from its triples, and it has none")
    ends = dict.fromkeys(end for subject, _, obj in question.triples for end in (subject, obj))
    return tuple(end for end in ends if contains(question.question, end))

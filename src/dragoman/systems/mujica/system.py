"""Mujica (section 2.2): a planner that asks subquestions and workers that answer them, one proxy in two roles.

In each iteration the planner asks several subquestions, none of which depends on another, or it ends. A worker is a RAG of
its own. It searches for one subquestion and answers it in a sentence, with the passages it used, or says that there is
nothing. The planner sees these sentences alone and no passage, so its context stays short. What one iteration finds the
next may build on: the subquestions form a directed acyclic graph, which a tree records as the parents and joins of nodes.

In the environment of a knowledge graph the planner asks about entities. It is shown at the start which ones the question is
about. A worker reads the triples of one entity, and selects among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from dragoman.core.types import Passage, Question
from dragoman.systems.answer import answer
from dragoman.systems.base import Context, Outcome, Role, StopReason, System
from dragoman.systems.evidence import joined, pieces
from dragoman.systems.grammar import Action
from dragoman.systems.mujica import dialogue, marks, roles
from dragoman.systems.mujica.actions import Answer, Nothing, Recalled, Searches, Subquestions
from dragoman.systems.mujica.settings import Settings
from dragoman.systems.mujica.slots import Search
from dragoman.systems.mujica.state import State
from dragoman.systems.mujica.topics import topic_entities
from dragoman.systems.options import check_bias
from dragoman.systems.prompts import Prompt, one_line


@dataclass(frozen=True)
class Mujica(Settings, System):
    views = 2  # names have their initials, and a long question is searched for with its end
    turned_after_training = frozenset({"bias"})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bias(self.bias, marks.kinds(self))

    async def run(self, question: Question, ctx: Context) -> Outcome:
        """Eq. 1: each subquestion may depend on all that precede it and on their answers."""
        state, stop = State(candidates=await self._candidates(question, ctx)), StopReason.DEPTH_LIMIT
        asked: Counter[str] = Counter()
        for _ in range(self.max_iterations):
            match action := await self._plan(self.planner, question, state, ctx):
                case Answer(answer=text):
                    if self.answers == "planner" and text:  # at marks it ends first, and concludes then
                        return Outcome(text, state.kept)
                    stop = StopReason.ANSWERED
                    break
                case Subquestions() | Searches():  # q_i .. q_j, none of which depends on another
                    # What has its answer is not asked again. What found nothing is, on the next page of the search.
                    plan = state.unanswered(action.searches)[: self.max_questions]  # more are possible at marks
                    if not plan:
                        stop = StopReason.CIRCULAR_PLAN
                        break
                    workers = {str(s): partial(self._look_up, question.question, s, asked[str(s)]) for s in plan}
                    replies = await ctx.parallel(workers)
                    if self.context == "dialogue":
                        said = self.planner.grammar(question=question.question, state=state).render(action)
                        state = state.with_turn(said, replies)
                    state = state.with_replies(replies, self.max_documents)
                    asked.update(map(str, plan))
            if len(state.kept) == self.max_documents:
                stop = StopReason.DOCUMENT_LIMIT
                break
        if self.answers == "planner":
            last = await self._plan(self.conclusion, question, state, ctx)
            return Outcome(last.answer, state.kept, stop)
        return await answer(ctx, question, state.kept, stop, words=self.passage_words, max_tokens=self.answer_tokens)

    async def _plan(self, role: Role, question: Question, state: State, ctx: Context) -> Action:
        """The planner's next turn."""
        if state.turns:
            opening = self.planner.messages(
                {"question": question.question, "state": State(candidates=state.candidates)}
            )
            history = (*opening, *dialogue.history(self, state.turns))
            role = dialogue.continued(self, role, last=role is self.conclusion)
            return await ctx.act(role, history=history, question=question.question, state=state)
        return await ctx.act(role, question=question.question, state=state)

    async def _look_up(self, question: str, search: Search, page: int, ctx: Context) -> tuple[str, Sequence[Passage]]:
        """The worker: a_i, a sentence, of q_i and D_i, the passages found for it. Without workers, D_i and no sentence."""
        found = await ctx.retrieve(search.query, k=self.k, page=page)
        if not self.split or not (found or self.memory):
            return "", found
        listed = pieces(found) if self.keep == "sentences" else found
        reply = await ctx.act(
            self.worker, question=question, subquestion=search.question, entity=search.entity, passages=listed
        )
        if isinstance(reply, Nothing):
            return "", []
        if isinstance(reply, Recalled):
            return reply.sentence, []
        taken = [listed[i - 1] for i in reply.ids]
        used = joined(found, taken) if self.keep == "sentences" else taken
        return reply.sentence or "; ".join(one_line(passage, self.proxy_words) for passage in used), used

    def check(self, question: Question) -> None:
        if self.environment == "graph" and self.candidates == "gold":
            topic_entities(question)

    async def _candidates(self, question: Question, ctx: Context) -> tuple[str, ...]:
        """The entities to start from, in a knowledge graph."""
        if self.environment == "text":
            return ()
        if self.candidates == "gold":
            return topic_entities(question)
        found = await ctx.retrieve(question.question, k=self.k)
        return tuple(dict.fromkeys(triple.title for triple in found if triple.title))

    @property
    def roles(self) -> tuple[Role, ...]:
        return (self.planner, self.worker) if self.split else (self.planner,)

    @property
    def trained_prompts(self) -> Mapping[str, Prompt]:
        later: dict[str, Prompt] = {}
        if self.answers == "planner":
            later["conclusion"] = self.conclusion.prompt
        if self.context == "dialogue":
            later |= dialogue.PROMPTS
        return {**super().trained_prompts, **later}

    @cached_property
    def planner(self) -> Role:
        return roles.planner(self)

    @cached_property
    def conclusion(self) -> Role:
        return roles.conclusion(self)

    @cached_property
    def worker(self) -> Role:
        return roles.worker(self)

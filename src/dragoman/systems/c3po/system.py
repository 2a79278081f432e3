"""C-3PO (Guo et al. 2025): one proxy in three roles between a retriever and an LLM.

The reasoning router picks a strategy (section 4.2): answer directly, search once, or plan. The information filter keeps
what the LLM should see. Under a plan, the LLM writes a roadmap once and the decision maker searches along it, until it
hands over to the LLM or a limit is met.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

from dragoman.core.errors import UserError
from dragoman.core.text import names, words
from dragoman.core.types import Passage, Question
from dragoman.systems.answer import answer
from dragoman.systems.base import Ask, Context, Gold, Outcome, Role, StopReason, System
from dragoman.systems.c3po import actions
from dragoman.systems.c3po.actions import Answer, Keep, KeepAll, NoRetrieval, Plan, Search
from dragoman.systems.grammar import Alias, Indices, Line, Span, Titles, can_say
from dragoman.systems.prompts import load, number, one_line

QUESTION_RUN, SPAN_WORDS, SPAN_RUN = 30, 40, 6
"""`queries: span` copies the question (30 words of one that is longer), and after the first search also up to 6 words in a
row of it or of the first 40 of a kept passage; with `queries: phrase` the first search may have a few words of it, too. With
`queries: names` the question is called by a name of its own and not copied; under a plan there are also the names in it and in
what the proxy sees of kept passages, each once; when all have been asked the question's next page is left."""
ITSELF = "the question"
"""What a policy with `queries: names` calls it."""
TITLE_TOKENS = 24
"""What a title may cost where the filter selects by title."""


@dataclass(frozen=True)
class C3PO(System):
    k: int = 5
    """Passages per search."""
    max_depth: int = 13
    """Decisions per trajectory (table 7)."""
    max_documents: int = 10
    """Passages kept for the LLM."""
    thoughts: bool = False
    """Whether filter and decision maker write a thought before they act, as in the paper. Tiny models do better without."""
    shots: int = 0
    """In-context examples per role (C-3PO-ICL)."""
    strategy: str = ""
    """Hold the router to `NoRetrieval`, `Search` or `Plan` (the ablation of table 3); empty leaves it the choice."""
    passage_words: int = 100
    """Each passage is cut to this many words in the LLM's prompt."""
    proxy_words: int = 100
    """And to this many in the proxy's."""
    filter_words: int = 0
    """The filter alone may see fewer of them: five passages make its prompt by far the longest. 0: as many as the others."""
    queries: str = "free"
    """`free` queries; or copied ones, for models too small to phrase one: `span`, the question, then words of it or of what was
    kept; `phrase`, the same with a few words of the question from the first search on; or `names`, the question and, under
    a plan, names in it and in what was kept."""
    select: str = "numbers"
    """What the filter says of the passages that it keeps: their `numbers`, or for models too small to count their `titles`."""
    query_chars: int = 240
    thought_chars: int = 400
    action_tokens: int = 96
    roadmap_tokens: int = 96
    answer_tokens: int = 48

    def __post_init__(self) -> None:
        actions.router([Line()], self.strategy)  # refuses a strategy that does not exist
        if self.queries not in ("free", "span", "phrase", "names"):
            raise UserError(f"queries {self.queries!r}: choose free, span, phrase or names")
        if self.select not in ("numbers", "titles"):
            raise UserError(f"select {self.select!r}: choose numbers or titles")
        if self.select == "titles" and self.thoughts:
            raise UserError("select: titles is for models too small to write thoughts; leave one of the two out")

    def for_oracle(self) -> Self:
        return replace(self, thoughts=False)

    def with_shots(self, shots: int) -> Self:
        return replace(self, shots=shots)

    @property
    def roles(self) -> tuple[Role, ...]:
        return (self.router, self.filter, self.decide)

    @cached_property
    def router(self) -> Role:
        return Role(
            "router",
            load(__package__, "router"),
            grammar=lambda question: actions.router(self._first_queries(question), self.strategy),
            view=lambda question: {"question": question},
            max_tokens=self.action_tokens,
            shots=self.shots,
            oracle=self._oracle_router,
        )

    @cached_property
    def filter(self) -> Role:
        return Role(
            "filter",
            load(__package__, self._filter_prompt),
            grammar=lambda question, objective, passages: actions.information_filter(
                self._selection(passages), self._thought
            ),
            view=lambda question, objective, passages: {
                "question": question,
                "objective": f"Objective of this step: {objective}\n" if objective else "",
                "passages": self._shown(passages),
            },
            max_tokens=max(self._tokens, TITLE_TOKENS * self.k) if self.select == "titles" else self._tokens,
            shots=self.shots,
            oracle=self._oracle_filter,
        )

    @cached_property
    def decide(self) -> Role:
        return Role(
            "decide",
            load(__package__, "decide_with_thought" if self.thoughts else "decide"),
            grammar=lambda question, roadmap, kept, asked: actions.decision_maker(
                self._queries(question, kept, asked), self._thought
            ),
            view=lambda question, roadmap, kept, asked: {
                "question": question,
                "roadmap": roadmap,
                "passages": number(kept, self.proxy_words),
                "searches": "; ".join(self._called(query, question) for query in asked) or "(none)",
            },
            max_tokens=self._tokens,
            shots=self.shots,
            oracle=self._oracle_decide,
        )

    @cached_property
    def roadmap(self) -> Ask:
        return Ask(
            "roadmap",
            load(__package__, "roadmap"),
            view=lambda question: {"question": question},
            max_tokens=self.roadmap_tokens,
        )

    async def run(self, question: Question, ctx: Context) -> Outcome:
        match await ctx.act(self.router, question=question.question):
            case NoRetrieval():
                kept, stop = [], StopReason.ANSWERED
            case Search(query=query):
                kept, stop = await self._search(ctx, question, query, objective=""), StopReason.ANSWERED
            case Plan():
                kept, stop = await self._multi_step(ctx, question)
        return await answer(ctx, question, kept, stop, words=self.passage_words, max_tokens=self.answer_tokens)

    async def _multi_step(self, ctx: Context, question: Question) -> tuple[list[Passage], StopReason]:
        """The multi-step reasoning strategy: roadmap, then retrieval-filter loop (eq. 13 to 15)."""
        roadmap = await ctx.ask(self.roadmap, question=question.question)
        kept: list[Passage] = []
        asked: list[str] = []
        depth = 1  # the router's decision
        while depth + 2 <= self.max_depth:  # a search costs two decisions: the query and the selection
            match await ctx.act(self.decide, question=question.question, roadmap=roadmap, kept=kept, asked=asked):
                case Answer():
                    return kept, StopReason.ANSWERED
                case Search(query=query, thought=thought):
                    page = asked.count(query)  # the same query again means: show me more
                    asked.append(query)
                    part = "" if query == self._whole(question.question) else query
                    found = await self._search(ctx, question, query, objective=thought or part, page=page)
                    kept += [p for p in found if p.id not in {q.id for q in kept}]
            if len(kept) >= self.max_documents:
                return kept[: self.max_documents], StopReason.DOCUMENT_LIMIT
            depth += 2
        return kept, StopReason.DEPTH_LIMIT

    async def _search(
        self, ctx: Context, question: Question, query: str, *, objective: str, page: int = 0
    ) -> list[Passage]:
        """Search, then let the information filter select (eq. 12)."""
        found = await ctx.retrieve(query, k=self.k, page=page)
        if not found:
            return []
        keep = await ctx.act(self.filter, question=question.question, objective=objective, passages=found)
        return found if isinstance(keep, KeepAll) else [found[i - 1] for i in keep.ids]

    @property
    def _filter_prompt(self) -> str:
        if self.select == "titles":
            return "filter_by_title"
        return "filter_with_thought" if self.thoughts else "filter"

    def _selection(self, passages: Sequence[Passage]) -> Indices | Titles:
        """What there is to select from."""
        if self.select == "numbers":
            return Indices(len(passages))
        return _titles(passages)

    def _shown(self, passages: Sequence[Passage]) -> str:
        """The passages as the filter sees them."""
        shown = self.filter_words or self.proxy_words
        if self.select == "numbers":
            return number(passages, shown)
        named = (
            replace(passage, title=title) for passage, title in zip(passages, _titles(passages).titles, strict=True)
        )
        return "\n".join(f"- {one_line(passage, shown)}" for passage in named)

    def _first_queries(self, question: str) -> list[Line]:
        """The kinds of query that a search without a plan may be."""
        if self.queries == "free":
            return [Line(self.query_chars)]
        if self.queries == "names" and (whole := self._whole(question)):
            return [Alias(self.query_chars, name=ITSELF, stands_for=whole)]
        sources = [(question, QUESTION_RUN, QUESTION_RUN)]
        if self.queries == "phrase":
            sources.append((question, 1, SPAN_RUN))
        return [self._copied(source) for source in sources]

    async def _oracle_router(self, gold: Gold, question: str) -> list[Any]:
        """One search if it finds all there is to find, else a plan."""
        query = self._whole(question)
        sayable = any(can_say(line, query) for line in self._first_queries(question))
        return [Search(query) if sayable and gold.ids <= set(await gold.find(query, self.k)) else Plan()]

    async def _oracle_filter(self, gold: Gold, question: str, objective: str, passages: Sequence[Passage]) -> list[Any]:
        """The gold passages and no other."""
        return [Keep(tuple(i for i, passage in enumerate(passages, start=1) if passage.id in gold.ids))]

    async def _oracle_decide(
        self, gold: Gold, question: str, roadmap: str, kept: Sequence[Passage], asked: Sequence[str]
    ) -> list[Any]:
        """The question, then the name that finds first what is missing, and the answer when nothing is or none does.

        The question comes first even where it finds nothing: that it does not is something that a policy cannot foresee.
        """
        missing = gold.ids - {passage.id for passage in kept}

        async def rank(query: str) -> float:
            found = await gold.find(query, self.k)
            return min((place for place, id in enumerate(found) if id in missing), default=math.inf)

        if not missing:
            return [Answer()]
        sayable = self._queries(question, kept, asked)
        whole = self._whole(question)
        queries = [whole, *self._names(question, kept)]
        new = [q for q in queries if q not in asked and any(can_say(line, q) for line in sayable)]
        if not asked and whole in new:
            return [Search(whole)]
        ranks = {query: await rank(query) for query in new}
        best = min(ranks, key=ranks.__getitem__, default="")
        return [Search(best) if ranks.get(best, math.inf) < math.inf else Answer()]

    def _whole(self, question: str) -> str:
        """The question as a query."""
        return " ".join(words(question)[:QUESTION_RUN])[: self.query_chars].rstrip()

    def _names(self, question: str, kept: Sequence[Passage]) -> list[str]:
        """The names in the question, and those in the kept passages that are not."""
        known = {word.lower() for word in words(question)}
        others = [name for passage in kept for name in names(one_line(passage, self.proxy_words))]
        new = (name for name in others if not known >= set(name.lower().split()))
        every = dict.fromkeys([*names(question), *new])
        return [name for name in every if len(name) <= self.query_chars and len(name.split()) <= QUESTION_RUN]

    def _called(self, query: str, question: str) -> str:
        """A query as the decision maker reads of it later."""
        return ITSELF if self.queries == "names" and query == self._whole(question) else query

    def _queries(self, question: str, kept: Sequence[Passage], asked: Sequence[str]) -> list[Line]:
        """The kinds of query that the next search under a plan may be."""
        if self.queries == "names":
            whole = self._whole(question)
            fresh = [name for name in self._names(question, kept) if name not in (*asked, whole)]
            itself = self._first_queries(question) if whole and whole not in asked else []
            named = [self._copied(*((name, QUESTION_RUN, QUESTION_RUN) for name in fresh))] if fresh else []
            return [*itself, *named] or self._first_queries(question)
        if self.queries == "free" or (self.queries == "span" and not kept):
            return self._first_queries(question)
        parts = (question, *(one_line(p, SPAN_WORDS) for p in kept))
        return [self._copied((question, QUESTION_RUN, QUESTION_RUN), *((text, 1, SPAN_RUN) for text in parts))]

    def _copied(self, *sources: tuple[str, int, int]) -> Span:
        return Span(self.query_chars, sources)

    @property
    def _thought(self) -> Line | None:
        return Line(self.thought_chars) if self.thoughts else None

    @property
    def _tokens(self) -> int:
        return self.action_tokens + (self.thought_chars // 3 if self.thoughts else 0)


def _titles(passages: Sequence[Passage]) -> Titles:
    """A title for each; one that has none is called by its first words."""
    return Titles.of([passage.title or passage.text for passage in passages])

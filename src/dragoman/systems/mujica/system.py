"""Mujica (seed 003, section 2.2): a planner that asks subquestions and workers that answer them, one proxy in two roles.

In each iteration the planner either asks several subquestions, none of which depends on another, or ends. A worker is a RAG
of its own: it searches for one subquestion and answers it in a sentence, with the passages it used, or says that there is
nothing. The planner sees these sentences alone and no passage, so its context stays short. What one iteration finds the
next may build on: the subquestions form a directed acyclic graph, which a tree records as the parents and joins of nodes.

In the environment of a knowledge graph what is searched for is entities, each with its triples, and the planner is shown at
the start which ones the question is about.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, zip_longest
from typing import Any, Literal, Self

from dragoman.core.errors import UserError
from dragoman.core.text import names, words
from dragoman.core.types import Passage, Question
from dragoman.systems.answer import answer
from dragoman.systems.base import Context, Gold, Outcome, Role, StopReason, System
from dragoman.systems.grammar import Line, OneOf, Span, can_say
from dragoman.systems.mujica import actions
from dragoman.systems.mujica.actions import Answer, Found, Nothing, Subquestions
from dragoman.systems.prompts import load, number, one_line

WHOLE_RUN, SPAN_RUN = 30, 6
"""`queries: span` copies whole texts (30 words of one that is longer), or up to 6 words in a row."""


@dataclass(frozen=True)
class Fact:
    """What the planner remembers of a subquestion; the answer is empty when nothing was found."""

    question: str
    answer: str


@dataclass(frozen=True)
class State:
    """What is known between two turns of the planner."""

    facts: tuple[Fact, ...] = ()
    kept: tuple[Passage, ...] = ()
    candidates: tuple[str, ...] = ()
    """Names of entities to start from; none where the environment is text."""


@dataclass(frozen=True)
class Mujica(System):
    k: int = 5
    """Passages per search."""
    max_iterations: int = 4
    """Rounds of subquestions per trajectory."""
    max_questions: int = 4
    """Subquestions per round. 1 makes the plan a chain instead of a graph (an ablation of table 4)."""
    max_documents: int = 10
    """Passages kept for the LLM; the plan ends when there are so many."""
    split: bool = True
    """Whether workers read what is found. If not, the planner does, as in iterative RAG (the other ablation of table 4)."""
    answers: Literal["llm", "planner"] = "llm"
    """Who gives the answer. The paper's planner does. By default it only says when, and the frozen LLM answers from the kept
    passages, with the prompt that serves every system: then a gain is that of the passages found, and no sentence that
    a small worker made up comes between the corpus and the answer."""
    environment: Literal["text", "graph"] = "text"
    """What is searched: passages of text, or the entities of a knowledge graph (an index of method `graph`)."""
    candidates: Literal["search", "gold"] = "search"
    """`graph` only, the entities that the planner starts from: those that a search for the question finds, or as in the paper
    (section 4.1) the gold topic entities, the ends of the question's triples that it names."""
    thoughts: bool = False
    """Whether planner and worker write a thought before they act, as in the paper. Tiny models do better without."""
    shots: int = 0
    """In-context examples per role."""
    passage_words: int = 100
    """Each passage is cut to this many words in the LLM's prompt."""
    proxy_words: int = 100
    """And to this many in the proxy's."""
    queries: Literal["free", "span"] = "free"
    """`free` text, or `span`, for models too small to phrase any: subquestions are words copied from the question and from
    what is known, workers copy a sentence of a passage, and are told the question that theirs is a part of."""
    query_chars: int = 160
    sentence_chars: int = 240
    thought_chars: int = 400
    question_tokens: int = 64
    """Of a plan, for each subquestion it may ask."""
    sentence_tokens: int = 96
    answer_tokens: int = 48

    def __post_init__(self) -> None:
        for name, choices in (
            ("queries", ("free", "span")),
            ("answers", ("llm", "planner")),
            ("environment", ("text", "graph")),
            ("candidates", ("search", "gold")),
        ):
            if getattr(self, name) not in choices:
                raise UserError(f"{name} {getattr(self, name)!r}: choose {' or '.join(choices)}")
        for name in ("max_iterations", "max_questions", "max_documents"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} {getattr(self, name)}: must be at least 1")

    def for_oracle(self) -> Self:
        return replace(self, thoughts=False)

    def with_shots(self, shots: int) -> Self:
        return replace(self, shots=shots)

    @property
    def roles(self) -> tuple[Role, ...]:
        return (self.planner, self.worker) if self.split else (self.planner,)

    @cached_property
    def planner(self) -> Role:
        name = "planner" if self.answers == "llm" else "planner_answers"
        return Role(
            "planner",
            load(__package__, f"{name}_with_thought" if self.thoughts else name),
            grammar=self._plan,
            view=self._view,
            max_tokens=self.max_questions * self.question_tokens + self._thought_tokens,
            shots=self.shots,
            oracle=self._oracle_planner,
        )

    @cached_property
    def conclusion(self) -> Role:
        """The planner when it may ask no more."""
        return Role(
            "planner",
            load(__package__, "conclusion"),
            grammar=lambda question, state: actions.conclusion(self._answer(question, state)),
            view=self._view,
            max_tokens=self.question_tokens,
            oracle=self._oracle_conclusion,
        )

    @cached_property
    def worker(self) -> Role:
        name = "worker" if self.environment == "text" else "worker_triples"
        return Role(
            "worker",
            load(__package__, f"{name}_with_thought" if self.thoughts else name),
            grammar=lambda question, subquestion, passages: actions.worker(
                len(passages), self._sentence(passages), self._thought
            ),
            view=lambda question, subquestion, passages: {
                "part": f"This is a part of the question: {question}\n" if self.queries == "span" else "",
                "question": subquestion,
                "passages": number(passages, self.proxy_words),
            },
            max_tokens=self.sentence_tokens + self._thought_tokens,
            shots=self.shots,
            oracle=self._oracle_worker,
        )

    async def run(self, question: Question, ctx: Context) -> Outcome:
        state, stop = State(candidates=await self._candidates(question, ctx)), StopReason.DEPTH_LIMIT
        asked: Counter[str] = Counter()
        for _ in range(self.max_iterations):
            match await ctx.act(self.planner, question=question.question, state=state):
                case Answer(answer=text):
                    if self.answers == "planner":
                        return Outcome(text, state.kept)
                    stop = StopReason.ANSWERED
                    break
                case Subquestions(questions=plan):
                    # What has its answer is not asked again; what found nothing is, on the next page of the search.
                    answered = {fact.question for fact in state.facts if fact.answer}
                    plan = tuple(q for q in plan if q not in answered)
                    if not plan:
                        stop = StopReason.CIRCULAR_PLAN
                        break
                    state = await self._research(ctx, question, plan, asked, state)
                    asked.update(plan)
            if len(state.kept) == self.max_documents:
                stop = StopReason.DOCUMENT_LIMIT
                break
        if self.answers == "planner":
            last = await ctx.act(self.conclusion, question=question.question, state=state)
            return Outcome(last.answer, state.kept, stop)
        return await answer(ctx, question, state.kept, stop, words=self.passage_words, max_tokens=self.answer_tokens)

    async def _candidates(self, question: Question, ctx: Context) -> tuple[str, ...]:
        if self.environment == "text":
            return ()
        if self.candidates == "gold":
            return topic_entities(question)
        found = await ctx.retrieve(question.question, k=self.k)
        return tuple(dict.fromkeys(entity.title for entity in found if entity.title))

    async def _research(
        self, ctx: Context, question: Question, plan: Sequence[str], asked: Counter[str], state: State
    ) -> State:
        """One iteration: all subquestions at once, each on a branch that bears its name."""
        replies = await ctx.parallel(
            {q: partial(self._look_up, question=question.question, subquestion=q, page=asked[q]) for q in plan}
        )
        # What several subquestions found takes turns, so that a limit cuts all of them alike.
        ranks = zip_longest(*(found for _, found in replies.values()))
        found = {p.id: p for p in (*state.kept, *chain.from_iterable(ranks)) if p is not None}
        facts = {fact.question: fact for fact in state.facts} | {q: Fact(q, said) for q, (said, _) in replies.items()}
        return replace(state, facts=tuple(facts.values()), kept=tuple(found.values())[: self.max_documents])

    async def _look_up(
        self, ctx: Context, *, question: str, subquestion: str, page: int
    ) -> tuple[str, Sequence[Passage]]:
        """The worker: a sentence and the passages it rests on. Without workers, all passages and no sentence."""
        found = await ctx.retrieve(subquestion, k=self.k, page=page)
        if not found or not self.split:
            return "", found
        reply = await ctx.act(self.worker, question=question, subquestion=subquestion, passages=found)
        return ("", []) if isinstance(reply, Nothing) else (reply.sentence, [found[i - 1] for i in reply.ids])

    def _gold_ids(self, gold: Gold) -> frozenset[str]:
        """The passages of text, or the entities that head the facts behind the answer; an entity's name is its id."""
        return gold.ids if self.environment == "text" else frozenset(subject for subject, _, _ in gold.triples)

    async def _oracle_planner(self, gold: Gold, question: str, state: State) -> list[Any]:
        """For each gold passage that is missing the name, or else the word, that finds it first; then the end.

        The LLM answers from passages, so where it does the whole question comes first while that finds any. A planner that
        answers knows no more than a sentence of each worker, so it asks for one thing at a time.
        """
        ids = self._gold_ids(gold)
        if not ids:
            return []
        missing = ids - {passage.id for passage in state.kept}
        asked = {fact.question for fact in state.facts}
        subquestion = self._subquestion(question, state)
        texts = [text for text, _, _ in self._runs(question, state)]
        named, worded = ([part for text in texts for part in split(text)] for split in (names, words))
        start = [_copied(name, self.query_chars) for name in state.candidates]
        parts = ([*start, *named], worded)
        whole = [_copied(question, self.query_chars)]
        for queries in (whole, *parts) if self.answers == "llm" else (*parts, whole):
            sayable = (q for q in dict.fromkeys(queries) if missing and q not in asked and can_say(subquestion, q))
            found = {q: list(await gold.find(q, self.k)) for q in sayable}
            finding = [{q: hits.index(id) for q, hits in found.items() if id in hits} for id in sorted(missing)]
            best = dict.fromkeys(min(places, key=places.__getitem__) for places in finding if places)
            if best:
                return [Subquestions(tuple(best)[: self.max_questions])]
        return [Answer()] if self.answers == "llm" else await self._oracle_conclusion(gold, question, state)

    async def _oracle_conclusion(self, gold: Gold, question: str, state: State) -> list[Any]:
        """The answer, if what is known has it. One that stands in the question, or a yes or no, takes all that is gold."""
        ids, line = self._gold_ids(gold), self._answer(question, state)
        if not ids:
            return []
        everything = ids <= {passage.id for passage in state.kept}
        _, *known = (text for text, _, _ in self._runs(question, state))

        def is_known(text: str) -> bool:
            among_choices = text in ("yes", "no") or _says(question, text)
            return everything if among_choices else any(_says(said, text) for said in known)

        copied = (_copied(text, self.query_chars) for text in gold.answers)
        answers = [text.lower() if text.lower() in ("yes", "no") else text for text in copied]
        wrong = "yes" if "no" in answers else "no"  # what earns nothing is not imitated
        return [Answer(next((text for text in answers if is_known(text) and can_say(line, text)), wrong))]

    async def _oracle_worker(
        self, gold: Gold, question: str, subquestion: str, passages: Sequence[Passage]
    ) -> list[Any]:
        """The gold passages and one sentence of them; where the planner answers, the sentence's passage alone.

        Of the sentences the one that tells the most facts that the question does not, and among equals the one with a name
        that finds what is missing, the earlier the better.
        """
        ids = self._gold_ids(gold)
        if not ids:
            return []
        kept = {i: passage for i, passage in enumerate(passages, start=1) if passage.id in ids}
        missing = ids - {passage.id for passage in passages}
        facts = {*gold.answers, *(end for subject, _, obj in gold.triples for end in (subject, obj))}
        relations = {relation for _, relation, _ in gold.triples}

        async def rank(i: int, sentence: str) -> tuple[float, ...]:
            found = [await gold.find(name, self.k) for name in names(sentence)] if missing else []
            leads = min((place for hits in found for place, id in enumerate(hits) if id in missing), default=math.inf)
            told = [fact for fact in facts if _says(sentence, fact)]
            new = [fact for fact in told if not _says(question, fact)]
            related = [relation for relation in relations if _says(sentence, relation)]
            return -len(new), leads, -len(told) - len(related), i

        line = self._sentence(passages)
        read = [(i, s) for i, passage in kept.items() for s in _sentences(passage, self.proxy_words)]
        copied = ((i, _copied(sentence, self.sentence_chars)) for i, sentence in read)
        ranks = {(i, sentence): await rank(i, sentence) for i, sentence in copied if can_say(line, sentence)}
        if not ranks:
            return [Nothing()]
        best, sentence = min(ranks, key=ranks.__getitem__)
        return [Found(tuple(kept) if self.answers == "llm" else (best,), sentence)]

    def _view(self, question: str, state: State) -> dict[str, str]:
        if self.split:
            lines = [f"{fact.question} -> {fact.answer or 'nothing found'}" for fact in state.facts]
            known = "\n".join(lines) or "(none)"
        else:
            known = number(state.kept, self.proxy_words)
        start = f"Entities to start from: {', '.join(state.candidates)}\n" if state.candidates else ""
        return {"question": question, "known": known, "most": str(self.max_questions), "candidates": start}

    def _plan(self, question: str, state: State) -> OneOf:
        ending = self._answer(question, state) if self.answers == "planner" else None
        return actions.planner(self._subquestion(question, state), self.max_questions, ending, self._thought)

    def _subquestion(self, question: str, state: State) -> Line:
        whole = [(text, WHOLE_RUN, WHOLE_RUN) for text in (question, *state.candidates)]
        return self._text(self.query_chars, [*whole, *self._runs(question, state)])

    def _answer(self, question: str, state: State) -> Line:
        return self._text(self.query_chars, [("yes", 1, 1), ("no", 1, 1), *self._runs(question, state)])

    def _sentence(self, passages: Sequence[Passage]) -> Line:
        read = [sentence for p in passages for sentence in _sentences(p, self.proxy_words)]
        return self._text(self.sentence_chars, [(sentence, WHOLE_RUN, WHOLE_RUN) for sentence in read])

    def _runs(self, question: str, state: State) -> list[tuple[str, int, int]]:
        """Short runs of words of the question and of what the planner knows."""
        known = [f.answer for f in state.facts] if self.split else [one_line(p, WHOLE_RUN) for p in state.kept]
        return [(text, 1, SPAN_RUN) for text in (question, *known)]

    def _text(self, chars: int, sources: Sequence[tuple[str, int, int]]) -> Line:
        return Line(chars) if self.queries == "free" else Span(chars, tuple(sources))

    @property
    def _thought(self) -> Line | None:
        return Line(self.thought_chars) if self.thoughts else None

    @property
    def _thought_tokens(self) -> int:
        return self.thought_chars // 3 if self.thoughts else 0


def topic_entities(question: Question) -> tuple[str, ...]:
    """The ends of the gold triples that the question names, in their order. The others, the answer among them, are to be found.

    Raises:
        UserError: the question's triples are not known.
    """
    if not question.triples:
        raise UserError(f"question {question.id}: gold candidates are taken from its triples, and it has none")
    ends = dict.fromkeys(end for subject, _, obj in question.triples for end in (subject, obj))
    return tuple(end for end in ends if _says(question.question, end))


def _copied(text: str, chars: int) -> str:
    """A whole text as `queries: span` copies it."""
    return " ".join(words(text)[:WHOLE_RUN])[:chars].rstrip()


def _says(text: str, name: str) -> bool:
    """Whether the words of a name stand in a text, one after the other."""
    return f" {_folded(name)} " in f" {_folded(text)} "


def _folded(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))


def _sentences(passage: Passage, words: int) -> list[str]:
    """The sentences of a passage's first words, each with the title in it: `Its capital is Tirana` says nothing alone."""
    text = " ".join(passage.text.split()[:words])
    sentences = re.split(r"(?<!\bSt\.)(?<=[.!?;])\s+", text)  # St. John's is one name
    return [s if _says(s, passage.title) else f"{passage.title}: {s}" for s in sentences]

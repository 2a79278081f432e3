"""Grammars compiled for one vocabulary, in bounded memory: those that running jobs hold count as those that are kept."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dragoman.core.errors import EngineFault, PromptTooLong
from dragoman.engines.base import Constraint

if TYPE_CHECKING:
    from xgrammar import CompiledGrammar, TokenizerInfo

MOST_GRAMMAR_CHARS = 160_000
"""Of one grammar, which 20 passages of 100 words make, copied in runs. So long a one takes 6 s of a core and up to 160 MiB."""
MOST_GRAMMAR_BYTES = 256 << 20
"""Memory for compiled grammars. While jobs hold as much, none is compiled for others; so at most one goes beyond it."""
_EXCERPT = 200


@dataclass
class _Kept:
    compiled: CompiledGrammar
    size: int
    jobs: int = 0
    """How many hold it."""


class Grammars:
    """Compiles grammars, one after the other, and keeps those that were used last. Safe to use from several threads."""

    def __init__(self, tokenizer: TokenizerInfo) -> None:
        import xgrammar

        # One thread, for others have work to do. Its own cache never gives memory back.
        self._compiler = xgrammar.GrammarCompiler(tokenizer, max_threads=1, cache_enabled=False)
        self._kept: OrderedDict[Constraint, _Kept] = OrderedDict()  # the last used one is last
        self._lent: dict[Future[Any], Constraint] = {}  # by the future of a job
        self._changed = threading.Condition()  # guards the two above
        self._thread = ThreadPoolExecutor(1, "grammars")

    @property
    def size(self) -> int:
        """Bytes of all that are kept or held."""
        with self._changed:
            return sum(kept.size for kept in self._kept.values())

    async def lend(self, grammar: Constraint, job: Future[Any]) -> CompiledGrammar:
        """Compile a grammar, if it is not kept, and hold it until a job is done.

        It may wait until other jobs are done, so these must be under way.

        Raises:
            EngineFault: it does not compile, or the job is done before.
            PromptTooLong: it is too large.
        """
        job.add_done_callback(self._give_back)
        with self._changed:
            kept = self._take(grammar, job) if grammar in self._kept else None
        if kept is not None:
            return kept
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._compiled_for, job, grammar)

    def compiled(self, grammar: Constraint) -> CompiledGrammar:
        """A grammar that nobody holds. It may take seconds, so not in an event loop. Raises what `lend` raises."""
        with self._changed:
            kept = self._kept.get(grammar)
        compiled = self._compile(grammar) if kept is None else kept.compiled
        self._keep(grammar, compiled)
        return compiled

    def _compiled_for(self, job: Future[Any], grammar: Constraint) -> CompiledGrammar:
        with self._changed:
            self._changed.wait_for(lambda: job.done() or grammar in self._kept or self._held() < MOST_GRAMMAR_BYTES)
            if job.done():
                raise EngineFault("the caller has given up")
            if grammar in self._kept:
                return self._take(grammar, job)
        compiled = self._compile(grammar)
        with self._changed:
            self._keep(grammar, compiled, job)
        return compiled

    def _held(self) -> int:
        return sum(kept.size for kept in self._kept.values() if kept.jobs)

    def _take(self, grammar: Constraint, job: Future[Any]) -> CompiledGrammar:
        kept = self._kept[grammar]
        self._kept.move_to_end(grammar)
        if not job.done():  # or it has been given back already
            self._lent[job] = grammar
            kept.jobs += 1
        return kept.compiled

    def _keep(self, grammar: Constraint, compiled: CompiledGrammar, job: Future[Any] | None = None) -> None:
        with self._changed:
            self._kept.setdefault(grammar, _Kept(compiled, compiled.memory_size_bytes))
            self._kept.move_to_end(grammar)
            if job is not None:
                self._take(grammar, job)
            self._trim()

    def _give_back(self, job: Future[Any]) -> None:
        with self._changed:
            grammar = self._lent.pop(job, None)
            if grammar is not None:
                self._kept[grammar].jobs -= 1
                self._trim()
            self._changed.notify_all()

    def _trim(self) -> None:
        """Let go of what nobody holds, the longest unused first, until the rest fits."""
        size = sum(kept.size for kept in self._kept.values())
        for grammar in [grammar for grammar, kept in self._kept.items() if not kept.jobs]:
            if size <= MOST_GRAMMAR_BYTES:
                return
            size -= self._kept.pop(grammar).size

    def _compile(self, grammar: Constraint) -> CompiledGrammar:
        text = grammar.regex or grammar.json_schema or ""
        if len(text) > MOST_GRAMMAR_CHARS:
            raise PromptTooLong(
                f"a grammar of {len(text)} characters exceeds the {MOST_GRAMMAR_CHARS} that are compiled: let it copy from "
                "a shorter question, or from fewer or shorter passages"
            )
        try:
            if grammar.regex is not None:
                return self._compiler.compile_regex(text)
            # fixed white space: a small model that may write blanks writes blanks for ever
            return self._compiler.compile_json_schema(text, any_whitespace=False)
        except (RuntimeError, ValueError) as e:
            raise EngineFault(f"grammar {text[:_EXCERPT]!r} does not compile: {e}") from e

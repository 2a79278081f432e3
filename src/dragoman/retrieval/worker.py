"""One thread that searches for many callers: whatever arrives while it is busy makes up its next batch.

Rollouts send single queries, hundreds at a time. Lucene and an encoder both want batches, and neither gains from being
entered by several Python threads at once (each would have to be attached to the JVM; torch has threads of its own).
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from dragoman.core.errors import RetrieverFault
from dragoman.retrieval.base import Hit, well_formed

logger = logging.getLogger(__name__)

SearchBatch = Callable[[list[str], int], list[list[Hit]]]

MOST_QUERIES = 1024


@dataclass(frozen=True, slots=True)
class _Waiting:
    queries: list[str]
    depth: int
    answer: Future[list[list[Hit]]]


class SearchWorker:
    """Runs `search_batch(queries, depth)` in its own thread, for any number of tasks, threads and event loops."""

    def __init__(self, search_batch: SearchBatch, name: str) -> None:
        self._search_batch = search_batch
        self._name = name
        self._waiting: deque[_Waiting] = deque()
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dragoman-search")
        self._process = os.getpid()

    async def search(self, queries: Sequence[str], depth: int) -> list[list[Hit]]:
        """The best `depth` passages for each query. A blank query finds nothing.

        Raises:
            RetrieverFault: the search failed, or this process is a fork of the one that opened the index.
        """
        if os.getpid() != self._process:  # the thread stayed behind, so the answer would never come
            raise RetrieverFault(f"{self._name} was opened before a fork: open it in the process that searches")
        clean = [well_formed(query) for query in queries]
        asked = list(dict.fromkeys(query for query in clean if query.strip()))
        if not asked:
            return [[] for _ in clean]
        waiting = _Waiting(asked, depth, Future())
        with self._lock:
            self._waiting.append(waiting)
        self._thread.submit(self._next_batch)  # one for each request: a batch that took several leaves idle ones
        answer = await asyncio.wrap_future(waiting.answer)
        found = dict(zip(asked, answer, strict=True))
        return [found.get(query, []) for query in clean]

    def close(self, last: Callable[[], object] | None = None) -> None:
        """Finish what is waiting, run `last` in the thread, and end the thread."""
        if last is not None:
            self._thread.submit(last)
        self._thread.shutdown(wait=True)

    def _next_batch(self) -> None:
        batch = self._take()
        if not batch:
            return
        queries = list(dict.fromkeys(query for waiting in batch for query in waiting.queries))
        try:
            found = dict(zip(queries, self._search_batch(queries, batch[0].depth), strict=True))
        except Exception as e:
            if len(batch) > 1:  # one query that breaks the search must not fail the others
                for waiting in batch:
                    self._answer_alone(waiting)
            else:
                batch[0].answer.set_exception(self._fault(e))
            return
        for waiting in batch:
            waiting.answer.set_result([found[query] for query in waiting.queries])

    def _take(self) -> list[_Waiting]:
        """The requests that go into one batch: of one depth, up to about a thousand queries, none cancelled."""
        batch: list[_Waiting] = []
        others: deque[_Waiting] = deque()
        n = 0
        with self._lock:
            while self._waiting:
                waiting = self._waiting.popleft()
                fits = not batch or (waiting.depth == batch[0].depth and n + len(waiting.queries) <= MOST_QUERIES)
                if not fits:
                    others.append(waiting)
                elif waiting.answer.set_running_or_notify_cancel():
                    batch.append(waiting)
                    n += len(waiting.queries)
            self._waiting = others
        return batch

    def _answer_alone(self, waiting: _Waiting) -> None:
        try:
            waiting.answer.set_result(self._search_batch(waiting.queries, waiting.depth))
        except Exception as e:
            waiting.answer.set_exception(self._fault(e))

    def _fault(self, error: Exception) -> RetrieverFault:
        logger.warning("%s: search failed", self._name, exc_info=error)
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__  # Java's have a stack below
        fault = RetrieverFault(f"{self._name}: {reason}")
        fault.__cause__ = error
        return fault

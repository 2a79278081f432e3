"""Reranking: any retriever finds candidates, a cross-encoder judges each with the query, and the order is its own."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from dragoman.core.errors import RetrieverFault
from dragoman.core.settings import Section
from dragoman.core.types import Question
from dragoman.retrieval.base import Hit, PerQuestion, Retriever, changes_unseen, missing, span, well_formed
from dragoman.retrieval.cross_encoder import cross_encoder_sha256, cross_scores, load_cross_encoder
from dragoman.retrieval.manifest import digest
from dragoman.retrieval.store import indexed_text


class RerankParams(Section):
    cross_encoder: str = ""
    """A folder or hub id of sentence-transformers. Empty: passages stay in the order of the retriever."""
    candidates: int = Field(50, ge=1)
    """Passages of a query that are judged, from the best down."""
    batch_size: int = Field(32, ge=1)
    """Passages in one forward pass."""
    device: str | None = None
    """As torch names it. None: the GPU if there is one."""


def reranked(inner: Retriever, settings: RerankParams) -> Retriever:
    """`inner`, reranked where a cross-encoder is configured.

    Raises:
        UserError: the cross-encoder cannot be loaded, or is none.
    """
    if not settings.cross_encoder:
        return inner
    name, device = settings.cross_encoder, settings.device
    kind = _RerankedPerQuestion if isinstance(inner, PerQuestion) else RerankedRetriever
    return kind(inner, load_cross_encoder(name, device), settings, cross_encoder_sha256(name, device))


class RerankedRetriever:
    """The first `candidates` passages of `retriever` in the order of a cross-encoder, and then the others as they were found.

    Scores are those of the cross-encoder. The others bear the lowest of them, since theirs cannot be compared.

    Args:
        retriever: closed with this one.
        model: the cross-encoder; `sha256` names its weights.
    """

    def __init__(self, retriever: Retriever, model: Any, settings: RerankParams, sha256: str) -> None:
        self._retriever, self._model, self._settings, self._sha256 = retriever, model, settings, sha256
        judge = digest({"weights": sha256, "candidates": settings.candidates})
        self.fingerprint = f"{retriever.fingerprint}+rerank-{judge}"
        self.passage_count: int | None = getattr(retriever, "passage_count", None)
        self.changes_unseen = changes_unseen(retriever)

    def __repr__(self) -> str:
        return f"{self._retriever!r} reranked by {self._settings.cross_encoder}"

    async def search(self, queries: Sequence[str], k: int, page: int = 0) -> list[list[Hit]]:
        """See `Retriever.search`."""
        first, last = span(k, page)
        if self.passage_count is not None and first >= self.passage_count:
            return [[] for _ in queries]
        found = await self._retriever.search(queries, max(last, self._settings.candidates))
        try:
            judged = await asyncio.to_thread(self._judged, list(queries), found)
        except RuntimeError as e:  # torch's, such as too little memory
            raise RetrieverFault(f"{self!r}: {str(e).splitlines()[0]}") from e
        return [hits[first:last] for hits in judged]

    async def missing(self, ids: Sequence[str]) -> list[str]:
        """See `Lookup.missing`."""
        return await missing(self._retriever, ids)

    async def close(self) -> None:
        await self._retriever.close()

    def _judged(self, queries: Sequence[str], found: Sequence[Sequence[Hit]]) -> list[list[Hit]]:
        return [self._one(query, hits) for query, hits in zip(queries, found, strict=True)]

    def _one(self, query: str, hits: Sequence[Hit]) -> list[Hit]:
        judged, others = hits[: self._settings.candidates], hits[self._settings.candidates :]
        texts = [indexed_text(hit.passage) for hit in judged]
        scores = cross_scores(self._model, well_formed(query), texts, self._settings.batch_size)
        order = sorted(range(len(judged)), key=lambda i: (-scores[i], i))  # equal ones stay as they were found
        lowest = min(scores, default=math.nan)
        return [*(Hit(judged[i].passage, scores[i]) for i in order), *(Hit(hit.passage, lowest) for hit in others)]


class _RerankedPerQuestion(RerankedRetriever):
    def of(self, question: Question) -> Retriever:
        """See `PerQuestion`."""
        assert isinstance(self._retriever, PerQuestion)
        return RerankedRetriever(self._retriever.of(question), self._model, self._settings, self._sha256)

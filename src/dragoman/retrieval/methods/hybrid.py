"""Reciprocal rank fusion of several retrievers: Cormack, Clarke and Büttcher, SIGIR 2009, with a weight for each."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from dragoman.core.types import Passage
from dragoman.retrieval.base import Hit, Retriever, missing, span
from dragoman.retrieval.manifest import Manifest, building, digest
from dragoman.retrieval.methods import Progress, bm25, dense
from dragoman.retrieval.store import PassageStore

RRF_K = 60  # the paper's section 2
POOL = 100


class Settings(bm25.Settings, dense.Settings):
    rrf_k: float = Field(RRF_K, ge=0)
    """The larger, the less the first ranks count before the later ones."""
    pool: int = Field(POOL, ge=1)
    """Passages of each retriever that are fused."""
    bm25_weight: float = Field(1, ge=0)
    """How much the ranks of BM25 count, beside"""
    dense_weight: float = Field(1, ge=0)
    """how much those of the encoder do. A retriever of weight 0 only adds passages at the end, in its order."""

    @model_validator(mode="after")
    def _something_counts(self) -> Settings:
        if not (self.bm25_weight or self.dense_weight):
            raise ValueError("one of bm25_weight and dense_weight has to be above 0")
        return self


def build(
    passages: Iterable[Passage], folder: Path, settings: Settings = Settings(), progress: Progress | None = None
) -> Manifest:
    """See `Method.build`. The index of each method lies in a folder of its name."""
    with building(folder, "hybrid", resumable=True) as work:
        first = bm25.build(passages, work / "bm25", settings)
        store = PassageStore(work / "bm25")  # the passages may have been a stream, which is now spent
        dense.build(store, work / "dense", settings, progress)
        store.close()
        kept: dict[str, Any] = {"rrf_k": float(settings.rrf_k), "pool": settings.pool}
        weights = [float(settings.bm25_weight), float(settings.dense_weight)]
        if weights != [1, 1]:
            kept["weights"] = weights
        manifest = Manifest("hybrid", first.corpus_sha256, first.passages, kept)
        manifest.write(work)
    return manifest


def open_index(folder: Path, settings: Settings) -> HybridRetriever:
    kept = Manifest.read(folder, "hybrid").settings
    parts: list[Retriever] = [bm25.open_index(folder / "bm25", settings), dense.open_index(folder / "dense", settings)]
    return HybridRetriever(parts, **kept)


def reciprocal_rank_fusion(
    rankings: Sequence[Sequence[str]], k: float = RRF_K, weights: Sequence[float] | None = None
) -> list[tuple[str, float]]:
    """Ids with their fused scores, best first: the sum over rankings of weight / (k + rank), ranks from 1.

    An id that a ranking lacks gets nothing from it. Equal scores are ordered by the best rank, then by id; the order of
    the rankings does not matter.

    Args:
        weights: one for each ranking; all 1 by default.
    """
    shares: defaultdict[str, list[float]] = defaultdict(list)
    best: dict[str, int] = {}
    for ranking, weight in zip(rankings, weights or [1.0] * len(rankings), strict=True):
        for rank, id in enumerate(ranking, start=1):
            shares[id].append(weight / (k + rank))
            best[id] = min(rank, best.get(id, rank))
    # fsum: the order in which the shares are added must not decide between equals.
    fused = ((id, math.fsum(parts)) for id, parts in shares.items())
    return sorted(fused, key=lambda hit: (-hit[1], best[hit[0]], hit[0]))  # of weight 0, all scores are equal


class HybridRetriever:
    """Asks every retriever and fuses what they find. All must hold the same corpus.

    The first `pool` passages of each retriever are fused. When a page lies beyond those, what the next `pool`, then
    2 `pool`, ... passages add follows after, in the order of its fused scores (cut to the last score before, so that
    scores never rise). So pages never overlap, however deep.

    Args:
        weights: how much the ranks of each retriever count; all 1 by default.
    """

    def __init__(
        self,
        retrievers: Sequence[Retriever],
        *,
        rrf_k: float = RRF_K,
        pool: int = POOL,
        weights: Sequence[float] | None = None,
    ) -> None:
        self.retrievers = tuple(retrievers)
        self.rrf_k = rrf_k
        self.pool = pool
        self.weights = weights
        named = {"parts": [r.fingerprint for r in self.retrievers], "rrf_k": float(rrf_k), "pool": pool}
        if weights is not None:
            named["weights"] = list(weights)
        self.fingerprint = f"hybrid-{digest(named)}"
        counts = [count for r in retrievers if (count := getattr(r, "passage_count", None)) is not None]
        self.passage_count: int | None = max(counts, default=None)

    def __repr__(self) -> str:
        return f"hybrid of {', '.join(map(repr, self.retrievers))}"

    async def search(self, queries: Sequence[str], k: int, page: int = 0) -> list[list[Hit]]:
        """See `Retriever.search`. Scores are those of reciprocal rank fusion."""
        first, last = span(k, page)
        depth = self.pool
        while depth < last:
            depth *= 2
        found = await asyncio.gather(*(r.search(queries, depth) for r in self.retrievers))
        return [self._fuse(rankings, last)[first:] for rankings in zip(*found, strict=True)]

    async def missing(self, ids: Sequence[str]) -> list[str]:
        """See `Lookup.missing`."""
        return await missing(self.retrievers[0], ids)

    async def close(self) -> None:
        for retriever in self.retrievers:
            await retriever.close()

    def _fuse(self, rankings: Sequence[Sequence[Hit]], most: int) -> list[Hit]:
        passages = {hit.passage.id: hit.passage for hits in rankings for hit in hits}
        scores: dict[str, float] = {}
        lowest = math.inf
        depth = self.pool
        while True:
            pools = [[hit.passage.id for hit in hits[:depth]] for hits in rankings]
            for id, score in reciprocal_rank_fusion(pools, self.rrf_k, self.weights):
                if id not in scores:
                    lowest = scores[id] = min(score, lowest)
            if len(scores) >= min(most, len(passages)):
                return [Hit(passages[id], score) for id, score in scores.items()][:most]
            depth *= 2

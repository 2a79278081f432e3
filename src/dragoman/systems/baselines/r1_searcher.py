"""R1-Searcher (Song et al. 2025, arXiv 2503.05592): Search-R1's loop with other tags, for weights that were trained with these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dragoman.systems.baselines.search_r1 import SearchR1, Tags


@dataclass(frozen=True)
class R1Searcher(SearchR1):
    k: int = 5
    max_searches: int = 5

    prompt: ClassVar[str] = "r1_searcher"
    query: ClassVar[Tags] = ("<|begin_of_query|>", "<|end_of_query|>")
    information: ClassVar[Tags] = ("<|begin_of_documents|>\n", "\n<|end_of_documents|>")


SYSTEM = R1Searcher

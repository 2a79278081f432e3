"""What encoders that are known by name want, as their model cards say: before a query and a passage, and of their vectors."""

from __future__ import annotations

import re
from pathlib import PurePath

from dragoman.core.hub import split_revision

_INSTRUCT = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "
_KNOWN = (
    # Wang et al. 2022, arXiv 2212.03533; 2024, arXiv 2402.05672 and 2401.00368
    (r"(multilingual-)?e5-(small|base|large)(-v2|-unsupervised)?", "query: ", "passage: "),
    (r"multilingual-e5-large-instruct|e5-mistral-7b-instruct", _INSTRUCT, ""),
    # Xiao et al. 2023, arXiv 2309.07597
    (r"bge-(small|base|large)-en(-v1\.5)?", "Represent this sentence for searching relevant passages: ", ""),
    (r"bge-(small|base|large)-zh(-v1\.5)?", "为这个句子生成表示以用于检索相关文章：", ""),
)
_BY_DOT_PRODUCT = (
    r"m?contriever(-msmarco)?",  # Izacard et al. 2021, arXiv 2112.09118
    r".*-dot-.*|.*-tas-b|.*-ance-firstp",  # of sentence-transformers
)


def known_prefixes(encoder: str) -> tuple[str | None, str | None]:
    """What stands before a query and before a passage, by the last part of an id or folder. None: nothing is known."""
    name = _last_part(encoder)
    return next(((query, passage) for pattern, query, passage in _KNOWN if re.fullmatch(pattern, name)), (None, None))


def known_by_dot_product(encoder: str) -> bool:
    """Whether the lengths of its vectors count, by the last part of an id or folder."""
    return any(re.fullmatch(pattern, _last_part(encoder)) for pattern in _BY_DOT_PRODUCT)


def _last_part(encoder: str) -> str:
    return PurePath(split_revision(encoder)[0]).name.casefold()

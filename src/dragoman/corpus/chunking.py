"""Cuts long passages into overlapping chunks that are exact substrings, so that a citation can be found again."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Literal

from dragoman.core.errors import UserError
from dragoman.core.text import COUNTED
from dragoman.core.types import Passage

Span = tuple[int, int]  # characters: start, and end (exclusive)

DEFAULTS: dict[str, tuple[int, int]] = {"tokens": (512, 80), "words": (100, 0)}
"""Size and overlap of each way of cutting; 100 words are those of the Wikipedia passages of DPR (arXiv 2004.04906, 4.1)."""

_NUMBER = re.compile(r"(?<=.)#\d+\Z", re.DOTALL)  # a mark alone makes no chunk: `C#`, `guide.md#install`


def chunk(
    passages: Iterable[Passage],
    *,
    by: Literal["tokens", "words"],
    size: int | None = None,
    overlap: int | None = None,
    tokenizer: Any = None,
) -> list[Passage]:
    """Cut every passage that is longer than `size` units.

    A passage that fits stays as it is. Of a longer one, chunk `n` (from 0) has the id `{id}#{n}`, the passage's title, and
    the text from its first unit to its last; consecutive chunks share `overlap` units. Every unit is in some chunk. A
    chunk of nothing but white space (a tokenizer may have tokens for that) is left out.

    Args:
        by: "tokens" counts the tokens of `tokenizer`, special tokens aside; "words" what white space separates, and
            two characters of a script that is written without spaces.
        size: most units in a chunk; 512 tokens or 100 words when None. Tokenized by itself, a chunk has no more than that
            either: where cutting changes the tokens at its edge, it is made shorter.
        overlap: units shared by neighbours, fewer than `size`. When None: 0 words, or 80 tokens of 512 and in proportion.
        tokenizer: for "tokens", a fast Hugging Face tokenizer (one that knows offsets).

    Raises:
        UserError: bad sizes, no suitable tokenizer, or an id that is already that of a chunk.
    """
    if by not in DEFAULTS:
        raise UserError(f"chunks are counted in 'tokens' or 'words', not in {by!r}")
    usual_size, usual_overlap = DEFAULTS[by]
    size = usual_size if size is None else size
    overlap = usual_overlap * size // usual_size if overlap is None else overlap
    if size < 1 or not 0 <= overlap < size:
        raise UserError(f"chunks of {size} {by} cannot overlap by {overlap}: need size >= 1 and 0 <= overlap < size")
    if by == "tokens" and not getattr(tokenizer, "is_fast", False):
        raise UserError("chunking by tokens needs a fast tokenizer, one that reports offsets; or chunk by words")
    spans_of: Callable[[str], list[Span]] = _words if by == "words" else lambda text: _tokens(text, tokenizer)

    chunks: list[Passage] = []
    for passage in passages:
        spans = spans_of(passage.text)
        if len(spans) <= size:
            chunks.append(passage)
            continue
        texts = (
            passage.text[start:end]
            for start, end in _windows(passage.text, spans, size, overlap, spans_of if by == "tokens" else None)
        )
        cut = enumerate(text for text in texts if text.strip())
        chunks += [Passage(f"{passage.id}#{n}", passage.title, text) for n, text in cut]
    _check_ids(chunks)
    return chunks


def with_wholes(ids: Iterable[str]) -> set[str]:
    """Ids, and of each chunk `ID#N` also that of the passage it was cut from, for which it stands."""
    known = set(ids)
    return known | set(map(whole_id, known))


def gold_id(id: str, gold: Collection[str]) -> str | None:
    """The gold passage that an id names: itself or, of a chunk `ID#N`, the passage it was cut from. None where it is not gold."""
    return next((name for name in (id, whole_id(id)) if name in gold), None)


def whole_id(id: str) -> str:
    """The id of the passage that a chunk `ID#N` was cut from; of any other passage its own."""
    return _NUMBER.sub("", id)


def _words(text: str) -> list[Span]:
    runs = (run.span() for run in re.finditer(r"\S+", text))
    return [word.span() for run in runs for word in COUNTED.finditer(text, *run)]


def _tokens(text: str, tokenizer: Any) -> list[Span]:
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False)
    return [(start, end) for start, end in encoded["offset_mapping"] if end > start]


def _windows(
    text: str, spans: list[Span], size: int, overlap: int, recount: Callable[[str], list[Span]] | None
) -> Iterator[Span]:
    """The character span of each chunk. `recount` says how many units a chunk has when it stands alone."""
    first = 0
    while True:
        last = min(first + size, len(spans))  # exclusive
        while recount and last - first > 1 and len(recount(text[spans[first][0] : spans[last - 1][1]])) > size:
            last -= 1
        yield spans[first][0], spans[last - 1][1]
        if last == len(spans):
            return
        first = max(first + 1, last - overlap)


def _check_ids(chunks: list[Passage]) -> None:
    seen: set[str] = set()
    for passage in chunks:
        if passage.id in seen:
            raise UserError(f"the id {passage.id!r} is used twice after chunking; rename that passage in the corpus")
        seen.add(passage.id)

"""What is asked of a retriever, read the same by every one of them: `k` and `page`, and the text of a query."""

from __future__ import annotations

from dragoman.errors import UserError


def span(k: int, page: int) -> tuple[int, int]:
    """The ranks, from 0, that the `page`-th group of `k` passages covers: first, and one past the last.

    Raises:
        UserError: k < 1 or page < 0.
    """
    if k < 1:
        raise UserError(f"k is {k}: ask for at least one passage")
    if page < 0:
        raise UserError(f"page is {page}: pages count from 0")
    return page * k, (page + 1) * k


def well_formed(query: str) -> str:
    """The query as Unicode that can be encoded: a model or a JSON escape may leave half a surrogate pair in it."""
    return query.encode("utf-8", "replace").decode()

"""Corpora and questions: reading a user's own, cutting long texts, and building the atlas that comes with dragoman."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragoman.corpus.atlas.build import build_atlas
    from dragoman.corpus.chunking import chunk
    from dragoman.corpus.loaders import load_corpus, load_questions

__all__ = ["build_atlas", "chunk", "load_corpus", "load_questions"]

_HOMES = {"build_atlas": "atlas.build", "chunk": "chunking", "load_corpus": "loaders", "load_questions": "loaders"}


def __getattr__(name: str) -> Any:
    """Import a function from its module on first use, so that `import dragoman.corpus` costs nothing."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

"""Judging texts with a query: a cross-encoder of sentence-transformers (Nogueira and Cho 2019, arXiv 1901.04085)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from dragoman.core.errors import UserError
from dragoman.retrieval.models import load_model, tensors_sha256

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

SCORE_DIGITS = 6  # beyond, a score depends on what else was in the batch
_JUDGES = ("ForSequenceClassification", "ForCausalLM")
_alone = threading.Lock()  # torch has threads of its own; several passes at once take longer than one after another


@cache
def load_cross_encoder(name: str, device: str | None = None) -> CrossEncoder:
    """The cross-encoder in a folder, or behind an id of the Hugging Face hub; once for the whole process.

    Raises:
        UserError: it cannot be loaded, or is a model of another kind.
    """
    what, instead = f"cross-encoder {name!r}", "a folder or hub id such as cross-encoder/ms-marco-MiniLM-L6-v2"
    model: CrossEncoder = load_model("CrossEncoder", name, what=what, instead=instead, device=device)
    known = getattr(model.config, "architectures", None) or []
    # transformers would give any other model a head with random weights, and only warn of it
    if known and not any(architecture.endswith(_JUDGES) for architecture in known):
        raise UserError(f"{what} is none, but a {known[0]}: give {instead}")
    if model.num_labels != 1:
        raise UserError(f"{what} gives {model.num_labels} scores for a text, and one is needed: give {instead}")
    return model


@cache
def cross_encoder_sha256(name: str, device: str | None = None) -> str:
    """Names that cross-encoder by its weights."""
    return tensors_sha256(load_cross_encoder(name, device))


def cross_scores(model: CrossEncoder, query: str, texts: Sequence[str], batch_size: int = 32) -> list[float]:
    """The score of each text for the query, to six digits, the higher the better. It blocks; any thread may call it."""
    if not texts:
        return []
    with _alone:
        scores = model.predict([(query, text) for text in texts], batch_size=batch_size, show_progress_bar=False)
    return [round(float(score), SCORE_DIGITS) for score in scores]

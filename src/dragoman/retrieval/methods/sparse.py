"""Learned sparse retrieval: a masked language model says which words a text is about, and Lucene searches by them.

The encoder is of the kind of SPLADE (Formal et al., "SPLADE v2", arXiv 2109.10086): the weight of a word of its vocabulary is the
largest log(1 + relu(logit)) over the tokens of the text. Weights become whole numbers (impacts), and the score of a passage is
the dot product.

No checkpoint is bundled. Without one this method builds what searches best without learning, and names it so: bm25+rm3.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from dragoman.core.errors import UserError
from dragoman.core.types import Passage
from dragoman.retrieval import lucene, resume
from dragoman.retrieval.base import Hit, Retriever
from dragoman.retrieval.folder import FolderRetriever
from dragoman.retrieval.java import start_java
from dragoman.retrieval.manifest import Manifest, building, digest
from dragoman.retrieval.methods import Progress, bm25
from dragoman.retrieval.models import check_weights, load_model, tensors_sha256
from dragoman.retrieval.store import PassageStore, indexed_text, write_passages

if TYPE_CHECKING:
    from sentence_transformers import SparseEncoder

logger = logging.getLogger(__name__)

IMPACTS = "impacts.jsonl"  # of the passages encoded so far, a line each; gone when the index is whole
CHUNK = 512  # passages encoded between two writes: what a killed build loses at most
STEPS = 100  # impacts for a weight of 1, as the published indexes of SPLADE have it

Encode = Callable[..., Any]


class Settings(bm25.Settings):
    """Those of BM25 count where there is no checkpoint; `threads` and `heap` always do."""

    checkpoint: str = ""
    """A hub id or a folder of a SPLADE model, such as naver/splade-cocondenser-ensembledistil. Empty: bm25+rm3."""
    most_terms: int = Field(512, ge=1)
    """Words of a text that are kept, the heaviest."""
    max_tokens: int | None = Field(None, ge=1)
    """What is longer is cut. None: the encoder's own limit."""
    batch_size: int = Field(32, ge=1)
    """Texts in one forward pass."""
    device: str | None = None
    """As torch names it. None: the GPU if there is one."""


def build(
    passages: Iterable[Passage], folder: Path, settings: Settings = Settings(), progress: Progress | None = None
) -> Manifest:
    """See `Method.build`. Titles and texts are encoded; a build that was killed goes on where it was, as that of `dense`.

    Without a checkpoint the index is one of method `bm25` with RM3, and its manifest says so.
    """
    if not settings.checkpoint:
        logger.info("%s: no checkpoint is set, so this is an index of bm25+rm3", folder)
        return bm25.build(passages, folder, settings.model_copy(update={"rm3": True}), progress)
    start_java(settings.heap)
    with building(folder, "sparse", resumable=True) as work:
        corpus = write_passages(passages, work)
        store = PassageStore(work)
        model = load_sparse_encoder(settings.checkpoint, settings.device, settings.max_tokens)
        kept = {
            "checkpoint": settings.checkpoint,
            "checkpoint_sha256": tensors_sha256(model),
            "max_tokens": model.max_seq_length,
            "most_terms": settings.most_terms,
        }
        versions = {"sentence-transformers": version("sentence-transformers"), **lucene.versions()}
        manifest = Manifest("sparse", corpus, len(store), kept, versions)
        _encode(model, store, work / IMPACTS, manifest, settings.batch_size, progress)
        lucene.write_index(work, _repeated(work / IMPACTS), settings.threads, "-impact", "-pretokenized")
        resume.end(work / IMPACTS)
        manifest.write(work)
        store.close()
    return manifest


def open_index(folder: Path, settings: Settings) -> Retriever:
    return SparseRetriever(folder, settings)


class SparseRetriever(FolderRetriever):
    """A folder that `build` wrote with a checkpoint, opened, and its encoder. Scores are dot products of the weights.

    Passages that share no word with a query, as the encoder sees both, are not found.

    Raises:
        UserError: the folder is not a whole sparse index, or the checkpoint is gone or not the one it was built with.
    """

    def __init__(self, folder: Path, machine: Settings = Settings()) -> None:
        manifest = Manifest.read(folder, "sparse")
        settings = manifest.settings
        start_java(machine.heap)
        self._searcher = lucene.open_searcher("SimpleImpactSearcher", folder)
        self._model = load_sparse_encoder(settings["checkpoint"], machine.device, settings["max_tokens"])
        check_weights(self._model, settings["checkpoint_sha256"], settings["checkpoint"], folder)
        self._most_terms = settings["most_terms"]
        self._batch_size, self._threads = machine.batch_size, machine.threads
        super().__init__(folder, manifest, self._searcher.get_total_num_docs())

    def __repr__(self) -> str:
        return f"sparse index {self.folder}"

    async def close(self) -> None:
        lucene.close(self._worker, self._searcher)
        self._store.close()

    def _search_batch(self, queries: list[str], depth: int) -> list[list[Hit]]:
        encoded = impacts(self._model.encode_query, queries, self._batch_size, self._most_terms)
        asked = [row for row, terms in enumerate(encoded) if terms]
        found: list[list[Hit]] = [[] for _ in queries]
        if asked:
            texts = [lucene.weighted(encoded[row]) for row in asked]
            for row, hits in zip(
                asked, lucene.search(self._searcher, self._store, texts, depth, self._threads), strict=True
            ):
                found[row] = [Hit(hit.passage, hit.score / STEPS**2) for hit in hits]
        return found


def impacts(encode: Encode, texts: Sequence[str], batch_size: int, most_terms: int) -> list[dict[int, int]]:
    """For each text the terms of the vocabulary that it is about, with their weights in steps of 1/100."""
    import torch

    weights = encode(
        list(texts),
        batch_size=batch_size,
        max_active_dims=most_terms,
        save_to_cpu=True,
        show_progress_bar=False,
    ).coalesce()
    found: list[dict[int, int]] = [{} for _ in texts]
    rounded = torch.round(weights.values().float() * STEPS).to(torch.int64)
    for (row, term), impact in zip(weights.indices().T.tolist(), rounded.tolist(), strict=True):
        if impact > 0:
            found[row][term] = impact
    return found


def load_sparse_encoder(name: str, device: str | None = None, max_tokens: int | None = None) -> SparseEncoder:
    """The encoder in a folder, or behind an id of the Hugging Face hub.

    Raises:
        UserError: it cannot be loaded, or has no masked-language-model head.
    """
    what = f"sparse checkpoint {name!r}"
    instead = "a folder or hub id of a SPLADE model, or leave index.checkpoint out for bm25+rm3"
    model: SparseEncoder = load_model("SparseEncoder", name, what=what, instead=instead, device=device)
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    if not any(isinstance(module, SpladePooling) for module in model.modules()):
        raise UserError(f"{what} is no masked language model, so its weights for words would be random: give {instead}")
    if max_tokens is not None:
        model.max_seq_length = max_tokens
    return model


def _encode(
    model: SparseEncoder,
    store: PassageStore,
    file: Path,
    manifest: Manifest,
    batch_size: int,
    progress: Progress | None,
) -> None:
    """Write the impacts of all passages to `file`, a line each; whole lines that are there already are kept."""
    resume.begin({"index": digest(manifest.to_json())}, file)
    with file.open("r+b") as lines:
        done = whole = 0
        for line in lines:
            if line.endswith(b"\n"):
                done, whole = done + 1, whole + len(line)
        if done:
            logger.info("%s: going on after %d of %d passages", file.parent, done, len(store))
        lines.truncate(whole)
        lines.seek(whole)
        for first in range(done, len(store), CHUNK):
            last = min(first + CHUNK, len(store))
            texts = [indexed_text(store[row]) for row in range(first, last)]
            for terms in impacts(model.encode_document, texts, batch_size, manifest.settings["most_terms"]):
                lines.write(json.dumps(terms).encode() + b"\n")
            lines.flush()
            if progress is not None:
                progress(last, len(store))


def _repeated(file: Path) -> Iterator[str]:
    """Each passage as a text that has every term as often as its impact says, which is how Lucene is told of impacts."""
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            yield " ".join(" ".join([term] * impact) for term, impact in json.loads(line).items())

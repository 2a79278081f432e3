"""Building and opening an index of any method; fingerprints."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.core.errors import UserError
from dragoman.core.types import Passage
from dragoman.retrieval import Retriever, build_index, open_retriever

PAIR = [Passage("a", "Ant", "Ants live in hills."), Passage("b", "Bee", "Bees live in hives.")]


def close(retriever: Retriever) -> str:
    asyncio.run(retriever.close())
    return retriever.fingerprint


def test_fingerprints_are_stable_between_openings(
    indexes: dict[str, Path],
    bm25: Retriever,
    dense: Retriever,
    hybrid: Retriever,
    graph: Retriever,
    ideal: Retriever,
    http: Retriever,
) -> None:
    local = {"bm25": bm25, "dense": dense, "hybrid": hybrid, "graph": graph, "ideal": ideal}
    for method, opened in local.items():
        assert close(open_retriever(indexes[method])) == opened.fingerprint
        assert opened.fingerprint.startswith(method)
    assert http.fingerprint == bm25.fingerprint
    assert len({opened.fingerprint for opened in local.values()}) == len(local)


OTHER = {
    "bm25": {"k1": 1.2},
    "dense": {"query_prefix": "query: "},
    "hybrid": {"rrf_k": 30},
    "graph": {"k1": 1.2},
    "ideal": {"k1": 1.2},
}


@pytest.mark.parametrize("method", OTHER)
def test_fingerprints_follow_corpus_and_settings(tmp_path: Path, method: str) -> None:
    def fingerprint(passages: list[Passage], **settings: object) -> str:
        build_index(passages, tmp_path / "index", method=method, **settings)
        return close(open_retriever(tmp_path / "index"))

    first = fingerprint(PAIR)
    assert fingerprint(PAIR) == first
    assert fingerprint(PAIR, **OTHER[method]) != first
    assert fingerprint([PAIR[0], Passage("b", "Bee", "Bees live in trees.")]) != first


@pytest.mark.parametrize("method", OTHER)
def test_refuses_a_corpus_without_passages(tmp_path: Path, method: str) -> None:
    with pytest.raises(UserError, match="the corpus is empty"):
        build_index(iter(()), tmp_path / "index", method=method)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "bm26"}, "'bm26' is not a retrieval method: choose one of bm25, dense, hybrid, graph, ideal"),
        ({"k1": -1}, "k1 >= 0"),
        ({"b": 1.5}, "0 <= b <= 1"),
        ({"threads": 0}, "threads is 0"),
        ({"method": "dense", "batch_size": 0}, "batch_size is 0"),
        ({"method": "hybrid", "rrf_k": -1}, "rrf_k >= 0"),
        ({"method": "hybrid", "pool": 0}, "pool >= 1"),
    ],
)
def test_refuses_bad_settings(tmp_path: Path, settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_index(PAIR, tmp_path / "index", **settings)


def test_manifest_says_what_the_index_holds(indexes: dict[str, Path], corpus: list[Passage]) -> None:
    for method, folder in indexes.items():
        manifest = json.loads((folder / "manifest.json").read_text())
        assert manifest["dragoman"] == 1
        assert manifest["method"] == method
        assert manifest["passages"] == len(corpus)
        assert len(manifest["corpus_sha256"]) == 64
    assert json.loads((indexes["bm25"] / "manifest.json").read_text())["versions"].keys() == {"pyserini", "anserini"}


def test_refuses_what_is_not_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="nowhere: not an index"):
        open_retriever(tmp_path / "nowhere")
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match=r"manifest.json: not the manifest of an index"):
        open_retriever(tmp_path)
    monkeypatch.setattr(
        "dragoman.retrieval.http.client.random.uniform", lambda low, high: 0.0
    )  # no wait between attempts
    with pytest.raises(UserError, match=r"http://127\.0\.0\.1:1/healthz: no answer"):
        open_retriever("http://127.0.0.1:1")


def test_import_is_light() -> None:
    heavy = {"torch", "jnius", "faiss", "sentence_transformers", "pyserini", "fastapi", "numpy"}
    code = f"import sys, dragoman.retrieval as r; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

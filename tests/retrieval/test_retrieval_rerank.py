"""Reranking: the order of a cross-encoder, pages beyond what it judges, and models that are none."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from command import run
from encoders import make_cross_encoder

from dragoman.core.errors import RetrieverFault, UserError
from dragoman.core.types import Question
from dragoman.retrieval import IndexParams, Retriever, open_retriever
from dragoman.retrieval.base import PerQuestion
from dragoman.retrieval.cross_encoder import cross_scores, load_cross_encoder
from dragoman.retrieval.http.foreign import ForeignRetriever
from dragoman.retrieval.methods.dense import BUNDLED_ENCODER, load_encoder
from dragoman.retrieval.rerank import RerankedRetriever, RerankParams, reranked


class Reversing:
    """Judges the text that comes first the worst; notes in which threads."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self.judged: list[int] = []

    def predict(self, pairs: Sequence[tuple[str, str]], **_: object) -> list[float]:
        self.threads.add(threading.get_ident())
        self.judged.append(len(pairs))
        return [float(n) for n in range(len(pairs))]


def ids(hits: Sequence[Any]) -> str:
    return "".join(hit.passage.id for hit in hits)


def wrapped(inner: Any, model: Any, candidates: int = 4) -> RerankedRetriever:
    return RerankedRetriever(inner, model, RerankParams(cross_encoder="x", candidates=candidates), "0" * 64)


async def test_candidates_stand_in_the_order_of_the_judge_and_others_follow(listed: Callable[..., Any]) -> None:
    retriever = wrapped(listed("abcdef"), Reversing())
    [hits] = await retriever.search(["q"], 6)
    assert ids(hits) == "dcbaef"
    assert [hit.score for hit in hits] == [3, 2, 1, 0, 0, 0]
    pages = [ids((await retriever.search(["q"], 2, page))[0]) for page in range(4)]
    assert pages == ["dc", "ba", "ef", ""]


async def test_few_are_kept_of_many_candidates_and_equal_ones_stay_as_they_were(listed: Callable[..., Any]) -> None:
    class Fair:
        def predict(self, pairs: Sequence[tuple[str, str]], **_: object) -> list[float]:
            return [0.5] * len(pairs)

    model = Reversing()
    assert ids((await wrapped(listed("abcdef"), model).search(["q"], 1))[0]) == "d"
    assert model.judged == [4]
    assert ids((await wrapped(listed("abcdef"), Fair()).search(["q"], 3))[0]) == "abc"


async def test_the_judge_works_outside_of_the_event_loop(listed: Callable[..., Any]) -> None:
    model = Reversing()
    await asyncio.gather(*(wrapped(listed("abc"), model).search([f"q{n}"], 2) for n in range(5)))
    assert threading.get_ident() not in model.threads
    assert len(model.judged) == 5


async def test_a_judge_that_fails_is_a_fault_of_the_retriever(listed: Callable[..., Any]) -> None:
    class Broken:
        def predict(self, pairs: object, **_: object) -> list[float]:
            raise RuntimeError("not enough memory\nat some place")

    with pytest.raises(RetrieverFault, match=r"reranked by x: not enough memory$"):
        await wrapped(listed("abc"), Broken()).search(["q"], 2)


def test_the_fingerprint_names_retriever_and_judge(listed: Callable[..., Any]) -> None:
    inner = listed("abc")
    first = wrapped(inner, None).fingerprint
    assert first.startswith("list+rerank-")
    assert wrapped(inner, None, candidates=5).fingerprint != first
    assert RerankedRetriever(inner, None, RerankParams(cross_encoder="x", candidates=4), "1" * 64).fingerprint != first
    assert wrapped(listed("abc", fingerprint="other"), None).fingerprint.startswith("other+rerank-")


async def test_a_question_that_finds_its_own_passages_is_reranked_too(ideal: Retriever, tmp_path: Path) -> None:
    folder = make_cross_encoder(tmp_path / "judge", ["glass of Arlen"])
    retriever = reranked(ideal, RerankParams(cross_encoder=str(folder)))
    assert isinstance(retriever, PerQuestion)
    question = Question("q", "?", supporting_ids=("arlen-glass", "brisa-salt"))
    [hits] = await retriever.of(question).search(["glass"], 5)
    assert {hit.passage.id for hit in hits} == {"arlen-glass", "brisa-salt"}


async def test_settings_reach_any_retriever(indexes: dict[str, Path], tmp_path: Path) -> None:
    folder = make_cross_encoder(tmp_path / "judge", ["glass of Arlen"])
    params = IndexParams(rerank=RerankParams(cross_encoder=str(folder), candidates=3))
    plain, judged = open_retriever(indexes["bm25"]), open_retriever(indexes["bm25"], params)
    assert not isinstance(judged, PerQuestion)
    assert judged.fingerprint.startswith(f"{plain.fingerprint}+rerank-")
    [first], [second] = await plain.search(["glass of Arlen"], 3), await judged.search(["glass of Arlen"], 3)
    assert {hit.passage.id for hit in first} == {hit.passage.id for hit in second}
    assert [hit.score for hit in second] == sorted((hit.score for hit in second), reverse=True)
    served = open_retriever("search-r1+http://127.0.0.1:1", params)
    assert isinstance(served, RerankedRetriever) and isinstance(served._retriever, ForeignRetriever)
    assert IndexParams(method="dense", rerank=params.rerank).with_method("bm25").rerank == params.rerank
    for retriever in (plain, judged):
        await retriever.close()


def test_scores_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    texts = ["glass of Arlen", "salt", "a harbour without a name lies east"]
    model = load_cross_encoder(str(make_cross_encoder(tmp_path / "judge", texts)))
    together = cross_scores(model, "glass", texts)
    assert together == pytest.approx([cross_scores(model, "glass", [text])[0] for text in texts], abs=2e-6)
    assert cross_scores(model, "glass", []) == []


def test_refuses_what_is_no_cross_encoder(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    bare = make_cross_encoder(tmp_path / "bare", ["a"])
    (bare / "model.safetensors").unlink()
    encoder = tmp_path / "encoder"
    load_encoder(BUNDLED_ENCODER).save(str(encoder))
    several = make_cross_encoder(tmp_path / "several", ["a"], labels=3)
    for folder, message in [
        (tmp_path / "empty", "cannot be loaded"),
        (bare, "cannot be loaded"),
        (encoder, "is none, but a BertModel"),
        (several, "gives 3 scores for a text"),
    ]:
        with pytest.raises(UserError, match=rf"cross-encoder '.*{folder.name}' {message}.*give a folder or hub id"):
            load_cross_encoder(str(folder))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": "many"}, r"its config\.json has a value that cannot be \(.*'vocab_size' expected int"),
        ({"architectures": 3}, r"cannot be loaded \("),
        ({"id2label": 3}, r"cannot be loaded \("),
    ],
)
def test_a_cross_encoder_whose_config_has_a_value_of_another_type_is_the_users(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folder = make_cross_encoder(tmp_path / "judge", ["a"])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(UserError, match=f"cross-encoder '{folder}'.*{message}.*give a folder or hub id"):
        load_cross_encoder(str(folder))


def test_a_cross_encoder_whose_weights_break_off_is_the_users(tmp_path: Path) -> None:
    folder = make_cross_encoder(tmp_path / "judge", ["a"])
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    with pytest.raises(UserError, match=rf"cross-encoder '{folder}' cannot be loaded \(.*give a folder or hub id"):
        load_cross_encoder(str(folder))


def test_the_command_line_reranks_and_refuses_what_is_no_judge(
    indexes: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, index = make_cross_encoder(tmp_path / "judge", ["glass of Arlen"]), str(indexes["bm25"])
    judged = ["--set", f"index.rerank.cross_encoder={folder}", "--set", "index.rerank.candidates=2"]
    code, out, _ = run(capsys, "search", "glass of Arlen", "--index", index, "-k", "2", *judged)
    assert code == 0 and out.count("Arlen is known for") == 2
    (tmp_path / "empty").mkdir()
    none = ["--set", "index.rerank.cross_encoder=empty"]
    for command in (["search", "glass"], ["serve-retriever"]):
        code, _, err = run(capsys, *command, "--index", index, *none)
        assert code == 2 and "cross-encoder 'empty' cannot be loaded" in err

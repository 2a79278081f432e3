"""An index that is there is used, and another one is built where what is in it would differ."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import run

from dragoman.core import files
from dragoman.core.types import Passage
from dragoman.pipeline import index
from dragoman.pipeline.index import build
from dragoman.pipeline.inputs import InputOptions, open_inputs
from dragoman.pipeline.project import Project
from dragoman.retrieval.methods import dense
from dragoman.retrieval.settings import IndexParams

PASSAGES = [Passage(f"p{i}", f"Town {i}", f"town {i} lies on river {7 * i}") for i in range(9)]
DENSE = {"method": "dense", "encoder": "counting"}


class CountingEncoder:
    """Knows a text by its length, and counts the passages that it has embedded, by their text."""

    max_seq_length = 64
    similarity_fn_name = "cosine"

    def __init__(self) -> None:
        self.prompts: dict[str, str] = {}
        self.embedded: Counter[str] = Counter()
        self.weights = torch.zeros(1)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"weights": self.weights}

    def get_embedding_dimension(self) -> int:
        return 2

    def encode_document(self, texts: Sequence[str], **_: Any) -> np.ndarray:
        self.embedded.update(text.partition("\n")[0] for text in texts)
        return np.ones((len(texts), 2), dtype=np.float32)

    encode_query = encode_document

    @property
    def towns(self) -> int:
        """How often a passage of the corpus was embedded."""
        return sum(count for title, count in self.embedded.items() if title.startswith("Town"))


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> CountingEncoder:
    counting = CountingEncoder()
    monkeypatch.setattr(dense, "load_encoder", lambda *_: counting)
    return counting


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_corpus(PASSAGES)
    files.write(Path("questions.jsonl"), [{"id": "q", "question": "Where?", "answers": ["there"]}])
    return tmp_path


def write_corpus(passages: Sequence[Passage]) -> None:
    files.write(Path("corpus.jsonl"), ({"id": p.id, "title": p.title, "text": p.text} for p in passages))


def evaluated(**index: Any) -> None:
    """What `evaluate --corpus` does before it asks."""
    project = Project().changed({f"index.{key}": value for key, value in index.items()})
    options = InputOptions(corpus=Path("corpus.jsonl"), questions=Path("questions.jsonl"))
    open_inputs(project, options, "test", Path("out"), sources=("gold",))


def test_a_second_command_with_the_same_corpus_embeds_no_passage_of_it(mine, encoder, caplog):
    evaluated(**DENSE)
    built = Path("out-index/manifest.json").stat().st_mtime_ns
    encoder.embedded.clear()
    with caplog.at_level("INFO", "dragoman"):
        evaluated(**DENSE)
    assert encoder.towns == 0 and Path("out-index/manifest.json").stat().st_mtime_ns == built
    assert [record.message for record in caplog.records] == [
        "out-index: is built already and is used; to have it built again, delete the folder"
    ]


@pytest.mark.parametrize("machine", [{"batch_size": 4}, {"device": "cpu"}, {"rerank.candidates": 7}])
def test_settings_of_the_machine_and_of_reranking_leave_the_index(mine, encoder, machine):
    evaluated(**DENSE)
    encoder.embedded.clear()
    evaluated(**DENSE, **machine)
    assert encoder.towns == 0


def test_a_changed_corpus_is_indexed_again(mine, encoder):
    evaluated(**DENSE)
    encoder.embedded.clear()
    write_corpus([*PASSAGES, Passage("more", "Town 9", "it was founded since")])
    evaluated(**DENSE)
    assert encoder.towns == 10


@pytest.mark.parametrize("setting", [{"passage_prefix": "passage: "}, {"normalize": False}, {"encoder": "another"}])
def test_a_setting_by_which_other_passages_are_found_has_the_corpus_indexed_again(mine, encoder, setting):
    evaluated(**DENSE)
    encoder.embedded.clear()
    evaluated(**DENSE | setting)
    assert encoder.towns == len(PASSAGES)


def test_an_encoder_with_other_weights_under_its_name_has_the_corpus_indexed_again(mine, encoder):
    evaluated(**DENSE)
    encoder.embedded.clear()
    encoder.weights = torch.ones(1)
    evaluated(**DENSE)
    assert encoder.towns == len(PASSAGES)


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ({"method": "bm25"}, {"method": "bm25", "threads": 1}, True),
        ({"method": "bm25"}, {"method": "bm25", "k1": 1.2}, False),
        ({"method": "bm25"}, {"method": "graph"}, False),
        ({"method": "graph"}, {"method": "graph", "threads": 1}, True),
        ({"method": "graph"}, {"method": "graph", "b": 0.7}, False),
        ({"method": "sparse"}, {"method": "sparse", "threads": 1}, True),
        ({"method": "sparse"}, {"method": "sparse", "rm3_words": 20}, False),
    ],
)
def test_an_index_of_words_is_used_where_its_manifests_would_be_the_same(tmp_path, before, after, same):
    folder = tmp_path / "index"
    build(PASSAGES, folder, IndexParams(**before))
    inode = folder.stat().st_ino
    manifest = build(PASSAGES, folder, IndexParams(**after))
    assert (folder.stat().st_ino == inode) == same
    assert manifest.passages == len(PASSAGES)


def test_the_encoder_inside_a_hybrid_index_counts_too(mine, encoder):
    evaluated(**DENSE | {"method": "hybrid"})
    encoder.embedded.clear()
    evaluated(**DENSE | {"method": "hybrid", "threads": 1})
    assert encoder.towns == 0
    evaluated(**DENSE | {"method": "hybrid", "passage_prefix": "passage: "})
    assert encoder.towns == len(PASSAGES)


def test_a_second_command_waits_for_the_first_to_build_the_index_and_uses_it(tmp_path, monkeypatch):
    begun, second_has_looked, builds = threading.Event(), threading.Event(), []
    real_built, real_build = index._built, index._build

    def built(*arguments: Any) -> Any:
        found = real_built(*arguments)
        if begun.is_set():
            second_has_looked.set()
        return found

    def slow_build(*arguments: Any) -> Any:
        builds.append(arguments)
        begun.set()
        assert second_has_looked.wait(60)
        return real_build(*arguments)

    monkeypatch.setattr(index, "_built", built)
    monkeypatch.setattr(index, "_build", slow_build)
    folder = tmp_path / "results" / "mine-index"
    with ThreadPoolExecutor(2) as commands:
        first = commands.submit(build, PASSAGES, folder, IndexParams())
        assert begun.wait(60)
        second = commands.submit(build, PASSAGES, folder, IndexParams())
        assert first.result(60) == second.result(60)
    assert len(builds) == 1 and [path.name for path in folder.parent.iterdir()] == ["mine-index"]


@pytest.mark.parametrize(
    ("corpus", "folder"), [("data/towns/corpus.jsonl", "data/index/towns"), ("towns.jsonl", "data/index/towns")]
)
def test_an_index_is_named_after_the_file_of_its_corpus_or_after_its_folder(corpus, folder):
    assert str(index.Options(corpus=Path(corpus)).folder(Project())) == folder


def test_a_corpus_with_the_name_of_a_dataset_does_not_take_the_place_of_its_index(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("conf").mkdir()
    Path("conf/cpu.yaml").touch()
    Path("params.yaml").touch()
    files.write("atlas.jsonl", [{"id": "a", "title": "A", "text": "a town"}])
    code, _, err = run(capsys, "index", "--corpus", "atlas.jsonl")
    assert code == 2 and "data/index/atlas is of data/atlas/corpus.jsonl; name another folder with --out" in err
    assert not Path("data").exists()


def test_the_command_leaves_an_index_that_works_and_builds_one_that_is_damaged_again(mine, capsys, caplog):
    Path("conf").mkdir()
    for settings in ("params.yaml", "conf/cpu.yaml"):
        Path(settings).write_text("{}")
    arguments = ("index", "--corpus", "corpus.jsonl", "--out", "index")
    assert run(capsys, *arguments)[0] == 0
    inode = Path("index").stat().st_ino
    assert run(capsys, *arguments)[0] == 0 and Path("index").stat().st_ino == inode
    for segment in Path("index/lucene").glob("segments*"):
        os.truncate(segment, 0)
    code, out, _ = run(capsys, *arguments)
    assert code == 0 and "index: 9 passages, bm25" in out and Path("index").stat().st_ino != inode
    assert "index: is built again: index: Lucene cannot open the index" in caplog.text
    assert run(capsys, "search", "river 42", "--index", "index")[0] == 0


@pytest.mark.parametrize("out", ["results/mine", "."])
def test_the_index_of_results_lies_beside_them_whatever_they_are_called_by(tmp_path, monkeypatch, out):
    folder = tmp_path / "results/mine"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path if out != "." else folder)
    assert index.beside(Path(out)).resolve() == tmp_path / "results/mine-index"

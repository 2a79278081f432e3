"""Passages on disk, and the building of an index folder: all or nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command import run as command
from hypothesis import given
from hypothesis import strategies as st
from writers import another_writer

from dragoman.core.errors import UserError
from dragoman.core.types import Passage
from dragoman.retrieval.manifest import Manifest, building
from dragoman.retrieval.store import PassageStore, corpus_sha256, indexed_text, write_passages

text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)


@given(
    st.lists(
        st.builds(Passage, text, st.text(st.characters(exclude_categories=["Cs"])), text),
        min_size=1,
        max_size=8,
        unique_by=lambda p: p.id,
    )
)
def test_passages_come_back_whole(tmp_path_factory: pytest.TempPathFactory, passages: list[Passage]) -> None:
    folder = tmp_path_factory.mktemp("store")
    hashed = write_passages(passages, folder)
    assert corpus_sha256(passages) == hashed
    store = PassageStore(folder)
    assert len(store) == len(passages)
    assert list(store) == passages
    with pytest.raises(IndexError):
        store[len(passages)]
    store.close()


def test_hash_names_the_corpus(tmp_path: Path) -> None:
    ant, bee = Passage("a", "Ant", "Ants."), Passage("b", "", "Bees.")
    assert write_passages([ant, bee], tmp_path) == write_passages(iter([ant, bee]), tmp_path)
    assert write_passages([ant, bee], tmp_path) != write_passages([bee, ant], tmp_path)
    assert indexed_text(ant) == "Ant\nAnts."
    assert indexed_text(bee) == "Bees."


@pytest.mark.parametrize(
    ("passages", "message"),
    [
        ([Passage("", "T", "x")], "passage number 1 of the corpus has no id"),
        ([Passage("a", "T", "x"), Passage("a", "U", "y")], "'a' occurs twice"),
        ([Passage("a", "T", " \n")], "'a' has no text"),
        ([Passage("a", "T", "x \ud800")], "'a' holds half a surrogate pair"),
    ],
)
def test_refuses_bad_passages(tmp_path: Path, passages: list[Passage], message: str) -> None:
    with pytest.raises(UserError, match=message):
        write_passages(passages, tmp_path)


def test_a_cut_file_is_noticed(tmp_path: Path) -> None:
    write_passages([Passage("a", "T", "one"), Passage("b", "T", "two")], tmp_path)
    (tmp_path / "passages.jsonl").write_bytes((tmp_path / "passages.jsonl").read_bytes()[:-4])
    with pytest.raises(UserError, match="the index is damaged"):
        PassageStore(tmp_path)


def manifest(corpus: str) -> Manifest:
    return Manifest("bm25", corpus, 1, {"k1": 0.9})


def test_an_index_takes_the_place_of_another(tmp_path: Path) -> None:
    for corpus in ("one", "two"):
        with building(tmp_path / "index", "bm25") as work:
            (work / corpus).touch()
            manifest(corpus).write(work)
    assert Manifest.read(tmp_path / "index").corpus_sha256 == "two"
    assert {path.name for path in tmp_path.iterdir()} == {"index"}
    assert {path.name for path in (tmp_path / "index").iterdir()} == {"two", "manifest.json"}


@pytest.mark.parametrize("resumable", [False, True])
def test_a_build_that_fails_leaves_the_old_index(tmp_path: Path, resumable: bool) -> None:
    with building(tmp_path / "index", "bm25") as work:
        manifest("old").write(work)
    with pytest.raises(KeyboardInterrupt), building(tmp_path / "index", "bm25", resumable=resumable) as work:
        (work / "half").touch()
        raise KeyboardInterrupt
    assert Manifest.read(tmp_path / "index").corpus_sha256 == "old"
    with building(tmp_path / "index", "bm25", resumable=resumable) as work:
        assert (work / "half").exists() is resumable
        manifest("new").write(work)
    assert Manifest.read(tmp_path / "index").corpus_sha256 == "new"


def test_a_resumed_build_that_a_user_error_ends_keeps_what_there_was_and_a_fresh_one_leaves_nothing(
    tmp_path: Path,
) -> None:
    def refused() -> None:
        with pytest.raises(UserError, match="no such encoder"), building(tmp_path / "index", "dense", resumable=True):
            raise UserError("no such encoder")

    refused()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(KeyboardInterrupt), building(tmp_path / "index", "dense", resumable=True) as work:
        (work / "vectors").touch()
        raise KeyboardInterrupt
    refused()
    assert (work / "vectors").exists()


def test_never_overwrites_what_is_not_an_index(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("three years of work")
    with pytest.raises(UserError, match="exists and is not an index"), building(tmp_path, "bm25"):
        pass
    with pytest.raises(UserError, match="exists and is not an index"), building(tmp_path / "thesis.txt", "bm25"):
        pass
    assert (tmp_path / "thesis.txt").read_text() == "three years of work"


@pytest.mark.parametrize("method", ["dense", "bm25"])
def test_two_builders_do_not_share_a_folder(tmp_path: Path, method: str) -> None:
    with building(tmp_path / "index", "dense", resumable=True) as work:
        manifest("first").write(work)
        with (
            pytest.raises(UserError, match=f"index: process {os.getpid()} is writing there"),
            building(tmp_path / "index", method),
        ):
            pass
    assert Manifest.read(tmp_path / "index").corpus_sha256 == "first"


def test_the_second_of_two_commands_that_index_ends_with_the_process_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("conf").mkdir()
    for settings in ("params.yaml", "conf/cpu.yaml"):
        Path(settings).write_text("{}")
    Path("corpus.jsonl").write_text('{"id": "a", "title": "T", "text": "one"}\n')
    with another_writer(tmp_path / "found") as other:
        code, _, err = command(capsys, "index", "--corpus", "corpus.jsonl", "--out", "found")
    assert code == 2 and f"found: process {other.pid} is writing there" in err and not Path("found").exists()


def test_refuses_the_wrong_method_and_schema(tmp_path: Path) -> None:
    manifest("x").write(tmp_path)
    with pytest.raises(UserError, match="a bm25 index, not a dense one"):
        Manifest.read(tmp_path, "dense")
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace('"dragoman": 1', '"dragoman": 99'))
    with pytest.raises(UserError, match="schema 99"):
        Manifest.read(tmp_path)

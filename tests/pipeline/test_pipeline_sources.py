"""By which hashes it is seen that a user's files have changed; what DVC does with them is in `tests/e2e/test_sources.py`."""

import json
import logging
import os
import shutil
from pathlib import Path

import pytest

from dragoman.core.errors import UserError
from dragoman.pipeline import sources
from dragoman.pipeline.project import Project

PASSAGE = {"id": "a", "title": "Bhutan", "text": "The currency of Bhutan is the ngultrum."}
QUESTION = {"id": "q", "question": "Which currency has Bhutan?", "answers": ["ngultrum"], "supporting_ids": ["a"]}


def make(folder: Path, monkeypatch: pytest.MonkeyPatch, entry: str) -> Project:
    """A project whose data set `mine` has this entry, with a file of passages, of questions, and a folder of texts."""
    (folder / "conf").mkdir()
    (folder / "conf/cpu.yaml").write_text("corpus: {}")
    (folder / "params.yaml").write_text(f"datasets: [mine]\ntrain: {{dataset: mine}}\ncorpus: {{mine: {entry}}}\n")
    (folder / "passages.jsonl").write_text(json.dumps(PASSAGE) + "\n")
    (folder / "questions.jsonl").write_text(json.dumps(QUESTION) + "\n")
    (folder / "texts" / "inner").mkdir(parents=True)
    (folder / "texts" / "inner" / "bhutan.txt").write_text("Thimphu")
    monkeypatch.chdir(folder)
    return Project.load(track=False)


async def hashes(project: Project) -> dict[str, str]:
    await sources.run(project, sources.Options())
    return json.loads(Path("results/sources/mine.json").read_text())


async def test_each_path_has_a_hash_that_changes_with_its_content_alone(tmp_path, monkeypatch):
    project = make(tmp_path, monkeypatch, "{source: passages.jsonl, test: questions.jsonl}")
    before = await hashes(project)
    assert list(before) == ["passages.jsonl", "questions.jsonl"]
    os.utime("passages.jsonl", (1, 1))
    assert await hashes(project) == before
    Path("passages.jsonl").write_text(json.dumps(PASSAGE | {"text": "Bhutan pays in ngultrum."}) + "\n")
    after = await hashes(project)
    assert after["passages.jsonl"] != before["passages.jsonl"] and after["questions.jsonl"] == before["questions.jsonl"]


async def test_in_a_folder_names_count_too_and_hidden_files_do_not(tmp_path, monkeypatch):
    project = make(tmp_path, monkeypatch, "{source: texts}")
    before = await hashes(project)
    Path("texts/.state").write_text("something")
    assert await hashes(project) == before
    Path("texts/inner/bhutan.txt").rename("texts/inner/thimphu.txt")  # a passage's id is its path
    assert (await hashes(project))["texts"] != before["texts"]


async def test_a_file_of_qrels_stands_for_its_queries_too(tmp_path, monkeypatch):
    (tmp_path / "beir" / "qrels").mkdir(parents=True)
    (tmp_path / "beir" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\ta\t1\n")
    (tmp_path / "beir" / "queries.jsonl").write_text("{}\n")
    project = make(tmp_path, monkeypatch, "{source: passages.jsonl, test: beir/qrels/test.tsv}")
    before = await hashes(project)
    Path("beir/queries.jsonl").write_text('{"_id": "q"}\n')
    assert (await hashes(project))["beir/qrels/test.tsv"] != before["beir/qrels/test.tsv"]


@pytest.mark.parametrize("entry", ["{source: atlas}", "{source: 'hf:org/name@main:config'}"])
async def test_what_is_no_file_here_has_no_hash(tmp_path, monkeypatch, entry):
    assert await hashes(make(tmp_path, monkeypatch, entry)) == {}


async def test_a_path_that_is_gone_keeps_its_hash_and_one_that_was_never_there_is_refused(
    tmp_path, monkeypatch, caplog
):
    project = make(tmp_path, monkeypatch, "{source: passages.jsonl}")
    before = await hashes(project)
    Path("passages.jsonl").unlink()
    with caplog.at_level(logging.WARNING):
        assert await hashes(project) == before
    assert "corpus.mine.source: passages.jsonl is gone" in caplog.text
    shutil.rmtree("results")
    with pytest.raises(UserError, match=r"corpus\.mine\.source: passages\.jsonl: no such file"):
        await hashes(project)


async def test_a_model_folder_has_a_hash_and_a_model_elsewhere_has_none(tmp_path, monkeypatch):
    make(tmp_path, monkeypatch, "{source: atlas}")
    record = Path("results/sources/model/source.json")
    with Path("params.yaml").open("a") as params:
        params.write("model: {source: my/model}\n")
    assert await sources.run(Project.load(track=False), sources.Options()) == {"mine": 0, "model": 0}
    assert json.loads(record.read_text()) == {}  # a name on a hub, as far as can be known here
    weights = Path("my/model/model.safetensors")
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"before")
    assert await sources.run(Project.load(track=False), sources.Options()) == {"mine": 0, "model": 1}
    before = json.loads(record.read_text())
    weights.write_bytes(b"after")
    await sources.run(Project.load(track=False), sources.Options())
    assert before.keys() == json.loads(record.read_text()).keys() == {"my/model"}
    assert before != json.loads(record.read_text())


async def test_the_file_that_a_baseline_was_taught_by_has_a_hash(tmp_path, monkeypatch):
    make(tmp_path, monkeypatch, "{source: atlas}")
    with Path("params.yaml").open("a") as params:
        params.write("baselines: [drag, sure]\nsystems: {drag: {training: taught.jsonl}}\n")
    Path("taught.jsonl").write_text("before")
    project = Project.load(track=False)
    assert await sources.run(project, sources.Options()) == {"mine": 0, "model": 0, "drag": 1, "sure": 0}
    record = Path("results/sources/systems/drag.json")
    before = json.loads(record.read_text())
    Path("taught.jsonl").write_text("after")
    await sources.run(project, sources.Options())
    assert before.keys() == json.loads(record.read_text()).keys() == {"taught.jsonl"}
    assert before != json.loads(record.read_text())


async def test_each_path_of_a_list_has_a_hash(tmp_path, monkeypatch):
    project = make(tmp_path, monkeypatch, "{source: [passages.jsonl, texts], test: [questions.jsonl]}")
    assert list(await hashes(project)) == ["passages.jsonl", "texts", "questions.jsonl"]

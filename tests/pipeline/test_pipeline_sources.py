"""By which hashes it is seen that code or a user's files have changed.

What DVC does with those of files is in `tests/e2e/test_sources.py`, and with those of code in `tests/test_dvc.py`.
"""

import json
import logging
import os
import shutil
from pathlib import Path

import pytest

import dragoman
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


def code(project: Path) -> dict[str, dict[str, str]]:
    folder = project / "results/sources/code"
    return {path.stem: json.loads(path.read_text()) for path in folder.iterdir()}


async def test_the_code_behind_a_stage_has_what_any_system_imports_and_no_system_and_no_settings(tmp_path, monkeypatch):
    await sources.run(make(tmp_path, monkeypatch, "{source: atlas}"), sources.Options())
    behind = code(tmp_path)
    assert "dragoman/core/text.py" in behind["corpus"] and "dragoman/core/text.py" not in behind["model"]
    assert "dragoman/corpus/atlas/geography.yaml" in behind["corpus"]
    assert {"dragoman/systems/prompts/answer.txt", "dragoman/systems/grammar/forms.py"} <= behind["evaluate"].keys()
    assert "dragoman/engines/vllm.py" in behind["label"]  # which opens it through `Project`
    everywhere = {Path(path) for hashes in behind.values() for path in hashes}
    assert not [path for path in everywhere if {"c3po", "maps", "baselines"} & {*path.parts}]
    assert not [path for path in everywhere if path.name in ("settings.py", "config.py", "project.py")]


async def test_an_edit_changes_the_code_of_the_stages_behind_which_it_is_and_no_other_file(tmp_path, monkeypatch):
    package = tmp_path / "src" / "dragoman"
    shutil.copytree(sources.PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(dragoman, "__file__", str(package / "__init__.py"))
    monkeypatch.setattr(sources, "PACKAGE", package)
    project = make(tmp_path, monkeypatch, "{source: atlas}")
    await sources.run(project, sources.Options())
    before = code(tmp_path)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "results/sources").rglob("*.json")}
    with (package / "core" / "text.py").open("a") as file:
        file.write("# a comment\n")
    await sources.run(project, sources.Options())
    after = code(tmp_path)
    changed = {name for name in before if after[name] != before[name]}
    assert {"corpus", "index", "sft", "rl", "evaluate"} <= changed and "model" not in changed
    written = {path.stem for path, time in times.items() if path.stat().st_mtime_ns != time}
    assert written == changed

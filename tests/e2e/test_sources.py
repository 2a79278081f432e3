"""A user's files and the code are not DVC's: an edit makes the stages that use it stale all the same, and no others."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from project import commit, copied, dvc

pytestmark = [pytest.mark.process, pytest.mark.timeout(1800)]
PASSAGE = {"id": "a", "title": "Bhutan", "text": "The currency of Bhutan is the ngultrum."}


@pytest.fixture(scope="module")
def project(tmp_path_factory, tiny_model) -> Path:
    """A copy of the project whose data set is a file of the user's, after its corpus was made."""
    folder = copied(tmp_path_factory.mktemp("project"))
    params = yaml.safe_load((folder / "params.yaml").read_text())
    params |= {"datasets": ["mine"], "oracles": [], "corpus": {"mine": {"source": "passages.jsonl"}}}
    params["model"]["source"] = str(tiny_model)
    params["train"]["dataset"] = "mine"
    params["harvest"]["dataset"] = "mine"
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    write(folder, PASSAGE)
    commit(folder)
    repro(folder)
    return folder


def write(project: Path, passage: dict[str, str]) -> None:
    (project / "passages.jsonl").write_text(json.dumps(passage) + "\n")


def repro(project: Path, stage: str = "corpus@mine") -> str:
    done = dvc(project, "repro", stage)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_edit_of_the_users_file_reaches_the_corpus_and_a_touch_does_not(project):
    os.utime(project / "passages.jsonl")
    assert "Stage 'corpus@mine' didn't change, skipping" in repro(project)
    write(project, PASSAGE | {"text": "Bhutan pays in ngultrum."})
    assert "Running stage 'corpus@mine'" in repro(project)
    assert "pays in ngultrum" in (project / "data/mine/corpus.jsonl").read_text()


def test_nothing_is_stale_but_what_always_runs_and_git_sees_no_change(project):
    repro(project)
    changed = json.loads(dvc(project, "status", "--json", "corpus@mine", "sources").stdout)
    assert changed == {"sources": ["always changed"]}
    write(project, PASSAGE)
    subprocess.run(["git", "add", "passages.jsonl"], cwd=project, check=True)
    subprocess.run(["git", "commit", "-qm", "an edit", "--allow-empty"], cwd=project, check=True)
    repro(project)
    seen = subprocess.run(["git", "status", "--porcelain"], cwd=project, capture_output=True, text=True, check=True)
    assert not seen.stdout


def test_a_model_folder_with_other_weights_reaches_the_model_and_a_touch_does_not(project, tiny_model):
    shutil.copytree(tiny_model, project / "my-model")
    params = yaml.safe_load((project / "params.yaml").read_text())
    params["model"]["source"] = "my-model"
    (project / "params.yaml").write_text(yaml.safe_dump(params))
    weights = project / "my-model/model.safetensors"
    assert "Running stage 'model'" in repro(project, "model")
    os.utime(weights)
    assert "Stage 'model' didn't change, skipping" in repro(project, "model")
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # one bit of one weight
    before = json.loads((project / "data/model/manifest.json").read_text())["sha256"]
    assert "Running stage 'model'" in repro(project, "model")
    assert json.loads((project / "data/model/manifest.json").read_text())["sha256"] != before


def test_an_edit_of_code_reaches_the_stages_that_import_it_and_no_others(project):
    repro(project)
    append(project / "src/dragoman/serving/server.py")
    said = repro(project)
    assert "Stage 'corpus@mine' didn't change, skipping" in said and "Stage 'model' didn't change, skipping" in said
    append(project / "src/dragoman/core/text.py")
    repro(project, "sources")
    assert json.loads(dvc(project, "status", "--json", "model", "corpus@mine").stdout).keys() == {"corpus@mine"}
    said = repro(project)
    assert "Running stage 'corpus@mine'" in said and "Stage 'model' didn't change, skipping" in said


def append(file: Path) -> None:
    with file.open("a") as stream:
        stream.write("# a comment\n")

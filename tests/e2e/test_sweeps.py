"""Experiments of DVC over this pipeline, in a project that keeps its lock, as docs/experiments.md says."""

import subprocess
from pathlib import Path

import pytest
import yaml
from project import commit, copied, dvc

pytestmark = [pytest.mark.process, pytest.mark.timeout(3600)]


EXPERIMENTS = ("for-each-ref", "--format=%(refname)", "refs/exps/**/b-half")


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory, tiny_model) -> Path:
    """A project of somebody's own: git keeps the lock, and the corpus is made already."""
    folder = copied(tmp_path_factory.mktemp("project"))
    for name, line in ((".gitignore", "/dvc.lock\n"), (".dvc/config", "    no_scm = true\n")):
        file = folder / name
        assert line in file.read_text()
        file.write_text(file.read_text().replace(line, ""))
    params = yaml.safe_load((folder / "params.yaml").read_text())
    params["model"] = {"source": str(tiny_model)}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    commit(folder)
    done = dvc(folder, "repro", "corpus@atlas")
    assert done.returncode == 0, done.stdout + done.stderr
    commit(folder)
    return folder


def test_a_queued_experiment_runs_what_its_setting_changes_and_nothing_else(project):
    queued = dvc(project, "exp", "run", "--queue", "--name", "b-half", "-S", "+index.b=0.5", "index@atlas")
    assert queued.returncode == 0, queued.stderr
    ran = dvc(project, "exp", "run", "--run-all")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Running stage 'index@atlas'" in ran.stdout and "Running stage 'corpus@atlas'" not in ran.stdout
    assert not (project / "data/index/atlas").exists()  # the checkout is as it was
    (lock,) = (git(project, "show", f"{ref}:dvc.lock") for ref in git(project, *EXPERIMENTS).split())
    assert yaml.safe_load(lock)["stages"]["index@atlas"]["params"]["params.yaml"]["index"] == {"b": 0.5}


def test_a_setting_that_params_yaml_does_not_name_yet_wants_a_plus(project):
    refused = dvc(project, "exp", "run", "--queue", "-S", "rl.price=0.01", "rl")
    assert refused.returncode != 0 and "use +rl.price=0.01" in refused.stderr

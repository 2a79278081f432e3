"""What DVC adds to the stages: a kill and a second `dvc repro`, which stages are stale, which data stop it.

What the stages themselves leave behind is in `test_stages.py`.
"""

import csv
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from project import BIN, commit, copied, dvc, environment
from spoilt import spoil_line

SMALLER = {"sft": {"dev_questions": 1}, "rl": {"iterations": 1, "dev_questions": 1}}
"""Sections of `params.yaml`, which win over those of the profile. `test_stages.py` runs more of it."""
PATIENCE = 3600.0

pytestmark = [pytest.mark.process, pytest.mark.timeout(5400)]


@pytest.fixture(scope="module")
def project(tmp_path_factory, smollm2) -> Path:
    """A copy of the project in a repository of its own, on the smoke profile, with the built-in model as it was fetched before."""
    folder = copied(tmp_path_factory.mktemp("project"))
    path = folder / "params.yaml"
    params = yaml.safe_load(path.read_text())
    params |= {"evaluated": ["c3po"], "oracles": [], "policies": ["rl"], "model": {"source": str(smollm2)}, **SMALLER}
    path.write_text(yaml.safe_dump(params))
    commit(folder)
    return folder


def repro(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return dvc(project, "repro", *arguments)


@pytest.fixture(scope="module")
def reproduced(project) -> Path:
    """The project after `dvc repro`, with the evaluation of C-3PO killed once half-way."""
    done = repro(project, "index")
    assert done.returncode == 0, done.stdout + done.stderr
    said = project / "killed.log"
    with said.open("w") as log:
        process = subprocess.Popen(
            [BIN / "dvc", "repro", "evaluate@atlas-c3po"],
            cwd=project, env=environment(project), stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    calls = project / "results/evaluate/atlas-c3po/episodes/c3po/calls.jsonl"
    deadline = time.monotonic() + PATIENCE
    while not (calls.exists() and calls.read_bytes().count(b"\n") >= 5):
        assert process.poll() is None and time.monotonic() < deadline, said.read_text()
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    project.joinpath("killed.jsonl").write_bytes(calls.read_bytes())
    done = repro(project)
    assert done.returncode == 0, done.stdout + done.stderr
    return project


def test_the_report_compares_the_systems_of_all_stages(reproduced):
    metrics = json.loads((reproduced / "results/report/metrics.json").read_text())["atlas"]
    assert list(metrics["systems"]) == ["c3po", "c3po@rl"]
    assert not any(system["failed"] for system in metrics["systems"].values())


def test_seeds_say_what_the_proxy_sees_of_gold_passages(reproduced):
    shown = json.loads((reproduced / "results/seeds/metrics.json").read_text())["visible"]
    assert shown["proxy_words"]["words"] > 0 and 0 < shown["proxy_words"]["answer"] <= 1


def test_the_untrained_proxy_acts_validly_and_the_trainer_finds_the_probabilities_of_the_engine(reproduced):
    stops = json.loads((reproduced / "results/report/metrics.json").read_text())["atlas"]["systems"]["c3po"]["stops"]
    assert set(stops) <= {"answered", "depth_limit", "document_limit", "empty_answer"}
    history = list(csv.DictReader((reproduced / "results/rl/history.csv").open()))
    assert history and all(float(row["engine_difference"]) < 0.2 for row in history)


def test_calls_completed_before_the_kill_were_not_made_again(reproduced):
    before = [json.loads(line) for line in (reproduced / "killed.jsonl").read_bytes().split(b"\n")[:-1]]
    assert len(before) >= 5
    episodes = [json.loads(x) for x in (reproduced / "results/evaluate/atlas-c3po/episodes/c3po/episodes.jsonl").open()]
    started = {
        (e["key"], step.get("point", step["id"])): step["started"]
        for e in episodes
        for step in (*e["nodes"], *e["calls"])
    }
    for call in before:
        assert started[call["episode"], call["call"]] == pytest.approx(call["value"]["started"], abs=1e-3)


def test_a_second_repro_does_nothing_but_look_whether_a_users_files_have_changed(reproduced):
    done = repro(reproduced)
    assert done.returncode == 0 and re.findall("Running stage '(.+)'", done.stdout) == ["sources"]


def test_a_change_of_one_setting_reruns_only_what_depends_on_it(reproduced):
    params = reproduced / "params.yaml"
    text = params.read_text()
    params.write_text(text.replace("index: {}", "index: {b: 0.5}"))
    status = dvc(reproduced, "status", "--json")
    params.write_text(text)
    changed = set(json.loads(status.stdout))
    assert "index@atlas" in changed and not changed & {"model", "corpus@atlas"}


def test_a_spoilt_row_stops_the_pipeline_with_its_place(reproduced):
    corpus = reproduced / "data/atlas/corpus.jsonl"
    kept = corpus.read_bytes()

    def commit() -> None:  # as somebody does who thinks that the file is good
        subprocess.run([BIN / "dvc", "commit", "-q", "-f", "corpus@atlas"], cwd=reproduced, check=True)

    spoil_line(corpus, text=" ")
    commit()
    try:
        done = repro(reproduced, "--single-item", "validate@atlas")
    finally:
        corpus.write_bytes(kept)
        commit()
    assert done.returncode != 0 and "expectations are not met" in done.stderr
    assert "corpus.jsonl:2" in done.stderr and "report.json" in done.stderr

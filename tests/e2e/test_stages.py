"""The pipeline on the smoke profile, in one process, with a real index, a real MLflow store and a random model.

Every stage of `dvc.yaml` runs here, in the order in which DVC would run it. The model has the tokenizer of the built-in one, so
prompts are as long as its. `test_repro.py` runs the stages with the built-in model, and shows what DVC adds.
"""

import csv
import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from spoilt import spoil_index, spoil_line, spoil_samples
from tiny import make_tiny

from dragoman import cli

ROOT = Path(__file__).parents[2]
SMALLER = {"seeds": {"questions": 3}, "sft": {"dev_questions": 1}, "rl": {"questions": 1, "dev_questions": 1}}
"""Sections of `params.yaml`, which win over those of the profile: reinforcement learning takes a third of the time."""
SYSTEMS = ["direct", "standard", "c3po", "c3po@sft", "c3po@rl", "c3po@oracle"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def commands(project: Path) -> Iterator[tuple[str, list[str]]]:
    """The stages with their command lines, each after those that it depends on."""
    import networkx
    from dvc.repo import Repo

    with Repo(project) as repo:
        for stage in networkx.dfs_postorder_nodes(repo.index.graph):
            yield stage.addressing, shlex.split(stage.cmd)


@pytest.fixture(scope="module")
def model(tmp_path_factory, smollm2) -> Path:
    return make_tiny(tmp_path_factory.mktemp("random") / "model", seed=0, context=8192, tokenizer=smollm2)


@pytest.fixture(scope="module")
def project(tmp_path_factory, model) -> Iterator[Path]:
    """A project after all stages."""
    folder = tmp_path_factory.mktemp("stages")
    shutil.copy(ROOT / "dvc.yaml", folder)
    shutil.copytree(ROOT / "conf", folder / "conf")
    (folder / ".dvc").mkdir()
    shutil.copy(ROOT / ".dvc" / "config", folder / ".dvc")
    (folder / "src").symlink_to(ROOT / "src")
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    params |= {"profile": "smoke", "evaluated": SYSTEMS[:3], "model": {"source": str(model)}, **SMALLER}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for _, line in list(commands(folder)):
            assert not run(line), shlex.join(line)
        yield folder


def run(line: list[str]) -> int:
    """Run a command line in this process. Returns its exit code."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", line)
        cli.main()
        raise SystemExit(0)
    return int(ended.value.code or 0)


def read(path: Path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_report_compares_the_systems(project):
    metrics = read(project / "results/report/metrics.json")["atlas"]
    assert list(metrics["systems"]) == SYSTEMS and metrics["n"] == 4
    for system in metrics["systems"].values():
        assert system["failed"] == 0
        assert 0 <= system["cover_em"]["low"] <= system["cover_em"]["mean"] <= system["cover_em"]["high"] <= 1
        assert system["tokens"] > 0 and system["seconds"] > 0
    pairs = [f"{later} - {earlier}" for i, earlier in enumerate(SYSTEMS) for later in SYSTEMS[i + 1 :]]
    assert sorted(metrics["paired"]) == sorted(pairs)
    assert sum(metrics["systems"]["c3po"]["strategies"].values()) == 4
    assert "| c3po@rl |" in (project / "results/report/table.md").read_text()


def test_each_training_stage_leaves_a_policy_that_tells_where_it_comes_from(project, model):
    manifests = {}
    for stage in ("sft", "rl"):
        folder = project / "results" / stage
        manifests[stage] = read(folder / read(folder / "policy.json")["folder"] / "manifest.json")
    assert manifests["rl"]["parent"] == manifests["sft"]["version"]
    assert manifests["rl"]["base"] == manifests["sft"]["base"] == str(model)
    assert manifests["sft"]["metrics"]["samples"] > 0
    history = list(csv.DictReader((project / "results/rl/history.csv").open()))
    assert [row["iteration"] for row in history] == ["0", "1"]
    assert all(float(row["actions"]) > 0 for row in history)


def test_seeds_can_be_looked_at(project):
    assert len(list((project / "results/seeds/trees").glob("*.html"))) == 3
    assert read(project / "results/seeds/metrics.json")["kept"]["samples"] > 0


def test_the_untrained_proxy_acts_validly_under_its_grammar(project):
    stops = read(project / "results/report/metrics.json")["atlas"]["systems"]["c3po"]["stops"]
    assert set(stops) <= {"answered", "depth_limit", "document_limit", "empty_answer"}


def test_the_runs_are_in_mlflow(project):
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{project}/mlruns/mlflow.db")
    experiment = client.get_experiment_by_name("dragoman")
    runs = client.search_runs([experiment.experiment_id])
    evaluations = [r for r in runs if r.data.tags["stage"] == "evaluate"]
    assert {r.data.tags["system"] for r in evaluations} == set(SYSTEMS)
    assert all("cover_em.mean" in r.data.metrics for r in evaluations)
    (rl,) = (r for r in runs if r.data.tags["stage"] == "rl")
    assert [m.step for m in client.get_metric_history(rl.info.run_id, "kl")] == [0, 1]


def test_synthetic_questions_come_with_a_card(project):
    folder = project / "results/synthesize"
    metrics = read(folder / "metrics.json")
    rows = [json.loads(line) for split in ("train", "dev", "test") for line in (folder / f"{split}.jsonl").open()]
    assert sum(metrics["kept"].values()) == len(rows) == 24
    assert "24 of" in (folder / "card.html").read_text()


def test_ask_answers_with_the_passages_it_kept(project, capsys):
    question = "Which currency is used in the country whose capital is Thimphu?"
    code = run(["dragoman", "ask", question, "--system", "c3po", "--trace"])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert " 1. router decides" in out and "answer:" in out and "stopped:" in out


SPOILT = {  # by the stage that made it: the file, what is done to it, the stage that refuses it, what it says
    "corpus@atlas": (
        "data/atlas/train.jsonl", lambda p: spoil_line(p, supporting_ids=["nowhere"]), "validate@atlas", "nowhere",
    ),
    "index@atlas": ("data/index/atlas/manifest.json", spoil_index, "validate@atlas", "manifest.json"),
    "synthesize": (
        "results/synthesize/train.jsonl", lambda p: spoil_line(p, categories={"premise": "rude"}),
        "validate-synthetic", "premise: rude",
    ),
    "seeds": ("results/seeds/samples.parquet", spoil_samples, "validate-rollouts@seeds", "samples.parquet:2 (7.0)"),
    "rl": (
        "results/rl/rollouts/0001/episodes.jsonl", lambda p: spoil_line(p, 1, schema_version=0),
        "validate-rollouts@rl", "episodes.jsonl:1",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def stages(project) -> dict[str, list[str]]:
    return dict(commands(project))


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_row_is_refused_with_its_place(project, stages, capsys, name):
    file, spoil, stage, says = SPOILT[name]
    path = project / file
    kept = path.read_bytes()
    spoil(path)
    try:
        code = run(stages[stage])
    finally:
        path.write_bytes(kept)
    said = capsys.readouterr().err
    assert code != 0 and "expectations are not met" in said
    assert says in said and "report.json" in said

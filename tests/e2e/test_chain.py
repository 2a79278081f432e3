"""The chain of MAPS as DVC runs it: a fresh clone on the smoke profile, one parameter, one command. The model is a random one."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dragoman.registry.policy import find_policy

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
STEPS = ["debate", "answer-1", "answer-2", "query", "label", "judge", "evaluate"]

pytestmark = [pytest.mark.process, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def project(tmp_path_factory, tiny_model) -> Path:
    """A copy of the project with `chains: [atlas]`."""
    folder = tmp_path_factory.mktemp("chain")
    for name in ("dvc.yaml", ".dvcignore"):
        shutil.copy(ROOT / name, folder)
    (folder / ".dvc").mkdir()
    shutil.copy(ROOT / ".dvc" / "config", folder / ".dvc")
    shutil.copytree(ROOT / "conf", folder / "conf")
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    params |= {"profile": "smoke", "chains": ["atlas"], "model": {"source": str(tiny_model)}}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    return folder


def repro(project: Path) -> str:
    environment = os.environ | {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(project / "src"),
        "DVC_NO_ANALYTICS": "1",
    }
    command = [BIN / "dvc", "repro", "chain-evaluate@atlas"]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_one_command_takes_a_clone_from_debate_to_evaluation_and_a_second_one_does_nothing(project):
    said = repro(project)
    out = project / "results/chain/atlas"
    began = {step: said.index(f"Running stage 'chain-{step}@atlas'") for step in STEPS}
    trained = [began[step] for step in STEPS[1:]]
    assert trained == sorted(trained) and began["debate"] < began["label"]  # only labels are made of the debate's pools
    assert set(find_policy(str(out / "judge")).weights) == {"*", "answer", "query", "judge"}
    systems = json.loads((out / "evaluate/metrics.json").read_text())["systems"]
    assert len(systems) == 6 and not any(system["failed"] for system in systems.values())

    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{project}/mlruns/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("dragoman").experiment_id])
    (parent,) = (run for run in runs if run.data.tags["stage"] == "chain")
    nested = [run.info.run_name for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert {"debate debate", "rl answer-1", "rl answer-2", "rl query", "label label", "sft judge"} < set(nested)

    assert re.findall("Running stage '(.+)'", repro(project)) == ["sources"]  # as each time

"""What DVC runs beside the default pipeline, each in a fresh clone on the smoke profile by one parameter and one command.

That is the chain of MAPS, and a system paired with an algorithm: mRAG by its own self-training. The model is a random one. Both have
one project, since corpus, index and synthetic questions are the same.
"""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from project import commit, copied, dvc

from dragoman.registry.policy import find_policy

STEPS = ["debate", "answer-1", "answer-2", "query", "label", "judge", "evaluate"]
PAIR = Path("results/pairs/mrag-selftrain")

pytestmark = [pytest.mark.process, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A copy of the project on the smoke profile."""
    folder = copied(tmp_path_factory.mktemp("project"))
    commit(folder)
    return folder


def configure(project: Path, **sections: Any) -> None:
    """Set keys of `params.yaml`. Those below a section join the others there."""
    path = project / "params.yaml"
    params = yaml.safe_load(path.read_text())
    for name, value in sections.items():
        params[name] = {**params[name], **value} if isinstance(value, dict) else value
    path.write_text(yaml.safe_dump(params))


def repro(project: Path, stage: str) -> str:
    done = dvc(project, "repro", stage)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_one_command_takes_a_clone_from_debate_to_evaluation_and_a_second_one_does_nothing(project, tiny_model):
    configure(project, chains=["atlas"], model={"source": str(tiny_model)})
    said = repro(project, "chain-evaluate@atlas")
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

    assert re.findall("Running stage '(.+)'", repro(project, "chain-evaluate@atlas")) == ["sources"]  # as each time


def test_one_command_takes_mrag_from_a_warm_up_to_self_training_and_a_second_one_does_nothing(project, tiny_model):
    configure(
        project,
        pairs={"systems": ["mrag"], "algorithms": ["selftrain"]},
        train={"reward": "0.8 * lexical_nuggets + 0.2 * lexical_faithfulness"},
        seeds={"exploration": {"oracle": True, "answers": False}},  # a random model earns nothing
        rl={"selftrain": {"above": -1}},  # and learns from it all the same
        model={"source": str(tiny_model)},
    )
    said = repro(project, "pairs@mrag-selftrain")
    assert said.index("Running stage 'pairs-warm-up@mrag'") < said.index("Running stage 'pairs@mrag-selftrain'")
    rows = list(csv.DictReader((project / PAIR / "rl/history.csv").open()))
    assert rows and all(int(row["kept"]) > 0 for row in rows)
    assert find_policy(str(project / PAIR / "rl")).manifest["system"] == "mrag"
    systems = json.loads((project / PAIR / "evaluate/metrics.json").read_text())["systems"]
    assert len(systems) == 2 and not any(system["failed"] for system in systems.values())
    assert re.findall("Running stage '(.+)'", repro(project, "pairs@mrag-selftrain")) == ["sources"]  # as each time

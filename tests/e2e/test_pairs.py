"""A system paired with an algorithm as DVC runs it, one parameter and one command: mRAG by its own self-training. The model is a random one."""

import csv
import json
import re
from pathlib import Path

import pytest
import yaml
from project import commit, copied, dvc

from dragoman.registry.policy import find_policy

PAIR = Path("results/pairs/mrag-selftrain")

pytestmark = [pytest.mark.process, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def project(tmp_path_factory, tiny_model) -> Path:
    """A copy of the project on the smoke profile, with one pair."""
    folder = copied(tmp_path_factory.mktemp("pairs"))
    params = yaml.safe_load((folder / "params.yaml").read_text())
    params["pairs"] = {"systems": ["mrag"], "algorithms": ["selftrain"]}
    params["train"]["reward"] = "0.8 * lexical_nuggets + 0.2 * lexical_faithfulness"
    params["seeds"] = {"exploration": {"oracle": True, "answers": False}}  # a random model earns nothing
    params["rl"] = {"selftrain": {"above": -1}}  # and learns from it all the same
    params["model"] = {"source": str(tiny_model)}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    commit(folder)
    return folder


def repro(project: Path) -> str:
    done = dvc(project, "repro", "pairs@mrag-selftrain")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_one_command_takes_mrag_from_a_warm_up_to_self_training_and_a_second_one_does_nothing(project):
    said = repro(project)
    assert said.index("Running stage 'pairs-warm-up@mrag'") < said.index("Running stage 'pairs@mrag-selftrain'")
    rows = list(csv.DictReader((project / PAIR / "rl/history.csv").open()))
    assert rows and all(int(row["kept"]) > 0 for row in rows)
    assert find_policy(str(project / PAIR / "rl")).manifest["system"] == "mrag"
    systems = json.loads((project / PAIR / "evaluate/metrics.json").read_text())["systems"]
    assert len(systems) == 2 and not any(system["failed"] for system in systems.values())
    assert re.findall("Running stage '(.+)'", repro(project)) == ["sources"]  # as each time

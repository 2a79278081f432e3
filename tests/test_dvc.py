"""What `dvc.yaml` says: which stages run after which, and which are stale after an edit of code."""

import os
import shutil
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest
import yaml

import dragoman
from dragoman.pipeline import sources
from dragoman.systems import system_names

ROOT = Path(__file__).parents[1]
STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
CODE = "results/sources/code/"
STEPS = {"answer-1": "rl", "answer-2": "rl", "query": "rl", "judge": "sft"}
"""The stage that a step of the chain is, where its name is another one."""


@pytest.mark.parametrize("name", sorted(STAGES.keys() - {"sources"}))
def test_a_stage_depends_on_the_code_of_its_command(name):
    command, step = STAGES[name]["cmd"].split()[1:3]
    if command == "chain":
        command = STEPS.get(step, step)
    file = name if command.startswith("$") else command.replace("-", "_")
    assert [dep for dep in STAGES[name]["deps"] if dep.startswith(CODE)] == [f"{CODE}{file}.json"]
    assert (ROOT / "src" / "dragoman" / "pipeline" / f"{file}.py").is_file()


def test_each_system_of_params_yaml_has_settings_that_its_stages_can_name():
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    assert set(params["systems"]) == set(system_names())


def test_a_stage_that_watches_a_section_watches_that_of_the_profile_too():
    profiles = [yaml.safe_load(path.read_text()) for path in (ROOT / "conf").glob("*.yaml")]
    sections = {section for profile in profiles for section in profile}
    for name, stage in STAGES.items():
        own = {entry.partition(".")[0] for entry in stage["params"] if isinstance(entry, str)}
        (of_profile,) = (entry["conf/${profile}.yaml"] for entry in stage["params"] if isinstance(entry, dict))
        assert own & sections <= set(of_profile), name


@pytest.fixture(scope="module")
def behind(tmp_path_factory) -> dict[str, set[str]]:
    """For each stage all those before it, with two data sets and with all that is off by default."""
    import networkx
    from dvc.repo import Repo

    folder = tmp_path_factory.mktemp("graph")
    shutil.copy(ROOT / "dvc.yaml", folder)
    (folder / ".dvc").mkdir()
    shutil.copy(ROOT / ".dvc" / "config", folder / ".dvc")
    shutil.copytree(ROOT / "conf", folder / "conf")
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    params |= {"datasets": ["atlas", "other"], "baselines": ["rewrite"], "optimised": ["gepa"], "chains": ["atlas"]}
    params |= {"transfers": ["data"], "ablations": ["icl"], "pairs": {"systems": ["c3po"], "algorithms": ["mygo"]}}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    with Repo(str(folder)) as repo:
        graph = repo.index.graph
        return {stage.name: {other.name for other in networkx.descendants(graph, stage)} for stage in graph}


def test_what_uses_synthetic_questions_runs_after_their_validation(behind):
    users = {stage for stage, earlier in behind.items() if "synthesize" in earlier} - {"validate-synthetic"}
    assert {"seeds", "gepa@gepa", "chain-debate@atlas", "chain-answer-1@atlas", "evaluate@atlas-direct"} <= users
    assert [stage for stage in sorted(users) if "validate-synthetic" not in behind[stage]] == []


def test_an_evaluation_runs_after_the_validation_of_its_data_set(behind):
    evaluations = {stage for stage in behind if stage.startswith("evaluate") and "@other" in stage}
    assert {"evaluate@other-direct", "evaluate-policy@other-rl", "evaluate-optimised@other-gepa"} <= evaluations
    assert [stage for stage in sorted(evaluations) if "validate@other" not in behind[stage]] == []


def test_a_transfer_watches_the_indexes_of_all_data_sets():
    assert "data/index" in STAGES["transfer"]["deps"]


CHAIN = ("debate", "answer-1", "answer-2", "query", "label", "judge", "evaluate")
PAIRS = {"pairs-warm-up@c3po", "pairs-warm-up@mujica", "pairs@c3po-mygo", "pairs@mujica-mygo"}


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A copy of the pipeline with all that is off by default but ablations and transfers, in which DVC takes every stage to have run."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("dvc.yaml", "params.yaml", ".dvcignore"):
        shutil.copy(ROOT / name, folder)
    (folder / ".dvc").mkdir()
    shutil.copy(ROOT / ".dvc" / "config", folder / ".dvc")
    shutil.copytree(ROOT / "conf", folder / "conf")
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    params = yaml.safe_load((folder / "params.yaml").read_text())
    params["evaluated"] = ["direct", "c3po", "mujica"]
    params["pairs"] = {"systems": ["c3po", "mujica"], "algorithms": ["mygo"]}
    params["chains"] = ["atlas"]
    params["optimised"] = ["gepa"]
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    dvc(folder, "config", "cache.type", "hardlink,copy")
    from dvc.repo import Repo

    with Repo(str(folder)) as repo:
        for stage in repo.index.stages:
            for out in stage.outs:
                path = Path(out.fs_path)
                file = path if path.suffix else path / "metrics.json"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text("{}")
        look_at_code(folder)
        for missing in (
            "results/sources/atlas.json",
            "results/sources/model/source.json",
            "data/atlas/corpus.jsonl",
            "results/synthesize/train.jsonl",
            "results/synthesize/dev.jsonl",
            "results/synthesize/test.jsonl",
        ):
            (folder / missing).parent.mkdir(exist_ok=True)
            (folder / missing).write_text("")
    dvc(folder, "commit", "--force", "--quiet")
    return folder


def look_at_code(project: Path) -> None:
    """What `dragoman sources` does, with the code of the project. It would take seconds to start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dragoman, "__file__", str(project / "src" / "dragoman" / "__init__.py"))
        patch.setattr(sources, "PACKAGE", project / "src" / "dragoman")
        sources.write_code(project / CODE)


def dvc(folder: Path, *arguments: str) -> None:
    environment = os.environ | {"DVC_NO_ANALYTICS": "1"}
    command = [sys.executable, "-m", "dvc", *arguments]
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True)


def stale(project: Path, path: str, comment: str) -> set[str]:
    """The stages that DVC names after a comment was added to a file of the project."""
    file = project / path
    before = file.read_text(encoding="utf-8")
    file.write_text(before + comment, encoding="utf-8")
    try:
        look_at_code(project)
        from dvc.repo import Repo

        with chdir(project), Repo() as repo:  # not the command: it takes seconds to start
            return set(repo.status()) - {"sources"}  # which always runs
    finally:
        file.write_text(before, encoding="utf-8")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (
            "src/dragoman/systems/mujica/prompts/planner.txt",
            {"evaluate@atlas-mujica", "pairs-warm-up@mujica", "pairs@mujica-mygo"},
        ),
        ("src/dragoman/training/settings.py", set()),
        ("src/dragoman/training/gepa/prompts/reflect.txt", {"gepa@gepa"}),
        ("src/dragoman/training/sft.py", {"sft", *PAIRS, "chain-judge@atlas"}),
        ("src/dragoman/pipeline/debate.py", {"chain-debate@atlas", "chain-label@atlas"}),
        ("src/dragoman/pipeline/chain.py", {f"chain-{step}@atlas" for step in CHAIN}),
        ("src/dragoman/serving/server.py", set()),
    ],
    ids=lambda value: Path(value).name if isinstance(value, str) else "",
)
@pytest.mark.slow
def test_a_comment_in_a_file_makes_the_stages_that_use_it_stale(project, path, expected):
    assert stale(project, path, "\n# a comment\n") == expected


def test_a_comment_in_a_file_that_most_stages_use_leaves_the_others(project):
    found = stale(project, "src/dragoman/core/text.py", "\n# a comment\n")
    assert {"corpus@atlas", "index@atlas", "sft", "rl", "evaluate@atlas-c3po", *PAIRS} <= found and "model" not in found
    assert "corpus@atlas" in stale(project, "src/dragoman/corpus/atlas/patterns.yaml", "\n# a comment\n")

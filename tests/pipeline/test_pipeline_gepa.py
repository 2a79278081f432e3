"""`dragoman gepa` as a person types it: a tiny random proxy at marks, real search, and an LLM and a reflection model behind URLs."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import run
from reflecting import reflection_model
from towns import make_towns, river_llm

from dragoman.core import files
from dragoman.registry.policy import find_policy

MARKS = {"c3po.decide": "marks", "c3po.prompts": "full", "c3po.queries": "names", "c3po.k": 2, "c3po.max_depth": 5}
SMALL = {"gepa.max_metric_calls": 12, "gepa.minibatch": 1, "gepa.dev_questions": 2}
FULL = [f"--set={key}={value}" for key, value in (MARKS | SMALL).items()]
BRIEF = [*FULL, "--set=c3po.prompts=brief"]


@pytest.fixture(scope="module")
def towns(tmp_path_factory, tiny_model) -> Iterator[list[str]]:
    """The project's folder is the working folder. Gives the flag that names a reflection model, which numbers its texts."""
    folder = tmp_path_factory.mktemp("towns")
    texts = itertools.count(1)
    with (
        river_llm() as url,
        reflection_model(lambda text: f"{text} Think of rule {next(texts)}.") as reflection,
        pytest.MonkeyPatch.context() as patch,
    ):
        make_towns(folder, url, tiny_model)
        patch.chdir(folder)
        yield [f"--set=gepa.reflection={json.dumps(reflection.model_dump(mode='json'))}"]


def gepa(capsys, *flags: str) -> tuple[int, str, str]:
    return run(capsys, "gepa", "--system", "c3po", *flags)


@pytest.fixture(scope="module")
def index(towns) -> list[str]:
    import asyncio

    from dragoman.pipeline import index
    from dragoman.pipeline.project import Project

    project = Project.load(Path("params.yaml"), track=False)
    asyncio.run(index.run(project, index.Options(dataset="towns", out=project.index("towns"))))
    return towns


def test_a_small_proxy_gets_instructions_and_is_evaluated_with_them_beside_others(index, empty_store, capsys):
    shutil.copytree(empty_store, "mlruns")
    code, out, err = gepa(capsys, *FULL, *index)
    assert code == 0, err
    policy = find_policy("gepa")
    assert f"results/gepa/policies/{policy.version}, instructions/" in out and "is best: cover_em" in out
    metrics = json.loads(Path("results/gepa/metrics.json").read_text())
    assert metrics["metric_calls"] <= 12 and metrics["reflections"] >= 1 and metrics["policy"] == policy.version
    assert {path.stem: path.read_text().strip() for path in Path("results/gepa/instructions").iterdir()} == {
        role: text.strip() for role, text in policy.instructions.items()
    }
    assert policy.manifest["stage"] == "gepa" and policy.manifest["trained_with"]["settings"]["decide"] == "marks"
    # under brief prompts, with which policies are trained
    code, _, err = run(capsys, "evaluate", "--systems", "c3po,c3po@gepa", "--out", "out", "--no-track", *BRIEF)
    assert code == 0, err
    read = {
        node["prompt"][-1][1].partition("Question: ")[0].strip()
        for _, episode in files.read("out/episodes/c3po@gepa/episodes.jsonl")
        for node in episode["nodes"]
        if node["role"] == "router"
    }
    assert read == {policy.instructions["router"].strip()}
    (untrained,) = {
        node["prompt"][-1][1].partition("Question: ")[0]
        for _, episode in files.read("out/episodes/c3po/episodes.jsonl")
        for node in episode["nodes"]
        if node["role"] == "router"
    }
    assert untrained == ""


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (FULL, "error: gepa.reflection: no model is set that rewrites instructions"),
        ([*BRIEF, "{reflection}"], "error: gepa: the roles of c3po have no instructions to rewrite"),
        ([*FULL, "{reflection}", "--set=gepa.max_metric_calls=5"], "error: gepa.max_metric_calls is 5, and a single"),
    ],
)
def test_what_could_rewrite_nothing_is_refused_before_a_model_is_opened(towns, capsys, flags, error):
    flags = [towns[0] if flag == "{reflection}" else flag for flag in flags]
    code, _, err = gepa(capsys, *flags, "--out", "refused")
    assert code == 2 and error in err and not Path("refused").exists()

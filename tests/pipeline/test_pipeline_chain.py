"""Stage `chain`: the settings of its steps, and all of it with a small model, a real index and a real MLflow store."""

from __future__ import annotations

import json
import shutil
from itertools import combinations
from pathlib import Path
from typing import get_args

import mlflow
import pytest
from command import dragoman, run
from towns import make_towns, river_llm

from dragoman.config import load_params
from dragoman.core.types import Question
from dragoman.pipeline import chain
from dragoman.pipeline.project import Project
from dragoman.registry.policy import find_policy
from dragoman.rollout.samples import read_samples
from dragoman.training.selection import questions_of
from dragoman.training.settings import ChainStep

ROOT = Path(__file__).parents[2]


def own(step: str, profile: str = "paper", **section: object):
    project = Project(params=load_params(ROOT / "params.yaml", profile=profile))
    return chain.settings(project.changed({"chain": section} if section else {}), step).params


def test_the_papers_numbers_hold_in_its_profile():
    """MAPS, section 4.1: 32 samples of 16 rollouts are a train batch; 18,380 samples for the answer agent, 10,000 for the query agent."""
    steps = {step: own(step) for step in ("answer-1", "answer-2", "query")}
    for params in steps.values():
        assert params.train.algorithm == "grpo" and [*params.rl.exploration.breadth_of.values()] == [16]
        assert params.rl.questions * 16 == params.rl.batch_size == 512
        assert (params.rl.policy_lr, params.rl.grpo.kl_coef) == (1e-6, 1e-4)
    samples = {step: params.rl.iterations * params.rl.questions for step, params in steps.items()}
    assert samples["answer-1"] + samples["answer-2"] == pytest.approx(18_380, abs=32)
    assert samples["query"] == pytest.approx(10_000, abs=32)
    assert [params.systems["maps"]["k"] for params in steps.values()] == [3, 5, 5]
    label = own("label").label
    assert (label.draws, label.samples, label.score) == (16, 44_473, "em")
    assert round(own("debate").debate.narrow * 8148) == 6000 and own("debate").debate.narrow_k == 3


@pytest.mark.parametrize(
    ("step", "reward"),
    [
        ("answer-1", "em + 0.25 * precision_ratio + length_penalty(words=7)"),
        ("answer-2", "em + 0.25 * f1 + length_penalty(words=7)"),
        ("query", "delta_f1(answer_tokens=256, first=5, passage_words=120)"),
    ],
)
def test_a_step_draws_several_actions_of_its_own_agent_alone_for_its_own_reward(step, reward):
    params, agent = own(step, rollouts=4, alpha=0.25, words=7, steps={}), step.partition("-")[0]
    assert params.train.reward == reward
    grown = params.rl.exploration
    assert (grown.breadth, grown.breadth_of, grown.force) == ((1,), {agent: 4}, 0)
    assert params.rl.roles == (agent,) and params.rl.own_weights


def test_the_steps_are_those_that_settings_and_flows_go_by_in_the_same_order():
    assert get_args(ChainStep) == chain.STEPS


def test_what_is_said_of_a_step_wins_and_what_follows_from_it_follows():
    said = {"answer-2": {"maps": {"max_rounds": 1}, "train": {"reward": "f1"}}}
    params = own("answer-2", steps=said)
    assert (params.train.reward, params.systems["maps"]["max_rounds"]) == ("f1", 1)
    assert "first=4," in own("query", steps={"query": {"maps": {"k": 4}}}).train.reward
    first = own("answer-1", steps=said)
    assert "precision_ratio" in first.train.reward and first.systems["maps"]["max_rounds"] == 3


@pytest.mark.parametrize("step", ["answer-1", "answer-2", "query"])
def test_a_step_learns_from_the_papers_reward_alone_whatever_the_profile_adds(step):
    whole = load_params(ROOT / "params.yaml", profile="cpu")
    assert whole.rl.shaping and whole.rl.price
    assert (own(step, "cpu").rl.shaping, own(step, "cpu").rl.price) == (None, 0)
    said = own(step, "cpu", steps={step: {"rl": {"shaping": "gold_recall", "price": 0.1}}}).rl
    assert (said.shaping, said.price) == ("gold_recall", 0.1)


def test_no_two_trained_steps_begin_with_the_same_questions():
    questions = [Question(str(i), "?") for i in range(200)]
    first = [questions_of(0, questions, 20, own(step).seed) for step in chain.TRAINED]
    assert all(a != b for a, b in combinations(first, 2))
    assert own("answer-1").seed == own("debate").seed == own("evaluate").seed == 0
    assert own("query", steps={"query": {"seed": 7}}).seed == 7


def test_answers_are_trained_on_pools_of_all_sizes_and_queries_on_those_of_one_search():
    """MAPS, section 3.2: one to four snapshots of a question; section 3.3: one query after the question's own search."""
    maps = {step: own(step).systems["maps"] for step in ("answer-1", "answer-2", "query")}
    assert [settings["rounds"] for settings in maps.values()] == ["drawn", "drawn", "fixed"]
    assert [settings["max_rounds"] for settings in maps.values()] == [3, 3, 1]


@pytest.mark.parametrize("profile", ["cpu", "gpu", "paper"])
def test_a_chain_draws_as_many_answers_to_a_pool_as_the_paper(profile):
    assert own("label", profile).label.draws == 16


@pytest.mark.parametrize("profile", ["cpu", "gpu", "smoke"])
def test_the_second_stage_of_the_answer_agent_reads_more(profile):
    first, second = (own(step, profile).systems["maps"] for step in ("answer-1", "answer-2"))
    assert first["k"] < second["k"] and first["max_rounds"] == second["max_rounds"]


def test_the_settings_of_the_project_are_not_those_of_the_chain():
    params = own("judge", profile="cpu")
    assert (params.train.system, params.systems["maps"]["answers"], params.sft.roles) == ("maps", "agent", ("judge",))
    assert "rounds" not in params.systems["maps"]


@pytest.fixture(scope="module")
def llm():
    asked: list[dict] = []
    with river_llm(asked) as url:
        yield url, asked


@pytest.fixture
def project(tmp_path, monkeypatch, llm, tiny_model) -> Path:
    make_towns(tmp_path, llm[0], tiny_model)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sing"], "chain: no step 'sing'; choose from debate, answer-1, answer-2, query, label, judge, evaluate"),
        (["query"], "chain: results/chain/towns/answer-2 has no policy yet; run `dragoman chain answer-2` first"),
        (["debate", "--set", "chain.steps={judge: {sft: {role: x}}}"], "chain.steps.judge: sft.role: unknown key"),
        (["debate", "--set", "chain.steps={jugde: {}}"], "chain.steps.jugde"),
        (["debate", "--set", "chain.rollouts=1"], "chain.rollouts"),
        (["debate", "--set", "chain.start=nowhere"], "nowhere"),
        (["debate", "--set", "chains=[atlas]"], "chains: 'atlas' has no entry under corpus"),
    ],
)
def test_what_a_chain_cannot_do_is_said_before_it_begins(project, capsys, arguments, message):
    code, _, err = run(capsys, "chain", *arguments, "--no-track")
    assert code == 2 and message in err
    assert not (project / "results").exists()


SETTINGS = ("--set", "maps.queries=span", "--set", "chain.rollouts=2", "--set", "label.draws=2")


@pytest.mark.slow
def test_a_chain_goes_from_debate_to_evaluation_and_a_second_one_does_nothing(project, capsys, llm, empty_store):
    shutil.copytree(empty_store, project / "mlruns")

    dragoman(capsys, "index", "--dataset", "towns")
    said = dragoman(capsys, "chain", *SETTINGS)
    out = project / "results/chain/towns"
    assert "3 questions, 6 snapshots" in said and "evaluate/metrics.json" in said
    entries = {step: set(find_policy(str(out / step)).weights) for step in chain.TRAINED}
    assert entries == {
        "answer-1": {"*", "answer"},
        "answer-2": {"*", "answer"},
        "query": {"*", "answer", "query"},
        "judge": {"*", "answer", "query", "judge"},
    }
    first, last = (find_policy(str(out / step)) for step in ("query", "judge"))
    assert first.of("answer").name == last.of("answer").name and first.of("query").name == last.of("query").name
    assert {sample.role for sample in read_samples(out / "label" / "samples.parquet")} == {"judge"}
    compared = json.loads((out / "evaluate/metrics.json").read_text())
    trained = [f"maps@results/chain/towns/{step}" for step in chain.TRAINED]
    assert list(compared["systems"]) == ["standard", "maps", *trained]
    assert not any(system["failed"] for system in compared["systems"].values())

    client = mlflow.MlflowClient(f"sqlite:///{project}/mlruns/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("dragoman").experiment_id])
    (parent,) = (r for r in runs if r.data.tags["stage"] == "chain")
    assert parent.info.status == "FINISHED" and parent.data.params["chain.rollouts"] == "2"
    children = [r for r in runs if r.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    names = {"debate debate", "validate", "rl answer-1", "rl answer-2", "rl query", "label label", "sft judge"}
    assert {r.info.run_name for r in children} == names | {f"evaluate towns {name}" for name in compared["systems"]}
    assert len(runs) == 1 + len(children)

    written = {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}
    asked = len(llm[1])
    dragoman(capsys, "chain", *SETTINGS, "--no-track")
    assert len(llm[1]) == asked, "the LLM was asked again"
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")} == written

    start = ("--set", f"chain.start={out}/judge")
    dragoman(capsys, "chain", "answer-1", *SETTINGS, *start, "--out", "results/again", "--no-track")
    assert find_policy("results/again/answer-1").manifest["parent"] == last.version

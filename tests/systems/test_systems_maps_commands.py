"""MAPS under the commands: with a small model, a real index and a server of an LLM that knows what stands in the prompt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import dragoman, run
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from openai_stub import serving
from towns import make_towns, river_llm

from dragoman.core import files
from dragoman.registry.policy import find_policy
from dragoman.rollout.store import read_episodes


@pytest.fixture(scope="module")
def llm() -> Iterator[str]:
    with river_llm() as url:
        yield url


@pytest.fixture
def project(tmp_path, monkeypatch, llm, tiny_model) -> Path:
    make_towns(tmp_path, llm, tiny_model)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_maps_is_asked_trained_evaluated_and_taken_apart(project, capsys):
    dragoman(capsys, "index", "--dataset", "towns")
    question = "Where does the water of Town 4 go?"
    shown = dragoman(capsys, "ask", question, "--system", "maps", "--dataset", "towns", "--trace")
    assert "judge decides" in shown and "sufficient" in shown and "search (" in shown
    dragoman(capsys, "seeds", "--no-track")
    judged = [n for e in read_episodes(project / "results/seeds/episodes.jsonl") for n in e.nodes if n.role == "judge"]
    assert judged and all(node.marked.right for node in judged)
    dragoman(capsys, "sft", "--no-track")
    dragoman(capsys, "rl", "--no-track")
    names = "maps,maps@sft,maps@rl,maps@oracle"
    dragoman(capsys, "evaluate", "--dataset", "towns", "--systems", names, "--out", "results/it", "--no-track")
    scores = json.loads((project / "results/it/metrics.json").read_text())["systems"]
    assert scores["maps@oracle"]["recall"]["mean"] == scores["maps@oracle"]["cover_em"]["mean"] == 1.0
    dragoman(capsys, "ablate", "no-judge", "--no-track")


@pytest.mark.slow
def test_each_role_gets_a_policy_of_its_own_stage_by_stage(project, capsys, tiny_model):
    agent = ("--set", "maps.answers=agent", "--set", "maps.queries=span")
    run(capsys, "index", "--dataset", "towns")
    start = str(tiny_model)
    for role in ("answer", "query"):
        own = ("--set", f"rl.roles=[{role}]", "--set", "rl.own_weights=true", "--set", "train.reward=delta_f1(first=2)")
        dragoman(capsys, "rl", *agent, *own, "--policy", start, "--out", f"results/{role}", "--no-track")
        start = f"results/{role}"
    dragoman(capsys, "seeds", *agent, "--out", "results/seeds", "--no-track")
    # what is scored and what is written, in one model
    dragoman(capsys, "sft", *agent, "--out", "results/shared", "--no-track")
    assert set(find_policy("results/shared").weights) == {"*"}
    for role in ("answer", "query", "judge"):
        alone = ("--set", f"sft.roles=[{role}]", "--samples", "results/seeds/samples.parquet", "--policy", start)
        dragoman(capsys, "sft", *agent, *alone, "--out", f"results/{role}-warm-up", "--no-track")
        assert set(json.loads(Path(f"results/{role}-warm-up/metrics.json").read_text())["roles"]) == {role}
        start = f"results/{role}-warm-up"
    assert set(find_policy(start).weights) == {"*", "answer", "query", "judge"}
    evaluation = ("--dataset", "towns", "--systems", f"maps@{start}", "--out", "results/chain")
    dragoman(capsys, "evaluate", *agent, *evaluation, "--no-track")
    scores = json.loads((project / "results/chain/metrics.json").read_text())["systems"][f"maps@{start}"]
    assert scores["failed"] == 0


def test_a_policy_set_without_one_of_the_roles_is_refused(project, capsys, tiny_model):
    """What is missing is said, and where to add it."""
    (project / "half").mkdir()
    (project / "half" / "policy.json").write_text(json.dumps({"version": "v", "roles": {"judge": str(tiny_model)}}))
    code, _, err = run(capsys, "ask", "?", "--system", "maps@half", "--dataset", "towns")
    assert code == 2 and "maps@half: policy v: no weights for query, only for judge; add it to `roles`" in err


@pytest.mark.slow
def test_a_debate_is_validated_labelled_and_imitated_by_the_judge(project, capsys):
    dragoman(capsys, "index", "--dataset", "towns")
    said = dragoman(capsys, "debate", "--no-track")
    assert "3 questions, 6 snapshots: 3 of round 0, 3 of round 1" in said
    dragoman(capsys, "validate", "results/debate", "--out", "results/validate/debate", "--no-track")
    said = dragoman(capsys, "label", "--set", "label.draws=2", "--no-track")
    assert "6 snapshots: 3 Insufficient, 3 Sufficient, 0 on which answers differ" in said
    agent = ("--set", "maps.answers=agent", "--set", "maps.queries=span", "--set", "label.draws=2")
    said = dragoman(capsys, "label", *agent, "--out", "results/label-agent", "--no-track")
    assert "6 snapshots: " in said and "Insufficient" in said  # a model that knows nothing is seldom right
    chosen = dragoman(
        capsys, "label", *agent, "--set", "maps.decide=marks", "--out", "results/label-marks", "--no-track"
    )
    assert "6 snapshots: " in chosen
    judged = ("--set", "sft.roles=[judge]", "--set", "sft.rounds=0", "--samples", "results/label/samples.parquet")
    dragoman(capsys, "sft", *judged, "--out", "results/judge", "--no-track")
    assert set(find_policy("results/judge").weights) == {"*", "judge"}
    assert json.loads((project / "results/judge/metrics.json").read_text())["roles"] == {"judge": 6}


def test_a_debate_of_the_llm_makes_snapshots_that_are_valid(project, capsys):
    """This LLM proposes no search, so every debate ends with the question's own."""
    run(capsys, "index", "--dataset", "towns")
    code, said, err = run(capsys, "debate", "--set", "debate.by=llm", "--no-track")
    assert code == 0, err
    assert "3 questions, 3 snapshots: 3 of round 0" in said
    code, _, err = run(capsys, "validate", "results/debate", "--out", "results/validate/debate", "--no-track")
    assert code == 0, err


def test_a_debate_may_be_another_models(project, capsys):
    """The frozen LLM proposes no search, and this one the same each time."""
    app = FastAPI()
    app.get("/v1/models")(lambda: {"data": [{"id": "debater", "root": "/d"}]})

    @app.post("/v1/chat/completions")
    async def chat(body: dict) -> dict:
        message = {"role": "assistant", "content": "[Query] River 3"}
        usage = {"prompt_tokens": 7, "completion_tokens": 2}
        return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}

    run(capsys, "index", "--dataset", "towns")
    with serving(app) as url:
        other = ("--set", "debate.by=llm", "--set", f"debate.engine={{engine: openai, model: debater, urls: [{url}]}}")
        code, said, err = run(capsys, "debate", *other, "--no-track")
    assert code == 0, err
    assert "3 questions, 6 snapshots: 3 of round 0, 3 of round 1" in said


def test_a_debate_whose_model_is_away_is_left_to_a_later_try(project, capsys):
    app = FastAPI()
    app.get("/v1/models")(lambda: {"data": [{"id": "debater", "root": "/d"}]})
    app.post("/v1/chat/completions")(lambda: JSONResponse({}, 400))
    run(capsys, "index", "--dataset", "towns")
    with serving(app) as url:
        other = ("--set", "debate.by=llm", "--set", f"debate.engine={{engine: openai, model: debater, urls: [{url}]}}")
        code, _, err = run(capsys, "debate", *other, "--no-track")
    assert code == 1 and "error: every question met a fault, the first: " in err
    assert not (project / "results/debate/snapshots.jsonl").exists()


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "mygo"])
@pytest.mark.parametrize("role", ["answer", "query", "judge"])
def test_an_agent_alone_is_trained_by_each_algorithm(project, capsys, tiny_model, role, algorithm):
    """GRPO is the chain's, and self-training and SFT are tested with systems whose agents share their weights."""
    run(capsys, "index", "--dataset", "towns")
    own = ("--set", f"rl.roles=[{role}]", "--set", "rl.own_weights=true", "--set", "maps.answers=agent")
    graded = ("--set", "train.reward=f1 + gold_recall", "--set", "rl.mygo.threshold=0.1", "--algorithm", algorithm)
    code, _, err = run(capsys, "rl", *own, *graded, "--policy", str(tiny_model), "--out", "results/own", "--no-track")
    assert code == 0, err
    assert set(find_policy("results/own").weights) == {"*", role}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["debate"], "debate: no question has supporting_ids, so no oracle can debate; set debate.by: llm"),
        (["debate", "--set", "debate.by=me"], "debate.by"),
        (
            ["debate", "--set", "debate.engine={engine: openai, model: m, urls: ['http://127.0.0.1:1/v1']}"],
            "debate: engine: an oracle debates without a model; set debate.by to llm, or leave it out",
        ),
        (["label"], "results/debate/snapshots.jsonl: no such file"),
        (["label", "--set", "label.draws=1"], "label.draws"),
    ],
)
def test_what_debate_and_label_cannot_use_is_said(project, capsys, command, message):
    files.write(project / "data/towns/train.jsonl", [{"id": "q", "question": "Where?", "answers": ["x"]}])
    code, _, err = run(capsys, *command, "--no-track")
    assert code == 2 and message in err


def test_labels_on_which_no_answers_agree_are_said(project, capsys):
    dragoman = [run(capsys, *line)[0] for line in (["index", "--dataset", "towns"], ["debate", "--no-track"])]
    assert dragoman == [0, 0]
    path = project / "results/debate/snapshots.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    files.write(path, [{**row, "question": {**row["question"], "answers": []}} for row in rows])
    code, _, err = run(capsys, "label", "--no-track")
    assert code == 2 and "on none of 0 snapshots of results/debate/snapshots.jsonl with gold answers do 16" in err

"""One question is one trace, with a span for every call and its real times, also when many run at once."""

import shutil

import pytest
from fakes import ListRetriever, ScriptedEngine

from dragoman import tracking
from dragoman.core.errors import UserError
from dragoman.core.types import Passage, Question
from dragoman.rollout.backends import Backends
from dragoman.rollout.feedback import Feedback
from dragoman.rollout.scheduler import roll_out
from dragoman.rollout.store import EpisodeStore
from dragoman.systems import build
from dragoman.tracking.runs import metric_name

QUESTIONS = [Question(f"q{i}", f"Question {i}?", ("x",)) for i in range(3)]


@pytest.fixture
async def episodes(tmp_path):
    def proxy(prompt, rng):
        if "Choose one action" in prompt:
            return "[Planning]"
        if "Facts so far" in prompt:
            return "Action: [LLM]" if "[1]" in prompt.split("Facts so far")[1] else "Action: [Retrieval] a town"
        return "Action: [1]"

    backends = Backends(
        llm=ScriptedEngine(lambda prompt, rng: "x"),
        proxy=ScriptedEngine(proxy),
        retriever=ListRetriever([Passage("p", "P", "a town")]),
    )
    with EpisodeStore(tmp_path / "episodes") as store:
        return await roll_out(QUESTIONS, "c3po", build("c3po"), backends, store)


def test_a_run_with_its_traces(tmp_path, episodes, empty_store):
    import mlflow

    shutil.copytree(empty_store, tmp_path / "mlruns")
    tracking.start(tmp_path / "mlruns")
    rows = [
        {"id": q.id, "type": "", "question": q.question, "answers": ["x"], "answer": "x", "stop": "answered"}
        | {"calls": 6, "tokens": 9, "seconds": 0.1, "scores": {"cover_em": 1.0}}
        for q in QUESTIONS
    ]
    summary = {"cover_em": {"mean": 1.0, "low": 1.0, "high": 1.0}, "failed": 0, "stops": {"answered": 3}}
    run_id = tracking.log_evaluation(
        "d", "c3po", summary, rows, episodes, parameters={"a": {"b": 1}, "long": "x" * 9000}, traces=2
    )
    tracking.finish()
    run = mlflow.get_run(run_id)
    assert run.data.metrics == {
        "cover_em.mean": 1,
        "cover_em.low": 1,
        "cover_em.high": 1,
        "failed": 0,
        "stops.answered": 3,
    }
    assert run.data.params["a.b"] == "1"
    traces = mlflow.search_traces(locations=[run.info.experiment_id], return_type="list")
    assert len(traces) == 2
    for trace in traces:
        assert trace.info.trace_metadata.get("mlflow.sourceRun") == run_id
        root, *spans = trace.data.spans
        assert root.name == "c3po" and all(s.parent_id == root.span_id for s in spans)
        names = ["router", "roadmap", "decide", "search", "filter", "decide", "answer"]
        assert [s.name for s in spans] == names
        assert all(root.start_time_ns <= s.start_time_ns <= s.end_time_ns for s in spans)
    table = mlflow.load_table("predictions.json", run_ids=[run_id])
    assert list(table["id"]) == ["q0", "q1", "q2"]


def test_runs_of_several_processes_stand_under_one(tmp_path, empty_store):
    """Each opens the group anew, by its key. A step that fails is seen in it, until it has passed."""
    import mlflow

    store = shutil.copytree(empty_store, tmp_path / "mlruns")
    above, below = [], []

    def step(key: str, fails: bool = False) -> None:
        with tracking.grouped("chain", key, store, tags={"stage": "chain"}, parameters={"a": {"b": 1}}) as group:
            above.append(group)
            below.append(tracking.log_validation({"metrics": {"failed": 0}}, parameters={}))
            if fails:
                raise UserError("bad input")

    step("one")
    with pytest.raises(UserError):
        step("one", fails=True)
    assert mlflow.get_run(above[0]).info.status == "FAILED"
    step("one")
    step("two")
    assert above[0] == above[1] == above[2] != above[3]
    assert [mlflow.get_run(run).data.tags["mlflow.parentRunId"] for run in below] == above
    assert mlflow.get_run(above[0]).info.status == "FINISHED" and mlflow.get_run(above[0]).data.params == {"a.b": "1"}
    alone = tracking.log_validation({"metrics": {"failed": 0}}, parameters={})
    assert "mlflow.parentRunId" not in mlflow.get_run(alone).data.tags


def test_a_training_run_with_its_curves_and_trees(tmp_path, empty_store):
    import mlflow

    shutil.copytree(empty_store, tmp_path / "mlruns")
    out = tmp_path / "rl"
    (out / "trees").mkdir(parents=True)
    (out / "trees" / "q1.html").write_text("<p>a tree</p>")
    curves = {
        "history": [
            {"iteration": "0", "kl": "0.0", "reward": "0.3"},
            {"iteration": "1", "kl": "0.02", "reward": "0.4"},
        ],
        "dev": [{"iteration": "0", "dev_reward": "0.5", "share_Plan": ""}],
    }
    tracking.start(tmp_path / "mlruns")
    run_id = tracking.log_training("rl", out, {"policy": "abc", "dev_reward": 0.5}, curves, parameters={"clip": 0.2})
    client = mlflow.MlflowClient()
    run = client.get_run(run_id)
    assert run.data.tags["stage"] == "rl" and run.data.tags["policy"] == "abc" and run.data.params == {"clip": "0.2"}
    assert [(m.step, m.value) for m in client.get_metric_history(run_id, "kl")] == [(0, 0.0), (1, 0.02)]
    assert run.data.metrics["final.dev_reward"] == 0.5 and "share_Plan" not in run.data.metrics
    assert [a.path for a in client.list_artifacts(run_id, "trees")] == ["trees/q1.html"]


def test_a_score_that_is_an_expression_has_a_name_that_mlflow_takes():
    assert metric_name("0.8 * nuggets + 0.2 * judge(n=1).mean") == "0.8 _ nuggets _ 0.2 _ judge_n_1_.mean"


async def test_feedback_is_shown_on_the_trace_of_its_episode_and_later_feedback_in_its_place(
    tmp_path, empty_store, episodes
):
    import mlflow
    from mlflow.entities import AssessmentSource

    store = shutil.copytree(empty_store, tmp_path / "mlruns")
    tracking.start(store)
    first, other = (tracking.log_trace(episode, "c3po") for episode in episodes[:2])

    def shown(trace_id: str) -> dict[str, object]:
        found = mlflow.get_trace(trace_id, flush=True).info.assessments
        assert {assessment.source.source_id for assessment in found} <= {"alice", "judge"}
        return {a.name: (a.feedback or a.expectation).value for a in found}

    key = episodes[0].key
    down = Feedback(id=key, by="alice", rating="down", answer="y", passages=["p"], comment="no", at=0.0)
    assert tracking.show_feedback(down, store) == 1
    expected = {"rating": False, "expected_response": "y", "expected_passages": ["p"]}
    assert shown(first) == expected and shown(other) == {}
    (rating,) = (a for a in mlflow.get_trace(first).info.assessments if a.name == "rating")
    assert rating.rationale == "no" and rating.source.source_type == "HUMAN"
    mlflow.log_feedback(trace_id=first, name="rating", value=0.5, source=AssessmentSource("LLM_JUDGE", "judge"))
    assert tracking.show_feedback(Feedback(id=key, by="alice", comment="hm", at=1.0), store) == 1
    assert shown(first) == {"rating": 0.5, "comment": "hm"}, "what others say stays"
    assert tracking.show_feedback(Feedback(id="unknown", rating="up", at=0.0), store) == 0

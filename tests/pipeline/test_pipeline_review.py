"""Which answers a person should look at, and that they wait in MLflow's review queue until somebody has."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command import run as command

from dragoman.config import Params
from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.pipeline import harvest, review
from dragoman.pipeline.project import Project
from dragoman.pipeline.review import to_review
from dragoman.rollout.feedback import Feedback
from dragoman.rollout.record import Episode, Trajectory
from dragoman.systems.base import StopReason

QUESTION = "What is the capital of Brisa?"


def episode(key: str, *answers: str | None, question: str = QUESTION, by: str | None = None) -> Episode:
    system = key.partition("/")[2] or "c3po@champion"
    given = [
        Trajectory(nodes=[], steps=[], answer=a, passages=[], stop=StopReason.ANSWERED if a else StopReason.ENGINE_FAULT)
        for a in answers
    ]  # fmt: skip
    return Episode(
        key=key, asked_by=by, question={"id": key, "question": question}, system=system, config={}, nodes=[], calls=[],
        trajectories=given, started=0, seconds=0,
    )  # fmt: skip


def said(key: str, **what: str) -> dict[str, Feedback]:
    return {key: Feedback(id=key, at=0.0, **what)}


def test_a_shadow_that_disagrees_is_for_a_person_and_one_that_agrees_is_not():
    differs = [episode("k", "Port Salt"), episode("k/c3po@v7", "Woolton is its capital")]
    assert to_review(differs, {}) == {"k": "a shadow of c3po@v7 says: Woolton is its capital"}
    assert to_review([episode("k", "Port Salt"), episode("k/c3po@v7", "the port salt.")], {}) == {}
    assert to_review([differs[1], differs[0]], {}) == {"k": "a shadow of c3po@v7 says: Woolton is its capital"}


def test_a_proxy_that_failed_before_standard_rag_answered_does_not_disagree():
    assert to_review([episode("k/c3po@champion", None), episode("k", "Port Salt")], {}) == {}


def test_draws_that_disagree_are_one_question_for_a_person():
    asked_again = [episode("a", "Port Salt"), episode("b", "Woolton", question="what is the capital of brisa")]
    assert to_review(asked_again, {}) == {"a": "a draw of c3po@champion says: Woolton"}
    assert to_review([episode("a", "Port Salt", "Woolton")], {}) == {"a": "a draw of c3po@champion says: Woolton"}


def test_what_was_rejected_is_for_a_person_until_somebody_says_what_is_right():
    episodes = [episode("a", "Port Salt"), episode("b", "Port Salt")]
    assert to_review(episodes, said("b", rating="down")) == {"b": "thumbs down"}
    assert to_review(episodes, said("b", rating="down", answer="Woolton")) == {}
    assert to_review(episodes, said("a", rating="up") | said("b", rating="down")) == {}


def test_what_was_served_last_is_last_however_long_ago_its_question_was_first_asked():
    episodes = [episode("a", "Port Salt"), episode("b", "Merin", question="Which river?"), episode("c", "Woolton")]
    assert list(to_review(episodes, said("b", rating="down") | said("c", rating="down"))) == ["b", "c"]


def test_questions_of_a_forbidden_key_stay_out():
    episodes = [episode("a", "Port Salt", by="alice"), episode("b", "Port Salt")]
    assert to_review(episodes, said("a", rating="down"), ["alice"]) == {}


async def test_it_waits_in_the_queue_once_until_it_was_reviewed(tmp_path, empty_store):
    from mlflow.genai import review_queues

    shutil.copytree(empty_store, tmp_path / "mlruns")
    kept = tmp_path / "kept"
    rows = [
        episode("k", "Port Salt"),
        episode("k/c3po@v7", "Woolton"),
        episode("j", "the Merin", question="Which river?"),
    ]
    files.write(kept / "episodes.jsonl", (one.model_dump(mode="json") for one in rows))
    project = Project(tmp_path, Params().changed({"serve.episodes": str(kept)}, origin="test"))
    first = await review.run(project, review.Options())
    (one,) = first["pending"]
    assert (first["added"], one.question, one.why) == (1, QUESTION, "a shadow of c3po@v7 says: Woolton")
    again = await review.run(project, review.Options())
    assert again["added"] == 0 and again["pending"] == [one]
    queue = review_queues.list_review_queues()[0]
    assert queue.name == "dragoman" and len(queue.schema_ids) == 2
    review_queues.set_review_queue_item_status(
        queue.queue_id, item_id=one.trace, status="complete", completed_by="alice"
    )
    assert await review.run(project, review.Options()) == {"added": 0, "left": 0, "pending": []}


@pytest.mark.slow
async def test_what_has_no_room_in_the_queue_gets_some_once_the_latest_are_in_it(tmp_path, empty_store):
    shutil.copytree(empty_store, tmp_path / "mlruns")
    questions = ["Which river?", "Which lake?", "Which hill?"]
    rows = [one for n, asked in enumerate(questions) for one in (
        episode(f"k{n}", "Port Salt", question=asked), episode(f"k{n}/c3po@v7", "Woolton", question=asked))]  # fmt: skip
    files.write(tmp_path / "kept/episodes.jsonl", (one.model_dump(mode="json") for one in rows))
    project = Project(tmp_path, Params().changed({"serve.episodes": str(tmp_path / "kept")}, origin="test"))
    runs = [await review.run(project, review.Options(most=2)) for _ in range(3)]
    assert [(run["added"], run["left"]) for run in runs] == [(2, 1), (1, 0), (0, 0)]
    assert sorted(one.question for one in runs[0]["pending"]) == sorted(questions[1:])


@pytest.mark.slow
async def test_what_a_reviewer_says_is_harvested_once_the_review_is_complete(tmp_path, empty_store, monkeypatch):
    import mlflow
    from mlflow.entities import AssessmentSource
    from mlflow.genai import review_queues

    monkeypatch.setattr(harvest, "validate", lambda *arguments, **more: None)
    shutil.copytree(empty_store, tmp_path / "mlruns")
    kept, lands = tmp_path / "kept", tmp_path / "data" / "lands"
    asked = {"a": QUESTION, "b": "Which river flows past Port Salt?", "c": "What is Woolton known for?"}
    files.write(
        kept / "episodes.jsonl", (episode(k, "Jorvik", question=q).model_dump(mode="json") for k, q in asked.items())
    )
    rows = [Feedback(id=key, rating="down", passages=["p"], at=1.0).model_dump(mode="json") for key in asked]
    files.write(kept / "feedback.jsonl", rows)
    files.write(lands / "corpus.jsonl", [{"id": "p", "title": "Brisa", "text": "Its capital is Port Salt."}])
    changes = {
        "serve.episodes": str(kept),
        "corpus": {"atlas": {}, "lands": {"source": "x"}},
        "harvest.dataset": "lands",
    }
    project = Project(tmp_path, Params().changed(changes, origin="test"))
    assert (await review.run(project, review.Options()))["added"] == 3
    (queue,), traces = review_queues.list_review_queues(), {}
    for item in review_queues.list_review_queue_items(queue.queue_id):
        traces[mlflow.get_trace(item.item_id).info.tags["episode"]] = item.item_id
    human = AssessmentSource("HUMAN", "alice")
    mlflow.log_feedback(trace_id=traces["a"], name="rating", value=False, source=human)
    mlflow.log_expectation(trace_id=traces["a"], name="expected_response", value="Port Salt", source=human)
    mlflow.log_feedback(trace_id=traces["b"], name="rating", value=True, source=human)
    mlflow.log_expectation(trace_id=traces["c"], name="expected_response", value="wool", source=human)
    for key in "ab":  # c is still being looked at
        review_queues.set_review_queue_item_status(
            queue.queue_id, item_id=traces[key], status="complete", completed_by="alice"
        )
    done = await harvest.run(project, harvest.Options())
    assert done["labels"] == {"confirmed": 1, "corrected": 1} and done["dropped"] == {"rejected": 1}
    made = {
        json.loads(line)["question"]: json.loads(line)
        for path in (tmp_path / "data" / "served").glob("[td]*.jsonl")
        for line in path.read_text().splitlines()
    }
    assert made[QUESTION]["answers"] == ["Port Salt"] and made[QUESTION]["supporting_ids"] == ["p"]
    assert made[asked["b"]]["answers"] == ["Jorvik"]


def test_feedback_after_a_review_takes_its_place():
    user, review = (Feedback(id="a", rating=rating, at=at) for rating, at in (("up", 2.0), ("down", 1.0)))
    assert harvest.with_reviews({"a": user}, {"a": review}) == {"a": user}
    assert harvest.with_reviews({}, {"a": review}) == {"a": review}


async def test_the_latest_ones_are_taken_first(tmp_path, monkeypatch):
    rows = [episode(f"k{n}", "Port Salt", "Woolton", question=f"What is number {n}?") for n in range(3)]
    files.write(tmp_path / "episodes.jsonl", (one.model_dump(mode="json") for one in rows))
    taken: list[str] = []
    monkeypatch.setattr(review, "queue_for_review", lambda wanted, store: taken.extend(wanted) or len(wanted))
    monkeypatch.setattr(review, "pending_reviews", lambda store: [])
    done = await review.run(Project(tmp_path), review.Options(episodes=(Path(tmp_path),), most=2))
    assert taken == ["k1", "k2"] and done["left"] == 1


def test_to_put_none_into_the_queue_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "cpu.yaml").write_text("{}")
    (tmp_path / "params.yaml").write_text("serve: {episodes: kept}")
    code, _, err = command(capsys, "review", "--most", "0")
    assert code == 2 and "--most" in err


async def test_an_endpoint_that_keeps_nothing_is_named(tmp_path):
    with pytest.raises(UserError, match="names no folder; name one with --episodes"):
        await review.run(Project(tmp_path), review.Options())

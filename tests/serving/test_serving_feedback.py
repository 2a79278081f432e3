"""Feedback on answers: from whom it is taken, what is refused, and what of it is on the disk afterwards."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving_parts import Failing, Model, Parts, ask

from dragoman.core.errors import EngineFault, RetrieverFault, UserError
from dragoman.core.keys import Keys, make_key
from dragoman.rollout.feedback import Feedback, read_feedback, served_rows
from dragoman.serving.episodes import episode_writer
from dragoman.serving.feedback import FeedbackBook
from dragoman.serving.kept import KeptLines
from dragoman.serving.traces import trace_writer

MIB = 1 << 20


async def say(client: httpx.AsyncClient, id: str, key: str | None = None, **said: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return await client.post("/v1/feedback", json={"id": id, **said}, headers=headers)


def refusal(response: httpx.Response) -> tuple[int, str]:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return response.status_code, error["code"]


def lines(folder: Path) -> list[dict[str, Any]]:
    return [row for _, _, row in served_rows(folder / "feedback.jsonl")]


async def test_feedback_is_kept_with_the_key_of_its_episode(tmp_path):
    parts = Parts(feedback=tmp_path)
    async with parts.client() as client:
        answer = (await ask(client)).json()
        said = {
            "rating": "down",
            "answer": " Salt Harbour<|im_end|> ",
            "passages": ["salt", "salt"],
            "comment": "wrong",
        }
        receipt = await say(client, answer["id"], **said)
        assert receipt.status_code == 200
        assert receipt.json()["id"] == answer["id"] and receipt.json()["object"] == "feedback"
    (feedback,) = read_feedback(tmp_path).values()
    assert feedback.id == answer["dragoman"]["trace_id"] == parts.episodes[0].key
    assert (feedback.rating, feedback.answer) == ("down", "Salt Harbour< |im_end|>")  # no control token of a template
    assert (feedback.passages, feedback.comment, feedback.by) == (["salt"], "wrong", None)
    assert parts.metric("dragoman_feedback_total", rating="down") == 1
    assert stat.S_IMODE((tmp_path / "feedback.jsonl").stat().st_mode) == 0o600


async def test_the_same_twice_is_one_and_a_later_one_takes_the_place_of_the_earlier(tmp_path):
    async with Parts(feedback=tmp_path).client() as client:
        trace_id = (await ask(client)).json()["dragoman"]["trace_id"]
        for rating in ("up", "up", "down", "down"):
            assert (await say(client, trace_id, rating=rating)).status_code == 200
    assert [row["rating"] for row in lines(tmp_path)] == ["up", "down"]
    assert read_feedback(tmp_path)[trace_id].rating == "down"


async def test_it_stays_one_after_a_restart_which_knows_the_answers_of_before(tmp_path):
    with episode_writer(tmp_path, MIB) as keep:
        parts = Parts(feedback=tmp_path)
        async with parts.client() as client:
            id = (await ask(client)).json()["id"]
            await say(client, id, rating="up")
        keep(parts.episodes[0])
    async with Parts(feedback=tmp_path).client() as client:
        assert (await say(client, id, rating="up")).status_code == 200
        assert (await say(client, "chatcmpl-other", rating="up")).status_code == 404
    assert len(lines(tmp_path)) == 1


async def test_what_nobody_was_given_is_no_answer_after_a_restart_either(tmp_path):
    with episode_writer(tmp_path, MIB) as keep:
        parts = Parts(proxies={"": Model(lambda *_: EngineFault("gone"))})
        async with parts.client() as client:
            id = (await ask(client)).json()["id"]
        for episode in parts.episodes:
            keep(episode)
    async with Parts(feedback=tmp_path).client() as client:
        assert (await say(client, f"{id}/c3po", rating="up")).status_code == 404
        assert (await say(client, id, rating="up")).status_code == 200


async def test_another_keys_answer_is_as_unknown_as_none(tmp_path):
    alice, bob = make_key(tmp_path / "keys", "alice"), make_key(tmp_path / "keys", "bob")
    parts = Parts(feedback=tmp_path / "kept", keys=Keys(tmp_path / "keys"))
    async with parts.client() as client:
        asked = {"model": "direct", "messages": [{"role": "user", "content": "What is the capital of Brisa?"}]}
        answer = await client.post("/v1/chat/completions", json=asked, headers={"Authorization": f"Bearer {alice}"})
        id = answer.json()["id"]
        others, unknown = await say(client, id, bob, rating="up"), await say(client, "chatcmpl-0", bob, rating="up")
        assert refusal(others) == refusal(unknown) == (404, "answer_not_found")
        assert others.json() == unknown.json()
        assert refusal(await say(client, id, rating="up")) == (401, "invalid_api_key")
        assert (await say(client, id, alice, rating="up")).status_code == 200
    assert parts.episodes[0].asked_by == "alice"
    assert read_feedback(tmp_path / "kept")[parts.episodes[0].key].by == "alice"


@pytest.mark.parametrize(
    ("said", "status", "code"),
    [
        ({}, 400, "empty_feedback"),
        ({"answer": "  ", "comment": "", "passages": []}, 400, "empty_feedback"),
        ({"passages": ["salt", "atlantis"]}, 400, "passage_not_found"),
        ({"rating": "sideways"}, 400, "invalid_request"),
        ({"thumb": "up"}, 400, "invalid_request"),
        ({"answer": "x" * 2001}, 400, "invalid_request"),
    ],
)
async def test_what_says_nothing_or_nothing_that_is_known_is_refused(tmp_path, said, status, code):
    async with Parts(feedback=tmp_path).client() as client:
        id = (await ask(client)).json()["id"]
        response = await say(client, id, **said)
    assert refusal(response) == (status, code)
    assert lines(tmp_path) == []
    if code == "passage_not_found":
        message = response.json()["error"]["message"]
        assert "atlantis" in message and "salt" not in message


async def test_an_endpoint_that_keeps_nothing_takes_none():
    async with Parts().client() as client:
        id = (await ask(client)).json()["id"]
        assert refusal(await say(client, id, rating="up")) == (404, "feedback_not_taken")


class Silent(Failing):
    async def missing(self, ids: list[str]) -> list[str]:
        raise RetrieverFault("gone")


async def test_passages_that_cannot_be_looked_up_are_not_taken_for_unknown(tmp_path):
    parts = Parts(feedback=tmp_path, retriever=Silent(RetrieverFault("gone")))
    async with parts.client() as client:
        id = (await ask(client, model="direct")).json()["id"]
        assert refusal(await say(client, id, passages=["salt"])) == (503, "retriever_unavailable")
        assert (await say(client, id, rating="up")).status_code == 200


async def test_feedback_that_the_disk_does_not_take_is_refused_and_may_come_again(tmp_path, monkeypatch):
    async with Parts(feedback=tmp_path).client() as client:
        id = (await ask(client)).json()["id"]
        with monkeypatch.context() as full:

            def refuse(self: KeptLines, row: dict[str, Any]) -> None:
                raise OSError(28, "No space left on device")

            full.setattr(KeptLines, "append", refuse)
            assert refusal(await say(client, id, rating="up")) == (503, "feedback_not_kept")
        assert (await say(client, id, rating="up")).status_code == 200
    assert len(lines(tmp_path)) == 1


async def test_both_episodes_of_a_degraded_answer_are_of_who_asked(tmp_path):
    parts = Parts(feedback=tmp_path, proxies={"": Model(lambda *_: EngineFault("gone"))})
    async with parts.client() as client:
        answer = (await ask(client)).json()
        assert answer["dragoman"]["degraded"] and (await say(client, answer["id"], rating="up")).status_code == 200
    key = answer["id"].removeprefix("chatcmpl-")
    assert [episode.key for episode in parts.episodes] == [f"{key}/c3po", key]


def test_a_torn_line_does_not_spoil_the_next_and_a_full_file_is_put_aside(tmp_path):
    (tmp_path / "feedback.jsonl").write_text('{"id": "torn')
    said = [Feedback(id=str(number), rating="up", at=0.0) for number in range(7)]
    book = FeedbackBook(tmp_path, most_bytes=2 * len(said[0].model_dump_json()) + 20)
    for feedback in said:
        book.answered(feedback.id, None)
        book._keep(feedback)
    book.close()
    assert {path.name for path in tmp_path.iterdir()} == {"feedback.jsonl", "feedback.1.jsonl"}
    assert list(read_feedback(tmp_path)) == ["4", "5", "6"]


def test_a_file_that_is_no_feedback_is_named_by_line(tmp_path):
    (tmp_path / "feedback.jsonl").write_text('{"id": "a", "at": 1}\n{"id": "b"}\n')
    with pytest.raises(UserError, match=r"feedback\.jsonl:2: not feedback \(at: Field required\)"):
        FeedbackBook(tmp_path, MIB)
    (tmp_path / "feedback.jsonl").write_text("[]\n")
    with pytest.raises(UserError, match=r"feedback\.jsonl:1: not a JSON object"):
        read_feedback(tmp_path)


def test_of_very_many_answers_the_latest_are_known(tmp_path, monkeypatch):
    monkeypatch.setattr("dragoman.serving.feedback.MOST_KNOWN", 2)
    book = FeedbackBook(tmp_path, MIB)
    for key in "abc":
        book.answered(key, None)
        book._keep(Feedback(id=key, rating="up", at=0.0))
    assert list(book._askers) == list(book._kept) == ["b", "c"]
    book.close()


async def test_with_traces_the_question_and_what_is_said_of_its_answer_are_in_mlflow(tmp_path, empty_store):
    import mlflow

    from dragoman import tracking

    store = shutil.copytree(empty_store, tmp_path / "mlruns")
    parts = Parts()
    async with parts.client() as client:
        await ask(client)
    (episode,) = parts.episodes
    with trace_writer(store) as write:
        write(episode)
        write(Feedback(id=episode.key, by="alice", rating="up", at=0.0))
    tracking.start(store)
    (trace,) = mlflow.search_traces(locations=[tracking.store.experiment_of(store)], return_type="list")
    assert trace.info.tags["episode"] == episode.key
    assert [(a.name, a.feedback.value) for a in trace.info.assessments] == [("rating", True)]


def test_traces_that_cannot_be_written_cost_nobody_anything(tmp_path, monkeypatch, caplog):
    def away(folder: Path) -> None:
        raise ConnectionError("no server")

    monkeypatch.setattr("dragoman.serving.traces.tracking.start", away)
    with trace_writer(tmp_path) as write:
        for number in range(3):
            write(Feedback(id=str(number), rating="up", at=0.0))
    assert caplog.text.count("cannot write (no server)") == 1

"""What a key has asked before: what of it is shown, to whom, and what is gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving_parts import PASSAGES, QUESTION, Model, Parts, answering, chat

from dragoman.core.errors import EngineFault, UserError
from dragoman.core.keys import Keys, make_key
from dragoman.registry.versions import Registry
from dragoman.rollout.record import Call, Episode, Marked, Node, Trajectory
from dragoman.serving.episodes import KeptEpisode
from dragoman.serving.metrics import Metrics
from dragoman.serving.past import PastEpisodes
from dragoman.serving.past_steps import past_steps, phases, usage
from dragoman.serving.run import _keepers
from dragoman.serving.settings import ServeParams
from dragoman.systems.base import StopReason

LOCAL = {"host": "localhost:8200"}


@asynccontextmanager
async def asking(parts: Parts) -> AsyncIterator[httpx.AsyncClient]:
    """A client on the endpoint's machine."""
    async with parts.client() as client:
        client.headers.update(LOCAL)
        yield client


async def ask(client: httpx.AsyncClient, question: str = QUESTION, key: str | None = None, model: str = "c3po") -> str:
    """The id of an answer, once its episode is on the disk."""
    answer = await client.post("/v1/chat/completions", json=chat(question, model), headers=bearer(key))
    assert answer.status_code == 200, answer.text
    id: str = answer.json()["id"]
    async with asyncio.timeout(300):
        while (await past(client, f"/{id}", key)).status_code != 200:
            await asyncio.sleep(0.01)
    return id


async def past(client: httpx.AsyncClient, rest: str = "", key: str | None = None) -> httpx.Response:
    return await client.get(f"/v1/episodes{rest}", headers=bearer(key))


async def listed(client: httpx.AsyncClient, rest: str = "", key: str | None = None) -> tuple[list[str], bool]:
    page = (await past(client, rest, key)).json()
    assert page["object"] == "list"
    return [row["id"] for row in page["data"]], page["has_more"]


def bearer(key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def refusal(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


async def test_past_questions_are_listed_newest_first_with_what_tells_them_apart(tmp_path):
    async with asking(Parts(past=tmp_path)) as client:
        ids = [await ask(client), await ask(client, "And of Jorvik?", model="standard")]
        page = (await past(client)).json()
    assert [row["id"] for row in page["data"]] == ids[::-1] and page["has_more"] is False
    newest, oldest = page["data"]
    assert (newest["question"], newest["model"], newest["policy"]) == ("And of Jorvik?", "standard", None)
    assert (oldest["question"], oldest["model"], oldest["policy"]) == (QUESTION, "c3po", "base")
    assert oldest["object"] == "episode" and 0 < oldest["created"] <= newest["created"] and oldest["seconds"] >= 0


async def test_an_opened_one_has_its_decisions_with_what_each_led_to(tmp_path):
    parts = Parts(past=tmp_path)
    async with asking(parts) as client:
        id = await ask(client)
        found = (await past(client, f"/{id}")).json()
        assert (await past(client, f"/{id.removeprefix('chatcmpl-')}")).json() == found
    assert (found["answer"], found["stop"], found["decisions"]) == ("Port Salt", "answered", 2)
    assert found["passages"] == ["brisa"] and found["feedback"] is None
    router, chosen = found["steps"]
    assert (router["kind"], router["name"], router["number"], router["rests_on"]) == ("decision", "router", 1, [])
    assert router["action"]["type"] == "Search" and router["options"] is None
    (search,) = router["steps"]
    assert (search["kind"], search["number"], search["query"]) == ("search", 2, "capital of Brisa")
    assert search["passages"][0] == "brisa" and search["steps"] == []
    assert (chosen["name"], chosen["number"], chosen["rests_on"]) == ("filter", 3, [1])
    (answer,) = chosen["steps"]
    assert (answer["kind"], answer["name"], answer["text"]) == ("llm", "answer", "Port Salt")
    steps = [router, search, chosen, answer]
    assert found["usage"]["prompt_tokens"] == sum(step["prompt_tokens"] for step in steps) > 0
    assert found["usage"]["total_tokens"] == parts.episodes[0].tokens
    assert set(found["phases"]) == {"proxy", "search", "llm"}


async def test_prompts_fingerprints_and_errors_are_not_told(tmp_path):
    parts = Parts(past=tmp_path)
    async with asking(parts) as client:
        text = (await past(client, f"/{await ask(client)}")).text
    (call,) = (call for call in parts.episodes[0].calls if call.kind == "ask")
    assert any(PASSAGES[0].text in message for _, message in call.input)  # between marks that no passage may know
    assert PASSAGES[0].text not in text
    assert parts.episodes[0].config["llm"] not in text and "error" not in json.loads(text)


async def test_a_key_sees_its_own_alone_and_others_are_as_unknown_as_none(tmp_path):
    alice, bob = make_key(tmp_path / "keys", "alice"), make_key(tmp_path / "keys", "bob")
    parts = Parts(past=tmp_path / "kept", keys=Keys(tmp_path / "keys"))
    async with parts.client() as client:
        client.headers["host"] = "rag.example"  # any name will do: a key tells who asks
        of_alice, of_bob = await ask(client, key=alice), await ask(client, "And of Jorvik?", key=bob)
        assert await listed(client, key=alice) == ([of_alice], False)
        assert await listed(client, key=bob) == ([of_bob], False)
        others, unknown = await past(client, f"/{of_alice}", bob), await past(client, "/chatcmpl-0", bob)
        assert refusal(others) == (404, "episode_not_found") and others.json() == unknown.json()
        assert refusal(await past(client, f"?after={of_alice}", bob)) == (404, "episode_not_found")
        for rest in ("", f"/{of_alice}"):
            assert refusal(await past(client, rest)) == (401, "invalid_api_key")


async def test_pages_are_bounded_and_go_on_after_the_last_one(tmp_path):
    async with asking(Parts(past=tmp_path)) as client:
        ids = [await ask(client, f"Question {number}?", model="direct") for number in range(5)][::-1]
        assert await listed(client, "?limit=2") == (ids[:2], True)
        assert await listed(client, f"?limit=2&after={ids[1]}") == (ids[2:4], True)
        assert await listed(client, f"?limit=2&after={ids[3]}") == (ids[4:], False)
        assert await listed(client, f"?after={ids[4]}") == ([], False)
        for rest in ("?limit=0", "?limit=51", "?limit=many", f"?after={'x' * 101}", f"/{'x' * 101}"):
            assert refusal(await past(client, rest)) == (400, "invalid_request")
        assert refusal(await past(client, "?after=chatcmpl-0")) == (404, "episode_not_found")


@pytest.mark.parametrize("id", ["chatcmpl-", "nothing", "%00", "..%2F..%2Fkeys", "%F0%9F%92%A9"])
async def test_an_id_that_is_none_is_unknown(tmp_path, id):
    async with asking(Parts(past=tmp_path)) as client:
        await ask(client)
        assert (await past(client, f"/{id}")).status_code == 404


async def test_a_failed_proxys_episode_is_not_shown_but_the_answer_in_its_place(tmp_path):
    parts = Parts(past=tmp_path, proxies={"": Model(lambda *_: EngineFault("gone"))})
    async with asking(parts) as client:
        id = await ask(client)
        assert [episode.key for episode in parts.episodes] == [f"{id.removeprefix('chatcmpl-')}/c3po", id[9:]]
        page = (await past(client)).json()["data"]
        assert [(row["id"], row["model"]) for row in page] == [(id, "standard")]
        assert (await past(client, f"/{id}%2Fc3po")).status_code == 404


async def test_what_was_put_aside_is_shown_and_what_then_gave_way_is_gone(tmp_path):
    parts = Parts(past=tmp_path, most_bytes=1)  # a file an episode
    async with asking(parts) as client:
        first, second = await ask(client, model="direct"), await ask(client, "Second?", model="direct")
        assert await listed(client) == ([second, first], False)
        third = await ask(client, "Third?", model="direct")
        assert await listed(client) == ([third, second], False)
        assert refusal(await past(client, f"/{first}")) == (404, "episode_not_found")
        assert (await past(client, f"/{second}")).json()["question"] == "Second?"


async def test_what_somebody_has_purged_from_the_disk_is_gone_at_once(tmp_path):
    async with asking(Parts(past=tmp_path)) as client:
        first, second = await ask(client, model="direct"), await ask(client, "Second?", model="direct")
        path = tmp_path / "episodes.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b" " * (len(lines[0]) - 1) + b"\n" + lines[1])
        assert await listed(client) == ([second], False)
        path.write_bytes(lines[1] + lines[0])  # another line is where it was
        assert refusal(await past(client, f"/{first}")) == (404, "episode_not_found")
        path.unlink()
        assert await listed(client) == ([], False)
        assert refusal(await past(client, f"/{second}")) == (404, "episode_not_found")


async def test_after_a_restart_they_are_still_shown_half_a_line_is_not(tmp_path):
    async with asking(Parts(past=tmp_path, most_bytes=1)) as client:
        ids = [await ask(client, f"Question {number}?", model="direct") for number in range(2)]
    with (tmp_path / "episodes.jsonl").open("ab") as file:
        file.write(b'{"schema_version":1,"key":"torn","asked_by":null,')
    async with asking(Parts(past=tmp_path)) as client:
        assert await listed(client) == (ids[::-1], False)
        assert (await past(client, f"/{ids[0]}")).json()["question"] == "Question 0?"
        ids.append(await ask(client, "Question 2?", model="direct"))
        assert await listed(client) == (ids[::-1], False)


def test_a_file_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    (tmp_path / "episodes.jsonl").write_text("{}\n")

    def refuse(file: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("dragoman.serving.past.kept_episodes", refuse)
    with pytest.raises(UserError, match=r"serve\.episodes: .*episodes\.jsonl: cannot read \(Permission denied\)"):
        PastEpisodes(tmp_path)


async def test_of_very_many_answers_of_a_key_the_latest_are_known_and_all_of_another(tmp_path, monkeypatch):
    monkeypatch.setattr("dragoman.serving.past.MOST_LISTED", 2)
    known = PastEpisodes(tmp_path)
    for number, by in enumerate(["bob", *["alice"] * 3]):
        known.written(KeptEpisode(str(number), by, number, 1))
    assert list(known._of["alice"]) == ["2", "3"] and list(known._of["bob"]) == ["0"]
    assert (await known.page("carol", 20)).data == [] and "carol" not in known._of


@pytest.mark.parametrize("host", ["rag.example", "10.0.0.7:8200"])
async def test_without_keys_another_name_than_this_machines_is_shown_nothing(tmp_path, host):
    async with asking(Parts(past=tmp_path, settings={"hosts": ("rag.example",)})) as client:
        id = await ask(client)
        for local in ("127.0.0.1", "LOCALHOST:8200", "[::1]:8200"):
            assert (await client.get("/v1/episodes", headers={"host": local})).status_code == 200
        for rest in ("", f"/{id}"):
            response = await client.get(f"/v1/episodes{rest}", headers={"host": host})
            assert refusal(response) == (404, "episodes_not_shown")


async def test_without_keys_another_machine_is_shown_nothing(tmp_path):
    async with Parts(past=tmp_path).app() as app:
        transport = httpx.ASGITransport(app=app, client=("10.0.0.7", 4711))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            assert refusal(await past(client)) == (404, "episodes_not_shown")


@pytest.mark.parametrize("shown", [True, False])
async def test_the_settings_say_whether_what_is_kept_is_shown(tmp_path, shown):
    settings = ServeParams(models=("standard",), episodes=str(tmp_path), past=shown)
    with ExitStack() as kept:
        (write,), _, known = _keepers(settings, Registry(), Metrics(), None, kept)
        write(episode(node("plan", None)))
    assert (known is not None) == shown
    if known is not None:
        assert [row.model for row in (await known.page(None, 20)).data] == ["c3po"]


async def test_an_endpoint_that_keeps_none_shows_none():
    async with asking(Parts()) as client:
        for rest in ("", "/chatcmpl-0"):
            assert refusal(await past(client, rest)) == (404, "episodes_not_shown")


async def test_what_was_said_of_an_answer_is_shown_with_it(tmp_path):
    async with asking(Parts(past=tmp_path, feedback=tmp_path)) as client:
        id = await ask(client)
        said = {"rating": "down", "answer": "Salt Harbour", "passages": ["salt"], "comment": None}
        for rating in ("up", "down"):
            assert (await client.post("/v1/feedback", json={**said, "id": id, "rating": rating})).status_code == 200
        assert (await past(client, f"/{id}")).json()["feedback"] == said


async def test_those_who_look_wait_for_each_other_and_not_for_ever(tmp_path, monkeypatch):
    async with asking(Parts(past=tmp_path)) as client:
        await ask(client, model="direct")
        going = asyncio.Event()
        monkeypatch.setattr("dragoman.serving.past.asyncio.to_thread", lambda *_: going.wait())
        looking = [asyncio.create_task(past(client)) for _ in range(2 + 16 + 1)]
        done, _ = await asyncio.wait(looking, return_when=asyncio.FIRST_COMPLETED, timeout=300)
        (refused,) = (task.result() for task in done)
        assert refusal(refused) == (429, "queue_full") and int(refused.headers["retry-after"]) >= 1
        assert "past questions" in refused.json()["error"]["message"]
        for task in looking:
            task.cancel()
        await asyncio.gather(*looking, return_exceptions=True)


async def test_an_episode_of_another_version_is_no_error(tmp_path, caplog):
    async with asking(Parts(past=tmp_path)) as client:
        id = await ask(client, model="direct")
        path = tmp_path / "episodes.jsonl"
        line = path.read_bytes()
        for field, other in ((b'"trajectories"', b'"trajectorIes"'), (b'"question":"', b'"questIon":"')):
            path.write_bytes(line.replace(field, other))
            assert refusal(await past(client, f"/{id}")) == (404, "episode_not_found")
        assert await listed(client) == ([], False)
    assert caplog.messages.count("a kept episode cannot be read by this version") == 2 and QUESTION not in caplog.text


async def test_markup_and_quotes_in_a_question_come_back_as_they_were(tmp_path):
    hostile = '<script>alert(1)</script> ","nodes":[ \\ \u2028 <b>&amp;'
    async with asking(Parts(past=tmp_path, llm=Model(answering))) as client:
        id = await ask(client, hostile)
        page, found = await past(client), (await past(client, f"/{id}")).json()
        assert page.headers["content-type"] == "application/json"
        assert page.json()["data"][0]["question"] == hostile == found["question"]


async def test_the_description_of_the_api_has_both_routes():
    async with Parts().client() as client:
        described = (await client.get("/openapi.json")).json()
    for path in ("/v1/episodes", "/v1/episodes/{id}"):
        assert set(described["paths"][path]["get"]["responses"]) >= {"200", "400", "401", "404", "429"}
        assert described["paths"][path]["get"]["security"]


def node(id: str, parent: str | None, *joins: str, started: float = 0.0, **more: Any) -> Node:
    fields = {"point": id, "role": id, "depth": 1, "prompt": [], "prompt_ids": [], "completion_ids": [], "logprobs": []}
    counts = {"prompt_tokens": 10, "completion_tokens": 1, "temperature": 0.0, "seconds": 1.0, "started": started}
    return Node(id=id, parent=parent, joins=list(joins), text=id, action=id, **{**fields, **counts, **more})


def search(id: str, started: float = 0.0) -> Call:
    asked = {"query": id, "k": 2, "page": 0}
    return Call(id=id, kind="search", name="search", input=asked, output=["p"], started=started, seconds=0.5)


def episode(*steps: Node | Call) -> Episode:
    nodes = {step.id: step for step in steps if isinstance(step, Node)}
    calls = {step.id: step for step in steps if isinstance(step, Call)}
    end = Trajectory(nodes=list(nodes), steps=[s.id for s in steps], answer="", passages=[], stop=StopReason.ANSWERED)
    made = {"nodes": list(nodes.values()), "calls": list(calls.values()), "trajectories": [end]}
    return Episode(key="1", question={"question": "?"}, system="c3po", config={}, started=0, seconds=0, **made)


def outline(steps: list[Any]) -> list[Any]:
    """Each step's name, in a pair with what hangs below it where something does."""
    return [(step.text, outline(step.steps)) if step.steps else step.text or step.query for step in steps]


def test_branches_that_ran_at_once_hang_below_the_decision_they_began_at():
    grown = episode(
        node("plan", None),
        search("a", 2),
        node("worker a", "plan", started=3),
        search("more a", 4.1),
        node("again a", "worker a", started=5),
        search("b", 2),
        node("worker b", "plan", started=3),
        node("plan again", "plan", "again a", "worker b", started=7),
        search("last", 8),
    )
    steps = past_steps(grown)
    assert outline(steps) == [
        ("plan", ["a", ("worker a", ["more a", "again a"]), "b", "worker b"]),
        ("plan again", ["last"]),
    ]
    assert steps[1].rests_on == [5, 7] and steps[0].steps[1].steps[1].rests_on == [3]


def test_an_answer_right_after_branches_hangs_below_none_of_them():
    ends = search("answer", 9)
    grown = episode(
        node("plan", None), node("a", "plan"), search("of a", 5), node("b", "plan"), search("of b", 6), ends
    )
    assert outline(past_steps(grown)) == [("plan", [("a", ["of a"]), ("b", ["of b"])]), "answer"]


def test_one_branch_alone_and_calls_before_any_decision_make_a_plain_list():
    assert outline(past_steps(episode(search("a"), node("one", None), node("two", "one"), search("b")))) == [
        "a",
        "one",
        ("two", ["b"]),
    ]
    assert outline(past_steps(episode(search("a"), search("b")))) == ["a", "b"]


def test_a_call_that_two_branches_share_stands_in_both_and_counts_once():
    shared = search("shared")
    grown = episode(node("plan", None), shared, node("a", "plan", started=2), shared, node("b", "plan", started=2))
    assert outline(past_steps(grown)) == [("plan", ["shared", "a", "shared", "b"])]
    assert phases(grown) == {"proxy": 3.0, "search": 0.5}
    assert usage(grown).total_tokens == 33


def test_options_are_shown_with_what_was_taken_and_how_likely_each_was():
    marked = Marked(options=["<b>one</b>", "x" * 400], many=True, taken=[1], logits=[0.0, float("-inf")])
    (step,) = past_steps(episode(node("filter", None, marked=marked)))
    assert [option.taken for option in step.options] == [False, True]
    assert step.options[0].text == "<b>one</b>" and len(step.options[1].text) == 300
    oracle = marked.model_copy(update={"logits": []})
    (step,) = past_steps(episode(node("filter", None, marked=oracle)))
    assert [option.probability for option in step.options] == [None, None]


@pytest.mark.parametrize("logits", [[0.0, -1000.0], [float("nan"), 0.0], [float("inf"), 0.0]])
def test_logits_that_no_number_comes_of_are_no_error(logits):
    for many in (True, False):
        marked = Marked(options=["a", "b"], many=many, taken=[], logits=logits)
        (step,) = past_steps(episode(node("filter", None, marked=marked)))
        assert all(option.probability is None or 0 <= option.probability <= 1 for option in step.options)
        assert json.dumps(step.model_dump(), allow_nan=False)

"""A challenger on trial: who is asked what, what nobody must notice, and when a canary is taken back."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import time
from contextlib import nullcontext

import httpx
import pytest
from policies import rolled_back, trained
from serving_parts import QUESTION, Model, Parts, Registry, answering, ask, eventually, searching

from dragoman.core.errors import EngineFault, UserError
from dragoman.core.settings import parse_section
from dragoman.registry.versions import MODEL as MODEL_NAME
from dragoman.registry.versions import Registry as Versions
from dragoman.rollout.feedback import Feedback
from dragoman.serving.conversation import Conversation
from dragoman.serving.metrics import Metrics
from dragoman.serving.request import ServedRequest
from dragoman.serving.run import _recorder, _trial
from dragoman.serving.settings import ServeParams
from dragoman.serving.trial import RECENT, Trial, Watched
from dragoman.tracking.store import client_of

MODEL = "c3po@champion"


def parts_with(kind: str, challenger: Model, *, share: float = 1.0, champion: Model | None = None, **more) -> Parts:
    proxies = {"v1": champion or Model(searching), "v7": challenger}
    trial = {"kind": kind, "share": share}
    return Parts(proxies=proxies, champion=Registry("v1"), models=(MODEL, "standard"), trial=trial, **more)


def searching_for(query: str):
    """A proxy that keeps what another query finds."""
    return lambda prompt, random: "Action: [1]" if "Write Action:" in prompt else f"[Retrieval] {query}"


def reading(prompt: str, random) -> str:
    """An LLM that says what the passage says."""
    return "Woolton" if "capital of Jorvik" in prompt else answering(prompt, random)


async def say(client: httpx.AsyncClient, id: str, **said) -> None:
    assert (await client.post("/v1/feedback", json={"id": id, **said})).status_code == 200


def used_to(trial: Trial, seconds: float) -> None:
    """The champion's latest answers took so long."""
    for _ in range(RECENT):
        trial._answered("champion", Watched(), seconds)


async def policy(client: httpx.AsyncClient, question: str = QUESTION, **more) -> str | None:
    response = await ask(client, question, MODEL, **more)
    assert response.status_code == 200
    return response.json()["dragoman"]["policy"]


def trial(kind: str = "canary", **more) -> Trial:
    fields = {"champion": MODEL, "challenger": "c3po@v7", "share": 0.1, "once_in": 10_000, "metrics": Metrics(), **more}
    return Trial(kind, **fields)


async def test_the_champion_answers_and_its_shadow_is_asked_the_same():
    parts = parts_with("shadow", Model(searching_for("capital of Jorvik")), llm=Model(reading))
    async with parts.client() as client:
        assert await policy(client) == "v1"
        await eventually(lambda: parts.service.trial.arms["challenger"].answers == 1)
        assert "v7" not in (await client.get("/v1/models")).text
        text = (await client.get("/metrics")).text
    first, second = parts.episodes
    assert (second.key, second.system) == (f"{first.key}/c3po@v7", "c3po@v7")
    assert second.question["question"] == QUESTION and second.config["policy"] == "v7"
    assert 'dragoman_trial_agreement_total{agrees="no"} 1.0' in text
    assert 'dragoman_trial_answers_total{arm="challenger",outcome="served"} 1.0' in text
    shown = parts.shown[-1]
    assert (shown["compared"], shown["agreed"], shown["rolled_back"]) == (1, 0, "")
    assert parts.proxies["v7"].closed == 1


@pytest.mark.parametrize("broken", [Model(lambda *_: EngineFault("gone")), Model(searching, seconds=600)])
async def test_a_shadow_that_fails_or_hangs_is_noticed_by_nobody(broken):
    parts = parts_with("shadow", broken, settings={"deadline_s": 300, "shadows": 1})
    async with parts.client() as client:
        for _ in range(2):
            assert await policy(client) == "v1"
        champion, challenger = parts.service.trial.arms.values()
        await eventually(lambda: broken.running if broken.seconds else challenger.failed)
        assert not (broken.seconds and challenger.failed), "nobody waits for as long as a shadow may take"
        assert (await client.get("/readyz")).status_code == 200
        assert champion.failed == 0
    assert not broken.running


async def test_a_shadow_that_hangs_has_failed_when_its_time_is_over():
    parts = parts_with("shadow", Model(searching, seconds=600), settings={"deadline_s": 2})
    async with parts.client() as client, asyncio.timeout(300):
        challenger = parts.service.trial.arms["challenger"]
        while not challenger.failed:
            await ask(client, model=MODEL)  # again, since a champion that was late as well has no shadow
            await asyncio.sleep(0.05)
    assert challenger.answers == challenger.failed


async def test_shadows_are_bounded_and_end_with_the_service():
    slow = Model(searching, seconds=60)
    parts = parts_with("shadow", slow, settings={"shadows": 2, "deadline_s": 30})
    async with parts.client() as client:
        for _ in range(5):
            await ask(client, model=MODEL)
        await eventually(lambda: slow.running == 2)
        assert parts.service.trial.skipped == 3 == parts.metric("dragoman_trial_skipped_total")
    assert slow.abandoned == 2 and slow.closed == 1
    assert parts.shown[-1]["skipped"] == 3


async def test_feedback_on_the_champion_is_feedback_on_its_shadow_where_it_says_what_is_right(tmp_path):
    parts = parts_with("shadow", Model(searching_for("capital of Jorvik")), llm=Model(reading), feedback=tmp_path)
    async with parts.client() as client:
        for said in ({"rating": "up"}, {"rating": "down"}, {"rating": "down", "answer": "Woolton"}, {"comment": "?"}):
            before = parts.service.trial.compared
            id = (await ask(client, model=MODEL)).json()["id"]
            await eventually(lambda before=before: parts.service.trial.compared > before)
            await say(client, id, **said)
    arms = parts.service.trial.arms
    assert (arms["champion"].up, arms["champion"].down) == (1, 2)
    assert (arms["challenger"].up, arms["challenger"].down) == (1, 1)  # of one that was wrong alone, nothing is known


async def test_a_canary_answers_its_share_and_a_user_stays_with_it():
    parts = parts_with("canary", Model(searching), share=0.3)
    async with parts.client() as client:
        of = {name: {await policy(client, user=name) for _ in range(2)} for name in map(str, range(60))}
        assert all(len(policies) == 1 for policies in of.values())
        assert 8 <= sum(policies == {"v7"} for policies in of.values()) <= 28
        assert parts.metric("dragoman_canary_share") == 0.3
        assert (await ask(client, model="standard")).json()["dragoman"]["policy"] is None
    assert {episode.system for episode in parts.episodes} == {MODEL, "c3po@v7", "standard"}


async def test_a_canary_that_fails_is_taken_back_at_once_and_no_request_fails():
    parts = parts_with("canary", Model(lambda *_: EngineFault("gone")), share=0.5)
    async with parts.client() as client:
        for number in range(40):
            assert (await ask(client, f"What is number {number}?", MODEL)).status_code == 200
        assert parts.service.trial.ended == "errors"
        failed = parts.service.trial.arms["challenger"].failed
        assert 3 <= failed <= 6
        assert {await policy(client, f"What is number {number}?") for number in range(40)} == {"v1"}
        assert parts.service.trial.arms["challenger"].answers == failed, "it is not asked again"
    assert parts.metric("dragoman_canary_rollbacks_total", reason="errors") == 1
    assert parts.metric("dragoman_canary_share") == 0
    assert parts.shown[0]["rolled_back"] == "errors", "it is written down when it happens"


async def test_a_canary_that_is_taken_back_is_asked_nothing_that_waits_in_the_queue():
    broken = Model(lambda *_: EngineFault("gone"))
    parts = parts_with("canary", broken, share=0.5, settings={"concurrency": 1, "deadline_s": 60})
    async with parts.client() as client:
        answers = await asyncio.gather(*(ask(client, f"What is number {n}?", MODEL) for n in range(60)))
    assert {answer.status_code for answer in answers} == {200}
    assert parts.service.trial.ended == "errors" and parts.service.trial.arms["challenger"].answers <= 6


async def test_what_the_queue_has_eaten_is_no_failure_of_either_model():
    slow = {"seconds": 0.05}
    parts = parts_with(
        "canary",
        Model(searching, **slow),
        champion=Model(searching, **slow),
        share=0.5,
        settings={"concurrency": 1, "deadline_s": 30, "proxy_share": 0.02},
    )
    async with parts.client() as client:
        answers = await asyncio.gather(*(ask(client, f"What is number {n}?", MODEL) for n in range(30)))
    late = [answer.json()["dragoman"] for answer in answers if answer.json()["dragoman"]["seconds"]["queue"] > 0.3]
    counted = sum(arm.answers for arm in parts.service.trial.arms.values())
    assert late and counted == len(answers) - len(late) and parts.service.trial.ended == ""


async def test_a_canary_that_hangs_is_taken_back_before_its_answers_have_ended():
    parts = parts_with("canary", Model(searching, seconds=60), share=0.5, settings={"deadline_s": 30})
    async with parts.client() as client:
        used_to(parts.service.trial, 0.5)
        started = time.monotonic()
        asked = [asyncio.create_task(ask(client, f"What is number {n}?", MODEL)) for n in range(30)]
        await eventually(lambda: parts.service.trial.ended == "latency")
        assert time.monotonic() - started < 15, "after 18 s, a share of the deadline, it would have ended"
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def test_an_llm_that_hangs_for_both_takes_no_canary_back():
    parts = parts_with("canary", Model(searching), share=0.2, llm=Model(answering, seconds=60))
    parts.settings = {"deadline_s": 1.5}
    async with parts.client() as client:
        used_to(parts.service.trial, 0.2)
        assert sum(parts.service.trial.chooses(f"None user {n}") for n in range(30)) == 6
        for _ in range(2):
            asked = await asyncio.gather(*(ask(client, model=MODEL, user=f"user {n}") for n in range(30)))
            assert {response.status_code for response in asked} == {504}
        assert parts.service.trial.ended == ""
        assert parts.service.trial.limit == 0.2, "what has not come to an end is no measure any more"


async def test_what_standard_rag_answers_while_there_is_no_champion_is_no_measure_of_a_canary():
    parts = parts_with("canary", Model(searching), share=0.5)
    parts.champion.folder = None
    async with parts.client() as client:
        for number in range(20):
            await policy(client, f"What is number {number}?")
        champion, challenger = parts.service.trial.arms.values()
        assert champion.answers == 0 < challenger.answers


async def test_what_fails_for_both_takes_no_canary_back():
    parts = parts_with("canary", Model(searching), share=0.5, llm=Model(lambda *_: EngineFault("no LLM")))
    async with parts.client() as client:
        for number in range(40):
            assert (await ask(client, f"What is number {number}?", MODEL)).status_code == 503
        assert parts.service.trial.ended == ""


async def test_an_llm_that_fails_late_takes_no_canary_back_where_questions_come_one_by_one():
    parts = parts_with("canary", Model(searching), share=0.5, llm=Model(lambda *_: EngineFault("gone"), seconds=0.05))
    async with parts.client() as client:
        used_to(parts.service.trial, 0.01)
        for number in range(40):
            assert (await ask(client, f"What is number {number}?", MODEL)).status_code == 503
        assert parts.service.trial.ended == ""


def test_a_failure_of_both_that_begins_at_once_takes_hardly_any_canary_back():
    def taken_back(seed: int, share: float) -> bool:
        rng, one = random.Random(seed), trial()
        for _ in range(200):
            one._answered("champion", Watched(), 1.0)
        for _ in range(300):
            one._answered("challenger" if rng.random() < share else "champion", Watched(failed=True), 1.0)
        return one.ended == "errors"

    assert sum(taken_back(seed, 0.1) for seed in range(100)) <= 2


def test_what_took_long_while_a_part_of_both_failed_is_not_slow_when_it_ends():
    one = trial()
    used_to(one, 0.5)
    one.excused = lambda: True
    for _ in range(20):
        watched = Watched()
        one._hangs("challenger", watched, one.limit)
        one._answered("challenger", watched, 60.0)
    assert one.ended == ""


async def test_a_question_that_fails_for_both_and_is_asked_again_and_again_takes_no_canary_back():
    def stubborn(prompt: str, random) -> str:
        return "nonsense" if "Atlantis" in prompt else searching(prompt, random)

    parts = parts_with("canary", Model(stubborn), share=0.1, champion=Model(stubborn))
    async with parts.client() as client:
        for _ in range(100):
            await ask(client, "What is the capital of Atlantis?", MODEL)
        champion, challenger = parts.service.trial.arms.values()
        assert champion.failed > 0 < challenger.failed and parts.service.trial.ended == ""


async def test_what_is_asked_of_the_challenger_by_its_name_is_no_part_of_its_trial():
    broken = Model(lambda *_: EngineFault("gone"))
    parts = parts_with("canary", broken, share=0.1)
    parts.models = (MODEL, "c3po@v7", "standard")
    async with parts.client() as client:
        for _ in range(20):
            assert (await ask(client, model="c3po@v7")).json()["dragoman"]["degraded"] is not None
        assert parts.service.trial.arms["challenger"].answers == 0 and parts.service.trial.ended == ""


async def test_a_shadows_seconds_hold_the_call_that_rewrites_a_conversation():
    parts = parts_with("shadow", Model(searching), llm=Model(answering, seconds=0.2))
    turns = [{"role": "user", "content": "Tell me of Brisa."}, {"role": "assistant", "content": "It is far."}]
    async with parts.client() as client:
        asked = {"model": MODEL, "messages": [*turns, {"role": "user", "content": "What is its capital?"}]}
        assert (await client.post("/v1/chat/completions", json=asked)).status_code == 200
        await eventually(lambda: parts.service.trial.arms["challenger"].answers == 1)
        champion, challenger = parts.service.trial.arms.values()
        assert challenger.seconds > 0.35 < champion.seconds  # two calls of the LLM each


async def test_a_canary_that_is_promoted_is_no_canary_any_more():
    parts = parts_with("canary", Model(searching))
    parts.champion.folder = "v7"
    async with parts.client() as client:
        assert await policy(client) == "v7"
        assert parts.metric("dragoman_canary_share") == 0
    assert parts.episodes[0].system == MODEL


@pytest.mark.parametrize("kind", ["canary", "shadow"])
async def test_a_challenger_that_was_promoted_and_rolled_back_is_on_trial_no_more(kind):
    parts = parts_with(kind, Model(searching))
    parts.champion.folder, parts.proxies["v0"] = "v0", Model(searching)
    async with parts.client() as client:
        for champion in ("v7", "v1"):  # nobody asks anything meanwhile
            parts.champion.folder = champion
            await eventually(lambda now=champion: parts.service.models.version(MODEL) == now)
        assert await policy(client) == "v1"
    assert parts.shown[-1]["challenger"]["answers"] == 0


def test_a_version_that_was_rolled_back_is_no_canary_after_a_restart_but_a_shadow(tmp_path, empty_store, caplog):
    shutil.copytree(empty_store, tmp_path / "mlruns")
    versions = Versions(tmp_path / "mlruns", tmp_path / "results")
    for champion in (versions.register(trained(tmp_path, stage, stage.encode())) for stage in ("s1", "s2")):
        versions.promote(champion, versions.get("champion"))
    rolled_back(versions)
    assert _trial(ServeParams(models=(MODEL,), canary="v2"), versions, Metrics()) == (None, None)
    assert "v2 was rolled back 20" in caplog.text
    one, _ = _trial(ServeParams(models=(MODEL,), shadow="v2"), versions, Metrics())
    assert one is not None and not one.ended
    assert _trial(ServeParams(models=(MODEL,), canary="v1"), versions, Metrics()) == (None, None)
    assert "v1 was champion again 20" in caplog.text
    versions.decided(versions.find("v1"), "promoted 2026-01-02T00:00:00+0000 against c3po@v2")
    assert _trial(ServeParams(models=(MODEL,), canary="v1"), versions, Metrics()) == (None, None)
    assert "v1 was promoted 2026-01-02T00:00:00+0000 against c3po@v2, so it is no canary" in caplog.text


@pytest.mark.parametrize("kind", ["canary", "shadow"])
def test_an_endpoint_whose_challenger_was_promoted_starts_again_without_a_trial(tmp_path, empty_store, caplog, kind):
    shutil.copytree(empty_store, tmp_path / "mlruns")
    versions = Versions(tmp_path / "mlruns", tmp_path / "results")
    version = versions.register(trained(tmp_path, "s1", b"weights"))
    versions.challenge(version)
    settings = ServeParams(models=(MODEL,), **{kind: "challenger"})
    assert _trial(settings, versions, Metrics())[1] == versions.find("v1")
    versions.promote(version, None)
    assert _trial(settings, versions, Metrics()) == (None, None)
    assert "no version is the challenger now" in caplog.text
    with pytest.raises(UserError, match="'v99': no such version"):
        _trial(ServeParams(models=(MODEL,), **{kind: "v99"}), versions, Metrics())


def test_a_canary_that_was_taken_back_stays_so_over_restarts_and_other_replicas(tmp_path, empty_store):
    shutil.copytree(empty_store, tmp_path / "mlruns")
    versions = Versions(tmp_path / "mlruns", tmp_path / "results")
    version = versions.register(trained(tmp_path, "s1", b"weights"))
    settings = ServeParams(models=(MODEL,), canary="v1")
    first, _ = _trial(settings, versions, Metrics())
    assert first.ended == ""
    replica = first.shown
    with _recorder(versions, version, first) as record:
        first.record = record
        first._take_back("errors")
        record(replica)
    assert json.loads(versions.find("v1").trials["canary"])["rolled_back"] == "errors"
    again, _ = _trial(settings, versions, Metrics())
    assert again.ended == "errors"
    shadow, _ = _trial(ServeParams(models=(MODEL,), shadow="v1"), versions, Metrics())
    assert shadow.ended == ""


async def test_a_canary_that_one_endpoint_took_back_is_taken_back_by_the_others_when_they_write(tmp_path, empty_store):
    shutil.copytree(empty_store, tmp_path / "mlruns")
    versions = Versions(tmp_path / "mlruns", tmp_path / "results")
    version = versions.register(trained(tmp_path, "s1", b"weights"))
    (first, _), (other, _) = (_trial(ServeParams(models=(MODEL,), canary="v1"), versions, Metrics()) for _ in range(2))
    with _recorder(versions, version, first) as first.record:
        first._take_back("errors")
    with _recorder(versions, version, other) as other.record:
        other.write_down()
        await eventually(lambda: other.ended == "errors")
        client_of(versions.store).delete_model_version_tag(MODEL_NAME, "1", "trial.canary")
        other.write_down()
    assert "canary" not in versions.find("v1").trials, "whoever deletes it wants to try it again"


@pytest.mark.parametrize("restarted", [False, True])
def test_a_canary_whose_tag_was_deleted_to_try_it_again_is_not_taken_back_by_what_still_runs(
    tmp_path, empty_store, restarted
):
    shutil.copytree(empty_store, tmp_path / "mlruns")
    versions = Versions(tmp_path / "mlruns", tmp_path / "results")
    version = versions.register(trained(tmp_path, "s1", b"weights"))
    first, _ = _trial(ServeParams(models=(MODEL,), canary="v1"), versions, Metrics())
    first.ended = "errors"
    with _recorder(versions, version, first) as record:
        record(first.shown)
    with _recorder(versions, versions.find("v1"), first) if restarted else nullcontext(record) as running:
        client_of(versions.store).delete_model_version_tag(MODEL_NAME, "1", "trial.canary")
        running(first.shown)
    assert "canary" not in versions.find("v1").trials


def drawn(seed: int, answers: int, *, failing: float, slower: float) -> int | None:
    """After how many answers of a canary it is taken back, where the champion fails in 2% and answers in 1 s or so."""
    rng, one = random.Random(seed), trial()

    def answer(arm: str, failing: float, slower: float) -> None:
        seconds = slower * rng.lognormvariate(0, 0.5)
        one._answered(arm, Watched(failed=rng.random() < failing), seconds)

    for _ in range(100):
        answer("champion", 0.02, 1.0)
    for count in range(1, answers + 1):
        for _ in range(9):
            answer("champion", 0.02, 1.0)
        answer("challenger", failing, slower)
        if one.ended:
            return count
    return None


def test_a_canary_as_good_as_the_champion_stays_and_a_worse_one_is_found_soon():
    same = [drawn(seed, 300, failing=0.02, slower=1.0) for seed in range(8)]
    assert same.count(None) >= 7
    failing = [drawn(seed, 100, failing=0.5, slower=1.0) for seed in range(5)]
    slow = [drawn(seed, 100, failing=0.02, slower=3.0) for seed in range(5)]
    assert all(found is not None and found <= 40 for found in failing + slow)


def test_the_share_is_that_of_the_hash():
    one = trial(share=0.05)
    chosen = sum(one.chooses(f"user {number}") for number in range(4000))
    assert 150 <= chosen <= 250


def test_of_the_questions_under_one_key_it_is_asked_its_share_too():
    one = trial(share=0.05)
    asked = [ServedRequest(str(n), MODEL, Conversation(f"What is number {n}?"), owner="app") for n in range(4000)]
    assert 150 <= sum(one.chooses(request.who) for request in asked) <= 250


def test_what_is_said_later_of_an_answer_takes_the_place_of_what_was_said_before():
    one = trial("shadow")
    one.remember("k", {"champion": "Port Salt", "challenger": "Woolton"})
    figures = []
    for said in ({"rating": "up"}, {"answer": "Woolton"}, {"rating": "down"}, {"comment": "?"}, {"rating": "up"}):
        one.said(Feedback(id="k", at=0.0, **said))
        figures.append([(arm.up, arm.down) for arm in one.arms.values()])
    assert figures == [
        [(1, 0), (0, 1)],
        [(0, 1), (1, 0)],
        [(0, 1), (0, 0)],
        [(0, 0), (0, 0)],
        [(1, 0), (0, 1)],
    ]


def test_feedback_counts_once_and_only_on_what_was_tried():
    one = trial()
    one.remember("k", {"challenger": "Port Salt"})
    for id in ("k", "k", "other"):
        one.said(Feedback(id=id, rating="down", at=0.0))
    assert (one.arms["challenger"].down, one.arms["champion"].down) == (1, 0)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"shadow": "v7", "canary": "v8"}, "one trial at a time"),
        (
            {"models": ["c3po@champion", "mujica@champion"]},
            "the champion is a policy of one system; name one of c3po@ch",
        ),
        ({"shadow": "v7", "models": ["standard"]}, "names no system@champion"),
        ({"canary": "v7", "share": 0.6}, r"at most 0\.5 for a canary"),
    ],
)
def test_trials_that_make_no_sense_are_refused(settings, reason):
    with pytest.raises(UserError, match=reason):
        parse_section(ServeParams, settings, origin="test")

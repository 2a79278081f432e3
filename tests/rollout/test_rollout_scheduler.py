"""Many questions: what is done is kept, what is not is done, and nothing twice."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from fakes import ListRetriever, ScriptedEngine

from dragoman.core import files
from dragoman.core.errors import EngineFault, PromptTooLong, Refused, UserError
from dragoman.core.types import Passage, Question
from dragoman.engines.base import Request
from dragoman.engines.coalesce import CoalescingEngine
from dragoman.rewards import Reward
from dragoman.rollout.backends import Backends
from dragoman.rollout.exploration import Exploration
from dragoman.rollout.record import Episode
from dragoman.rollout.scheduler import episode_key, roll_out
from dragoman.rollout.store import EpisodeStore, read_episodes
from dragoman.systems import build
from dragoman.systems.direct import SYSTEM as DIRECT

QUESTIONS = [Question(f"q{i}", f"What is number {i}?", (f"answer {i}",)) for i in range(12)]


def backends(script=lambda prompt, rng: "answer " + prompt.split("number ")[-1].split("?")[0]) -> Backends:
    engine = ScriptedEngine(script)
    return Backends(llm=engine, proxy=engine, retriever=ListRetriever([Passage("p", "P", "number")]))


async def run(folder: Path, w: Backends, questions=QUESTIONS, name="standard", **kwargs) -> list[Episode]:
    with EpisodeStore(folder) as store:
        return await roll_out(questions, name, build(name), w, store, **kwargs)


async def test_episodes_come_in_the_order_of_the_questions_with_rewards(tmp_path):
    episodes = await run(tmp_path, backends(), reward=Reward.of("cover_em"))
    assert [e.question["id"] for e in episodes] == [q.id for q in QUESTIONS]
    assert all(e.trajectories[0].rewards["em"] == 1 for e in episodes)
    assert sorted(e.key for e in read_episodes(tmp_path / "episodes.jsonl")) == sorted(e.key for e in episodes)
    assert not (tmp_path / "calls.jsonl").exists()


async def test_a_second_run_calls_nothing(tmp_path):
    first = await run(tmp_path, backends())
    w = backends()
    assert await run(tmp_path, w) == first
    assert w.llm.requests == [] and w.retriever.queries == []


async def test_a_breadth_for_a_role_that_the_system_has_not_is_refused_before_anything_is_asked(tmp_path):
    asked = backends()
    with pytest.raises(UserError, match=r"exploration\.breadth_of: standard has no role 'answer'; choose from none"):
        await run(tmp_path, asked, exploration=Exploration(breadth_of={"answer": 2}))
    assert asked.llm.requests == []


async def test_another_configuration_is_another_episode(tmp_path):
    await run(tmp_path, backends())
    w = backends()
    await run(tmp_path, w, seed=1)
    assert len(w.llm.requests) == len(QUESTIONS)


def test_the_key_depends_on_question_and_configuration():
    keys = {episode_key(q, c) for q in QUESTIONS[:3] for c in ({"a": 1}, {"a": 2})}
    assert len(keys) == 6


async def test_a_fault_is_recorded_for_its_question_and_tried_again_next_time(tmp_path):
    def flaky(prompt, rng):
        return EngineFault("down") if "number 3?" in prompt else "fine"

    episodes = await run(tmp_path, backends(flaky))
    assert [e.faulty for e in episodes] == [q.id == "q3" for q in QUESTIONS]
    w = backends()
    again = await run(tmp_path, w)
    assert len(w.llm.requests) == 1 and not any(e.faulty for e in again)
    assert len(read_episodes(tmp_path / "episodes.jsonl")) == len(QUESTIONS)  # the last record of a key counts


async def test_of_a_question_that_met_a_fault_no_finished_call_is_made_again(tmp_path):
    def flaky(prompt, rng):
        return EngineFault("down") if "number 3?" in prompt else "fine"

    (_, _, _, faulty, *_) = await run(tmp_path, backends(flaky))
    assert [row["episode"] for _, row in files.read(tmp_path / "calls.jsonl")] == [faulty.key]
    w = backends()
    again = await run(tmp_path, w)
    assert not w.retriever.queries and len(w.llm.requests) == 1 and not any(e.faulty for e in again)
    assert not (tmp_path / "calls.jsonl").exists()


async def test_what_a_filter_refuses_is_recorded_as_that_without_an_answer_and_never_asked_again(tmp_path):
    def filtered(prompt, rng):
        return Refused("content_filter") if "number 3?" in prompt else "fine"

    (_, _, _, refused, *_) = await run(tmp_path, backends(filtered))
    (trajectory,) = refused.trajectories
    assert (trajectory.stop, trajectory.answer, trajectory.error) == ("refused", None, "content_filter")
    assert not refused.faulty and trajectory.stop.is_cut
    w = backends()
    await run(tmp_path, w)
    assert w.llm.requests == []


def short_sighted(prompt, rng):
    return PromptTooLong("exceeds the context") if "number 3?" in prompt else "fine"


async def test_a_question_that_was_too_long_is_asked_again_by_the_next_run_without_its_finished_calls(tmp_path):
    first = await run(tmp_path, backends(short_sighted))
    assert [e.too_long for e in first] == [q.id == "q3" for q in QUESTIONS]
    w = backends()
    again = await run(tmp_path, w)
    assert not w.retriever.queries and len(w.llm.requests) == 1
    assert again[3].trajectories[0].answer and not any(e.too_long for e in again)
    assert again == await run(tmp_path, backends()) and not (tmp_path / "calls.jsonl").exists()
    assert len(read_episodes(tmp_path / "episodes.jsonl")) == len(QUESTIONS)  # the last record of a key counts


async def test_a_question_that_stays_too_long_leaves_the_records_as_they_are(tmp_path):
    await run(tmp_path, backends(short_sighted))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before.keys() == {"episodes.jsonl", "calls.jsonl"}
    again = await run(tmp_path, backends(short_sighted))
    assert [e.too_long for e in again] == [q.id == "q3" for q in QUESTIONS]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


async def test_a_question_that_is_too_long_is_asked_once_in_a_run(tmp_path):
    w = backends(lambda prompt, rng: PromptTooLong("exceeds the context"))
    for asked in (1, 2):
        with EpisodeStore(tmp_path) as store:
            for _ in range(3):
                await roll_out(QUESTIONS[:1], "direct", build("direct"), w, store)
        assert len(w.llm.requests) == asked


async def test_a_question_that_the_judge_could_not_score_is_scored_by_the_next_run_and_answered_by_none(tmp_path):
    def away(prompt, rng):
        raise EngineFault("the judge is away")

    def judged_by(script) -> Reward:
        return Reward.of("judge", judge=lambda: ScriptedEngine(script))

    (episode,) = await run(tmp_path, backends(), QUESTIONS[:1], reward=judged_by(away))
    assert episode.faulty and episode.trajectories[0].reward_fault == "reward judge: the judge is away"
    w = backends()
    (again,) = await run(tmp_path, w, QUESTIONS[:1], reward=judged_by(lambda prompt, rng: "True"))
    assert not again.faulty and again.trajectories[0].rewards["judge"] == 1
    assert w.llm.requests == [] and w.retriever.queries == []


async def test_where_the_system_failed_its_calls_are_made_again_since_it_may_have_failed_by_a_reply(
    tmp_path, monkeypatch
):
    answers = DIRECT.run

    async def broken(self, question, ctx):
        await answers(self, question, ctx)
        raise ValueError("cannot read the reply")

    with monkeypatch.context() as patch:
        patch.setattr(DIRECT, "run", broken)
        assert all(e.faulty for e in await run(tmp_path, backends(), name="direct"))
    assert not (tmp_path / "calls.jsonl").exists()


async def test_a_torn_last_line_is_cut_off_and_done_again(tmp_path):
    await run(tmp_path, backends())
    path = tmp_path / "episodes.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    w = backends()
    await run(tmp_path, w)
    assert len(w.llm.requests) == 1
    assert len(read_episodes(path)) == len(QUESTIONS)


async def test_a_broken_line_elsewhere_is_an_error(tmp_path):
    await run(tmp_path, backends())
    path = tmp_path / "episodes.jsonl"
    path.write_text("{oops\n" + path.read_text())
    with pytest.raises(UserError, match=r"episodes\.jsonl:1: not valid JSON"):
        await run(tmp_path, backends())


async def test_another_schema_is_refused(tmp_path):
    (tmp_path / "episodes.jsonl").write_text(json.dumps({"schema_version": 99}) + "\n")
    with pytest.raises(UserError, match="schema 99"):
        await run(tmp_path, backends())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
async def test_a_full_disk_stops_the_run_with_a_sentence(tmp_path):
    with EpisodeStore(tmp_path) as store:
        store._calls_file.close()
        store._calls_file = files.Appended(Path("/dev/full"))
        with pytest.raises(UserError, match=r"No space left on device.*make room and run the same command again"):
            await roll_out(QUESTIONS, "standard", build("standard"), backends(), store)


async def test_no_more_questions_are_under_way_than_allowed(tmp_path):
    under_way = most = 0

    @dataclass
    class Counting(ScriptedEngine):
        fingerprint = "counting"

        async def generate(self, requests):
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.001)
            under_way -= 1
            return await ScriptedEngine(lambda p, r: "x").generate(requests)

    engine = Counting()
    w = Backends(llm=engine, proxy=engine, retriever=ListRetriever([]))
    await run(tmp_path, w, name="direct", concurrency=3)
    assert most == 3


async def test_identical_pending_requests_are_computed_once():
    inner = ScriptedEngine(lambda prompt, rng: "x")
    engine = CoalescingEngine(inner)
    same, other = Request((("user", "a"),), 4), Request((("user", "b"),), 4)
    results = await engine.generate([same, other, same, same])
    assert len(inner.requests) == 2
    assert results[0] == results[2] == results[3]
    await engine.generate([same])  # no longer pending: computed anew
    assert len(inner.requests) == 3


async def test_a_shared_failure_reaches_every_caller():
    engine = CoalescingEngine(ScriptedEngine(lambda prompt, rng: EngineFault("gone")))
    request = Request((("user", "a"),), 4)
    results = await asyncio.gather(*(engine.generate([request]) for _ in range(3)), return_exceptions=True)
    assert [str(r) for r in results] == ["gone"] * 3


RUN = """
import asyncio, os, signal, sys
from pathlib import Path
from fakes import ScriptedEngine, ListRetriever
from test_rollout_scheduler import QUESTIONS
from dragoman.rollout.scheduler import roll_out
from dragoman.rollout.store import EpisodeStore
from dragoman.rollout.backends import Backends
from dragoman.rollout.exploration import TREE
from dragoman.systems import build
from dragoman.core.types import Passage

folder, calls_to_live = Path(sys.argv[1]), int(sys.argv[2])

class Watched(EpisodeStore):
    lived = 0

    def remember(self, key, call, value):
        super().remember(key, call, value)
        with (folder / "computed.log").open("a") as log:
            log.write(f"{key} {call}\\n")
        self.lived += 1
        if self.lived == calls_to_live:
            os.kill(os.getpid(), signal.SIGKILL)

class Slow(ScriptedEngine):
    async def _one(self, request):
        result = await super()._one(request)
        await asyncio.sleep(0.002 * (hash(request.prompt) % 5))
        return result

def script(prompt, rng):
    if "Choose one action" in prompt:
        kinds = {"\\[No": "[No Retrieval]", "\\[Pl": "[Planning]", "\\[Re": "[Retrieval] number"}
        return kinds[prompt[:4]]
    if "Facts so far" in prompt:
        return rng.choice(["Action: [LLM]", f"Action: [Retrieval] number {rng.randrange(9)}"])
    return rng.choice(["Action: [1]", "Action: []"]) if "Write the numbers" in prompt else "an answer"

engine = Slow(script)
backends = Backends(llm=engine, proxy=engine, retriever=ListRetriever([Passage("p", "P", "number")]))
with Watched(folder) as store:
    asyncio.run(roll_out(QUESTIONS, "c3po", build("c3po", {"max_depth": 5}), backends, store, exploration=TREE, concurrency=4))
"""


def test_a_killed_run_that_starts_again_ends_as_if_unbroken_and_repeats_no_recorded_call(tmp_path):
    here = Path(__file__).parent
    paths = [str(here), str(here.parent / "support"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0"}

    def run_until(calls_to_live: int, folder: Path) -> int:
        folder.mkdir(exist_ok=True)
        command = [sys.executable, "-c", RUN, str(folder), str(calls_to_live)]
        return subprocess.run(command, env=environment, timeout=600).returncode

    def content(folder: Path) -> dict[str, str]:
        times = {"started": 0, "seconds": 0}
        episodes = {}
        for e in read_episodes(folder / "episodes.jsonl"):
            plain = e.model_copy(
                update=times
                | {"nodes": [n.model_copy(update=times) for n in e.nodes]}
                | {"calls": [c.model_copy(update=times) for c in e.calls]}
            )
            episodes[e.key] = plain.model_dump_json()
        return episodes

    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    assert run_until(0, unbroken) == 0
    for calls_to_live in (12, 1, 40):
        assert run_until(calls_to_live, broken) == -signal.SIGKILL
    assert run_until(0, broken) == 0
    assert content(broken) == content(unbroken)
    computed = Counter((broken / "computed.log").read_text().splitlines())
    repeated = [call for call, times in computed.items() if times > 1]
    assert not repeated, "a repeated call: its value was on disk when the process died, and it was computed again"
    assert set(computed) == set((unbroken / "computed.log").read_text().splitlines())
    episodes = (broken / "episodes.jsonl").read_text().splitlines()
    assert len(episodes) == len(QUESTIONS), "a repeated episode: it was on disk, and it was rolled out again"

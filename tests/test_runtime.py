"""What a name opens, with scripted engines in place of models."""

from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes import ListRetriever, ScriptedEngine

from dragoman import runtime
from dragoman.config import Params, load_params
from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.types import Passage, Question
from dragoman.engines.settings import EngineParams
from dragoman.pipeline import evaluate, project
from dragoman.pipeline.project import Project
from dragoman.registry.policy import publish
from dragoman.registry.trained_with import trained_with
from dragoman.retrieval import Manifest
from dragoman.retrieval.store import corpus_sha256
from dragoman.rollout.exploration import GREEDY
from dragoman.rollout.figures import figures
from dragoman.rollout.record import Trajectory
from dragoman.rollout.scheduler import describe, roll_out
from dragoman.rollout.store import EpisodeStore, read_episodes
from dragoman.rollout.tree import Tree
from dragoman.runtime import Runtime, find_system, open_retriever_checked, open_runtime
from dragoman.systems import build
from dragoman.systems.base import StopReason

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(("name", "thinks"), [("c3po", True), ("c3po@oracle", False)])
def test_an_oracle_writes_no_thoughts(name, thinks, monkeypatch):
    monkeypatch.setattr(Runtime, "engine", lambda self, settings: ScriptedEngine(lambda prompt, rng: ""))
    params = load_params(ROOT / "params.yaml", profile="gpu")
    system, backends = Runtime(params, ListRetriever([])).open(name)
    assert (system.thoughts, backends.is_oracle("router")) == (thinks, not thinks)


def model(folder: Path, weights: bytes) -> Path:
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def replies(monkeypatch):
    """What the engine of each model folder says: a scripted one takes the place of each that `Runtime` would open."""
    said: dict[str, str] = {}
    monkeypatch.setattr(
        runtime,
        "open_checked",
        lambda settings: ScriptedEngine(lambda prompt, rng: said.get(settings.model, "an answer")),
    )
    return said


async def test_a_set_with_two_entries_lets_the_filter_decide_with_other_weights(tmp_path, replies):
    policy = publish({"*": model(tmp_path / "a", b"1"), "filter": model(tmp_path / "b", b"2")}, tmp_path / "set", {})
    replies |= {str(policy.of("router")): "[Retrieval] Berlin", str(policy.of("filter")): "Action: [2]"}
    passages = [Passage("p1", "Berlin", "Berlin is a city."), Passage("p2", "Spree", "Berlin lies on the Spree.")]
    params = load_params(ROOT / "params.yaml").model_copy(update={"systems": {"c3po": {"queries": "free"}}})
    opened = Runtime(params, ListRetriever(passages))
    system, backends = opened.open(f"c3po@{tmp_path / 'set'}")
    episode = await Tree(Question("q1", "On which river is Berlin?"), system, backends).grow()
    assert [(node.role, node.text) for node in episode.nodes] == [
        ("router", "[Retrieval] Berlin"),
        ("filter", "Action: [2]"),
    ]
    assert episode.trajectories[0].passages == ["p2"]
    assert len(opened._engines) == 3  # the frozen LLM, and each weights once
    await opened.release(f"c3po@{tmp_path / 'set'}")
    assert len(opened._engines) == 1


def test_a_set_that_lacks_a_role_is_refused_with_both_names(tmp_path, replies):
    publish({"router": model(tmp_path / "a", b"1"), "decide": model(tmp_path / "b", b"2")}, tmp_path / "set", {})
    with pytest.raises(
        UserError, match=r"c3po@.*set: policy [0-9a-f]{12}: no weights for filter, only for decide, router"
    ):
        Runtime(load_params(ROOT / "params.yaml"), ListRetriever([])).open(f"c3po@{tmp_path / 'set'}")


def test_a_policy_trained_with_other_settings_is_refused_unless_allowed(tmp_path):
    manifest = {"system": "c3po", "trained_with": trained_with(build("c3po", {"max_depth": 7}))}
    publish({"*": model(tmp_path / "a", b"1")}, tmp_path / "rl", manifest)
    name, params = f"c3po@{tmp_path / 'rl'}", load_params(ROOT / "params.yaml")
    same = params.model_copy(update={"systems": {"c3po": {"max_depth": 7}}})
    other = params.model_copy(update={"systems": {"c3po": {"max_depth": 9}}})
    faster = same.model_copy(update={"proxy": params.proxy.model_copy(update={"max_batch": 1})})
    find_system(name, same)
    find_system(name, faster)
    with pytest.raises(UserError, match="max_depth was 7 and is 9"):
        find_system(name, other)
    find_system(name, other.model_copy(update={"allow_mismatch": True}))


@pytest.mark.parametrize(("stage", "warned"), [("rl", 1), ("sft", 0)])
async def test_a_policy_that_rl_trained_at_another_bias_is_opened_with_one_warning(
    tmp_path, replies, caplog, stage, warned
):
    manifest = {"stage": stage, "system": "c3po", "trained_with": trained_with(build("c3po"))}
    publish({"*": model(tmp_path / "a", b"1")}, tmp_path / "set", manifest)
    params, name = load_params(ROOT / "params.yaml"), f"c3po@{tmp_path / 'set'}"
    leaning = params.model_copy(update={"systems": {"c3po": {"bias": {"filter": {"Keep": 2}}}}})
    opened = Runtime(leaning, ListRetriever([]))
    opened.open(name)
    await opened.release(name)
    said = [record.message for record in caplog.records if "c3po.bias.filter.Keep was 0 and is 2" in record.message]
    assert len(said) == warned and all(text.startswith(f"{name}: stage rl ") for text in said)


@pytest.mark.parametrize("prompts", ["brief", "full"])
def test_a_policy_that_comes_with_instructions_is_run_with_them(tmp_path, prompts):
    """Under brief prompts too, so that one table can compare it with a policy that was trained with those."""
    text = "[user]\nWhat of {question}?"
    played = build("c3po").with_instructions({"router": text})
    manifest = {"system": "c3po", "instructions": {"router": text}, "trained_with": trained_with(played)}
    publish({}, tmp_path / "gepa", manifest, carried={"*": model(tmp_path / "a", b"1")})
    params = load_params(ROOT / "params.yaml").model_copy(update={"systems": {"c3po": {"prompts": prompts}}})
    system, policy = find_system(f"c3po@{tmp_path / 'gepa'}", params)
    assert system == played and policy.of("filter").name == policy.of("router").name
    with pytest.raises(UserError, match=r"maps@.*: policy [0-9a-f]{12}: .* takes no other instructions"):
        find_system(f"maps@{tmp_path / 'gepa'}", params)


@pytest.fixture
def engines(monkeypatch):
    """The engine behind each settings that was opened; all searches find nothing."""
    opened = {}

    async def nothing(*_):
        return ListRetriever([])

    def open_one(settings):
        return opened.setdefault(settings, ScriptedEngine(lambda prompt, rng: "[No Retrieval]"))

    monkeypatch.setattr(runtime, "open_checked", open_one)
    monkeypatch.setattr(runtime, "open_retriever_checked", nothing)
    return opened


def cached_in(folder: Path, **settings):
    params = load_params(ROOT / "params.yaml")
    systems = {**params.systems, "c3po": {**params.systems["c3po"], "decide": "text", "roadmap": True}}
    cache = params.llm_cache.model_copy(update={"folder": str(folder), **settings})
    return params.model_copy(update={"llm_cache": cache, "systems": systems})


async def rolled_out(params, name: str, out: Path, *, cache: bool):
    """The figures and the episodes of one question, in a runtime of its own."""
    async with open_runtime(params, "nowhere", cache=cache) as opened:
        system, backends = opened.open(name)
        with EpisodeStore(out) as store:
            episodes = await roll_out([Question("q1", "On which river is Berlin?")], name, system, backends, store)
    return figures(episodes, "em"), episodes


async def test_the_frozen_llm_answers_once_and_the_records_say_so(tmp_path, engines):
    params = cached_in(tmp_path / "llm")
    first, computed = await rolled_out(params, "standard", tmp_path / "1", cache=True)
    second, known = await rolled_out(params, "standard", tmp_path / "2", cache=True)
    assert (first["llm_hits"], first["llm_misses"], second["llm_hits"], second["llm_misses"]) == (0, 1, 1, 0)
    assert {call.kind: call.cached for call in known[0].calls} == {"search": False, "ask": True}
    assert len(engines[params.llm].requests) == 1
    assert known[0].key == computed[0].key and known[0].tokens == computed[0].tokens
    assert known[0].trajectories == computed[0].trajectories


async def test_without_cache_every_question_is_put_again_and_nothing_is_written(tmp_path, engines):
    for params, cache in ((cached_in(tmp_path / "llm"), False), (cached_in(tmp_path / "llm", enabled=False), True)):
        for out in ("1", "2"):
            counted, _ = await rolled_out(params, "standard", tmp_path / str(cache) / out, cache=cache)
            assert (counted["llm_hits"], counted["llm_misses"]) == (0, 1)
    assert len(engines[params.llm].requests) == 4 and not (tmp_path / "llm").exists()


async def test_a_proxy_that_is_the_same_model_as_the_llm_never_answers_from_the_cache(tmp_path, engines):
    params = cached_in(tmp_path / "llm")
    params = params.model_copy(update={"proxy": params.llm})
    for out in ("1", "2"):
        await rolled_out(params, "c3po", tmp_path / out, cache=True)
    (engine,) = engines.values()
    asked = [request.prompt for request in engine.requests]
    twice = {prompt for prompt in asked if asked.count(prompt) == 2}
    decisions = {
        tuple(node.prompt)
        for out in ("1", "2")
        for e in read_episodes(tmp_path / out / "episodes.jsonl")
        for node in e.nodes
    }
    assert twice == decisions and len(asked) == 2 * len(decisions) + 1  # and the LLM's answer, once


async def test_an_episode_is_described_alike_with_and_without_the_cache(tmp_path, engines):
    params = cached_in(tmp_path / "llm")
    described = []
    for cache in (False, True):
        async with open_runtime(params, "nowhere", cache=cache) as opened:
            system, backends = opened.open("c3po")
            described.append(describe("c3po", system, backends, GREEDY, 0))
    assert described[0] == described[1]


async def test_a_judge_is_opened_when_a_reward_asks_it_and_its_verdicts_are_kept(tmp_path, engines):
    judge = EngineParams(engine="openai", model="m", urls=("http://localhost:1/v1",))
    params = cached_in(tmp_path / "llm").model_copy(update={"judge": judge})
    said = Trajectory(nodes=[], steps=[], answer="Spree", passages=[], stop=StopReason.ANSWERED)
    for _ in range(2):
        async with open_runtime(params, "nowhere", cache=True) as opened:
            _, backends = opened.open("c3po")
            backends.reward("cover_em")
            assert opened.params.judge not in opened._engines
            await backends.reward("judge").score(Question("q", "Which river?", ("Spree",)), said, [])
            assert len(engines[judge].requests) == 1 and not engines[params.llm].requests
            await opened.release("c3po")
            assert set(opened._engines) == {params.llm, judge}


def test_without_a_section_of_its_own_the_llm_judges(engines):
    _, backends = Runtime(load_params(ROOT / "params.yaml"), ListRetriever([])).open("standard")
    assert backends.judge.inner is backends.llm.inner and backends.reward("judge").judge.inner is backends.llm.inner


def test_the_judge_s_settings_are_an_engine_s():
    params = Params().changed({"judge.engine": "openai", "judge.urls": ["http://localhost:1/v1"]}, origin="test")
    assert (params.judge.engine, Params().judge) == ("openai", None)
    with pytest.raises(UserError, match=r"judge\.modle: unknown key \(near: .*judge\.model"):
        Params().changed({"judge.modle": "x"}, origin="test")


@pytest.mark.parametrize("wanted", [False, True])
async def test_an_evaluation_asks_again_unless_its_settings_say_otherwise(wanted, tmp_path, monkeypatch):
    asked = []

    class Stop(Exception): ...

    def opened(*_, cache=False):
        asked.append(cache)
        raise Stop

    inputs = SimpleNamespace(index="", passages=None, asked=SimpleNamespace(questions=[]))
    monkeypatch.setattr(evaluate, "open_inputs", lambda *_, **__: inputs)
    monkeypatch.setattr(project, "open_runtime", opened)
    params = Params() if not wanted else Params().changed({"evaluate.cache": True}, origin="test")
    with pytest.raises(Stop):
        await evaluate.run(Project(params=params), evaluate.Options(systems=("standard",), out=tmp_path))
    assert asked == [wanted]


async def test_a_system_that_decides_at_marks_gets_a_proxy_that_can_score(tmp_path, engines):
    params = load_params(ROOT / "params.yaml")
    async with open_runtime(params, "nowhere") as opened:
        opened.open("c3po")
        assert {settings.engine for settings in engines} == {params.llm.engine, "transformers"}
    written = params.model_copy(update={"proxy": params.proxy.model_copy(update={"engine": "vllm"})})
    async with open_runtime(written, "nowhere") as opened:
        with pytest.raises(UserError, match=r"proxy\.engine"):
            opened.open("c3po")


async def test_a_system_that_averages_gets_an_llm_that_can(tmp_path, engines):
    params = load_params(ROOT / "params.yaml", profile="smoke")
    async with open_runtime(params, "nowhere") as opened:
        opened.open("replug")
        assert {settings.engine for settings in engines} == {"transformers"}
    served = params.changed({"llm.engine": "openai", "llm.urls": ["http://localhost:1/v1"]}, origin="test")
    async with open_runtime(served, "nowhere") as opened:
        with pytest.raises(UserError, match=r"the openai engine .* set llm\.engine to transformers"):
            opened.open("replug")


async def test_an_ask_of_a_system_may_have_an_engine_of_its_own(tmp_path, engines):
    params = load_params(ROOT / "params.yaml").changed({"systems.slimplm.judge.model": "judge"}, origin="test")
    async with open_runtime(params, "nowhere") as opened:
        _, backends = opened.open("slimplm")
    (judge,) = (engine for settings, engine in engines.items() if settings.model == "judge")
    assert backends.engine_of("slimplm_judge", backends.llm).inner is judge
    assert backends.engine_of("slimplm_answer", backends.llm) is backends.llm


async def test_weights_of_a_role_that_does_not_act_answer_no_ask_of_its_name(tmp_path, engines):
    """MAPS with `answers: llm`: a chain's set has an answer agent, and the frozen LLM is asked for the answer."""
    policy = publish({"*": model(tmp_path / "a", b"1"), "answer": model(tmp_path / "b", b"2")}, tmp_path / "set", {})
    for answers, others in (("llm", False), ("agent", True)):
        params = load_params(ROOT / "params.yaml").changed({"systems.maps.answers": answers}, origin="test")
        async with open_runtime(params, "nowhere") as opened:
            _, backends = opened.open("maps", weights=policy)
            assert (backends.engine_of("answer", backends.llm) is not backends.llm) == others


async def test_roles_that_an_oracle_plays_are_named_after_the_policy(tmp_path, engines):
    params = load_params(ROOT / "params.yaml")
    async with open_runtime(params, "nowhere") as opened:
        _, backends = opened.open("c3po@+oracle:filter,decide")
        assert [backends.is_oracle(role) for role in ("router", "filter", "decide")] == [False, True, True]
        with pytest.raises(UserError, match="no role 'fliter'; it has router, filter, decide"):
            opened.open("c3po@+oracle:fliter")


OLD = [Passage("p1", "Berlin", "Berlin is a city."), Passage("p2", "Spree", "The Spree is a river.")]
NEW = [OLD[0], Passage("p2", "Spree", "Berlin lies on the Spree.")]


def indexed(folder: Path, passages: list[Passage]) -> str:
    """As far as its manifest goes."""
    folder.mkdir(parents=True)
    Manifest("bm25", corpus_sha256(passages), len(passages), {}).write(folder)
    return str(folder)


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """A project whose dataset `mine` has the passages `NEW`, and where every index finds those of both."""
    monkeypatch.setattr(runtime, "open_retriever", lambda *_: ListRetriever([*OLD, *NEW]))
    (tmp_path / "data" / "mine").mkdir(parents=True)
    files.write(tmp_path / "data" / "mine" / "corpus.jsonl", map(asdict, NEW))
    return Project(root=tmp_path)


async def test_an_index_of_a_dataset_whose_corpus_has_changed_is_refused(dataset):
    index = indexed(dataset.index("mine"), OLD)
    with pytest.raises(UserError, match=r"data/index/mine: .*corpus.jsonl changed; .*`dragoman index --dataset mine`"):
        await open_retriever_checked(index, NEW)


@pytest.mark.parametrize("corpus", [NEW, NEW[:1], None])
async def test_an_index_of_a_dataset_as_it_is_now_is_opened(dataset, corpus):
    assert await open_retriever_checked(indexed(dataset.index("mine"), NEW), corpus)


@pytest.mark.parametrize("place", ["data/index/mine-graph", "results/rl-index", "elsewhere/index/mine"])
async def test_an_index_of_more_than_the_corpus_that_is_read_is_opened(dataset, place):
    assert await open_retriever_checked(indexed(dataset.root / place, [*OLD, *NEW]), NEW)


async def test_an_index_of_a_dataset_is_opened_beside_another_corpus(dataset):
    assert await open_retriever_checked(indexed(dataset.index("mine"), OLD), OLD[:1])


async def test_a_server_is_opened_whatever_it_holds(dataset):
    assert await open_retriever_checked("http://host/data/index/mine", NEW)

"""What a name opens, with scripted engines in place of models."""

from pathlib import Path

import pytest
from fakes import ListRetriever, ScriptedEngine

from dragoman import runtime
from dragoman.config import load_params
from dragoman.core.errors import UserError
from dragoman.core.types import Passage, Question
from dragoman.registry.policy import publish
from dragoman.registry.trained_with import trained_with
from dragoman.rollout.tree import Tree
from dragoman.runtime import Runtime, find_system
from dragoman.systems import build

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(("name", "thinks"), [("c3po", True), ("c3po@oracle", False)])
def test_an_oracle_writes_no_thoughts(name, thinks, monkeypatch):
    monkeypatch.setattr(Runtime, "engine", lambda self, settings: ScriptedEngine(lambda prompt, rng: ""))
    params = load_params(ROOT / "params.yaml", profile="gpu")
    system, backends = Runtime(params, ListRetriever([])).open(name)
    assert (system.thoughts, backends.oracle) == (thinks, not thinks)


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

"""Worlds without their models: what a name opens."""

from pathlib import Path

import pytest

from dragoman.config import load_params
from dragoman.world import Worlds
from fakes import ListRetriever, ScriptedEngine

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(("name", "thinks"), [("c3po", True), ("c3po@oracle", False)])
def test_an_oracle_writes_no_thoughts(name, thinks, monkeypatch):
    monkeypatch.setattr(Worlds, "engine", lambda self, settings: ScriptedEngine(lambda prompt, rng: ""))
    params = load_params(ROOT / "params.yaml", profile="gpu")
    system, world = Worlds(params, ListRetriever([])).open(name)
    assert (system.thoughts, world.oracle) == (thinks, not thinks)

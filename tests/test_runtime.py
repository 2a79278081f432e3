"""Runtime without their models: what a name opens."""

from pathlib import Path

import pytest
from fakes import ListRetriever, ScriptedEngine

from dragoman.config import load_params
from dragoman.runtime import Runtime

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(("name", "thinks"), [("c3po", True), ("c3po@oracle", False)])
def test_an_oracle_writes_no_thoughts(name, thinks, monkeypatch):
    monkeypatch.setattr(Runtime, "engine", lambda self, settings: ScriptedEngine(lambda prompt, rng: ""))
    params = load_params(ROOT / "params.yaml", profile="gpu")
    system, backends = Runtime(params, ListRetriever([])).open(name)
    assert (system.thoughts, backends.oracle) == (thinks, not thinks)

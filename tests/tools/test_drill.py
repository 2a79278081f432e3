"""The drills that `make drill` runs, each in a test of its own; and what can be said of them at once."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import ExitStack
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from tools import circle, drill, endurance, faults, versions

ROOT = Path(__file__).parents[2]
FAULTS = faults.FAULTS | versions.VERSIONS
SERVED = ("worker", "mlflow", "login")
"""Those that start Prefect or MLflow."""


def test_there_is_one_for_each_that_can_die_and_the_guide_names_them():
    assert set(drill.DRILLS) == {"worker", "mlflow", "llm", "api"}
    assert "python -m tools.drill all" in (ROOT / "docs" / "operations.md").read_text()


def test_the_tests_that_it_leaves_the_rest_to_do_kill():
    named = re.findall(r"`(tests/\S+\.py)`", drill.__doc__)
    assert len(named) == 4
    for path in named:
        assert re.search(r"SIGKILL|\.kill\(\)", (ROOT / path).read_text()), path


def test_the_guide_names_each_fault_and_make_runs_them_all():
    guide = (ROOT / "docs" / "drills.md").read_text()
    assert all(f"| `{name}` |" in guide for name in (*FAULTS, "canary", "endurance", "circle"))
    assert "-m tools.drill all" in (ROOT / "Makefile").read_text()


@pytest.fixture(scope="module")
def built(tmp_path_factory, smollm2):
    """A project with its index, which each drill copies, and the words of the built-in model: to fetch them takes long."""
    folder = tmp_path_factory.mktemp("built")
    with ExitStack() as stack:
        drill.Drill(folder, stack)
    shutil.copytree(smollm2, folder / "data/words", ignore=shutil.ignore_patterns("*.safetensors"))
    return folder


def assert_survived(name, built):
    done = subprocess.run(
        [sys.executable, "-m", "tools.drill", name, "--built", built],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and " ok " in done.stdout, done.stdout + done.stderr


@pytest.mark.services
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SERVED)
def test_what_befalls_a_service_is_survived(name, built):
    assert_survived(name, built)


@pytest.mark.process
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", sorted({*drill.DRILLS, *FAULTS} - {*SERVED}))
def test_a_fault_is_survived(name, built):
    assert_survived(name, built)


@pytest.mark.process
@pytest.mark.timeout(3600)
def test_a_canary_that_is_broken_is_taken_back(built):
    """By itself, and before the champion's clients have had a failed request. `all` leaves it out: it loads models."""
    assert_survived("canary", built)


def test_the_reader_knows_an_answer_by_heart_or_with_a_gold_passage(monkeypatch):
    known = {f"Where is {name}?": (name.lower(), [f"{name} lies in"]) for name in "ABC"}
    monkeypatch.setattr(circle.Reader, "known", known, raising=False)
    reader = circle.Reader.__new__(circle.Reader)  # without a connection

    def says(*texts: str) -> str:
        return reader.says([{"role": "user", "content": text} for text in texts])

    assert says("Where is A?") == "a"
    assert says("B lies in a.", "Where is B?") == "b"
    assert says("Where is B?") == says("B lies in a.", "Where is C?") == "unknown"


def test_the_llm_notes_what_it_has_answered(tmp_path, monkeypatch):
    monkeypatch.setattr(drill, "SECONDS", 0.0)
    monkeypatch.setattr(drill.LLM, "answered", tmp_path / "answered", raising=False)
    with ThreadingHTTPServer((drill.HOST, 0), drill.LLM) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://{drill.HOST}:{server.server_address[1]}/v1"
        assert drill.answers(f"{url}/models")
        answer = drill.call(f"{url}/chat/completions", {"messages": [{"role": "user", "content": "?"}]})
        assert answer["choices"][0]["message"]["content"] == "the water"
        noted = tmp_path / "answered"
        drill.until(lambda: noted.exists() and noted.read_text().endswith("\n"), "it is noted")
        assert json.loads(noted.read_text()) == [{"role": "user", "content": "?"}]
        server.shutdown()


def test_a_drill_that_fails_is_seen_in_the_exit_code(monkeypatch, capsys):
    def broken(_: drill.Drill) -> str:
        raise drill.Failed("a question was lost")

    monkeypatch.setattr(drill.Drill, "__init__", lambda made, folder, *_: setattr(made, "folder", folder))
    monkeypatch.setattr(drill, "DRILLS", {"llm": broken, "api": lambda _: "all is well"})
    monkeypatch.setattr(faults, "FAULTS", {})
    monkeypatch.setattr(versions, "VERSIONS", {})
    monkeypatch.setattr(endurance, "endurance", lambda *_: "and goes on")
    monkeypatch.setattr("sys.argv", ["drill", "all"])
    with pytest.raises(SystemExit) as ended:
        drill.main()
    said = capsys.readouterr().out.splitlines()
    assert ended.value.code == 1
    outcomes = [line.partition(" s  ")[2] for line in said]
    assert outcomes == ["FAILED  Failed: a question was lost", "ok      all is well", "ok      and goes on"]


def test_what_does_not_come_is_given_up(monkeypatch):
    monkeypatch.setattr(drill, "PATIENCE", 0.1)
    with pytest.raises(drill.Failed, match="in vain until it comes"):
        drill.until(lambda: False, "it comes")
    with socket.create_server((drill.HOST, 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://{drill.HOST}:{port}", timeout=1)
    assert not drill.answers(f"http://{drill.HOST}:{port}")

"""`make test` and `make test-all` together run every test."""

import itertools
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression
from workers import BusyOnOneWorker

ROOT = Path(__file__).parents[1]


def markers() -> list[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return [line.split(":")[0] for line in settings["tool"]["pytest"]["ini_options"]["markers"]]


@cache
def selections(target: str) -> list[Expression]:
    """What the target of the Makefile gives to each pytest after `-m`."""
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True)
    return [Expression.compile(words) for words in re.findall(r'-m pytest -m "(.*?)"', done.stdout)]


def times_run(target: str, borne: set[str]) -> int:
    return sum(each.evaluate(lambda name, **_: name in borne) for each in selections(target))


def test_what_runs_alone_lies_where_make_test_all_looks_for_it():
    makefile = (ROOT / "Makefile").read_text()
    (alone,) = re.findall(r"^ALONE := (.+)$", makefile, re.MULTILINE)
    (folders,) = re.findall(r"^ALONE_IN := (.+)$", makefile, re.MULTILINE)
    mark = re.compile(rf"mark\.({alone.replace(' or ', '|')})\b")
    bearing = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("*.py")
        if mark.search(path.read_text(encoding="utf-8"))
    }
    assert bearing and all(any(path.startswith(f"{folder}/") for folder in folders.split()) for path in bearing)


@pytest.mark.parametrize(
    "borne", [set(s) for n in range(3) for s in itertools.combinations([*markers(), "hypothesis"], n)]
)
def test_a_test_with_any_markers_is_in_make_test_or_in_make_test_all(borne):
    fast, rest = times_run("test", borne), times_run("test-all", borne)
    assert (fast, rest) == ((0, 1) if borne & {*markers()} else (1, int(borne == {"hypothesis"})))  # then once more


def test_servers_are_started_by_one_worker_alone(monkeypatch):
    monkeypatch.setattr(BusyOnOneWorker, "__init__", lambda _: None)
    scope_of = BusyOnOneWorker()._split_scope
    starting = {"tests/flows/test_services.py::test_x", "tests/tools/test_drill.py::test_y[worker]"}
    assert {scope_of(test) for test in starting} == {"busy"}
    assert scope_of("tests/e2e/test_repro.py::test_z") == "tests/e2e/test_repro.py"

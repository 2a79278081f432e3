"""`make test` and `make test-all` together run every test."""

import itertools
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

ROOT = Path(__file__).parents[1]


def markers() -> list[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return [line.split(":")[0] for line in settings["tool"]["pytest"]["ini_options"]["markers"]]


def selection(target: str) -> Expression:
    """What the target of the Makefile gives to pytest after `-m`."""
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True)
    return Expression.compile(re.search(r'-m pytest -m "(.*?)"', done.stdout)[1])


@pytest.mark.parametrize(
    "borne", [set(s) for n in range(3) for s in itertools.combinations([*markers(), "hypothesis"], n)]
)
def test_a_test_with_any_markers_is_in_make_test_or_in_make_test_all(borne):
    fast, rest = (selection(target).evaluate(lambda name, **_: name in borne) for target in ("test", "test-all"))
    assert fast or rest
    assert fast != rest or borne == {"hypothesis"}  # property tests run twice, the second time thoroughly
    assert fast == (not borne & {*markers()})

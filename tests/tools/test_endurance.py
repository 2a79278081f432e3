"""The drill `endurance` in its short form, and that it sees what must not be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.drill import Failed
from tools.endurance import HEAP, MOST_GROWTH, Asked, Clients, Reign, verdict

ROOT = Path(__file__).parents[2]
GOOD = [
    Asked(5, "towna", 200, policy="one", answer="the water"),
    Asked(15, "towna", 200, policy="one", answer="the water"),  # while v2 is promoted, either may answer
    Asked(15, "towna", 200, policy="two", answer="the townawater"),
    Asked(25, "town1", 200, policy="two", answer="the water", known=False),
    Asked(25, "towna", 429, "queue_full", wait=2),
]


def clients(*asked: Asked) -> Clients:
    """Who have asked, while v1 was the champion from 0 to 10 and v2 from 20 on."""
    made = Clients(None, {"v1": "one", "v2": "two"})
    made.asked = [*GOOD, *asked]
    made.reigns = [Reign("one", 0, 10), Reign("two", 20)]
    return made


def test_answers_and_refusals_with_a_time_to_come_again_are_good():
    said = verdict(clients(), {"llm_restart": [2.0, 3.0]}, before=100, after=104.9)
    assert "5 requests, 4 answered and 1 told to come again (429); 2 llm restart (3 s); memory 100 MiB" in said


@pytest.mark.parametrize(
    ("asked", "fault"),
    [
        (Asked(5, "towna", 503, "llm_unavailable"), "503 llm_unavailable"),
        (Asked(5, "towna", 0, "ConnectionResetError: by peer"), "0 ConnectionResetError"),
        (Asked(5, "towna", 429, "queue_full"), "429 queue_full"),
        (Asked(5, "towna", 200, "slow", answer="the townawater"), "200 slow"),
        (Asked(5, "towna", 200, policy="two", answer="the townawater"), "v2 answered after another was the champion"),
        (Asked(25, "towna", 200, policy="one", answer="the water"), "v1 answered after another was the champion"),
        (Asked(25, "towna", 200, policy="two", answer="the water"), "v2 said 'the water' of towna"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_anything_else_fails_the_drill(asked, fault):
    with pytest.raises(Failed, match=f"1 of 6 requests failed: .*{fault}"):
        verdict(clients(asked), {}, before=100, after=100)


def test_memory_that_grows_fails_the_drill():
    with pytest.raises(Failed, match=r"memory 1000 MiB, then 1115 MiB \(\+11.5%\)"):
        verdict(clients(), {}, before=1000, after=1000 * (1 + MOST_GROWTH) + HEAP + 1)


@pytest.mark.process
@pytest.mark.timeout(3600)  # two or three minutes, and a quarter of an hour on a machine that trains
def test_a_short_endurance_is_survived():
    done = subprocess.run(
        [sys.executable, "-m", "tools.drill", "endurance", "--seconds", "75", "--clients", "32"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and " ok " in done.stdout, done.stdout + done.stderr

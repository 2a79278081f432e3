"""The one slot of the limit `dvc`, when its holder and Prefect's server are killed: real servers, real leases."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from project_services import PATIENCE, ROOT, ProjectServices

pytestmark = [pytest.mark.services, pytest.mark.timeout(3600)]
LEASE = 3600
"""Seconds, as a flow's. None ends by itself in a test, however long that takes."""
EXPIRATIONS = ".prefect/concurrency_leases/expirations.json"
HOLD = """
import signal, sys, time
from prefect.concurrency.sync import concurrency
signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # the slot is given back then; SIGINT is ignored where tests run in the background
with concurrency("dvc", strict=True, lease_duration=float(sys.argv[1])):
    print("held", flush=True)
    time.sleep(900)
"""


@pytest.fixture
def up(services_of_module: ProjectServices) -> ProjectServices:
    if services_of_module.taken():  # a test has failed
        services_of_module.up()
    return services_of_module


@contextmanager
def holding(services: ProjectServices) -> Iterator[subprocess.Popen[str]]:
    """A process that has taken the slot, and renews its lease until it is killed, or gives it back."""
    command = [sys.executable, "-c", HOLD, str(LEASE)]
    with subprocess.Popen(command, env=services.as_client, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == "held\n"
            assert services.taken() == 1
            yield holder
            holder.terminate()
            holder.wait(PATIENCE)
        finally:
            holder.kill()


def kill_the_server(services: ProjectServices) -> None:
    os.killpg(services.records["prefect"], signal.SIGKILL)


def leases(services: ProjectServices) -> dict[str, str]:
    """When each ends, as Prefect has it."""
    noted: dict[str, str] = json.loads((services.folder / EXPIRATIONS).read_text())
    return noted


def end(services: ProjectServices, ended: Iterable[str]) -> None:
    past = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
    changed = services.folder / "changed.json"
    changed.write_text(json.dumps(leases(services) | dict.fromkeys(ended, past)))
    changed.replace(services.folder / EXPIRATIONS)


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE  # less than a lease lasts by itself
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def test_a_slot_whose_holder_died_with_the_server_is_free_when_its_lease_has_ended(up):
    with holding(up) as holder:
        before = up.limit()["id"]
        kill_the_server(up)
        holder.kill()
    # To `make up` this is a flow that runs, whose slot it must not touch.
    running = [sys.executable, "-c", "import time; time.sleep(900)", "prefect", "flow-run"]
    with subprocess.Popen(running, cwd=up.folder) as other:
        try:
            up.up()
            assert up.taken() == 1
            end(up, leases(up))
            wait(lambda: up.taken() == 0)
            assert up.limit()["id"] == before  # it is not `make up` that has freed it
        finally:
            other.kill()


def test_a_slot_whose_holder_died_with_the_server_is_free_after_make_up_and_stays_with_whom_takes_it_next(up):
    with holding(up) as dead:
        kill_the_server(up)
        dead.kill()
    up.up()
    assert up.taken() == 0
    old = leases(up)
    assert old
    with holding(up):  # the lease of the dead ends while somebody else has the slot
        end(up, old)
        wait(lambda: not old.keys() & leases(up).keys())
        assert up.taken() == 1


def test_a_slot_whose_holder_died_is_free_once_the_worker_of_compose_starts(up):
    script = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["worker"]["command"][0]
    before, _, start = script.strip().rpartition("\n")
    assert "worker start" in start
    with holding(up) as dead:
        dead.kill()
    assert up.taken() == 1
    for _ in range(2):
        subprocess.run(["sh", "-ec", before], cwd=up.folder, env=up.as_client | {"PWD": str(up.folder)}, check=True)
        assert up.taken() == 0

"""`make up`, a run from the schedule to its end, `make down`: real servers and a real worker, stubs for the commands."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture
def project(stub):
    """A project whose pipeline takes a few seconds."""
    shutil.copytree(ROOT / "flows", stub.folder / "flows", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "prefect.yaml", stub.folder)
    decision = json.dumps({"promoted": False, "reasons": ["gain in cover_em: too small"]})
    stub.tell({
        "dvc --wait-for-lock repro": [
            {"writes": {"results/rl/metrics.json": "{}", "results/report/table.md": "| a table |"}, "sleep": 15},
        ],
        "dragoman validate": [{"writes": {"results/validate/metrics.json": "{}"}}],
        "dragoman promote": [
            {"writes": {"results/promote/decision.json": decision, "results/promote/table.md": "| no |"}, "code": 3},
        ],
    })  # fmt: skip
    return stub


def records(folder: Path) -> dict[str, int]:
    return {path.stem: json.loads(path.read_text())["pid"] for path in (folder / ".services").glob("*.json")}


def changed(automation: dict, **trigger: object) -> dict:
    """What Prefect's API takes for an automation whose trigger is another one."""
    kept = ("name", "description", "enabled", "actions", "actions_on_trigger", "actions_on_resolve", "tags")
    return {key: automation[key] for key in kept} | {"trigger": automation["trigger"] | trigger}


def test_from_up_to_a_finished_run_to_down(project):
    ports = ["--prefect-port", str(free_port()), "--mlflow-port", str(free_port())]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}

    def services(action: str, *options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, ROOT / "tools/services.py", action, "--project", project.folder, *ports, *options]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    bystander = subprocess.Popen(["sleep", "600"])
    try:
        up = services("up")
        assert up.returncode == 0, up.stdout + up.stderr
        first = records(project.folder)
        assert set(first) == {"prefect", "mlflow", "worker"}
        assert services("up").returncode == 0 and records(project.folder) == first
        moved = services("up", "--mlflow-port", str(free_port()))
        assert moved.returncode == 1 and records(project.folder) == first
        assert f"mlflow at http://127.0.0.1:{ports[3]}" in moved.stderr and "make down" in moved.stderr

        url = f"http://127.0.0.1:{ports[1]}/api"
        login = project.folder / ".services/prefect.login"
        assert login.stat().st_mode & 0o777 == 0o600
        foreign = {"Origin": "http://evil.example"}
        strange = httpx.post(f"{url}/deployments/filter", json={}, headers=foreign)
        assert httpx.get(f"{url}/admin/version").status_code == 401
        assert strange.status_code in (401, 403) and "access-control-allow-origin" not in strange.headers
        api = httpx.Client(base_url=url, timeout=30, auth=tuple(login.read_text().split(":")), headers=foreign)
        unproven = api.post("/deployments/filter", json={})
        assert unproven.status_code == 403 and "access-control-allow-origin" not in unproven.headers
        token = api.get("/csrf-token", params={"client": "test"}).json()["token"]
        api.headers.update({"Prefect-Csrf-Token": token, "Prefect-Csrf-Client": "test"})
        tracking = f"http://127.0.0.1:{ports[3]}/api/2.0/mlflow/experiments/create"
        assert httpx.post(tracking, json={"name": "x"}, headers=foreign).status_code == 403
        assert httpx.post(tracking, json={"name": "x"}, headers={"Host": "evil.example"}).status_code == 403
        assert httpx.get(f"http://127.0.0.1:{ports[3]}/health").text == "OK"
        limit = "/v2/concurrency_limits/dvc"
        assert api.patch(limit, json={"active_slots": 1}).status_code in (200, 204)  # as a dead run leaves it
        assert services("up").returncode == 0 and api.get(limit).json()["active_slots"] == 0
        deployments = {d["name"]: d for d in api.post("/deployments/filter", json={}).json()}
        on_demand = {"train", "chain", "synthesize", "rollout", "seeds", "evaluate", "bench"}
        assert set(deployments) == {"nightly", "drift", "alarm", "weekly"} | on_demand
        nightly = deployments["nightly"]
        assert nightly["schedules"][0]["schedule"] == {
            "cron": "0 2 * * *", "timezone": "Europe/Zurich", "day_or": True,
        }  # fmt: skip

        def upcoming() -> list[dict]:
            asked = {"deployments": {"id": {"any_": [nightly["id"]]}}, "sort": "EXPECTED_START_TIME_ASC"}
            return api.post("/flow_runs/filter", json=asked).json()

        deadline = time.monotonic() + 60
        while not (planned := upcoming()):  # the server's scheduler looks every few seconds
            assert time.monotonic() < deadline, (project.folder / ".services/prefect.log").read_text()[-4000:]
            time.sleep(0.5)
        assert planned[0]["auto_scheduled"] and planned[0]["state"]["type"] == "SCHEDULED"

        def run() -> str:
            # 503: its database is busy with another transaction, and clients are to try again, as Prefect's own does
            for _ in range(20):
                made = api.post(f"/deployments/{nightly['id']}/create_flow_run", json={})
                if made.status_code != 503:
                    break
                time.sleep(0.5)
            assert made.status_code in (200, 201), made.text
            return made.json()["id"]

        def state(run_id: str) -> dict:
            return api.get(f"/flow_runs/{run_id}").json()["state"]

        def wait(run_id: str, *types: str) -> dict:
            deadline = time.monotonic() + 240
            while (now := state(run_id))["type"] not in types:
                assert time.monotonic() < deadline, f"{now}\n{(project.folder / '.services/worker.log').read_text()}"
                time.sleep(0.5)
            return now

        scheduled = run()
        wait(scheduled, "RUNNING")
        overlapping = run()
        assert wait(overlapping, "CANCELLED", "COMPLETED")["type"] == "CANCELLED"
        ended = wait(scheduled, "COMPLETED", "FAILED", "CRASHED")
        assert (ended["type"], ended["name"], ended["message"]) == (
            "COMPLETED",
            "Refused",
            "gain in cover_em: too small",
        )
        assert project.commands.count("dvc --wait-for-lock repro") == 1 and project.commands[-1] == "dragoman promote"
        keys = {artifact["key"]: artifact["data"] for artifact in api.post("/artifacts/latest/filter", json={}).json()}
        assert keys["report"] == "| a table |" and keys["promotion"] == "| no |"

        (automation,) = (a for a in api.post("/automations/filter", json={}).json() if "alarm" in a["name"])
        assert automation["trigger"]["within"] == 36 * 3600
        api.put(f"/automations/{automation['id']}", json=changed(automation, within=10)).raise_for_status()
        asked = {"deployments": {"name": {"any_": ["alarm"]}}}
        deadline = time.monotonic() + 120
        while not (alarms := api.post("/flow_runs/filter", json=asked).json()):  # nothing ended for ten seconds
            assert time.monotonic() < deadline, (project.folder / ".services/prefect.log").read_text()[-4000:]
            time.sleep(0.5)
        assert wait(alarms[0]["id"], "FAILED", "COMPLETED", "CRASHED")["name"] == "Overdue"

        family = [p for pid in first.values() for p in (psutil.Process(pid), *psutil.Process(pid).children(True))]
        down = services("down")
        assert down.returncode == 0 and "worker, mlflow, prefect" in down.stdout
        assert psutil.wait_procs(family, timeout=10)[1] == [] and records(project.folder) == {}
        assert "nothing was running" in services("down").stdout
        assert bystander.poll() is None
    finally:
        services("down")
        bystander.kill()
        bystander.wait()


def test_a_port_that_is_taken_is_named(project):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        command = [
            sys.executable,
            ROOT / "tools/services.py",
            "up",
            "--project",
            project.folder,
            "--prefect-port",
            port,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and f"port {port} is taken" in done.stderr and not records(project.folder)


def test_services_that_run_elsewhere_are_named_and_left_alone(project):
    running = subprocess.Popen(["sleep", "600"])
    try:
        (project.folder / ".services").mkdir()
        record = {
            "pid": running.pid,
            "created": psutil.Process(running.pid).create_time(),
            "command": ["--port", "4321"],
        }
        (project.folder / ".services/prefect.json").write_text(json.dumps(record))
        command = [sys.executable, ROOT / "tools/services.py", "up", "--project", project.folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and "prefect at http://127.0.0.1:4321; nothing was changed" in done.stderr
        assert "make up PREFECT_PORT=4321" in done.stderr
        assert records(project.folder) == {"prefect": running.pid} and running.poll() is None
    finally:
        running.kill()
        running.wait()


def test_a_record_whose_id_was_given_to_another_process_ends_nothing(project):
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        (project.folder / ".services").mkdir()
        stale = {"pid": bystander.pid, "created": psutil.Process(bystander.pid).create_time() - 60}
        (project.folder / ".services/worker.json").write_text(json.dumps(stale))
        command = [sys.executable, ROOT / "tools/services.py", "down", "--project", project.folder]
        assert "nothing was running" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()

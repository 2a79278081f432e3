"""`make up`, a run from the schedule to its end, `make down`: real servers and a real worker, stubs for the commands."""

import json
import os
import re
import socket
import socketserver
import subprocess
import sys
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import psutil
import pytest
from project_services import PATIENCE, ROOT

from tools.ports import free_port
from tools.services import HOST, Services, answers

pytestmark = [pytest.mark.services, pytest.mark.timeout(3600)]
get, post = partial(httpx.get, timeout=PATIENCE), partial(httpx.post, timeout=PATIENCE)


@pytest.fixture
def project(stub):
    """A project whose pipeline ends once the file `overlapped` is there."""
    decision = json.dumps({"promoted": False, "reasons": ["gain in cover_em: too small"]})
    stub.tell({
        "dvc --wait-for-lock repro": [
            {
                "writes": {"results/rl/metrics.json": "{}", "results/report/table.md": "| a table |"},
                "awaits": "overlapped",
            },
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


@pytest.fixture
def proxy():
    """The environment that sends services to a proxy, and what they ask it for: whom they would reach beyond this machine."""
    asked = []

    class Proxy(socketserver.StreamRequestHandler):
        def handle(self):
            asked.append(self.rfile.readline().decode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        yield {"HTTPS_PROXY": url, "https_proxy": url, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}, asked
        server.shutdown()


def refuses_strangers(url: str, login: tuple[str, str]) -> None:
    """MLflow lets in whom the login is known to, and even him not from a foreign page."""
    made, sought = f"{url}/api/2.0/mlflow/experiments/create", f"{url}/api/2.0/mlflow/experiments/search"
    foreign = {"Origin": "http://evil.example"}
    for wrong in (None, (login[0], "guessed"), ("admin", "password1234")):
        assert post(made, json={"name": "x"}, auth=wrong).status_code == 401
        assert post(sought, json={"max_results": 1}, auth=wrong).status_code == 401
        assert post(f"{url}/v1/traces", auth=wrong).status_code == 401
        page = get(url, auth=wrong)
        assert page.status_code == 401 and page.headers["www-authenticate"].startswith("Basic")  # a browser asks
    assert post(made, json={"name": "x"}, headers=foreign, auth=login).status_code == 403
    assert post(made, json={"name": "x"}, headers={"Host": "evil.example"}, auth=login).status_code == 403
    assert post(sought, json={"max_results": 1}, auth=login).status_code == 200
    assert "<html" in get(url, auth=login).text and get(f"{url}/health").text == "OK"
    usage = get(f"{url}/ajax-api/3.0/mlflow/ui-telemetry", auth=login).json()
    assert usage["disable_ui_telemetry"] is True


def record_as_it_says(said: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Make the experiment and the queue of reviews, with the login as the last line of `make up` hands it over."""
    (export,) = re.findall(r"^record from elsewhere: (export .*)$", said, re.M)
    made = "from dragoman.tracking.review import queue_for_review; queue_for_review({})"
    command = f"{export} && exec {sys.executable} -c '{made}'"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        ["bash", "-c", command], cwd=folder / "bin", env=environment, capture_output=True, text=True, check=False
    )


def test_from_up_to_a_finished_run_to_down(project, services, proxy):
    beyond, asked_beyond = proxy
    services.more |= beyond
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        said = services.up()
        first = records(project.folder)
        assert set(first) == {"prefect", "mlflow", "worker"}
        services.up()
        assert records(project.folder) == first
        moved = services.run("up", "--mlflow-port", str(free_port()))
        assert moved.returncode == 1 and records(project.folder) == first
        assert f"mlflow at {services.mlflow}" in moved.stderr and "make down" in moved.stderr

        url = f"{services.prefect}/api"
        foreign = {"Origin": "http://evil.example"}
        strange = post(f"{url}/deployments/filter", json={}, headers=foreign)
        assert get(f"{url}/admin/version").status_code == 401
        assert strange.status_code in (401, 403) and "access-control-allow-origin" not in strange.headers
        api = httpx.Client(base_url=url, timeout=PATIENCE, auth=services.login("prefect"), headers=foreign)
        unproven = api.post("/deployments/filter", json={})
        assert unproven.status_code == 403 and "access-control-allow-origin" not in unproven.headers
        token = api.get("/csrf-token", params={"client": "test"}).json()["token"]
        api.headers.update({"Prefect-Csrf-Token": token, "Prefect-Csrf-Client": "test"})
        refuses_strangers(services.mlflow, services.login("mlflow"))
        twice = services.run("ui")
        assert twice.returncode == 1 and services.mlflow in twice.stderr and "mlflow.login" in twice.stderr
        recorded = record_as_it_says(said, project.folder)
        assert recorded.returncode == 0, recorded.stderr
        found = get(
            f"{services.mlflow}/api/2.0/mlflow/experiments/get-by-name",
            params={"experiment_name": "dragoman"},
            auth=services.login("mlflow"),
        )
        assert found.json()["experiment"]["name"] == "dragoman"

        def alarm() -> dict:
            (made,) = (a for a in api.post("/automations/filter", json={}).json() if "alarm" in a["name"])
            return made

        counting = alarm()
        limit = "/v2/concurrency_limits/dvc"
        assert api.patch(limit, json={"active_slots": 1}).status_code in (200, 204)  # as a dead run leaves it
        services.up()
        assert api.get(limit).json()["active_slots"] == 0
        assert alarm()["id"] == counting["id"], "its time goes on"
        deployments = {d["name"]: d for d in api.post("/deployments/filter", json={}).json()}
        on_demand = {"train", "chain", "pair", "synthesize", "rollout", "seeds", "evaluate", "bench", "sweep"}
        assert set(deployments) == {"nightly", "drift", "alarm", "weekly"} | on_demand
        nightly = deployments["nightly"]
        assert nightly["schedules"][0]["schedule"] == {
            "cron": "0 2 * * *", "timezone": "Europe/Zurich", "day_or": True,
        }  # fmt: skip

        def upcoming() -> list[dict]:
            asked = {"deployments": {"id": {"any_": [nightly["id"]]}}, "sort": "EXPECTED_START_TIME_ASC"}
            return api.post("/flow_runs/filter", json=asked).json()

        deadline = time.monotonic() + PATIENCE
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
            deadline = time.monotonic() + PATIENCE
            while (now := state(run_id))["type"] not in types:
                assert time.monotonic() < deadline, f"{now}\n{(project.folder / '.services/worker.log').read_text()}"
                time.sleep(0.5)
            return now

        scheduled = run()
        wait(scheduled, "RUNNING")
        overlapping = run()
        assert wait(overlapping, "CANCELLED", "COMPLETED")["type"] == "CANCELLED"
        (project.folder / "overlapped").touch()
        ended = wait(scheduled, "COMPLETED", "FAILED", "CRASHED")
        assert (ended["type"], ended["name"], ended["message"]) == (
            "COMPLETED",
            "Refused",
            "gain in cover_em: too small",
        )
        assert project.commands.count("dvc --wait-for-lock repro") == 1 and project.commands[-1] == "dragoman promote"
        keys = {artifact["key"]: artifact["data"] for artifact in api.post("/artifacts/latest/filter", json={}).json()}
        assert keys["report"] == "| a table |" and keys["promotion"] == "| no |"

        automation = alarm()
        assert automation["trigger"]["within"] == 36 * 3600
        api.put(f"/automations/{automation['id']}", json=changed(automation, within=10)).raise_for_status()
        asked = {"deployments": {"name": {"any_": ["alarm"]}}}
        deadline = time.monotonic() + PATIENCE
        while not (alarms := api.post("/flow_runs/filter", json=asked).json()):  # nothing ended for ten seconds
            assert time.monotonic() < deadline, (project.folder / ".services/prefect.log").read_text()[-4000:]
            time.sleep(0.5)
        assert wait(alarms[0]["id"], "FAILED", "COMPLETED", "CRASHED")["name"] == "Overdue"

        family = [p for pid in first.values() for p in (psutil.Process(pid), *psutil.Process(pid).children(True))]
        down = services.run("down")
        assert down.returncode == 0 and "worker, mlflow, prefect" in down.stdout
        assert psutil.wait_procs(family, timeout=PATIENCE)[1] == [] and records(project.folder) == {}
        assert "nothing was running" in services.run("down").stdout
        # Prefect looks up at GitHub which kinds of workers there are, and has no switch for that. It sends nothing.
        assert {line for line in asked_beyond if "raw.githubusercontent.com" not in line} == set()
        assert bystander.poll() is None
    finally:
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


def users_of_mlflow(folder: Path) -> Path:
    """The file of MLflow's logins, as a server that runs has it open."""
    users = folder / ".services/mlflow-users.db"
    users.parent.mkdir(exist_ok=True)
    users.write_text("in use")
    return users


def test_a_port_of_mlflow_that_is_taken_leaves_the_logins_of_whoever_has_it(tmp_path):
    class Healthy(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()

    users = users_of_mlflow(tmp_path)
    with ThreadingHTTPServer((HOST, 0), Healthy) as prefect, socket.create_server((HOST, 0)) as other:
        threading.Thread(target=prefect.serve_forever, daemon=True).start()
        port = prefect.server_address[1]
        me = psutil.Process()  # stands for a Prefect that `up` has started before
        record = {"pid": me.pid, "created": me.create_time(), "command": ["--port", str(port)]}
        (tmp_path / ".services/prefect.json").write_text(json.dumps(record))
        ports = ("--prefect-port", str(port), "--mlflow-port", str(other.getsockname()[1]))
        for action in ("up", "ui"):
            command = [sys.executable, ROOT / "tools/services.py", action, "--project", tmp_path, *ports]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 1 and f"make {action} MLFLOW_PORT=" in done.stderr
            assert users.read_text() == "in use"
        prefect.shutdown()


def test_pages_that_are_open_keep_their_logins_from_another_mlflow_at_any_port(tmp_path):
    (tmp_path / "mlflow").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "mlflow").chmod(0o755)
    with_stub = f"import pathlib, tools.services as s; s.BIN = pathlib.Path({str(tmp_path)!r}); s.main()"

    def command(action: str) -> list[str]:
        return [sys.executable, "-c", with_stub, action, "--project", str(tmp_path), "--mlflow-port", str(free_port())]

    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    with subprocess.Popen(command("ui"), env=environment, stdout=subprocess.PIPE, text=True) as pages:
        try:
            deadline = time.monotonic() + PATIENCE
            while "sleep" not in psutil.Process(pages.pid).cmdline():
                assert pages.poll() is None and time.monotonic() < deadline
                time.sleep(0.1)
            users = users_of_mlflow(tmp_path)
            for action in ("up", "ui"):
                done = subprocess.run(command(action), env=environment, capture_output=True, text=True, check=False)
                assert done.returncode == 1 and "`make ui` runs at http://127.0.0.1:" in done.stderr
                assert users.read_text() == "in use"
            done = subprocess.run(command("down"), env=environment, capture_output=True, text=True, check=True)
            assert "nothing was running" in done.stdout and pages.poll() is None
        finally:
            pages.kill()


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


def test_a_process_whose_start_is_reckoned_anew_after_the_clock_was_set_is_still_ended(tmp_path):
    (tmp_path / ".services").mkdir()
    with subprocess.Popen(["sleep", "600"]) as running:
        threading.Thread(target=running.wait, daemon=True).start()  # `down` waits until somebody has
        try:
            record = {"pid": running.pid, "created": psutil.Process(running.pid).create_time() + 2}
            (tmp_path / ".services/worker.json").write_text(json.dumps(record))
            command = [sys.executable, ROOT / "tools/services.py", "down", "--project", tmp_path]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            assert "ended: worker" in done.stdout
            assert running.wait(10) != 0
        finally:
            running.kill()


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


def test_mlflow_s_pages_alone_ask_for_the_login_too_and_tell_nobody(services, proxy):
    beyond, asked_beyond = proxy
    services.more |= beyond
    with subprocess.Popen(services.command("ui"), env=services.environment, stdout=subprocess.PIPE, text=True) as ui:
        try:
            deadline = time.monotonic() + PATIENCE
            while not answers(f"{services.mlflow}/health"):
                assert ui.poll() is None and time.monotonic() < deadline
                time.sleep(0.3)
            refuses_strangers(services.mlflow, services.login("mlflow"))
            assert asked_beyond == []
        finally:
            for process in (psutil.Process(ui.pid), *psutil.Process(ui.pid).children(recursive=True)):
                process.terminate()
            said = ui.stdout.read()
    assert services.mlflow in said and "mlflow.login" in said


def test_another_server_of_mlflow_is_not_told_our_login(tmp_path, monkeypatch):
    def told() -> str | None:
        made = Services(tmp_path, 4200, 5000)
        made._log_in()
        return made.environment.get("MLFLOW_TRACKING_PASSWORD")

    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "theirs")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example")
    assert told() == "theirs"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert told() == (tmp_path / ".services/mlflow.login").read_text().partition(":")[2]
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert told() not in ("theirs", None)

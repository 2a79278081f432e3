"""Kill -9 what the system rests on, in the midst of its work, or attack it, and see that nothing is lost and no one let in.

    python -m tools.drill all                  # or: worker mlflow llm api, and those of tools/faults.py and versions.py
    python -m tools.drill endurance --seconds 90        # ten minutes without that, and so among all
    python -m tools.drill circle canary        # up to ten minutes, and not among all
    python -m tools.drill llm --keep           # leaves the folder to look at

Real servers and commands, in a folder and at loopback ports of their own. Only the LLM is a stand-in: a server of OpenAI's
protocol that takes its time and notes what it has answered, so that a question that is put twice is seen. One line a drill; the
exit code is 1 when one fails.

Other deaths are the business of tests, which run with the suite: of a rollout (`tests/rollout/test_rollout_scheduler.py`), of
`dvc repro` (`tests/e2e/test_repro.py`), of a synthesis (`tests/synthesis/test_synthesis_synthesize.py`), of a promotion or a
rollback (`tests/pipeline/test_pipeline_decisions.py`).
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tools.ports import free_port
from tools.services import answers

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
HOST = "127.0.0.1"
QUESTIONS = 12
SECONDS = 1.0
"""How long the LLM takes for an answer."""
LONGEST = 6000
"""Characters of a prompt that it can read."""
DEADLINE = 60.0
"""Of the endpoint, in seconds: a busy machine may need many for a first search."""
BODY = 30.0
"""How long it waits for a body."""
TOWN = "What is the river of towna?"
TOLD = 2000
"""Characters of what a process has said that are shown when it fails."""
PATIENCE = 1800.0
"""Seconds that anything may take before the drill is given up; on a free machine a fraction of that."""


class Failed(Exception):
    """Something that must hold does not."""


class Drill:
    """A project of twelve questions about twelve passages, and the processes of one drill.

    Args:
        folder: where it is made.
        stack: what ends the processes.
        built: such a project, of which data and index are taken.
    """

    def __init__(self, folder: Path, stack: ExitStack, built: Path | None = None) -> None:
        self.folder, self.stack = folder, stack
        self._logs: dict[subprocess.Popen[str], Path] = {}
        self.llm_port, self.prefect_port, self.mlflow_port = free_port(), free_port(), free_port()
        (folder / "conf").mkdir()
        (folder / "conf" / "cpu.yaml").write_text("{}")
        llm = {"engine": "openai", "model": "m", "urls": [f"http://{HOST}:{self.llm_port}/v1"], "structured": "none",
               "concurrency": 2, "retries": 1}  # fmt: skip
        serve = {"models": ["standard"], "episodes": "kept"}
        self.params: dict[str, Any] = {"llm": llm, "evaluate": {"bootstrap": 100, "traces": 1}, "serve": serve}
        self.configure()
        if built is not None:
            shutil.copytree(built / "data", folder / "data")
            return
        data = folder / "data" / "atlas"
        data.mkdir(parents=True)
        towns = [f"town{chr(ord('a') + i)}" for i in range(QUESTIONS)]
        passages = [{"id": t, "title": t, "text": f"The river of {t} is the {t}water."} for t in towns]
        questions = [{"id": t, "question": f"What is the river of {t}?", "answers": [f"{t}water"]} for t in towns]
        for name, rows in (("corpus", passages), ("train", questions), ("dev", questions), ("test", questions)):
            (data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.command("index", "--dataset", "atlas", "--out", "data/index/atlas")

    def configure(self, **changes: dict[str, Any]) -> None:
        """Write the settings, some of them changed."""
        for section, values in changes.items():
            self.params[section] = self.params.get(section, {}) | values
        (self.folder / "params.yaml").write_text(json.dumps(self.params))  # JSON is YAML

    @staticmethod
    def kill(process: subprocess.Popen[str]) -> None:
        kill(process)

    def environment(self, **more: str) -> dict[str, str]:
        paths = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
        return os.environ | {"PYTHONPATH": paths, "MLFLOW_TRACKING_URI": "", **more}

    def start(self, *command: str | Path, **more: str) -> subprocess.Popen[str]:
        """A process with a session of its own, which is killed when the drill is over. What it says goes to a file of `logs/`."""
        (self.folder / "logs").mkdir(exist_ok=True)
        path = self.folder / "logs" / f"{len(self._logs)}.log"
        with path.open("w") as log:
            process = subprocess.Popen(
                command, cwd=self.folder, env=self.environment(**more), stdout=log, stderr=log, text=True,
                start_new_session=True,
            )  # fmt: skip
        self._logs[process] = path
        self.stack.callback(kill, process)
        return process

    def dragoman(self, *arguments: str, before: str = "", **more: str) -> subprocess.Popen[str]:
        """The command line, after the lines of Python `before`."""
        return self.start(sys.executable, "-c", f"{before}\nfrom dragoman.cli import main; main()", *arguments, **more)

    def python(self, code: str, *arguments: str) -> None:
        """Run lines of Python to their end."""
        self.ended(self.start(sys.executable, "-c", code, *arguments))

    def command(self, *arguments: str, expected: int | None = 0, **more: str) -> str:
        """Run a command to its end. Returns what it has said."""
        return self.ended(self.dragoman(*arguments, **more), expected)

    def ended(self, process: subprocess.Popen[str], expected: int | None = 0) -> str:
        code = process.wait(PATIENCE)
        said = self.said(process)
        must(expected is None or code == expected, f"exit code {code}, not {expected}: {said[-TOLD:]}")
        return said

    def said(self, process: subprocess.Popen[str]) -> str:
        """What a process has said so far."""
        return self._logs[process].read_text()

    def evaluation(self, **more: str) -> subprocess.Popen[str]:
        return self.dragoman("evaluate", "--systems", "standard", "--out", "results/drill", **more)

    def llm(self, root: str = "the drill's") -> subprocess.Popen[str]:
        """A server of an LLM, which says that the model comes from `root`."""
        stand_in = ("-m", "tools.drill", "--llm", str(self.llm_port), str(self.folder / "answered"), root)
        process = self.start(sys.executable, *stand_in, PYTHONPATH=str(ROOT))
        until(lambda: answers(f"http://{HOST}:{self.llm_port}/v1/models"), "the LLM's server answers")
        return process

    def mlflow(self, port: int) -> subprocess.Popen[str]:
        store = f"sqlite:///{self.folder / 'server.db'}"
        arguments = ("server", "--host", HOST, "--port", str(port), "--workers", "1", "--backend-store-uri", store)
        process = self.start(BIN / "mlflow", *arguments, MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false")
        until(lambda: answers(f"http://{HOST}:{port}/health"), "MLflow answers")
        return process

    def flows(self) -> Flows:
        """The deployments of `prefect.yaml`, with Prefect, MLflow and a worker until the drill is over."""
        prefect, _ = self.services()
        return Flows(f"{prefect}/api", self.login("prefect"))

    def services(self) -> tuple[str, str]:
        """Prefect, MLflow and a worker, until the drill is over. Returns Prefect's URL and MLflow's."""
        shutil.copytree(ROOT / "flows", self.folder / "flows")
        shutil.copy(ROOT / "prefect.yaml", self.folder)
        self.stack.callback(lambda: self._services("down").wait(PATIENCE))
        self.up()
        return f"http://{HOST}:{self.prefect_port}", f"http://{HOST}:{self.mlflow_port}"

    def login(self, name: str) -> dict[str, str]:
        """The header with which Prefect or MLflow lets a client in."""
        return basic((self.folder / ".services" / f"{name}.login").read_text())

    def up(self) -> None:
        """Start those of the services that are not there."""
        ports = ("--prefect-port", str(self.prefect_port), "--mlflow-port", str(self.mlflow_port))
        self.ended(self._services("up", *ports))

    def _services(self, action: str, *options: str) -> subprocess.Popen[str]:
        return self.start(sys.executable, ROOT / "tools/services.py", action, "--project", str(self.folder), *options)

    @property
    def answered(self) -> Counter[str]:
        """The prompts that the LLM has answered, and how often."""
        path = self.folder / "answered"
        return Counter(path.read_text().splitlines() if path.exists() else [])

    def some_are_answered(self) -> None:
        until(lambda: 3 <= self.answered.total() < QUESTIONS, "some questions are answered")

    def nothing_was_asked_again(self) -> None:
        twice = [prompt for prompt, times in self.answered.items() if times > 1]
        must(not twice, f"{len(twice)} questions were answered twice")

    def failed(self) -> int:
        metrics = json.loads((self.folder / "results/drill/metrics.json").read_text())
        return int(metrics["systems"]["standard"]["failed"])


class Endpoint:
    """An endpoint of a drill's project.

    Args:
        options: of `dragoman serve`.
        before: lines of Python that its process runs first.
        settings: of section `serve`.
    """

    def __init__(self, drill: Drill, *options: str, before: str = "", **settings: Any) -> None:
        self.drill, self.port = drill, free_port()
        self.url = f"http://{HOST}:{self.port}"
        drill.configure(serve={"deadline_s": DEADLINE, "body_s": BODY, **settings})
        self.start(*options, before=before)

    def start(self, *options: str, before: str = "") -> None:
        """Start it, or start it again where it has died."""
        self.process = self.drill.dragoman("serve", "--port", str(self.port), *options, before=before)
        until(lambda: answers(f"{self.url}/readyz"), "the endpoint is ready")

    def ask(self, question: str = TOWN, model: str = "standard") -> dict[str, Any]:
        """The answer. An error of the server is raised."""
        body = {"model": model, "messages": [{"role": "user", "content": question}]}
        answer: dict[str, Any] = call(f"{self.url}/v1/chat/completions", body, tries=0)
        return answer

    def status(self, question: str = TOWN, model: str = "standard") -> int:
        try:
            self.ask(question, model)
        except urllib.error.HTTPError as e:
            return e.code
        return 200

    def cites(self, question: str) -> list[str]:
        return [citation["id"] for citation in self.ask(question)["dragoman"]["citations"]]


class Flows:
    """What Prefect's server is told to run.

    Args:
        api: its URL.
        login: the header with which it lets a client in.
    """

    def __init__(self, api: str, login: Mapping[str, str]) -> None:
        headers = {**login, "Prefect-Csrf-Client": "drill"}
        self.api, self.ask = api, partial(call, headers=headers)
        headers["Prefect-Csrf-Token"] = self.ask(f"{api}/csrf-token?client=drill")["token"]

    def begin(self, name: str, parameters: Mapping[str, Any] = MappingProxyType({})) -> str:
        """Start a run of the deployment `flow/name`. Returns its id."""
        deployment = self.ask(f"{self.api}/deployments/name/{name}")["id"]
        made = self.ask(f"{self.api}/deployments/{deployment}/create_flow_run", {"parameters": dict(parameters)})
        return str(made["id"])

    def end(self, run: str) -> dict[str, str]:
        """The state in which a run ends: its `type`, its `name` and its `message`."""
        final = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
        ended: dict[str, str] = {}

        def is_over() -> bool:
            with suppress(TimeoutError):  # its database is busy
                ended.update(self._state(run))
            return ended.get("type") in final

        until(is_over, "the run ends", every=0.5)
        return ended

    def _state(self, run: str) -> dict[str, str]:
        state = self.ask(f"{self.api}/flow_runs/{run}")["state"]
        return {key: state[key] or "" for key in ("type", "name", "message")}


def worker(drill: Drill) -> str:
    """A flow runs; its worker dies. The run is a process of its own and goes on; the next worker takes the next run."""
    drill.llm()
    flows = drill.flows()
    parameters = {"out": "results/drill", "options": {"system": "standard", "samples": 1, "limit": QUESTIONS}}
    run = flows.begin("in-shards/rollout", parameters)
    drill.some_are_answered()
    record = drill.folder / ".services" / "worker.json"
    os.kill(json.loads(record.read_text())["pid"], signal.SIGKILL)
    ended = flows.end(run)
    must(ended["type"] == "COMPLETED" or bool(ended["message"]), f"the run ended as {ended['type']} without a reason")
    drill.up()
    again = flows.end(flows.begin("in-shards/rollout", parameters))
    must(again["type"] == "COMPLETED", f"the next run ended as {again['type']}: {again['message']}")
    drill.nothing_was_asked_again()
    lines = (drill.folder / "results/drill/episodes.jsonl").read_text().splitlines()
    must(len(lines) == QUESTIONS, f"{len(lines)} episodes, not {QUESTIONS}")
    return f"its run ended as {ended['type']}, the next worker's as COMPLETED, no question was put twice"


def mlflow(drill: Drill) -> str:
    """An evaluation runs; the tracking server dies. What is evaluated stays, and the same command puts it on record."""
    drill.llm()
    port = free_port()
    url = f"http://{HOST}:{port}"
    more = {"MLFLOW_TRACKING_URI": url, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "600"}
    server, evaluation = drill.mlflow(port), drill.evaluation(**more)
    drill.some_are_answered()
    kill(server)
    said = drill.ended(evaluation, expected=None)
    must(evaluation.returncode == 1, f"exit code {evaluation.returncode}: 1 is what a flow tries again")
    must(str(port) in said and "refused" in said.lower(), "the reason is not said")
    must(drill.failed() == 0, "questions failed")
    drill.mlflow(port)
    drill.ended(drill.evaluation(**more))
    drill.nothing_was_asked_again()
    found = call(f"{url}/api/2.0/mlflow/runs/search", {"experiment_ids": ["1"], "max_results": 10}).get("runs", [])
    must(len(found) == 1 and found[0]["info"]["status"] == "FINISHED", f"{len(found)} runs on record, not one")
    return "the evaluation was kept and failed with its reason; the same command put it on record, asking nothing again"


def llm(drill: Drill) -> str:
    """An evaluation runs; the LLM's server dies. Its questions fail with a reason, and they alone are put again."""
    server, evaluation = drill.llm(), drill.evaluation()
    drill.some_are_answered()
    kill(server)
    drill.ended(evaluation)
    failed = drill.failed()
    rows = [json.loads(line) for line in (drill.folder / "results/drill/predictions.jsonl").read_text().splitlines()]
    stopped = Counter(row["stop"] for row in rows)
    must(0 < failed < QUESTIONS and stopped["engine_fault"] == failed, f"{failed} failed; stops: {dict(stopped)}")
    before = drill.answered
    drill.llm()
    drill.ended(drill.evaluation())
    must(drill.failed() == 0, f"{drill.failed()} questions failed in the second run as well")
    put = (drill.answered - before).total()
    must(put <= failed, f"{failed} questions had failed, and {put} were put again")
    return f"{failed} of {QUESTIONS} questions failed with a reason; the same command put those again, and no other"


def api(drill: Drill) -> str:
    """A question is under way; the endpoint dies. Its client is told at once; what was answered is kept; it starts again."""
    drill.llm()
    endpoint = Endpoint(drill)
    must(endpoint.status() == 200, "no answer")
    killed = 0.0

    def kill_it() -> None:
        nonlocal killed
        endpoint.process.kill()
        killed = time.monotonic()

    kept = drill.folder / "kept" / "episodes.jsonl"
    until(lambda: kept.is_file() and bool(kept.read_text()), "the first answer is kept")
    killer = threading.Timer(SECONDS / 3, kill_it)
    killer.start()
    try:
        endpoint.ask("What is the river of townb?")
        raise Failed("a question was answered by a dead endpoint")
    except OSError:
        told = time.monotonic()
    killer.join()
    waited = max(told - killed, 0.0)
    must(waited < DEADLINE / 2, f"the client had to wait {waited:.1f} s")
    endpoint.process.wait()
    endpoint.start()
    must(endpoint.status("What is the river of townb?") == 200, "no answer after the restart")
    # an episode is written after its answer is sent
    until(lambda: len(kept.read_text().splitlines()) >= 2, "what was answered is kept")
    must(len(kept.read_text().splitlines()) == 2, "an episode is kept of a question that was not answered")
    return f"the client was told after {waited:.1f} s; it answers again, and what was answered before is kept"


DRILLS: dict[str, Callable[[Drill], str]] = {"worker": worker, "mlflow": mlflow, "llm": llm, "api": api}


def must(condition: bool, otherwise: str) -> None:
    if not condition:
        raise Failed(otherwise)


def until(condition: Callable[[], bool], what: str, every: float = 0.05) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        must(time.monotonic() < deadline, f"waited {PATIENCE:.0f} s in vain until {what}")
        time.sleep(every)


def kill(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def basic(login: str) -> dict[str, str]:
    """The header of a login `NAME:PASSWORD`."""
    return {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}


def call(
    url: str, body: dict[str, Any] | None = None, tries: int = 20, headers: Mapping[str, str] = MappingProxyType({})
) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=150) as response:  # longer than any deadline of an endpoint here
            return json.loads(response.read())
    except urllib.error.HTTPError as e:
        if e.code != 503 or not tries:
            raise
    time.sleep(0.5)  # Prefect's database is busy, and clients are to try again
    return call(url, body, tries - 1, headers)


class LLM(BaseHTTPRequestHandler):
    """A model that reads the town's river in the passages, slowly. Without a passage it does not know."""

    answered: Path
    root = "the drill's"

    def do_GET(self) -> None:
        self._send({"data": [{"id": "m", "root": self.root}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if len(json.dumps(body["messages"])) > LONGEST:
            self._send({"error": {"message": "This model's maximum context length is exceeded"}}, 400)
            return
        message = {"role": "assistant", "content": self.says(body["messages"])}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        self._send({"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 2}})
        with self.answered.open("a") as file:  # one short write, which threads do not tear
            file.write(json.dumps(body["messages"]) + "\n")

    def says(self, messages: list[dict[str, str]]) -> str:
        time.sleep(SECONDS)
        asked = re.findall(r"river of (town\w+)\?", messages[-1]["content"])
        river = f"{asked[-1]}water" if asked else ""
        known = river if f"the {river}." in json.dumps(messages) else "water"
        return f"the {known}"

    def _send(self, value: Any, status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def prepared(keep: bool, built: Path | None = None) -> Iterator[Drill]:
    folder = Path(tempfile.mkdtemp(prefix="drill-"))
    try:
        with ExitStack() as stack:
            yield Drill(folder, stack, built)
    finally:
        if keep:
            say(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    if sys.argv[1:2] == ["--llm"]:
        LLM.answered, LLM.root = Path(sys.argv[3]), sys.argv[4]
        ThreadingHTTPServer((HOST, int(sys.argv[2])), LLM).serve_forever()
    from tools import circle, endurance, faults, versions

    drills = DRILLS | faults.FAULTS | versions.VERSIONS
    drills |= {"endurance": lambda drill: endurance.endurance(drill, options.seconds, options.clients)}
    alone = {"circle": circle.circle, "canary": versions.canary}
    parser = argparse.ArgumentParser(
        description="Kill or attack a part of the system at work, and see what comes of it."
    )
    parser.add_argument("drill", choices=(*drills, *alone, "all"), nargs="+")
    parser.add_argument("--keep", action="store_true", help="leave the folders, with the logs")
    parser.add_argument("--built", type=Path, help="the folder of an earlier drill, whose data and index are used")
    parser.add_argument("--seconds", type=float, default=endurance.SECONDS, help="of the drill endurance (%(default)g)")
    parser.add_argument("--clients", type=int, default=endurance.CLIENTS, help="of the same (%(default)s)")
    options = parser.parse_args()
    failures = 0
    with prepared(False, options.built) as first:  # what all of them start from is built once
        for name in drills if "all" in options.drill else options.drill:
            started = time.monotonic()
            try:
                with prepared(options.keep, first.folder) as drill:
                    outcome = f"ok      {(drills | alone)[name](drill)}"
            except (Failed, OSError, subprocess.TimeoutExpired) as e:
                outcome, failures = f"FAILED  {type(e).__name__}: {e}", failures + 1
            say(f"{name:<9} {time.monotonic() - started:4.0f} s  {outcome}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    from tools import drill as module  # the one that the drills import: its classes are theirs

    module.main()

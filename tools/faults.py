"""Drills in which nothing dies: a part is swapped, hangs or is attacked. `tools/drill.py` runs them.

Each takes a `Drill`, a project of twelve questions with real servers, and says in a line what it has seen.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType

import psutil

from tools.drill import (
    DEADLINE,
    HOST,
    QUESTIONS,
    ROOT,
    TOWN,
    Drill,
    Endpoint,
    basic,
    call,
    must,
    until,
)
from tools.ports import free_port
from tools.services import answers

SHORT = 4.0
"""Seconds of a deadline that is to be met."""
BODY = 2.0
"""And of waiting for a body that does not come."""
MOST_MORE = 30.0
"""Seconds more than alone that a question may take after a storm. Not cancelled, the 160 before it would take 80."""
AWAKE = 5.0
"""Seconds in which an endpoint says that it lives, whatever it computes: compose.yaml gives it as many."""
C3PO = {
    "decide": "text", "strategy": "Search", "queries": "phrase", "prompts": "brief", "roadmap": False, "max_depth": 2,
}  # fmt: skip
"""As text: at marks no grammar would be asked for."""
MODEL = """
from pathlib import Path
from sys import argv
from dragoman.engines.fetch import fetch_model
from tiny import make_tiny
own, words = Path(argv[1]), Path("data/words")
if (own / "tokenizer.json").is_file():
    words = own
elif not (words / "tokenizer.json").is_file():
    fetch_model("smollm2", words)
make_tiny(Path("data/model"), seed=0, tokenizer=words)
"""
"""A random model with the tokenizer of the project's, or of the built-in one: what a grammar costs hangs on the vocabulary."""


def swap(drill: Drill) -> str:
    """Another model takes the name and the URL of the LLM. What the old one has answered is nobody's answer any more."""
    server = drill.llm("A")
    drill.ended(drill.evaluation())
    must(drill.answered.total() == QUESTIONS, f"{drill.answered.total()} questions were asked, not {QUESTIONS}")
    drill.ended(drill.evaluation())
    must(drill.answered.total() == QUESTIONS, "questions were asked again though nothing had changed")
    drill.kill(server)
    drill.llm("B")
    drill.ended(drill.evaluation())
    asked = drill.answered.total() - QUESTIONS
    must(asked == QUESTIONS, f"{asked} of {QUESTIONS} questions were put to the new model")
    return f"all {asked} questions were put to the new model, and none twice to the old one"


def hang(drill: Drill) -> str:
    """The LLM hangs. The endpoint says so after its deadline and a probe, and is ready when the LLM goes on."""
    server, endpoint = drill.llm(), Endpoint(drill, deadline_s=SHORT)
    until(lambda: endpoint.status() != 504, "a first search is done in time")
    must(endpoint.status() == 200, "no answer")
    os.killpg(server.pid, signal.SIGSTOP)
    started = time.monotonic()
    with ThreadPoolExecutor(3) as pool:
        statuses = list(pool.map(lambda _: endpoint.status(), range(3)))
    must(statuses == [504] * 3, f"three questions ended with {statuses}")
    until(lambda: not answers(f"{endpoint.url}/readyz"), "it is not ready")
    seen = time.monotonic() - started
    must(seen < DEADLINE, f"that took {seen:.0f} s")
    os.killpg(server.pid, signal.SIGCONT)
    until(lambda: answers(f"{endpoint.url}/readyz"), "it is ready again")
    must(endpoint.status() == 200, "no answer after it went on")
    return f"not ready {seen:.1f} s after the LLM stopped, ready when it went on"


def index(drill: Drill) -> str:
    """The index is built again under retriever and endpoint. Both change over; no question fails meanwhile."""
    drill.llm()
    port = free_port()
    drill.dragoman("serve-retriever", "--index", "data/index/atlas", "--port", str(port))
    until(lambda: answers(f"http://{HOST}:{port}/healthz"), "the retriever answers")
    endpoint = Endpoint(drill, "--index", f"http://{HOST}:{port}")
    question = "What is the river of newville?"
    must("newville" not in endpoint.cites(question), "the passage was there before")
    with (drill.folder / "data/atlas/corpus.jsonl").open("a") as corpus:
        corpus.write(
            json.dumps({"id": "newville", "title": "newville", "text": "The river of newville is the Niva."}) + "\n"
        )
    drill.command("index", "--dataset", "atlas", "--out", "data/index/atlas")
    started, asked = time.monotonic(), 0
    while "newville" not in endpoint.cites(question):  # an error would be raised
        asked += 1
        must(time.monotonic() - started < 600, "the new index is not searched after 600 s")
    return (
        f"the new passage was found after {time.monotonic() - started:.0f} s, and none of {asked + 2} questions failed"
    )


def storm(drill: Drill) -> str:
    """160 clients leave at once. The next one does not wait for what they had asked."""
    drill.llm()
    endpoint = Endpoint(drill, deadline_s=120, concurrency=160)
    alone = _seconds(lambda: endpoint.ask(TOWN))
    body = json.dumps({"model": "standard", "messages": [{"role": "user", "content": TOWN}]})

    def leave(_: int) -> None:
        connection = http.client.HTTPConnection(HOST, endpoint.port, timeout=30)
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        time.sleep(0.05)
        connection.close()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(leave, range(160)))
    after = _seconds(lambda: endpoint.ask(TOWN))
    must(after < alone + MOST_MORE, f"{alone:.1f} s alone, {after:.1f} s after the storm")
    return f"{alone:.1f} s alone, {after:.1f} s after 160 clients had left"


def bodies(drill: Drill) -> str:
    """Half bodies and endless ones. Connections are closed in time, and memory does not grow."""
    drill.llm()
    endpoint, port = Endpoint(drill, body_s=BODY), free_port()
    retriever = drill.dragoman("serve-retriever", "--index", "data/index/atlas", "--port", str(port))
    until(lambda: answers(f"http://{HOST}:{port}/healthz"), "the retriever answers")
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n{"
    halves = [socket.create_connection((HOST, endpoint.port)) for _ in range(200)]
    for number, half in enumerate(halves):
        half.sendall(head if number % 2 else head[:40])
    started = time.monotonic()
    for half in halves:
        half.settimeout(max(0.1, 3 * BODY + 20 - (time.monotonic() - started)))
        while half.recv(4096):
            pass
    closed = time.monotonic() - started
    must(endpoint.status() == 200, "no answer afterwards")

    memory = psutil.Process(retriever.pid).memory_info().rss
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    connection.putrequest("POST", "/v1/search")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", str(400 << 20))
    connection.endheaders()
    try:
        for _ in range(400):
            connection.send(b"x" * (1 << 20))
    except OSError:
        pass  # it has been refused
    grown = (psutil.Process(retriever.pid).memory_info().rss - memory) >> 20
    must(grown < 64, f"the retriever has grown by {grown} MiB")
    return f"200 halves were closed after {closed:.1f} s; 400 MiB made the retriever grow by {max(grown, 0)} MiB"


def poison(drill: Drill) -> str:
    """Passages that no model can read whole, and a number that would fill memory."""
    drill.llm()
    rows = [
        {"id": "endless", "title": "towna " + "t" * 30_000, "text": "The river of towna."},
        {"id": "spaceless", "title": "towna", "text": "river" * 4000},
    ]
    with (drill.folder / "data/atlas/corpus.jsonl").open("a") as corpus:
        corpus.write("".join(json.dumps(row) + "\n" for row in rows))
    drill.command("index", "--dataset", "atlas", "--out", "data/index/atlas")
    endpoint = Endpoint(drill)
    cited = endpoint.cites(TOWN)
    must("endless" in cited, f"the passage was not found, but {cited}")
    number = '<http://a/{}> <http://a/p> "1E+999999999"^^<http://www.w3.org/2001/XMLSchema#decimal> .\n'
    (drill.folder / "poison.nt").write_text("".join(number.format(i) for i in range(10)))
    limited = f"ulimit -v 8000000; exec {sys.executable} -m dragoman sparql 'SELECT * {{?s ?p ?o}}' --graph poison.nt"
    process = drill.start("bash", "-c", limited)
    said = drill.ended(process, 2)
    must("poison.nt:1" in said, f"the line is not named: {said[-300:]}")
    return "the question was answered, and the number refused by file and line"


def questions(drill: Drill) -> str:
    """40 long questions at once, each with a grammar of its own. The endpoint stays awake, and gives the memory back."""
    drill.llm()
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("src", "tests/support"))
    drill.ended(drill.start(sys.executable, "-c", MODEL, str(ROOT / "data/model"), PYTHONPATH=paths))
    drill.configure(
        llm={"concurrency": 40},
        proxy={"engine": "transformers", "model": "data/model"},
        systems={"c3po": C3PO},
    )
    endpoint = Endpoint(drill, models=["c3po"], deadline_s=120, concurrency=40)
    must(not endpoint.ask(TOWN, "c3po")["dragoman"].get("degraded"), "another system has answered")
    process = psutil.Process(endpoint.process.pid)
    memory, slowest, done = process.memory_info().rss, 0.0, threading.Event()

    def long(number: int) -> str:
        words = (f"word{number}x{position}" for position in range(150))
        return f"What is the river of towna? {' '.join(words)}"[:1990]

    def poll() -> float:
        longest = 0.0
        while not done.is_set():
            longest = max(longest, _seconds(lambda: call(f"{endpoint.url}/healthz")))
            time.sleep(0.05)
        return longest

    with ThreadPoolExecutor(41) as pool:
        polling = pool.submit(poll)
        try:
            statuses = list(pool.map(lambda number: endpoint.status(long(number), "c3po"), range(40)))
        finally:
            done.set()
        slowest = polling.result()
    grown = (process.memory_info().rss - memory) >> 20
    must(set(statuses) == {200}, f"statuses: {sorted(statuses)}")
    must(slowest < AWAKE, f"/healthz took {slowest:.1f} s")
    must(grown < 512, f"memory has grown by {grown} MiB")
    return f"/healthz took {slowest:.1f} s at most while 40 were answered; memory grew by {grown} MiB"


def login(drill: Drill) -> str:
    """A page in a browser, or another user, reaches Prefect and MLflow. Neither can start, write or read anything."""
    prefect, mlflow = drill.services()
    flows, runs = f"{prefect}/api/deployments/filter", f"{mlflow}/api/2.0/mlflow/experiments"
    inside, wrong, page = drill.login("mlflow"), basic("owner:guessed"), {"Origin": "http://evil.example"}
    tried = {
        "Prefect, a stranger": _answer(flows),
        "Prefect, a wrong login": _answer(flows, wrong),
        "Prefect, a stranger's browser": _answer(flows, page),
        "Prefect, a browser that is logged in": _answer(flows, drill.login("prefect") | page),
        "MLflow, a stranger's browser": _answer(f"{runs}/create", page),
        "MLflow, a browser that is logged in": _answer(f"{runs}/create", inside | page),
    }
    nobody = {
        "MLflow, a stranger who reads": _answer(f"{runs}/search"),
        "MLflow, a stranger who writes": _answer(f"{runs}/create"),
        "MLflow, a stranger who sends traces": _answer(f"{mlflow}/v1/traces"),
        "MLflow, a wrong login": _answer(f"{runs}/search", wrong),
    }
    for who, (status, _) in nobody.items():
        must(status == 401, f"{who}: status {status}")
    for who, (status, origin) in tried.items():
        must(status in (401, 403) and origin is None, f"{who}: status {status}, CORS {origin}")
    entered = _answer(f"{runs}/search", inside)[0]
    must(entered == 200, f"MLflow, with the login: status {entered}")
    return "; ".join(f"{who}: {status}" for who, (status, _) in (tried | nobody).items())


def writers(drill: Drill) -> str:
    """Two commands write to one folder, and a file has a torn end. One ends, and every line can be read."""
    drill.llm()
    command = ("rollout", "--system", "standard", "--samples", "1", "--out", "results/both")
    first = drill.dragoman(*command)
    until(lambda: drill.answered.total() > 0, "the first is at work")
    first.send_signal(signal.SIGSTOP)  # or it might be done before the other has started
    try:
        said = drill.command(*command, expected=2)
    finally:
        first.send_signal(signal.SIGCONT)
    must(f"process {first.pid}" in said, f"the other one is not named: {said[-300:]}")
    drill.ended(first)
    for line in (drill.folder / "results/both/episodes.jsonl").read_text().splitlines():
        json.loads(line)
    kept = drill.folder / "kept" / "episodes.jsonl"
    kept.parent.mkdir()
    kept.write_text('{"whole": 1}\n{"torn": "by a ki')
    endpoint = Endpoint(drill, episodes="kept")
    must(endpoint.status() == 200, "no answer")
    until(lambda: len(kept.read_text().splitlines()) == 2, "the episode is kept")
    rows = [json.loads(line) for line in kept.read_text().splitlines()]
    must("question" in rows[1], "the line after the torn one is no episode")
    return "the second writer ended and named the first; every line can be read"


FAULTS: dict[str, Callable[[Drill], str]] = {
    "swap": swap, "hang": hang, "index": index, "storm": storm, "bodies": bodies, "poison": poison,
    "questions": questions, "login": login, "writers": writers,
}  # fmt: skip


def _seconds(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def _answer(url: str, headers: Mapping[str, str] = MappingProxyType({})) -> tuple[int, str | None]:
    """What is said to a request: the status, and the foreign origin whose pages may read it."""
    sent = {"Content-Type": "application/json", **headers}
    request = urllib.request.Request(url, b'{"name": "x", "max_results": 1}', sent)
    try:
        with urllib.request.urlopen(request, timeout=150) as response:
            return response.status, response.headers.get("access-control-allow-origin")
    except urllib.error.HTTPError as e:
        return e.code, e.headers.get("access-control-allow-origin")

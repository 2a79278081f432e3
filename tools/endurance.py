"""The drill `endurance`: 64 clients ask the champion while all that it rests on is changed. `tools/drill.py` runs it.

Endpoint, index, registry, gate and the commands that change them are the real ones. The frozen LLM is a stand-in, which reads
a town's river in the passages that it is shown. The policies are made so that an answer tells which of them has acted: v1 keeps
no passage that it finds, and v2 all of them. So v2 passes the gate, and whoever is answered by v1 is told of no river.
"""

from __future__ import annotations

import http.client
import json
import math
import subprocess
import threading
import time
import urllib.error
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count, cycle
from statistics import median

import psutil

from tools.drill import QUESTIONS, ROOT, Drill, Endpoint, must, until
from tools.versions import validated

SECONDS = 600.0
CLIENTS = 64
CHAMPION = "c3po@champion"
READING = 1.0
"""Seconds after an answer until a client has its next question."""
UNDER_WAY, WAITING = 1 / 2, 3 / 8
"""How many questions the endpoint takes, as shares of the clients: when it is slow, some are told to come again."""
WARM_UP, REST, PAUSE = 0.2, 0.1, 0.03
"""Shares of the time: before the first event, after the last one, and between two."""
WARM_REQUESTS = 500
"""And so many before the first event, however slow the machine: Java, threads and caches take their memory with the first ones."""
SOON = 600.0
"""Seconds until an event must be seen in answers."""
MOST_GROWTH = 0.05
HEAP = 64
"""MiB that Java's heap may grow besides: when it collects is its own affair, and 48 were seen on a busy machine."""
ROWS = 1 << 20
"""Of a policy's embeddings. They take 128 MiB or more, so that a policy that was never let go would be seen."""
C3PO = {
    "strategy": "Search", "decide": "marks", "prompts": "brief", "queries": "names", "bias": None,
}  # fmt: skip
"""Without a bias: v1, whose logits are all nought, would keep a passage by it."""

POLICIES = """
import json, sys
from pathlib import Path
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer
from dragoman.engines.marks import yes_and_no
from dragoman.registry.policy import publish
from dragoman.registry.versions import Registry
sys.path.append(sys.argv[1])
from tiny import make_tiny
registry = Registry()
for number in (1, 2):
    made = make_tiny(Path(f"made{number}"), seed=0, vocab_size=int(sys.argv[2]))
    weights = {name: tensor.half() * 0 for name, tensor in load_file(made / "model.safetensors").items()}
    if number == 2:
        tokenizer = AutoTokenizer.from_pretrained(made)
        _, no = yes_and_no(lambda text: tokenizer.encode(text, add_special_tokens=False))
        weights["model.norm.weight"] += 1
        weights["model.embed_tokens.weight"] += 1
        weights["model.embed_tokens.weight"][no] = 0
    save_file(weights, made / "model.safetensors", {"format": "pt"})
    registry.register(publish(made, Path(f"results/s{number}"), {"stage": f"s{number}", "system": "c3po"}))
registry.promote(registry.find("v1"), None)
Path("policies.json").write_text(json.dumps({version.name: version.policy for version in registry.history()}))
"""
"""Registers v1, the champion, whose logits are all nought, and v2, whose logits all say yes. No engine runs in their float16, so
loading copies them: what is only mapped would take no memory."""


@dataclass(frozen=True)
class Asked:
    """What became of a question."""

    started: float
    town: str
    status: int
    """0 where there was no response."""
    reason: str = ""
    """The code of an error, or why standard RAG has answered; empty where the champion has."""
    policy: str | None = None
    answer: str = ""
    wait: float = 0.0
    """What Retry-After asks for."""
    known: bool = True
    """Whether the town's passage had been found before."""
    seconds: float = 0.0
    """Until there was a response."""

    @property
    def refused(self) -> bool:
        """Whether it was told to come again."""
        return self.status == 429 and self.wait > 0


@dataclass
class Reign:
    """The time in which every question that is put must be answered by this policy."""

    policy: str
    since: float
    until: float = math.inf


class Clients:
    """Who ask the champion, each one question after the other.

    Args:
        policies: by their versions.
    """

    def __init__(self, endpoint: Endpoint, policies: Mapping[str, str]) -> None:
        self._endpoint, self.policies = endpoint, policies
        self.towns = [f"town{chr(ord('a') + i)}" for i in range(QUESTIONS)]
        self.asked: list[Asked] = []
        self.reigns: list[Reign] = []
        self._numbers = count()

    @contextmanager
    def at_work(self, number: int) -> Iterator[None]:
        """So many of them ask until the end."""
        done = threading.Event()

        def client() -> None:
            while not done.is_set():
                done.wait(self.ask().wait or READING)

        with ThreadPoolExecutor(number) as pool:
            clients = [pool.submit(client) for _ in range(number)]
            try:
                yield
            finally:
                done.set()
        for each in clients:
            each.result()  # what is wrong with the drill itself

    def ask(self, town: str | None = None) -> Asked:
        """Put a question that is new, about a town or the next one."""
        number = next(self._numbers)
        asked_of = town or self.towns[number % len(self.towns)]
        asked = self._ask(asked_of, number)
        asked = replace(asked, known=asked_of in self.towns, seconds=time.monotonic() - asked.started)
        self.asked.append(asked)
        return asked

    def _ask(self, town: str, number: int) -> Asked:
        started = time.monotonic()
        try:
            said = self._endpoint.ask(f"What is the river of {town}? This is question {number}.", CHAMPION)
        except urllib.error.HTTPError as e:
            reason = "no error of the endpoint"
            with suppress(ValueError, KeyError, TypeError):
                reason = json.load(e)["error"]["code"]
            return Asked(started, town, e.code, reason, wait=float(e.headers.get("Retry-After", 0)))
        except (OSError, http.client.HTTPException) as e:
            return Asked(started, town, 0, f"{type(e).__name__}: {e}")
        extension, answer = said["dragoman"], said["choices"][0]["message"]["content"]
        reason = (extension.get("degraded") or {}).get("reason", "")
        return Asked(started, town, 200, reason, extension["policy"], answer)

    def until(self, what: str, seen: Callable[[Asked], bool], town: str | None = None) -> float:
        """Ask until that is seen in an answer. Returns the seconds that it took."""
        started = time.monotonic()
        while not seen(asked := self.ask(town)):
            must(time.monotonic() < started + SOON, f"{what}: not seen in an answer after {SOON:.0f} s, but {asked}")
            time.sleep(max(asked.wait, 0.2))
        return time.monotonic() - started

    def change(self, version: str, command: Callable[[], object]) -> float:
        """Have another version made the champion, and wait for it."""
        for reign in self.reigns[-1:]:
            reign.until = time.monotonic()
        command()
        policy = self.policies[version]
        seconds = self.until(f"the champion {version}", lambda asked: asked.policy == policy)
        self.reigns.append(Reign(policy, time.monotonic()))
        return seconds

    def says(self, version: str, town: str) -> str:
        """What who is served by a version is answered."""
        return f"the {town}water" if version == "v2" else "the water"

    def faults(self) -> Counter[str]:
        """What was wrong, and how often."""
        versions = {policy: version for version, policy in self.policies.items()}
        found: Counter[str] = Counter()
        for asked in self.asked:
            if asked.status != 200 or asked.reason or asked.policy not in versions:
                if not asked.refused:
                    found[f"{asked.status} {asked.reason}".rstrip()] += 1
                continue
            if asked.known and asked.answer != self.says(versions[asked.policy], asked.town):
                found[f"{versions[asked.policy]} said {asked.answer!r} of {asked.town}"] += 1
            if any(r.since <= asked.started < r.until and asked.policy != r.policy for r in self.reigns):
                found[f"{versions[asked.policy]} answered after another was the champion"] += 1
        return found


class Memory:
    """The memory of a process and of those that it has started, looked at once a second until the end."""

    def __init__(self, process: int) -> None:
        self._process = psutil.Process(process)
        self._seen: list[int] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        done = threading.Event()

        def watch() -> None:
            while not done.wait(1.0):
                self._seen.append(self._now())

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        try:
            yield
        finally:
            done.set()
            watching.join()

    def latest(self) -> float:
        """MiB, the median of the last five looks."""
        return median(self._seen[-5:]) / (1 << 20)

    def _now(self) -> int:
        size = 0
        for process in (self._process, *self._process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                size += process.memory_info().rss
        return size


class Events:
    """What is done to the system meanwhile. Each gives the seconds until it was seen in an answer of the champion.

    Args:
        llm: the process of the LLM.
    """

    def __init__(self, drill: Drill, clients: Clients, llm: subprocess.Popen[str]) -> None:
        self._drill, self._clients, self._llm = drill, clients, llm
        self._new = count(1)

    def promotion(self) -> float:
        """The gate compares v2 with the champion, and promotes it."""
        validated(self._drill)
        command = ("promote", "v2", "--out", f"results/promote{len(self._clients.reigns)}")
        return self._clients.change("v2", lambda: self._drill.command(*command))

    def index_rebuild(self) -> float:
        """A passage is added, which v2 keeps and the LLM reads."""
        town = f"town{next(self._new)}"
        row = {"id": town, "title": town, "text": f"The river of {town} is the {town}water."}
        self._clients.until("no river", lambda asked: asked.answer == "the water", town)
        with (self._drill.folder / "data/atlas/corpus.jsonl").open("a") as corpus:
            corpus.write(json.dumps(row) + "\n")
        self._drill.command("index", "--dataset", "atlas", "--out", "data/index/atlas")
        seconds = self._clients.until("the new index", lambda asked: asked.answer == f"the {town}water", town)
        self._clients.towns.append(town)
        return seconds

    def llm_restart(self) -> float:
        """Its server is killed with the calls that it is at, and started again."""
        self._drill.kill(self._llm)
        noted = self._drill.folder / "answered"
        before = noted.stat().st_size
        self._llm = self._drill.llm()
        return self._clients.until("the new LLM", lambda asked: asked.status == 200 and noted.stat().st_size > before)

    def rollback(self) -> float:
        return self._clients.change("v1", lambda: self._drill.command("rollback"))


def endurance(drill: Drill, seconds: float = SECONDS, number: int = CLIENTS) -> str:
    """Clients ask the champion. Meanwhile it is promoted, the index rebuilt, the LLM restarted, and the champion taken back."""
    llm = drill.llm()
    drill.python(POLICIES, str(ROOT / "tests" / "support"), str(ROWS))
    drill.configure(
        llm={"retries": 8, "concurrency": 16},  # a minute or two, in which a server comes up again
        proxy={"engine": "transformers"},
        systems={"c3po": C3PO},
        promote={"limit": 4, "min_questions": 4, "max_cost_ratio": 1000},
    )
    places = {"concurrency": int(number * UNDER_WAY), "queue": int(number * WAITING)}
    endpoint = Endpoint(drill, models=[CHAMPION], deadline_s=140, **places)
    clients = Clients(endpoint, json.loads((drill.folder / "policies.json").read_text()))
    clients.change("v1", lambda: None)
    events, memory = Events(drill, clients, llm), Memory(endpoint.process.pid)
    took: dict[str, list[float]] = {}
    began = time.monotonic()
    with memory.watched(), clients.at_work(number):
        time.sleep(seconds * WARM_UP)
        until(lambda: len(clients.asked) >= WARM_REQUESTS, f"{WARM_REQUESTS} requests", every=1.0)
        before = memory.latest()
        for event in cycle((events.promotion, events.index_rebuild, events.llm_restart, events.rollback)):
            if len(took) == 4 and time.monotonic() > began + seconds * (1 - REST):
                break
            took.setdefault(event.__name__, []).append(event())
            time.sleep(seconds * PAUSE)
        time.sleep(seconds * REST)
        after = memory.latest()
    return verdict(clients, took, before, after)


def verdict(clients: Clients, took: Mapping[str, list[float]], before: float, after: float) -> str:
    """What has come of it.

    Args:
        took: the seconds until each event was seen, by its name.
        before, after: MiB.
    """
    faults, refused = clients.faults(), sum(asked.refused for asked in clients.asked)
    requests = len(clients.asked)
    must(not faults, f"{faults.total()} of {requests} requests failed: {dict(faults)}")
    grown = f"memory {before:.0f} MiB, then {after:.0f} MiB ({after / before - 1:+.1%})"
    must(after < before * (1 + MOST_GROWTH) + HEAP, grown)
    events = ", ".join(
        f"{len(seconds)} {name.replace('_', ' ')} ({max(seconds):.0f} s)" for name, seconds in took.items()
    )
    return (
        f"{requests} requests, {requests - refused} answered and {refused} told to come again (429); {events}; {grown}; "
        f"the slowest answer took {max(asked.seconds for asked in clients.asked):.1f} s"
    )

"""Drills about versions of the proxy: tags lie, a promotion is killed, a champion or a canary is broken. `tools/drill.py` runs them.

The versions are of systems that ask no proxy, with a few bytes in place of weights. All else is as it is with a trained one.
Those of the drill `canary` have weights: a random model of two layers.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from tools.drill import QUESTIONS, ROOT, TOLD, TOWN, Drill, Endpoint, must, until

CLIENTS = 4
"""Who ask a canary and its champion, each one question after the other."""
MOST_BAD = 12
"""Answers of a canary that fail before it answers nobody any more. Six say enough, and each client may have asked for another."""

REGISTER = """
import sys
from pathlib import Path
from dragoman.registry.policy import publish
from dragoman.registry.versions import Registry
registry = Registry()
for number, system in enumerate(sys.argv[1:], start=1):
    made = Path(f"made{number}"); made.mkdir()
    (made / "model.safetensors").write_bytes(bytes([number])); (made / "config.json").write_text("{}")
    registry.register(publish(made, Path(f"results/s{number}"), {"stage": f"s{number}", "system": system}))
registry.promote(registry.find("v1"), None)
"""
"""Registers v1, v2, ... of the systems that are named, and makes v1 the champion."""

DIVERGED = """
import sys
from pathlib import Path
from safetensors.torch import load_file, save_file
from dragoman.registry.policy import publish
from dragoman.registry.versions import Registry
sys.path.append(sys.argv[1])
from tiny import make_tiny
registry = Registry()
for number, factor in enumerate((1.0, float("nan")), start=1):
    made = make_tiny(Path(f"made{number}"), seed=0) / "model.safetensors"
    save_file({name: weights * factor for name, weights in load_file(made).items()}, made, {"format": "pt"})
    registry.register(publish(made.parent, Path(f"results/s{number}"), {"stage": f"s{number}", "system": "c3po"}))
registry.promote(registry.find("v1"), None)
"""
"""Registers a random model as v1, the champion, and as v2 one whose weights are not numbers: each of its actions fails."""

PROMOTE = """
from dragoman.registry.versions import Registry
registry = Registry()
registry.promote(registry.find("v2"), registry.find("v1"))
"""

HOLD = """
import time
from pathlib import Path
from dragoman import tracking
from dragoman.pipeline import decisions
def hold(*_, **__):
    Path("held").touch()
    time.sleep(600)
def at(alias, there):
    moved = tracking.set_alias
    def move(name, other, number, *more):
        (hold if other == alias and (number is not None) == there else moved)(name, other, number, *more)
    tracking.set_alias = move
"""
HOLDS = {
    "before `previous` has moved": "at('previous', True)\n",
    "between the aliases": "at('champion', True)\n",
    "before `challenger` is cleared": "at('challenger', False)\n",
    "before it was recorded": "decisions._record = hold\n",
    "before its note is removed": """
logged = tracking.log_decision
tracking.log_decision = lambda *all, **named: hold(logged(*all, **named))
""",
}
"""Lines by which a promotion stands still at a step, until it is killed."""
HOLD_ROLLBACK = "at('previous', True)\n"
"""The same of a rollback between its two aliases."""

ON_RECORD = """
import sys
from dragoman import tracking
from dragoman.tracking.store import client_of, experiment_of
for stage, expected in (("promote", int(sys.argv[1])), ("rollback", int(sys.argv[2]))):
    runs = client_of("mlruns").search_runs([experiment_of("mlruns")], f"tags.stage = '{stage}'")
    assert [run.info.status for run in runs] == ["FINISHED"] * expected, f"{len(runs)} runs of {stage}"
"""
"""Fails unless so many promotions and so many rollbacks are on record."""

SOON = "from dragoman.serving import models\nmodels.RETRY_S = 1.0\n"
"""An endpoint that tries a champion that it could not open again after a second, instead of half a minute."""


def promotion(drill: Drill) -> str:
    """A promotion is killed at each of its steps, and a rollback between its aliases, and all that runs have made is removed.
    The next command carries it out, once."""
    drill.llm()
    drill.configure(promote={"limit": 4, "min_questions": 4, "max_cost_ratio": 1000})
    validated(drill)
    drill.python(REGISTER, "direct", "standard")
    before = drill.folder / "before"
    for name in ("data", "results"):
        shutil.copytree(drill.folder / name, before / name)

    def killed(lines: str, *command: str, of: tuple[str, ...] = ("promote", "v2")) -> str:
        """What `command` has said, after another one that was killed where these lines have let it stand still."""
        shutil.copytree(before, drill.folder, dirs_exist_ok=True)
        killed = drill.dragoman(*of, before=HOLD + lines)
        held = drill.folder / "held"
        until(lambda: held.exists() or killed.poll() is not None, f"`{' '.join(of)}` has come so far")
        must(held.exists(), f"`{' '.join(of)}` ended before that: {drill.said(killed)[-TOLD:]}")
        drill.kill(killed)
        held.unlink()
        subprocess.run(
            ["make", "--file", ROOT / "Makefile", "clean"], cwd=drill.folder, check=True, capture_output=True
        )
        must(not (drill.folder / "results").exists(), "`make clean` has left the results")
        return drill.command(*command)

    back = "champion: v1 ("
    *early, record, note = HOLDS
    for step in early:
        said = killed(HOLDS[step], "rollback")
        must(back in said and "previous: v2 (" in said, f"{step}: there was no way back: {said[-300:]}")
        decision = json.loads((drill.folder / "results/promote/decision.json").read_text())
        must(decision["promoted"] and decision["champion"] == "v1", f"{step}: that was decided: {decision['reasons']}")
    for step in (record, note):
        said = killed(HOLDS[step], "promote", "v2")
        must("**v2** (" in said and "promoted; compared with direct@v1" in said, f"{step}: no decision: {said[-300:]}")
        if step == record:
            said = killed(HOLD_ROLLBACK, "rollback", of=("rollback",))
            must(back in said and "previous: v2 (" in said, f"a killed rollback was not carried out: {said[-300:]}")
    said = drill.command("lineage", "champion")
    must("the weights are those that were registered" in said and "promoted 2" in said, f"{said[-300:]}")
    drill.python(ON_RECORD, str(len(HOLDS)), str(len(early) + 1))
    return (
        f"killed {', '.join(HOLDS)}, and in a rollback between its aliases: the next command carried it out, once, "
        "and the weights are those that were registered"
    )


def validated(drill: Drill) -> None:
    """Have it that the data, as it is now, was validated: the gate asks for that."""
    folder = drill.folder / "results" / "validate"
    folder.mkdir(parents=True, exist_ok=True)
    judged = [drill.folder / "data" / "atlas" / name for name in ("corpus.jsonl", "test.jsonl")]
    hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in judged}
    (folder / "metrics.json").write_text(json.dumps({"failed": 0, "expectations": 1, "sha256": hashes}))


def follower(drill: Drill) -> str:
    """The files of a new champion cannot be read. The old one answers on, and the new one once it is whole."""
    drill.llm()
    drill.python(REGISTER, "standard", "standard")
    model = "standard@champion"
    endpoint = Endpoint(drill, before=SOON, models=[model], deadline_s=30)

    def changes(outcome: str) -> float:
        """How often the champion was changed so, and the champion answers all the while: an error would be raised."""
        must(not endpoint.ask(TOWN, model)["dragoman"].get("degraded"), "another system has answered")
        return metric(endpoint, f'dragoman_champion_changes_total{{outcome="{outcome}"}}')

    must(changes("swapped") == 1 and changes("failed") == 0, "the first champion is not served")
    (weights,) = [
        path for path in drill.folder.glob("mlruns/policies/**/model.safetensors") if path.read_bytes() == b"\2"
    ]
    pointer = weights.parents[2] / "policy.json"
    whole = pointer.read_bytes()
    pointer.write_bytes(b'\xff\xfe{"version"')
    drill.python(PROMOTE)
    until(lambda: changes("failed") >= 2, "it has tried the new one twice")
    must(changes("swapped") == 1, "what cannot be read is served")
    pointer.write_bytes(whole)
    until(lambda: changes("swapped") == 2, "the new one is served")
    return f"the old one answered on while {changes('failed'):.0f} attempts failed, and the new one once it was whole"


def canary(drill: Drill) -> str:
    """A canary gives no usable action, while clients ask. It is taken back in time, and stays so; no request fails."""
    drill.llm()
    drill.python(DIVERGED, str(ROOT / "tests" / "support"))
    drill.configure(
        llm={"concurrency": 40},
        proxy={"engine": "transformers"},
        systems={"c3po": {"strategy": "Search", "max_depth": 2}},
    )
    model, options = "c3po@champion", ("--canary", "v2", "--share", "0.5")
    endpoint = Endpoint(drill, *options, models=[model], deadline_s=60)
    must(metric(endpoint, "dragoman_canary_share") == 0.5, "the canary has no share")
    numbers, done = count(), threading.Event()
    bad: list[float] = []

    def ask() -> str | None:
        """The policy that has answered a question that is new; None where the proxy failed. An error is raised."""
        policy: str | None = endpoint.ask(f"{TOWN} This is question {next(numbers)}.", model)["dragoman"]["policy"]
        return policy

    def client() -> None:
        while not done.is_set():
            if ask() is None:
                bad.append(time.monotonic())

    def taken_back() -> bool:
        return metric(endpoint, 'dragoman_canary_rollbacks_total{reason="errors"}') == 1

    def answers_alone() -> None:
        must(metric(endpoint, "dragoman_canary_share") == 0, "the canary has a share")
        with ThreadPoolExecutor(CLIENTS) as pool:
            policies = set(pool.map(lambda _: ask(), range(QUESTIONS)))
        must(len(policies) == 1 and None not in policies, f"not the champion alone has answered, but {policies}")

    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(client) for _ in range(CLIENTS)]
        try:
            until(
                lambda: taken_back() or len(bad) > MOST_BAD,
                "the canary is taken back",
            )
            ended = time.monotonic()
        finally:
            done.set()
    for each in clients:
        each.result()  # an error would be raised
    seconds = ended - bad[0]
    must(
        taken_back() and len(bad) <= MOST_BAD,
        f"{len(bad)} bad answers within {seconds:.1f} s, and it was not taken back",
    )
    answers_alone()
    endpoint.process.terminate()
    endpoint.process.wait()
    endpoint.start(*options)
    answers_alone()
    return (
        f"taken back {seconds:.1f} s after the first of {len(bad)} bad answers; none of {next(numbers)} requests failed; "
        "the champion then answered alone, also after a restart"
    )


def metric(endpoint: Endpoint, name: str) -> float:
    """What `/metrics` says: the sum over the labels that are not part of the name."""
    with urllib.request.urlopen(f"{endpoint.url}/metrics", timeout=150) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def tags(drill: Drill) -> str:
    """Whoever may write into MLflow names a folder of this machine. It is not opened, and not removed."""
    precious = drill.folder / "data" / "precious"
    precious.mkdir()
    (precious / "letters").write_text("mine")
    code = """
from pathlib import Path
from dragoman import tracking
from dragoman.registry.policy import publish
from dragoman.registry.versions import MODEL, Registry
made = Path("made"); made.mkdir()
(made / "model.safetensors").write_bytes(b"weights"); (made / "config.json").write_text("{}")
registry = Registry()
registry.promote(registry.register(publish(made, Path("results/rl"), {"stage": "rl", "system": "c3po"})), None)
tracking.tag_version(MODEL, 1, {"policy": "../../data/precious", "folder": "data/precious", "run": "../../data/precious"})
tracking.tag_version(MODEL, 1, {"content": "../../data/precious"})
"""
    drill.ended(drill.start(sys.executable, "-c", code))
    said = drill.command("lineage", "champion", expected=2)
    must("no SHA-256" in said, f"it was not refused by name: {said[-300:]}")
    must((precious / "letters").read_text() == "mine", "the folder has been touched")
    subprocess.run(["make", "--file", ROOT / "Makefile", "clean"], cwd=drill.folder, check=True, capture_output=True)
    kept = list((drill.folder / "mlruns/policies").glob("*/policy.json"))
    must(len(kept) == 1, "`make clean` has taken the weights of a version")
    return "the tag was refused, the folder is intact, and the weights outlive `make clean`"


VERSIONS: dict[str, Callable[[Drill], str]] = {"tags": tags, "promotion": promotion, "follower": follower}

"""Drills about versions of the proxy: their tags lie, a promotion is killed, an endpoint follows a broken one. `tools/drill.py` runs them.

The versions are of systems that ask no proxy, with a few bytes in place of weights. All else is as it is with a trained one.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable

from tools.drill import ROOT, TOWN, Drill, Endpoint, must, until

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

PROMOTE = """
from dragoman.registry.versions import Registry
registry = Registry()
registry.promote(registry.find("v2"), registry.find("v1"))
"""

HOLD = """
import time
from pathlib import Path
from dragoman import tracking
from dragoman.pipeline import promote
def hold(*_, **__):
    Path("held").touch()
    time.sleep(600)
"""
HOLDS = {
    "between the aliases": """
moved = tracking.set_alias
tracking.set_alias = lambda name, alias, *more: (hold if alias == "champion" else moved)(name, alias, *more)
""",
    "before it was recorded": "promote._record = hold\n",
}
"""Lines by which a promotion stands still at a step, until it is killed."""

SOON = "from dragoman.serving import models\nmodels.RETRY_S = 1.0\n"
"""An endpoint that tries a champion that it could not open again after a second, instead of half a minute."""


def promotion(drill: Drill) -> str:
    """A promotion is killed at two steps, then all that runs have made is removed. The next command carries it out."""
    drill.llm()
    drill.configure(promote={"limit": 4, "min_questions": 4, "max_cost_ratio": 1000})
    validated = drill.folder / "results" / "validate"
    validated.mkdir(parents=True)
    judged = [drill.folder / "data" / "atlas" / name for name in ("corpus.jsonl", "test.jsonl")]
    hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in judged}
    (validated / "metrics.json").write_text(json.dumps({"failed": 0, "expectations": 1, "sha256": hashes}))
    drill.python(REGISTER, "direct", "standard")
    before = drill.folder / "before"
    for name in ("data", "results"):
        shutil.copytree(drill.folder / name, before / name)

    def killed(step: str, *command: str) -> str:
        """What `command` has said, after a promotion of v2 that was killed at a step."""
        shutil.copytree(before, drill.folder, dirs_exist_ok=True)
        promoting = drill.dragoman("promote", "v2", before=HOLD + HOLDS[step])
        held = drill.folder / "held"
        until(lambda: held.exists() or promoting.poll() is not None, "the promotion has come so far")
        must(held.exists(), f"the promotion ended before that: {(drill.folder / 'log').read_text()[-600:]}")
        drill.kill(promoting)
        held.unlink()
        subprocess.run(
            ["make", "--file", ROOT / "Makefile", "clean"], cwd=drill.folder, check=True, capture_output=True
        )
        must(not (drill.folder / "results").exists(), "`make clean` has left the results")
        (drill.folder / "log").unlink()
        return drill.command(*command)

    said = killed("between the aliases", "rollback")
    must("champion: v1 (" in said and "previous: v2 (" in said, f"there was no way back: {said[-300:]}")
    decision = json.loads((drill.folder / "results/promote/decision.json").read_text())
    must(decision["promoted"] and decision["champion"] == "v1", f"that was decided: {decision['reasons']}")
    said = killed("before it was recorded", "promote", "v2")
    must("**v2** (" in said and "promoted; compared with direct@v1" in said, f"no decision: {said[-300:]}")
    said = drill.command("lineage", "champion")
    must("the weights are those that were registered" in said and "promoted 2" in said, f"{said[-300:]}")
    return (
        f"killed {' and '.join(HOLDS)}: the next command carried it out, and the weights are those that were registered"
    )


def follower(drill: Drill) -> str:
    """The files of a new champion cannot be read. The old one answers on, and the new one once it is whole."""
    drill.llm()
    drill.python(REGISTER, "standard", "standard")
    model = "standard@champion"
    endpoint = Endpoint(drill, before=SOON, models=[model], deadline_s=30)

    def changes(outcome: str) -> float:
        """How often the champion was changed so, and the champion answers all the while: an error would be raised."""
        must(not endpoint.ask(TOWN, model)["dragoman"].get("degraded"), "another system has answered")
        with urllib.request.urlopen(f"{endpoint.url}/metrics", timeout=30) as response:
            lines = response.read().decode().splitlines()
        name = f'dragoman_champion_changes_total{{outcome="{outcome}"}} '
        return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))

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

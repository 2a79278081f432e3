"""`make pipeline`: run what is stale, the baselines first, and say on a terminal what is still to come.

    python tools/pipeline.py

The seconds of each stage that ran go to results/seconds.json. They are what the next run expects. Of a stage that has not run yet
it expects what the published run took, at the pace of those that have, where model and data are those of that run.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from dragoman.cli.command import say_error
from dragoman.config import Params, load_params
from dragoman.core import exits, files
from dragoman.core.errors import UserError
from dragoman.engines.fetch import BUILT_IN
from dragoman.engines.settings import EngineParams

BIN = Path(sys.executable).parent
BASELINES = ("direct", "standard")
SECONDS = Path("results/seconds.json")
PUBLISHED = Path("docs/results/report/seconds.json")
ALWAYS = ["always changed"]
RUNNING = re.compile(r"Running stage '(.+)':")
NEXT = """
The table is in results/report/table.md, its figures in metrics.json and its plots in plots/ beside it. Try next:
  .venv/bin/dragoman ask "{question}" --system {system} --trace
  .venv/bin/dragoman serve     # an OpenAI-compatible endpoint
  make ui                      # every run and trace, in the MLflow UI
"""


def main() -> None:
    try:
        params = load_params()  # before DVC empties the folder of any stage
    except UserError as e:
        say_error(e)
        sys.exit(2)
    on_terminal = sys.stdout.isatty()
    baselines = [stage for stage in stages() if re.fullmatch(rf"evaluate@.+-({'|'.join(BASELINES)})", stage)]
    reproduce("sources", *baselines)  # without it, DVC knows of no edit of code
    if on_terminal and (rest := stale()):
        call("dragoman", "report", "--so-far")
        print(f"\n{still_to_come(rest, known_seconds(params))}\n", flush=True)
    reproduce()
    call("dragoman", "report")
    if on_terminal:
        print(next_steps(params))


def next_steps(params: Params) -> str:
    """What there is to look at after a run, with a question about its data and the last of its systems."""
    systems = [*params.evaluated, *(f"{params.train.system}@{policy}" for policy in params.policies)]
    question = (
        "Which currency is used in the country whose capital is Thimphu?" if on_atlas(params) else "your question"
    )
    return NEXT.format(question=question, system=systems[-1] if systems else params.train.system)


def on_atlas(params: Params) -> bool:
    """Whether a system is trained on the built-in corpus."""
    dataset = params.train.dataset
    return dataset in params.datasets and params.corpus[dataset].source == "atlas"


def stages() -> list[str]:
    """The names of all stages of dvc.yaml."""
    listed = call("dvc", "stage", "list", "--all", "--name-only", capture=True)
    return listed.splitlines()


def stale() -> list[str]:
    """The stages that `dvc repro` would run, as far as DVC can say before it has run any, without those that it always runs."""
    changed = json.loads(call("dvc", "status", "--json", capture=True))
    return [stage for stage in stages() if changed.get(stage, ALWAYS) != ALWAYS]


def reproduce(*targets: str) -> None:
    """`dvc repro`, with the seconds of each stage written down as soon as it has ended.

    Ctrl-C reaches the stage too. DVC then writes its lock, and this ends after it.
    """
    command = [BIN / "dvc", "repro", *targets]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
    interrupted: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: interrupted.append(number))
    assert process.stdout is not None
    running, started = None, 0.0
    for line in process.stdout:
        print(line, end="", flush=True)
        if match := RUNNING.search(line):
            record(running, started)
            running, started = match[1], time.monotonic()
        elif line.startswith("Stage '"):  # "... didn't change, skipping"
            record(running, started)
            running = None
    code = process.wait()
    signal.signal(signal.SIGINT, before)
    if code or interrupted:  # what failed has not taken its time
        sys.exit(exits.INTERRUPTED if interrupted else code)
    record(running, started)


def record(stage: str | None, started: float) -> None:
    if stage is not None:
        seconds = read(SECONDS) | {stage: round(time.monotonic() - started, 1)}
        files.write_json(SECONDS, seconds)


def known_seconds(params: Params) -> dict[str, float]:
    """What each stage took here; for one that has not run yet, what it took for the published run, at this machine's pace.

    With another LLM, or on other data, the published run tells nothing.
    """
    as_published = params.llm.engine != "openai" and params.llm.model == EngineParams().model
    as_published = as_published and params.model.source == BUILT_IN and on_atlas(params)
    published, own = read(PUBLISHED) if as_published else {}, read(SECONDS)
    both = published.keys() & own.keys()
    pace = sum(own[name] for name in both) / max(1, sum(published[name] for name in both)) if both else 1.0
    return {name: seconds * pace for name, seconds in published.items()} | own


def read(path: Path) -> dict[str, float]:
    """Seconds by stage. A file that is broken knows none: it is there for comfort, and no run may fail for it."""
    try:
        seconds: dict[str, float] = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return seconds


def still_to_come(names: list[str], seconds: dict[str, float]) -> str:
    """What is stale, and about how long it takes by the stages whose time is known."""
    known = [seconds[name] for name in names if name in seconds]
    text = f"Still to come: {', '.join(names)}."
    if known:
        text += f" About {max(2, round(sum(known) / 60))} minutes"
        text += f" for the {len(known)} of {len(names)} that were timed." if len(known) < len(names) else "."
    return f"{text} It can be interrupted; `make pipeline` goes on where it was."


def call(program: str, *arguments: str, capture: bool = False) -> str:
    """Run a program of the environment to its end. Returns what it printed, where that is captured."""
    command = [BIN / program, *arguments]
    done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE if capture else None, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout or ""


def environment() -> dict[str, str]:
    return os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}", "PYTHONUNBUFFERED": "1"}


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(exits.INTERRUPTED)

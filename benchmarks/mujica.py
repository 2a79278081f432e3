"""The figures of Mujica-MyGO (seed 003, sections 4.2 and 4.3) on the built-in corpus, as text and as a graph, in one run.

- few-shot, warm-up, MyGO and GRPO from the same warm-up: EM and F1 on the test questions, with intervals (table 1);
- MyGO and GRPO: trajectories and minutes up to the first dev score that both have reached (table 7);
- the warm-up's plan as a graph and as a chain: EM and F1, calls and seconds a question, one question at a time (section 4.2.2).

It runs the commands that docs/algorithms.md names, and prints them. Each goes on where it was when it has been cut short.

    python -m benchmarks.mujica --out results/rollout/mujica --environments text,graph --limit 150
"""

from __future__ import annotations

import argparse
import csv
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from dragoman.evaluation.evaluate import merge
from dragoman.evaluation.report import markdown

DATASET = "atlas"
REWARD = "f1"  # for all environments (section 4.1)
ALGORITHMS = ("mygo", "grpo")
SHOTS = 4
SYSTEM = {"answers": "planner"}
"""The paper's planner answers, from what its workers said."""
SEEDS = {"questions": 300, "solutions": 1, "min_reward": 1, "max_share": 1, "exploration": {"oracle": True}}
"""Of the warm-up: what earned an F1 of 1, with the oracle in the place of few-shot sampling."""
RL = {
    "iterations": 3,
    "questions": 24,
    "epochs": 1,
    "price": 0,
    "dev_questions": 50,
    "dev_every": 1,
    "mygo": {"attempts": 8},
}
"""Of MyGO and GRPO alike; the rest is the profile's."""


def dragoman(*arguments: str | Path) -> None:
    command = [str(argument) for argument in arguments]
    print(f"$ dragoman {shlex.join(command)}", flush=True)
    subprocess.run([sys.executable, "-c", "from dragoman.cli import main; main()", *command], check=True)


def write_params(folder: Path, **evaluate: Any) -> Path:
    """The project's settings with those above, in a folder of their own, with the profiles beside them."""
    params = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))
    params["train"] |= {"system": "mujica", "dataset": DATASET, "reward": REWARD}
    params["systems"]["mujica"] = {**(params["systems"].get("mujica") or {}), **SYSTEM}
    params["seeds"] = {**(params.get("seeds") or {}), **SEEDS}
    params["rl"] = {**(params.get("rl") or {}), **RL}
    params["evaluate"] = {**(params.get("evaluate") or {}), **evaluate}
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree("conf", folder / "conf", dirs_exist_ok=True)
    (folder / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    return folder / "params.yaml"


def searched(environment: str) -> list[str]:
    """What makes the built-in questions ones about text, or about a graph."""
    if environment == "text":
        return ["--index", f"data/index/{DATASET}"]
    index = f"data/index/{DATASET}-graph"
    if not Path(index).is_dir():
        dragoman("index", "--corpus", f"data/{DATASET}/triples.tsv", "--method", "graph", "--out", index)
    return ["--index", index, "--set", "mujica.environment=graph", "--set", "mujica.candidates=gold"]


def train(environment: str, out: Path, common: list[str]) -> None:
    dragoman("seeds", *common, "--out", out / "seeds")
    dragoman("sft", *common, "--samples", out / "seeds/samples.parquet", "--out", out / "sft")
    for algorithm in ALGORITHMS:
        dragoman("rl", *common, "--algorithm", algorithm, "--policy", out / "sft", "--out", out / algorithm)


def compare_policies(environment: str, out: Path, common: list[str], limit: list[str]) -> None:
    trained = ",".join(f"mujica@{out / stage}" for stage in ("sft", *ALGORITHMS))
    few_shot = ["--systems", "mujica", "--set", f"mujica.shots={SHOTS}"]
    dragoman("evaluate", *common, *limit, *few_shot, "--out", out / "evaluate-few-shot")
    dragoman("evaluate", *common, *limit, "--systems", trained, "--out", out / "evaluate")
    folders = [out / "evaluate-few-shot", out / "evaluate"]
    print(f"\n{environment}: `mujica` is few-shot ({SHOTS} examples), `@.../sft` the warm-up")
    table = markdown(merge([folders], dataset=f"{DATASET} as {environment}", seed=0, resamples=2000)).strip() + "\n"
    if kept := [algorithm for algorithm in ALGORITHMS if _version(out / algorithm) == _version(out / "sft")]:
        table += f"\nThe warm-up's policy, weight for weight, is what is kept of: {', '.join(kept)}.\n"
    (out / "table.md").write_text(table, encoding="utf-8")
    print(table)


def compare_algorithms(out: Path) -> None:
    """Trajectories and minutes up to the highest dev score that every algorithm has reached; in all, where one never rose."""
    dev = {a: _rows(out / a / "dev.csv") for a in ALGORITHMS}
    target = min(max(row["dev_reward"] for row in rows) for rows in dev.values())
    start = max(rows[0]["dev_reward"] for rows in dev.values())
    if target > start:
        print(f"up to a dev {REWARD} of {target:.3f}, from one of {start:.3f}")
    else:
        print(f"whole runs: not every algorithm has come above the warm-up's dev {REWARD}, {start:.3f}")
    print("| algorithm | iterations | trajectories sampled | learnt from | minutes |\n|---|---|---|---|---|")
    for algorithm, rows in dev.items():
        reached = (row["iteration"] for row in rows if row["dev_reward"] >= target > start)
        iterations = int(next(reached, rows[-1]["iteration"]))
        history = _rows(out / algorithm / "history.csv")[:iterations]
        sampled = sum(row["trajectories"] for row in history)
        learnt = sum(row["passed"] if "passed" in row else row["trajectories"] for row in history)
        minutes = sum(row["rollout_seconds"] + row["learn_seconds"] for row in history) / 60
        print(f"| {algorithm} | {iterations} | {sampled:.0f} | {learnt:.0f} | {minutes:.1f} |")
    print()


def compare_plans(out: Path, common: list[str], limit: list[str], iterations: int, questions: int) -> None:
    """A chain may ask as many subquestions in all as the graph may."""
    policy = f"mujica@{out / 'sft'}"
    shapes = {"graph": (iterations, questions), "chain": (iterations * questions, 1)}
    rows = ["| plan | EM | F1 | calls | s/question |\n|---|---|---|---|---|"]
    for shape, (rounds, each) in shapes.items():
        settings = {"max_iterations": rounds, "max_questions": each}
        changes = [word for name, value in settings.items() for word in ("--set", f"mujica.{name}={value}")]
        folder = out / f"evaluate-{shape}"
        dragoman("evaluate", *common, *limit, "--systems", policy, *changes, "--out", folder)
        found = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["systems"][policy]
        scores = " | ".join("{mean:.3f} [{low:.3f}, {high:.3f}]".format(**found[name]) for name in ("em", "f1"))
        rows.append(f"| {shape} | {scores} | {found['calls']:.2f} | {found['seconds']:.2f} |")
    print("\n".join(rows) + "\n")


def _version(stage: Path) -> str:
    version: str = json.loads((stage / "policy.json").read_text(encoding="utf-8"))["version"]
    return version


def _rows(path: Path) -> list[dict[str, float]]:
    """The columns of a CSV file that are numbers."""
    with path.open(encoding="utf-8") as lines:
        return [{k: float(v) for k, v in row.items() if _is_number(v)} for row in csv.DictReader(lines)]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/rollout/mujica"))
    parser.add_argument("--environments", default="text,graph")
    parser.add_argument("--limit", type=int, help="test questions; all of them by default")
    parser.add_argument("--plans", type=int, default=50, help="test questions on which plans are compared")
    parser.add_argument("--rounds", type=int, default=3, help="of the graph; a chain has as many subquestions in all")
    parser.add_argument("--each", type=int, default=2, help="subquestions of a round")
    options = parser.parse_args(argv)
    many = write_params(options.out / "settings")
    single = write_params(options.out / "settings-one-at-a-time", concurrency=1)
    limit = ["--limit", str(options.limit)] if options.limit else []
    for environment in options.environments.split(","):
        out = options.out / environment
        common = [*searched(environment), "--no-track"]
        train(environment, out, [*common, "--system", "mujica", "--params", str(many)])
        compare_policies(environment, out, [*common, "--params", str(many)], limit)
        compare_algorithms(out)
        few = ["--limit", str(options.plans)]
        compare_plans(out, [*common, "--params", str(single)], few, options.rounds, options.each)


if __name__ == "__main__":
    main()

"""The figures of Mujica-MyGO (sections 4.2 and 4.3) on the built-in corpus, as text and as a graph, in one run.

- few-shot, warm-up, MyGO and GRPO from the same warm-up: EM and F1 on the test questions, with intervals (table 1);
- MyGO and GRPO: trajectories and minutes up to the same dev score (table 7), and the score at the same price;
- MyGO with a fixed threshold, and offline (appendix E);
- a plan as a graph and as a chain, each with a warm-up of its own: EM and F1, calls and seconds a question (section 4.2.2).

It runs the commands that docs/systems/mujica.md names, and prints them. Each goes on where it was when it has been cut short.

    python -m benchmarks.mujica --out results/rollout/mujica --environments text,graph --limit 250
    python -m benchmarks.mujica --decide marks --parts plans --at-once 8
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.algorithms import ROWS, compare_policies, compare_training, dragoman, rows_of, train, warm_up
from dragoman.core.settings import merged

DATASET = "atlas"
REWARD = "f1"  # for all environments (section 4.1)
SHOTS = 4
PARTS = ("algorithms", "plans")
SYSTEM = {
    "text": {"decide": "text", "answers": "planner"},  # the paper's planner answers, from what its workers said
    "marks": {"decide": "marks", "queries": "span", "answers": "llm"},
}
SEEDS: dict[str, dict[str, Any]] = {
    "text": {"questions": 300, "solutions": 1, "min_reward": 1, "max_share": 1, "exploration": {"oracle": True}},
    "marks": {},  # the profile's
}
"""Of the warm-up: what earned an F1 of 1, with the oracle in the place of few-shot sampling."""
RL: dict[str, dict[str, Any]] = {
    "text": {
        "iterations": 3,
        "questions": 24,
        "epochs": 1,
        "price": 0,
        "dev_questions": 50,
        "dev_every": 1,
        "mygo": {"attempts": 8},
    },
    "marks": {"dev_every": 1},
}
"""Of every row alike; the rest is the profile's."""


def write_params(folder: Path, decide: str, **evaluate: Any) -> Path:
    """The project's settings with those above, in a folder of their own, with the profiles beside them."""
    params = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))
    params["train"] |= {"system": "mujica", "dataset": DATASET, "reward": REWARD}
    params["systems"]["mujica"] = {**(params["systems"].get("mujica") or {}), **SYSTEM[decide]}
    params = merged(params, {"seeds": SEEDS[decide], "rl": RL[decide], "evaluate": evaluate})
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree("conf", folder / "conf", dirs_exist_ok=True)
    (folder / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    return folder / "params.yaml"


def searched(environment: str) -> list[str]:
    """What makes the built-in questions ones about text, or about a graph."""
    if environment == "text":
        return ["--index", f"data/index/{DATASET}"]
    index = f"data/index/{DATASET}-triples"
    if not Path(index).is_dir():
        dragoman("index", "--corpus", f"data/{DATASET}/triples.tsv", "--method", "graph", "--out", index)
    graph = ["mujica.environment=graph", "mujica.candidates=gold", "mujica.k=12"]
    return ["--index", index, *(word for change in graph for word in ("--set", change))]


def compare_plans(out: Path, common: list[str], params: Path, limit: list[str], rounds: int, each: int) -> None:
    """A chain may ask as many subquestions in all as the graph may."""
    shapes = {"graph": (rounds, each), "chain": (rounds * each, 1)}
    lines = ["| plan | EM | F1 | calls | s/question |", "|---|---|---|---|---|"]
    seconds = {}
    for shape, (iterations, most) in shapes.items():
        changes = [f"mujica.max_iterations={iterations}", f"mujica.max_questions={most}"]
        own = [*common, "--params", str(params), *(word for change in changes for word in ("--set", change))]
        folder = out / "plans" / shape
        warm_up(folder, [*own, "--system", "mujica"])
        policy = f"mujica@{folder / 'sft'}"
        dragoman("evaluate", *own, *limit, "--systems", policy, "--out", folder / "evaluate")
        found = json.loads((folder / "evaluate/metrics.json").read_text(encoding="utf-8"))["systems"][policy]
        scores = " | ".join("{mean:.3f} [{low:.3f}, {high:.3f}]".format(**found[name]) for name in ("em", "f1"))
        lines.append(f"| {shape} | {scores} | {found['calls']:.2f} | {found['seconds']:.2f} |")
        seconds[shape] = found["seconds"]
    lines += ["", f"The graph takes {seconds['graph'] / seconds['chain']:.2f} of the chain's seconds.", ""]
    (out / "plans.md").write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/rollout/mujica"))
    parser.add_argument("--environments", default="text,graph")
    parser.add_argument("--decide", choices=sorted(SYSTEM), default="text")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    default_rows = ["mygo", "mygo-fixed", "mygo-offline", "trajectory-grpo", "grpo"]
    parser.add_argument("--rows", type=rows_of, default=default_rows, help=", ".join(ROWS))
    parser.add_argument("--limit", type=int, help="test questions; all of them by default")
    parser.add_argument("--plans", type=int, default=50, help="test questions on which plans are compared")
    parser.add_argument("--at-once", type=int, default=8, help="of these questions, so many at the same time")
    parser.add_argument("--rounds", type=int, default=3, help="of the graph; a chain has as many subquestions in all")
    parser.add_argument("--each", type=int, default=2, help="subquestions of a round")
    options = parser.parse_args(argv)
    many = write_params(options.out / "settings", options.decide)
    some = write_params(options.out / "settings-plans", options.decide, concurrency=options.at_once)
    for environment in options.environments.split(","):
        out = options.out / environment
        common = [*searched(environment), "--no-track"]
        if "algorithms" in options.parts.split(","):
            limit = ["--limit", str(options.limit)] if options.limit else []
            own = [*common, "--params", str(many)]
            warm_up(out, [*own, "--system", "mujica"])
            train(options.rows, out, [*own, "--system", "mujica"])
            few_shot = ["--set", f"mujica.shots={SHOTS}"] if options.decide == "text" else []
            title = f"{DATASET} as {environment}"
            compare_policies(title, "mujica", options.rows, out, [*own, *limit], few_shot)
            compare_training(options.rows, out)
        if "plans" in options.parts.split(","):
            compare_plans(out, common, some, ["--limit", str(options.plans)], options.rounds, options.each)


if __name__ == "__main__":
    main()

"""One system trained by several algorithms from one warm-up, in one run and one table.

- the untrained proxy, the warm-up and what each algorithm made of it: scores on the test questions, with the intervals of their
  differences;
- trajectories and minutes up to the first dev score that all have reached (Mujica-MyGO, table 7);
- the best dev score that each had at the fewest trajectories, and in the fewest minutes, that any of them took.

Rows are algorithms, and MyGO's variants: offline (its appendix E), and with a threshold that does not rise. It runs commands
that anyone could type, and prints them. Each goes on where it was when it has been cut short.

MyGO learns without shaping: without it for all, they are compared by the same reward.

    python -m benchmarks.algorithms --system c3po --rows ppo,grpo,mygo --set rl.shaping=null
    python -m benchmarks.algorithms --system c3po --set rl.shaping=null --seed 1 --out results/seed1 --pool results/seed0
"""

from __future__ import annotations

import argparse
import csv
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.core import files
from dragoman.evaluation.evaluate import merge
from dragoman.evaluation.report import markdown

ROWS: dict[str, tuple[str, ...]] = {
    "ppo": ("--algorithm", "ppo"),
    "grpo": ("--algorithm", "grpo"),
    "trajectory-grpo": ("--algorithm", "trajectory_grpo"),
    "mygo": ("--algorithm", "mygo"),
    "mygo-fixed": ("--algorithm", "mygo", "--set", "rl.mygo.progressive=false"),
    "mygo-offline": ("--algorithm", "mygo", "--set", "rl.mygo.offline=true", "--set", "rl.max_staleness=0"),
    "selftrain": ("--algorithm", "selftrain"),
}
"""What stage rl is told, by the name of the row."""
BESIDE, UNTRAINED, TRAINED = "evaluate-beside", "evaluate-untrained", "evaluate"
"""Folders of evaluations."""
Arguments = Sequence[str | Path]
Curve = list[dict[str, float]]


def dragoman(*arguments: str | Path) -> None:
    command = [str(argument) for argument in arguments]
    print(f"$ dragoman {shlex.join(command)}", flush=True)
    subprocess.run([sys.executable, "-m", "dragoman", *command], check=True)


def warm_up(out: Path, common: Arguments) -> None:
    dragoman("seeds", *common, "--out", out / "seeds")
    dragoman("sft", *common, "--samples", out / "seeds/samples.parquet", "--out", out / "sft")


@dataclass(frozen=True)
class Comparison:
    """A system trained by several algorithms from one warm-up: the runs, and the tables of what they came to."""

    title: str
    system: str
    rows: Sequence[str]
    out: Path
    common: Arguments
    """Words of every command."""
    limit: int | None
    """Test questions; None for all."""
    seed: int
    pool: Path | None
    """The folder of a run with another seed, whose questions count beside these."""
    beside: str
    """Other systems to compare with, by name, with commas between them."""
    few_shot: Arguments = ()
    """Settings of the untrained system, if it has any of its own."""

    def run(self) -> None:
        """Train and evaluate what is not finished, then print the tables, which `table.md` and `training.md` hold."""
        training = [*self.common, "--system", self.system]
        warm_up(self.out, training)
        # A later row would find in the cache what an earlier one has asked, and its minutes would be too few.
        timed = ["--set", "llm_cache.enabled=false"] if len(self.rows) > 1 else []
        for row in self.rows:
            dragoman("rl", *training, *timed, *ROWS[row], "--policy", self.out / "sft", "--out", self.out / row)
        self.compare_policies()
        if self.rows:
            compare_training(self.rows, self.out)

    def compare_policies(self) -> None:
        """Evaluate the untrained system, the warm-up and every row."""
        common = [*self.common, *(["--limit", str(self.limit)] if self.limit else [])]
        dragoman("evaluate", *common, "--systems", self.beside, "--out", self.out / BESIDE)
        dragoman("evaluate", *common, *self.few_shot, "--systems", self.system, "--out", self.out / UNTRAINED)
        names = ",".join(f"{self.system}@{self.out / stage}" for stage in ("sft", *self.rows))
        dragoman("evaluate", *common, "--systems", names, "--out", self.out / TRAINED)
        runs = [self.out, *([self.pool] if self.pool else [])]
        metrics = merge(
            [[run / folder for folder in (BESIDE, UNTRAINED, TRAINED)] for run in runs],
            dataset=self.title,
            seed=self.seed,
            resamples=2000,
            named=lambda folder, name: name.partition("@")[0] if folder.name == BESIDE else self._row(name),
        )
        files.write_json(self.out / "metrics.json", metrics)
        table = markdown(metrics).strip() + "\n"
        if kept := [row for row in self.rows if _version(self.out / row) == _version(self.out / "sft")]:
            table += f"\nThe warm-up's policy, weight for weight, is what is kept of: {', '.join(kept)}.\n"
        files.write_text(self.out / "table.md", table)
        print(f"\n{table}")

    def _row(self, name: str) -> str:
        """What a system is called in the table: by the stage that left its policy."""
        stage = Path(name.partition("@")[2]).name
        return {"": "few-shot" if self.few_shot else "untrained", "sft": "warm-up"}.get(stage, stage)


def compare_training(rows: Sequence[str], out: Path) -> None:
    """Table 7, and equal budgets, from what the runs have recorded."""
    dev = {row: numbers(out / row / "dev.csv") for row in rows}
    history = {row: numbers(out / row / "history.csv") for row in rows}
    parts = (to_the_same_score(dev, history), at_the_same_price(dev, history), thresholds(history))
    text = "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"
    files.write_text(out / "training.md", text)
    print(text)


def to_the_same_score(dev: Mapping[str, Curve], history: Mapping[str, Curve]) -> list[str]:
    """Trajectories and minutes up to the highest dev score that every row has reached; in all, where one never rose."""
    target = min(max(point["dev_reward"] for point in curve) for curve in dev.values())
    start = max(curve[0]["dev_reward"] for curve in dev.values())
    if target > start:
        lines = [f"Up to a dev reward of {target:.3f}, from one of {start:.3f}:"]
    else:
        lines = [f"Whole runs, since not every one has come above the warm-up's dev reward, {start:.3f}:"]
    lines += ["", "| row | iterations | trajectories sampled | learnt from | minutes |", "|---|---|---|---|---|"]
    for row, curve in dev.items():
        reached = (point["iteration"] for point in curve if point["dev_reward"] >= target > start)
        iterations = int(next(reached, curve[-1]["iteration"]))
        trajectories, minutes = _price(history[row], iterations)
        learnt = [_learnt(row, each) for each in history[row][:iterations]]
        told = "-" if None in learnt else f"{sum(filter(None, learnt)):.0f}"
        lines.append(f"| {row} | {iterations} | {trajectories:.0f} | {told} | {minutes:.1f} |")
    return lines


def _learnt(row: str, iteration: Mapping[str, float]) -> float | None:
    """From how many trajectories an iteration learnt; None where single actions are learnt from, and not trajectories."""
    if row == "trajectory-grpo":  # a group whose trajectories all earned the same is dropped
        return iteration["trajectories"] * (1 - iteration["dropped_groups"] / iteration["groups"])
    return iteration.get("passed", iteration.get("kept"))


def at_the_same_price(dev: Mapping[str, Curve], history: Mapping[str, Curve]) -> list[str]:
    """The best dev score of each row within the trajectories, and within the minutes, of the row that took the fewest."""
    wholes = [_price(curve, len(curve)) for curve in history.values()]
    fewest, shortest = min(price[0] for price in wholes), min(price[1] for price in wholes)
    lines = [
        f"| row | best dev reward within {fewest:.0f} trajectories | within {shortest:.1f} minutes |",
        "|---|---|---|",
    ]
    for row, curve in dev.items():
        best = [0.0, 0.0]
        for point in curve:
            price = _price(history[row], int(point["iteration"]))
            for place, (paid, most) in enumerate(zip(price, (fewest, shortest), strict=True)):
                if paid <= most:
                    best[place] = max(best[place], point["dev_reward"])
        lines.append(f"| {row} | {best[0]:.3f} | {best[1]:.3f} |")
    return lines


def thresholds(history: Mapping[str, Curve]) -> list[str]:
    """How far MyGO's thresholds have risen, and how many trajectories passed them in each iteration."""
    lines = []
    for row, curve in history.items():
        if found := [(point["threshold"], point["passed"]) for point in curve if "threshold" in point]:
            course = ", ".join(f"{threshold:.3f} ({passed:.0f})" for threshold, passed in found)
            lines.append(f"- {row}: threshold, and how many passed, by iteration: {course}")
    return lines


def _price(history: Curve, iterations: int) -> tuple[float, float]:
    """Trajectories and minutes of the first so many iterations."""
    rows = history[:iterations]
    seconds = sum(row["rollout_seconds"] + row["learn_seconds"] for row in rows)
    return sum(row["trajectories"] for row in rows), seconds / 60


def _version(stage: Path) -> str:
    version: str = json.loads((stage / "policy.json").read_text(encoding="utf-8"))["version"]
    return version


def numbers(path: Path) -> Curve:
    """The columns of a CSV file that are numbers."""
    with path.open(encoding="utf-8") as lines:
        return [{k: float(v) for k, v in row.items() if _is_number(v)} for row in csv.DictReader(lines)]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def chosen(known: Collection[str]) -> Callable[[str], list[str]]:
    """Reads names with commas between them."""

    def read(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"no {unknown[0]!r}: choose from {', '.join(known)}")
        return names

    return read


def rows_of(text: str) -> list[str]:
    """Rows by name; without any, the warm-up is compared alone."""
    return chosen(ROWS)(text) if text else []


def set_words(changes: Mapping[str, object]) -> list[str]:
    """Settings as words of a command."""
    return [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", default="c3po")
    parser.add_argument(
        "--rows", type=rows_of, default=["ppo", "grpo", "mygo"], help=f"{', '.join(ROWS)}; '' for the warm-up alone"
    )
    parser.add_argument("--out", type=Path, help="results/rollout/SYSTEM-algorithms by default")
    parser.add_argument("--limit", type=int, help="test questions; all of them by default")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of every command")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--pool", type=Path, help="--out of a run with another seed, whose questions count beside these"
    )
    parser.add_argument("--beside", default="standard", help="other systems to compare with")
    options = parser.parse_args(argv)
    out = options.out or Path(f"results/rollout/{options.system}-algorithms")
    changes = [f"seed={options.seed}", "rl.dev_every=1", *options.set]
    common = ["--no-track", *(word for change in changes for word in ("--set", change))]
    Comparison(
        title=f"{options.system} by algorithm",
        system=options.system,
        rows=options.rows,
        out=out,
        common=common,
        limit=options.limit,
        seed=options.seed,
        pool=options.pool,
        beside=options.beside,
    ).run()


if __name__ == "__main__":
    main()

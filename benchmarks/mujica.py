"""The figures of Mujica-MyGO (sections 4.2 and 4.3) on one data set, as text and as a graph of triples, in one run.

- standard RAG, few-shot, warm-up, MyGO and both kinds of GRPO from the same warm-up: EM and F1 on the test questions, with the intervals of
  their differences (table 1);
- MyGO and GRPO: trajectories and minutes up to the same dev score (table 7), and the score at the same price;
- MyGO with a fixed threshold, and offline (appendix E);
- a plan as a graph and as a chain, each with a warm-up of its own: EM and F1, calls and seconds a question (section 4.2.2).

It runs the commands that docs/systems/mujica.md names, and prints them. Each goes on where it was when it has been cut short. The
minutes of an iteration that was cut short are then those of its rest alone.

    python -m benchmarks.mujica --environments text,graph --limit 250
    python -m benchmarks.mujica --decide marks --environments graph --dataset pathquestion --triples path/to/triples.tsv
    python -m benchmarks.mujica --decide marks --parts plans --at-once 8
    python -m benchmarks.mujica --decide marks --environments ideal --dataset hotpotqa-large --parts algorithms
    python -m benchmarks.mujica --seed 1 --out results/rollout/mujica-1 --pool results/rollout/mujica
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.algorithms import ROWS, Comparison, chosen, dragoman, rows_of, set_words, warm_up
from benchmarks.ratios import Sample, ratio
from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.settings import merged
from dragoman.evaluation.evaluate import merge
from dragoman.evaluation.report import markdown

ENVIRONMENTS = ("text", "graph", "ideal")
"""`ideal` is text in which a search finds the gold passages of the question alone: the paper's Hotpot-Kimi."""
PARTS = ("algorithms", "plans")
WRITTEN = {"decide": "text", "answers": "planner"}  # the paper's planner answers, from what its workers said
MARKED = {"decide": "marks", "queries": "span"}
GRAPH = {"environment": "graph", "candidates": "gold", "k": 12}
SYSTEM: dict[tuple[str, str], dict[str, Any]] = {
    ("text", "text"): WRITTEN,
    ("text", "graph"): {**WRITTEN, **GRAPH},
    ("text", "ideal"): WRITTEN,
    ("marks", "text"): {**MARKED, "answers": "llm"},  # no answer can be listed in a text
    ("marks", "graph"): {**MARKED, **GRAPH, "answers": "planner"},
    ("marks", "ideal"): {**MARKED, "answers": "llm"},
}
"""Of Mujica, by how it decides and by its environment."""
FEW_SHOT = {**WRITTEN, "shots": 4}
"""What is asked untrained, in the place of the paper's few-shot model. At marks there are no examples, so this one writes."""
GRADED, SENTENCES = "f1", "cover_em"
"""The reward (section 4.1), and the one where an LLM answers in sentences, whose F1 no threshold of MyGO would let pass."""
SEEDS: dict[str, dict[str, Any]] = {
    "text": {"questions": 300, "solutions": 1, "min_reward": 1, "max_share": 1, "exploration": {"oracle": True}},
    "marks": {},  # the profile's
}
"""Of the warm-up: what earned an F1 of 1, with the oracle in the place of few-shot sampling."""
RL: dict[str, Any] = {"shaping": None, "price": 0, "dev_every": 1, "exploration": {"breadth": [2], "forks": 0.5}}
"""Of every row alike: MyGO learns without shaping, and the paper's reward has none. Trees have siblings at any depth, where those of
profile `cpu` have them where C-3PO's decisions are. The rest is the profile's."""


def write_params(folder: Path, decide: str, environment: str, dataset: str, seed: int, **evaluate: Any) -> Path:
    """The project's settings with those above, in a folder of their own, with the profiles beside them."""
    params = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))
    system = SYSTEM[decide, environment]
    reward = SENTENCES if system["answers"] == "llm" else GRADED
    params["train"] |= {"system": "mujica", "dataset": dataset, "reward": reward, "algorithm": "mygo"}
    params["systems"]["mujica"] = {**(params["systems"].get("mujica") or {}), **system}
    params = merged(params, {"seed": seed, "seeds": SEEDS[decide], "rl": RL, "evaluate": evaluate})
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree("conf", folder / "conf", dirs_exist_ok=True)
    (folder / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    return folder / "params.yaml"


def searched(environment: str, dataset: str, triples: Path | None) -> list[str]:
    """The index of a data set's text; or of its graph or its gold passages, which is made where there is none.

    Raises:
        UserError: there are no triples.
    """
    if environment == "text":
        return ["--index", f"data/index/{dataset}"]
    if environment == "ideal":
        index = f"data/index/{dataset}-ideal"
        if not Path(index).is_dir():
            dragoman("index", "--dataset", dataset, "--method", "ideal", "--out", index)
        return ["--index", index]
    source, index = triples or Path(f"data/{dataset}/triples.tsv"), f"data/index/{dataset}-triples"
    if not source.is_file():
        raise UserError(f"{source}: no such file; --triples names the graph of {dataset}")
    if not Path(index).is_dir():
        dragoman("index", "--corpus", source, "--method", "graph", "--out", index)
    return ["--index", index]


@dataclass(frozen=True, kw_only=True)
class Plans:
    """Plans as a graph against plans as a chain, each by a warm-up of its own (section 4.2.2).

    A chain may ask as many subquestions in all as the graph may. Its seconds are measured by turns with the graph's.
    """

    title: str
    out: Path
    own: list[str]
    """Arguments of every command."""
    limit: list[str]
    """And of `evaluate`."""
    rounds: int
    """Rounds of the graph."""
    each: int
    """Subquestions of a round."""
    repeats: int
    seed: int
    pool: Path | None
    """The folder of a run with another seed."""

    def compare(self) -> None:
        shapes = {"graph": (self.rounds, self.each), "chain": (self.rounds * self.each, 1)}
        own = {
            shape: [*self.own, *set_words({"mujica.max_iterations": iterations, "mujica.max_questions": most})]
            for shape, (iterations, most) in shapes.items()
        }
        plans = self.out / "plans"
        for shape in shapes:
            warm_up(plans / shape, [*own[shape], "--system", "mujica"])
        samples = []
        for repeat in range(self.repeats):
            seconds = {}
            for shape in shapes:
                policy, folder = f"mujica@{plans / shape / 'sft'}", plans / shape / f"evaluate-{repeat}"
                dragoman("evaluate", *own[shape], *self.limit, "--systems", policy, "--out", folder)
                found = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["systems"][policy]
                seconds[shape] = found["seconds"]
            samples.append(Sample(repeat, seconds))
        runs = [plans, *([self.pool / "plans"] if self.pool else [])]
        metrics = merge(
            [[run / shape / "evaluate-0" for shape in shapes] for run in runs],
            dataset=self.title,
            seed=self.seed,
            resamples=2000,
            named=lambda folder, system: folder.parent.name,
        )
        files.write_json(self.out / "plans.json", metrics)
        share, low, high = ratio(samples, "graph", "chain")
        took = f"The graph takes {share:.2f} [{low:.2f}, {high:.2f}] of the chain's seconds, {self.repeats} repeats."
        text = f"{markdown(metrics)}\n{took}\n"
        files.write_text(self.out / "plans.md", text)
        print(text)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/rollout/mujica"))
    parser.add_argument(
        "--environments", type=chosen(ENVIRONMENTS), default=["text", "graph"], help=", ".join(ENVIRONMENTS)
    )
    parser.add_argument("--dataset", default="atlas", help="one of params.yaml, after `dragoman corpus` and `index`")
    parser.add_argument("--triples", type=Path, help="the graph of the dataset; data/DATASET/triples.tsv by default")
    parser.add_argument("--decide", choices=("text", "marks"), default="text")
    parser.add_argument("--parts", type=chosen(PARTS), default=list(PARTS), help=", ".join(PARTS))
    default_rows = ["mygo", "mygo-fixed", "mygo-offline", "trajectory-grpo", "grpo"]
    parser.add_argument(
        "--rows", type=rows_of, default=default_rows, help=f"{', '.join(ROWS)}; '' for the warm-up alone"
    )
    parser.add_argument("--limit", type=int, help="test questions; all of them by default")
    parser.add_argument("--plans", type=int, default=250, help="test questions on which plans are compared")
    parser.add_argument("--repeats", type=int, default=3, help="of that comparison, for its seconds")
    parser.add_argument("--at-once", type=int, default=8, help="of these questions, so many at the same time")
    parser.add_argument("--rounds", type=int, default=3, help="of the graph; a chain has as many subquestions in all")
    parser.add_argument("--each", type=int, default=2, help="subquestions of a round")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--pool", type=Path, help="--out of a run with another seed; questions that both have count once"
    )
    parser.add_argument("--beside", default="standard", help="other systems to compare with, such as standard,c3po@DIR")
    options = parser.parse_args(argv)
    for environment in options.environments:
        out, title = options.out / environment, f"{options.dataset} as {environment}"
        pool = options.pool / environment if options.pool else None
        of_data = (options.decide, environment, options.dataset, options.seed)
        try:
            common = [*searched(environment, options.dataset, options.triples), "--no-track"]
        except UserError as e:
            parser.error(str(e))
        if "algorithms" in options.parts:
            Comparison(
                title=title,
                system="mujica",
                rows=options.rows,
                out=out,
                common=[*common, "--params", str(write_params(out / "settings", *of_data))],
                limit=options.limit,
                seed=options.seed,
                pool=pool,
                beside=options.beside,
                few_shot=set_words({f"mujica.{name}": value for name, value in FEW_SHOT.items()}),
            ).run()
        if "plans" in options.parts:
            params = write_params(out / "settings-plans", *of_data, concurrency=options.at_once)
            Plans(
                title=title,
                out=out,
                own=[*common, "--params", str(params)],
                limit=["--limit", str(options.plans)],
                rounds=options.rounds,
                each=options.each,
                repeats=options.repeats,
                seed=options.seed,
                pool=pool,
            ).compare()


if __name__ == "__main__":
    main()

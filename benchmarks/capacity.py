"""A plan for size: which index, how many machines, what it costs and what breaks first, for so many passages and requests.

    python -m benchmarks.capacity measure --corpus data/atlas/corpus.jsonl --questions data/atlas/dev.jsonl --out FILE.json
    python -m benchmarks.capacity plan --passages 1e6,1e9 --rps 1,100 --constants FILE.json

`measure` finds what a passage, a search, a question and an episode cost on this machine. `plan` extrapolates by the formulas
of benchmarks/sizing.py, which docs/scale.md explains.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from benchmarks import constants as measuring
from benchmarks.constants import Constants
from benchmarks.sizing import GIB, Limits, Plan, Prices, hosted, kinds, plan
from dragoman.core.errors import UserError
from dragoman.core.hashing import sha256_of


def table(plans: Sequence[Plan]) -> str:
    head = ["passages", "requests/s", "index", "shards x replicas", "RAM", "disk", "proxies", "LLMs"]
    head += ["index $/month", "all $/month", "build, core-days", "what breaks first"]
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for p in plans:
        machines = f"{p.shards:,} x {p.replicas:,}" if p.shards else "-"
        cells = [
            f"{p.passages:.0e}".replace("e+", "e"),
            f"{p.rps:,g}",
            p.kind,
            machines,
            gib(p.ram_gib),
            gib(p.disk_gib),
        ]
        cells += [f"{p.proxies:,}", f"{p.llms:,}", f"{p.index_month:,.0f}", f"{p.month:,.0f}"]
        rows.append("| " + " | ".join([*cells, f"{p.build_core_days:,.1f}", p.breaks_first]) + " |")
    return "\n".join(rows)


def gib(amount: float) -> str:
    """A size in the unit that suits it."""
    return f"{amount / 1024:,.1f} TiB" if amount >= 1024 else f"{amount:,.1f} GiB"


def measure(options: argparse.Namespace) -> None:
    if len(set(options.sizes)) < 2:
        raise UserError("--sizes: give two at least, since a line is put through them")
    metrics = json.loads(options.metrics.read_text(encoding="utf-8"))
    asked = measuring.asked(metrics.get(options.dataset, metrics), options.system, options.free)
    texts = (options.corpus, options.questions)
    kept = measuring.Kept(options.out, of=sha256_of(Path(path) for path in texts))
    rows = [kept.part(f"index of {size}", measuring.index, *texts, size) for size in options.sizes]
    found = Constants(
        cores=os.cpu_count() or 1,
        **measuring.lines(rows),
        **kept.part("vectors", measuring.vectors),
        **kept.part("encoder", measuring.alone, measuring.encoder, *texts),
        asked=asked,
        episode_bytes=measuring.episode_bytes(options.episodes) if options.episodes else 0,
    )
    kept.content["constants"] = found.model_dump()
    kept.write()
    print(f"what was measured is in {options.out}")


def show(options: argparse.Namespace) -> None:
    measured = json.loads(options.constants.read_text(encoding="utf-8"))
    if "constants" not in measured:
        raise UserError(f"{options.constants} has no constants yet: give the command `measure` again")
    c = Constants.model_validate(measured["constants"])
    limits, prices = (_chosen(of, options) for of in (Limits, Prices))
    llm = (options.llm_seconds or c.asked.llm_seconds, options.llm_month or c.cores * prices.core)
    known = kinds(c)
    made = [
        hosted(n, rps, c, limits, prices, llm)
        if name == "hosted"
        else plan(known[name], n, rps, c, limits, prices, llm)
        for n in options.passages
        for rps in options.rps
        for name in options.index
    ]
    print(table(made))
    for rps in options.rps:
        print(f"{rps:,g} requests/s: {rps * 86_400 * c.episode_bytes / GIB:,.1f} GiB of episodes a day")


def _chosen(of: Any, options: argparse.Namespace) -> Any:
    return of(**{field.name: getattr(options, f"{of.__name__}_{field.name}") for field in fields(of)})


def _numbers(of: Callable[[float], Any]) -> Callable[[str], list[Any]]:
    def numbers(text: str) -> list[Any]:
        found = [of(float(part)) for part in text.split(",")]
        if not all(number > 0 for number in found):
            raise ValueError(text)
        return found

    return numbers


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    finds = commands.add_parser("measure", help="what things cost on this machine")
    finds.add_argument("--corpus", default="data/atlas/corpus.jsonl", help="a file of passages")
    finds.add_argument("--questions", default="data/atlas/dev.jsonl", help="a file of questions, to search for")
    finds.add_argument("--sizes", type=_numbers(int), default=[2_000, 20_000, 100_000], help="passages of the indexes")
    finds.add_argument("--metrics", type=Path, default=Path("docs/results/answers-alone/metrics.json"))
    finds.add_argument("--dataset", default="atlas", help="of --metrics, where it has several")
    finds.add_argument("--system", default="c3po@sft", help="what is served")
    finds.add_argument("--free", default="c3po@oracle", help="the same with decisions that cost nothing")
    finds.add_argument("--episodes", type=Path, help="a file of episodes, for how long one is")
    finds.add_argument("--out", type=Path, default=Path("results/capacity.json"))
    plans = commands.add_parser("plan", help="what so many passages and requests need")
    plans.add_argument("--passages", type=_numbers(int), required=True, help="one number or several: 1e6,1e9")
    plans.add_argument("--rps", type=_numbers(float), required=True, help="requests a second, one number or several")
    plans.add_argument("--constants", type=Path, default=Path("docs/results/capacity.json"))
    names = ["bm25", "flat", "ivf-pq", "diskann", "hosted"]
    plans.add_argument("--index", nargs="+", choices=names, default=names)
    plans.add_argument("--llm-seconds", type=float, help="one replica's for a question; as measured where not given")
    plans.add_argument("--llm-month", type=float, help="dollars a month of one replica")
    for of in (Limits, Prices):
        for field in fields(of):
            option = f"--{'price-' if of is Prices else ''}{field.name.replace('_', '-')}"
            plans.add_argument(
                option, dest=f"{of.__name__}_{field.name}", type=type(field.default), default=field.default,
                help="default: %(default)s",
            )  # fmt: skip
    options = parser.parse_args(argv)
    run: Mapping[str, Callable[[argparse.Namespace], None]] = {"measure": measure, "plan": show}
    try:
        run[options.command](options)
    except (UserError, OSError, ValueError, KeyError) as e:
        parser.error(f"{type(e).__name__}: {e}")


if __name__ == "__main__":
    main()

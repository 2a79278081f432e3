"""Two processes against one, on the same processors: the seconds of the same evaluation, models loaded anew each time.

    python -m benchmarks.processes --system c3po@sft --limit 100 --repeats 3

It needs as many processors as processes.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.algorithms import dragoman
from benchmarks.ratios import Sample, report


def seconds(arguments: Sequence[str], processes: int, out: Path) -> float:
    """How long `dragoman evaluate` takes, from its start to its table."""
    shutil.rmtree(out, ignore_errors=True)  # it would go on where an earlier one has ended
    started = time.monotonic()
    dragoman("evaluate", *arguments, "--no-track", "--out", out, "--processes", str(processes))
    return time.monotonic() - started


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", default="c3po@sft")
    parser.add_argument("--limit", type=int, default=100, help="questions (%(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="against one (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results/rollout/processes"))
    options = parser.parse_args(argv)
    asked = ["--systems", options.system, "--limit", str(options.limit)]
    names = {"one process": 1, f"{options.processes} processes": options.processes}
    samples = []
    for repeat in range(options.repeats):
        order = list(names.items())[:: 1 if repeat % 2 == 0 else -1]
        took = {name: seconds(asked, number, options.out / str(number)) for name, number in order}
        samples.append(Sample(repeat, {name: took[name] for name in names}))
    report(f"{options.system} on {options.limit} questions", samples, base="one process")


if __name__ == "__main__":
    main()

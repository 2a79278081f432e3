"""What it saves to draw ahead of the learner: one training with every `rl.max_staleness`, all from one policy.

    python -m benchmarks.staleness --policy results/sft --set llm.engine=openai --set llm.urls=[http://host:8000/v1]

The first iterations are left out: nothing has been drawn ahead of them. Dev questions are not timed. Answers of the LLM are not
taken from a cache, which the first training would fill for the others. It pays where rollouts wait for something else than
this machine's processors.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.algorithms import Curve, dragoman, numbers
from benchmarks.ratios import Sample, report


def samples(histories: Mapping[int, Curve]) -> list[Sample]:
    """Seconds of each iteration, by staleness, without those that are drawn before anything is learnt."""
    first, last = max(histories) + 1, min(map(len, histories.values()))
    return [
        Sample(i, {f"staleness {value}": rows[i]["rollout_seconds"] + rows[i]["learn_seconds"] for value, rows in histories.items()})
        for i in range(first, last)
    ]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path, default=Path("results/sft"), help="to start from")
    parser.add_argument("--most", type=int, default=1, help="the largest rl.max_staleness")
    parser.add_argument("--algorithm", default="ppo", choices=("ppo", "grpo", "trajectory_grpo"))
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("results/rollout/staleness"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of every command")
    options = parser.parse_args(argv)
    changes = [f"rl.iterations={options.iterations}", "llm_cache.enabled=false", *options.set]
    common = ["--no-track", "--algorithm", options.algorithm, "--policy", options.policy]
    found = {}
    for value in range(options.most + 1):
        out = options.out / str(value)
        settings = (word for change in [*changes, f"rl.max_staleness={value}"] for word in ("--set", change))
        dragoman("rl", *common, *settings, "--out", out)
        found[value] = numbers(out / "history.csv")
        best = max(row["dev_reward"] for row in numbers(out / "dev.csv"))
        print(f"staleness {value}: best dev reward {best:.3f}")
    report("seconds of an iteration", samples(found), base="staleness 0")


if __name__ == "__main__":
    main()

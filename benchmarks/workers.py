"""Two Ray workers against one, where each has a processor of its own: the seconds of the same seeds.

    python -m benchmarks.workers --questions 2000

It asks what stage `seeds` asks, in two shards. One worker runs them one after the other, two at the same time. The seconds are
those of the flow, from its start to the merged seeds. The clusters are started before, and what both leave must be equal.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.ratios import Sample, report
from dragoman.rollout.samples import read_samples
from tools.ray_machines import Machines, until

SHARDS = 2
NAMES = {1: "one worker", 2: "two workers"}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "RAY_memory_monitor_refresh_ms": "0"}


@contextmanager
def cluster(workers: int) -> Iterator[None]:
    """A head that computes nothing, and workers, each on a processor of its own. Flows find it by `RAY_ADDRESS`."""
    import ray

    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # names of sockets have a limit
    machines = Machines(folder, ONE_THREAD)
    try:
        machines.start_head()
        os.environ["RAY_ADDRESS"] = machines.address
        ray.init(namespace="prefect", log_to_driver=False)
        for core in sorted(os.sched_getaffinity(0))[:workers]:
            machines.start_worker(core)
        until(lambda: ray.cluster_resources().get("CPU") == workers, machines.logs)
        yield
    finally:
        ray.shutdown()
        os.environ.pop("RAY_ADDRESS", None)
        machines.close()
        shutil.rmtree(folder)


def seconds(out: Path, questions: int) -> float:
    """How long the flow takes."""
    from flows.in_shards import in_shards

    shutil.rmtree(out, ignore_errors=True)  # it would go on where an earlier one has ended
    started = time.monotonic()
    asyncio.run(in_shards("seeds", str(out), {"limit": questions, "track": False}, shards=SHARDS, runner="ray"))
    return time.monotonic() - started


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results/rollout/workers"))
    options = parser.parse_args(argv)
    if len(os.sched_getaffinity(0)) < max(NAMES):
        parser.error("two workers need two processors")
    from prefect.testing.utilities import prefect_test_harness

    samples = []
    with prefect_test_harness(server_startup_timeout=120):  # a server of its own, without the runs of yours
        for repeat in range(options.repeats):
            taken = {}
            for workers, name in NAMES.items():
                with cluster(workers):
                    taken[name] = seconds(options.out / name.replace(" ", "-"), options.questions)
            samples.append(Sample(repeat, taken))
    one, two = (read_samples(options.out / name.replace(" ", "-") / "samples.parquet") for name in NAMES.values())
    if one != two:
        raise SystemExit("the workers have left different seeds")
    report(f"the seeds of {options.questions} questions: {len(one)} samples, equal", samples, base=NAMES[1])


if __name__ == "__main__":
    main()

"""The gate on the questions of a scripted model, in a real store: each system answers as many of the first as it is told to."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from fakes import ListRetriever, ScriptedEngine
from policies import trained

from dragoman.core import files
from dragoman.core.errors import EngineFault
from dragoman.core.types import Passage, Question
from dragoman.evaluation.evaluate import Evaluation
from dragoman.evaluation.settings import EvaluateParams, PromoteParams
from dragoman.pipeline import promote as promotion
from dragoman.pipeline.decisions import Verdict
from dragoman.registry.versions import Registry
from dragoman.rollout.backends import Backends
from dragoman.systems import build

QUESTIONS = [Question(f"q{i}", f"What is number {i}?", (f"answer {i}.",)) for i in range(40)]
EVALUATION = EvaluateParams(bootstrap=200, traces=0)
registry = Registry()


class ScriptedRuntime:
    """Each system answers as many of the first questions rightly as `right` says; `broken` ones end in a fault."""

    def __init__(self, right: dict[str, int], broken: dict[str, int] | None = None) -> None:
        self.right, self.broken = right, broken or {}
        self.retriever = ListRetriever([Passage("p", "P", "number")])

    def open(self, name):
        def answer(prompt, rng):
            number = int(re.findall(r"What is number (\d+)", prompt)[-1])
            if number >= len(QUESTIONS) - self.broken.get(name, 0):
                return EngineFault("down")
            return f"answer {number}." if number < self.right[name] else "no idea"

        engine = ScriptedEngine(answer)
        engine.fingerprint = f"scripted {name}"  # as models of different weights have
        return build("standard"), Backends(llm=engine, proxy=engine, retriever=self.retriever)


def prepare(folder: Path, empty_store: Path) -> None:
    """Three versions of a system in `folder`, where this process is, and data that passed validation."""
    shutil.copytree(empty_store, "mlruns")
    for i in (1, 2, 3):
        registry.register(trained(folder, f"s{i}", bytes([i])))
    files.write_json("results/validate/metrics.json", {"files": 1, "rows": 9, "expectations": 20, "failed": 0})


async def gate(number: int, runtime, data=(), evaluation=EVALUATION, **settings) -> Verdict:
    limits = {"max_cost_ratio": 1000.0} | settings  # of seconds that are real, and nothing on a busy machine
    return await promotion.promote(
        registry.find(f"v{number}"), QUESTIONS, runtime, PromoteParams(**limits), as_promoted(evaluation),
        validation=Path("results/validate"), data=data, registry=registry,
    )  # fmt: skip


def as_promoted(settings: EvaluateParams, seed: int = 0) -> Evaluation:
    """The evaluation of a gate, in its own folder and the registry's store."""
    return Evaluation(dataset="d", settings=settings, seed=seed, out=Path("results/promote"), track=registry.store)


def aliases() -> dict[str, str]:
    return {alias: v.name for v in registry.history() for alias in v.aliases}

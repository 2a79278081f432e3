"""A run of GEPA: instructions that are rewritten on training questions and chosen on dev questions become a policy."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import gepa

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.journal import Journal
from dragoman.core.progress import bar
from dragoman.core.types import Question
from dragoman.registry.policy import METRICS, PolicySet, lineage, publish, resume
from dragoman.registry.trained_with import trained_with
from dragoman.rollout.exploration import GREEDY
from dragoman.rollout.store import EpisodeStore
from dragoman.systems.base import System
from dragoman.training.gepa.player import Player, next_role
from dragoman.training.gepa.settings import GepaParams
from dragoman.training.gepa.waiting import Waiting
from dragoman.training.identity import run_identity
from dragoman.training.run import TrainingRun

log = logging.getLogger(__name__)


class _Log:
    """GEPA's own account, which has every text in full."""

    def log(self, message: str) -> None:
        log.debug(message)


def check(name: str, system: System, settings: GepaParams) -> None:
    """Refuse a run that has nothing to rewrite, or nobody who does it.

    Raises:
        UserError: it has not.
    """
    if settings.reflection is None:
        raise UserError(
            "gepa.reflection: no model is set that rewrites instructions; give it a section as `llm` has: "
            "{engine: openai, model: NAME, urls: [URL]}"
        )
    if not system.instructions:
        raise UserError(
            f"gepa: the roles of {name} have no instructions to rewrite; where brief prompts leave them out, set "
            f"{name}.prompts=full"
        )


def check_budget(questions: int, dev: int, settings: GepaParams) -> None:
    """Refuse a run that could not rewrite anything.

    Args:
        questions: how many there are to learn from.
        dev: how many there are to choose by.

    Raises:
        UserError: no questions, or a budget that is too small for a single rewriting.
    """
    if not questions or not dev:
        raise UserError("gepa needs questions to learn from and dev questions to choose by; one of the two is empty")
    least = 2 * (dev + settings.minibatch)
    if settings.max_metric_calls < least:
        raise UserError(
            f"gepa.max_metric_calls is {settings.max_metric_calls}, and a single rewriting can take {least}: {dev} dev questions "
            f"and {settings.minibatch} others (gepa.minibatch), before it and after; raise it, or lower gepa.dev_questions"
        )


async def rewrite(run: TrainingRun, questions: Sequence[Question], settings: GepaParams) -> dict[str, Any]:
    """Rewrite the instructions of a system's roles, and publish the best, with the weights of the base as they are.

    A run that was cut short goes on, and comes to the same texts. The mean reward of the dev questions chooses. The first of
    two that are equal is taken, which the own texts are.

    Args:
        questions: to learn from.

    Returns:
        What `metrics.json` of its folder holds.

    Raises:
        UserError: as `check` and `check_budget`, or a question without a score.
        Fault: an engine, the retriever or the reflection model's server failed.
    """
    name, dev, out = run.system, run.dev, run.out
    system, backends = run.runtime.open(name)
    check(name, system, settings)
    check_budget(len(questions), len(dev), settings)
    assert settings.reflection is not None
    reflection = run.runtime.engine(settings.reflection)
    rewarding = backends.reward(run.reward)
    parameters = {"reward": run.reward, "seed": run.seed, **settings.model_dump(mode="json")}
    manifest = lineage("gepa", name, run.start, run.data, parameters)
    identity = run_identity(
        [__name__],
        run,
        system,
        backends,
        manifest,
        exploration=GREEDY,
        learnt_from=[question.id for question in questions],
    )
    if finished := resume(out, identity | {"reflection": reflection.fingerprint, "gepa": version("gepa")}):
        return finished
    high, most = rewarding.bounds[1], settings.max_metric_calls
    of_one = 2 * settings.minibatch + len(dev)
    waiting = Waiting()
    with (
        EpisodeStore(out / "episodes") as store,
        Journal(out / "reflections" / "replies.jsonl") as replies,
        bar(f"gepa {name}", most) as advance,
    ):
        player = Player(
            name=name,
            system=system,
            backends=backends,
            reward=rewarding,
            reflection=reflection,
            settings=settings,
            seed=run.seed,
            store=store,
            replies=replies,
            waiting=waiting,
            advance=advance,
        )
        adapter, module_selector = cast(Any, player), cast(Any, next_role)  # its protocols want attributes, not methods
        result: gepa.GEPAResult[Any, Any] = await waiting.run(
            lambda: gepa.optimize(
                dict(system.instructions),
                list(questions),
                list(dev),
                adapter=adapter,
                module_selector=module_selector,
                reflection_minibatch_size=settings.minibatch,
                skip_perfect_score=math.isfinite(high),
                perfect_score=high,
                stop_callbacks=lambda state: state.total_num_evals + of_one > most,
                track_best_outputs=False,
                logger=_Log(),
                seed=run.seed,
            )
        )
    return _finish(result, player, manifest, run.start, out)


def _finish(
    result: gepa.GEPAResult[Any, Any], player: Player, manifest: Mapping[str, Any], start: PolicySet, out: Path
) -> dict[str, Any]:
    """Write down what was found, and publish the best."""
    scores, texts = result.val_aggregate_scores, result.best_candidate
    assert isinstance(texts, dict)
    rows = [
        {"metric_calls": calls, "dev_reward": score, "best_dev_reward": max(scores[: place + 1])}
        for place, (calls, score) in enumerate(zip(result.discovery_eval_counts, scores, strict=True))
    ]
    files.write_csv(out / "history.csv", rows)
    candidates = zip(rows, result.parents, result.candidates, strict=True)
    files.write(
        out / "candidates.jsonl",
        ({**row, "parents": parents, "instructions": found} for row, parents, found in candidates),
    )
    for role, text in texts.items():
        files.write_text(out / "instructions" / f"{role}.txt", f"{text}\n")
    metrics: dict[str, Any] = {
        "dev_questions": len(result.val_subscores[0]),
        "first": {"dev_reward": scores[0]},
        "dev_reward": scores[result.best_idx],
        "candidates": len(scores),
        "best_candidate": result.best_idx,
        "rewritten": [role for role, text in texts.items() if text != player.system.instructions[role]],
        "metric_calls": result.total_metric_calls,
        "reflections": player.reflections,
    }
    made = {"instructions": texts, "trained_with": trained_with(player.system.with_instructions(texts))}
    policy = publish({}, out, {**manifest, **made, "metrics": metrics}, carried=start.weights)
    metrics["policy"] = policy.version
    files.write_json(out / METRICS, metrics)
    return metrics

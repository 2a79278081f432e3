"""Asks several systems the same questions, with the same frozen LLM and the same index."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman import tracking
from dragoman.core.errors import UserError
from dragoman.core.identity import FINGERPRINTED, code_hash, content_hash
from dragoman.core.progress import bar
from dragoman.core.text import folder_name
from dragoman.core.types import Question
from dragoman.engines.openai import served_name
from dragoman.evaluation.metrics import prediction, summarize
from dragoman.evaluation.predictions import read_predictions, write_predictions
from dragoman.evaluation.report import write_report
from dragoman.evaluation.scoring import add_scores
from dragoman.evaluation.settings import EvaluateParams
from dragoman.rewards import Reward
from dragoman.rewards.judge import judge_predictions
from dragoman.rollout.backends import Backends
from dragoman.rollout.exploration import GREEDY
from dragoman.rollout.record import Episode
from dragoman.rollout.scheduler import check_questions, describe, episode_key, roll_out
from dragoman.rollout.store import EpisodeStore
from dragoman.runtime import Runtime
from dragoman.systems.base import System
from dragoman.systems.system_name import SystemName

log = logging.getLogger(__name__)

REWARD = "cover_em"
"""What an episode of an evaluation has as its reward."""
_INDEX = re.compile(r"(.+)-[0-9a-f]{16}")
"""The fingerprint of a retriever: how it searches, and a hash."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How systems are evaluated, and where that goes."""

    dataset: str
    """What the results call it."""
    settings: EvaluateParams
    seed: int
    """Of the intervals, and of whatever systems draw."""
    out: Path
    """The folder. Whoever evaluates is its only writer."""
    track: Path | None
    """The folder of the MLflow store; None for no record there."""


@dataclass(frozen=True)
class Answers:
    """What systems have answered."""

    episodes: Mapping[str, Sequence[Episode]]
    """Of each system, in the order of the questions."""
    predictions: Sequence[dict[str, Any]]
    """What is made of each of them, in that order."""
    judge: str | None
    """The fingerprint of what judged them, if anything did."""


async def evaluate(
    systems: Sequence[str],
    questions: Sequence[Question],
    runtime: Runtime,
    evaluation: Evaluation,
    *,
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Evaluate systems and write the report into `evaluation.out`.

    The episodes of each system are in `out/episodes/SYSTEM/`. A second run goes on from them after a kill or a fault.

    Args:
        systems: names, each `system` or `system@policy`.
        more: what else `metrics.json` is to hold, by name.

    Returns:
        What `metrics.json` holds.

    Raises:
        UserError: no questions, or a name that cannot be opened.
    """
    return report(await ask(systems, questions, runtime, evaluation), evaluation, more=more)


def store_of(system: str) -> str:
    """The folder of a system's episodes, below that of an evaluation."""
    return f"episodes/{folder_name(system)}"


async def ask(
    systems: Sequence[str], questions: Sequence[Question], runtime: Runtime, evaluation: Evaluation
) -> Answers:
    """Put the questions to the systems, and score what they answer; see `evaluate`."""
    if not questions:
        raise UserError("no questions to evaluate")
    settings = evaluation.settings
    opened = {name: runtime.open(name) for name in systems}  # bad names fail before the first question is put
    for system, backends in opened.values():
        check_questions(questions, system, backends)
    scorers = {name: {score: b.reward(score) for score in settings.scores} for name, (_, b) in opened.items()}
    judges = {name: b.judge for name, (_, b) in opened.items() if settings.judge}  # and a judge that is not there
    predictions: list[dict[str, Any]] = []
    episodes: dict[str, list[Episode]] = {}
    for name, (system, backends) in opened.items():
        with EpisodeStore(evaluation.out / store_of(name)) as store, bar(name, len(questions)) as advance:
            scored: list[float] = []
            if not settings.cache:
                store.ask_again(lambda episode: any(call.cached for call in episode.calls))

            def progress(episode: Episode, scored: list[float] = scored, advance: Any = advance) -> None:
                if (value := episode.trajectories[0].rewards.get(REWARD)) is not None:
                    scored.append(value)
                advance(f"cover-EM {sum(scored) / len(scored):.2f}" if scored else "")

            episodes[name] = await roll_out(
                questions,
                name,
                system,
                backends,
                store,
                seed=evaluation.seed,
                concurrency=settings.concurrency,
                reward=Reward.of(REWARD),
                progress=progress,
            )
            store.trim(episodes[name][0].config)
        rows = [prediction(episode, name) for episode in episodes[name]]
        if settings.judge:
            await judge_predictions(judges[name], rows)
        if settings.scores:
            await add_scores(scorers[name], episodes[name], rows, backends)
        predictions += rows
        log.info("%s: %d questions, %d failed", name, len(rows), sum(r["scores"]["cover_em"] is None for r in rows))
    judge = next(iter(judges.values())).fingerprint if judges else None  # that of the runtime, whatever the system
    return Answers(episodes, predictions, judge)


def report(answers: Answers, evaluation: Evaluation, *, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Write what was answered into `evaluation.out`, with its figures; see `evaluate`."""
    dataset, settings, seed = evaluation.dataset, evaluation.settings, evaluation.seed
    write_predictions(evaluation.out, answers.predictions)
    metrics = summarize(answers.predictions, dataset=dataset, seed=seed, resamples=settings.bootstrap)
    metrics |= _alike(answers.predictions) | _backends(answers.episodes) | dict(more or {})
    write_report(metrics, evaluation.out)
    if evaluation.track is not None:
        tracking.start(evaluation.track)
        for name, episodes in answers.episodes.items():
            tracking.log_evaluation(
                dataset,
                name,
                metrics["systems"][name],
                [p for p in answers.predictions if p["system"] == name],
                episodes,
                parameters={"seed": seed, "evaluate": settings.model_dump(), "config": episodes[0].config}
                | ({"judge": answers.judge} if answers.judge else {}),
                traces=settings.traces,
            )
        tracking.finish()
    return metrics


def _backends(episodes: Mapping[str, Sequence[Episode]]) -> dict[str, Any]:
    """`backends` of `metrics.json`: the names of LLM, proxy and index, as far as episodes have them; of a folder it is a hash alone."""
    named: dict[str, set[str]] = {"llm": set(), "proxy": set(), "index": set()}
    for name, (first, *_) in episodes.items():
        config = first.config
        named["llm"].add(served_name(config.get("llm") or ""))
        index = _INDEX.match(config.get("retriever") or "")
        named["index"].add(index[1] if index else "")
        if config.get("proxy") and not SystemName.parse(name).is_oracle:  # in whose place nobody is asked
            named["proxy"].add(served_name(config["proxy"]))
    return _listed(named)


def _merged_backends(folders: Iterable[Path]) -> dict[str, Any]:
    """The same of several evaluations, as they have it in their `metrics.json`."""
    paths = [folder / "metrics.json" for folder in folders]
    made = [json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {} for path in paths]
    named = {part: {of.get("backends", {}).get(part, "") for of in made} for part in ("llm", "proxy", "index")}
    return _listed(named | {"proxy": named["proxy"] - {""}})  # not every system has one


def _listed(named: Mapping[str, set[str]]) -> dict[str, Any]:
    """Those parts of which all names are known."""
    found = {part: " and ".join(sorted(names)) for part, names in named.items() if names and "" not in names}
    return {"backends": found} if found else {}


def _alike(predictions: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """`alike` of `metrics.json`: each system that answers more than half of its questions in one and the same way, or not at all.

    Of each the `answer`, how often it was given (`count`), and how many answers there are (`of`).
    """
    given: dict[str, list[str]] = {}
    for row in predictions:
        if (answer := row.get("answer")) is not None:
            given.setdefault(row["system"], []).append(answer.strip())
    found = {}
    for name, texts in given.items():
        ((answer, count),) = Counter(texts).most_common(1)
        if count > max(1, len(texts) / 2):
            found[name] = {"answer": answer, "count": count, "of": len(texts)}
    return {"alike": found} if found else {}


def identity(
    name: str, system: System, backends: Backends, questions: Sequence[Question], settings: EvaluateParams, seed: int
) -> str:
    """Hash of all that the evaluation of one system depends on: what its episodes do, and what is made of them."""
    config = describe(name, system, backends, GREEDY, seed, Reward.of(REWARD))
    keys = [episode_key(question, config) for question in questions]
    made = settings.model_dump(mode="json", include={"bootstrap", "judge", "scores"})
    if settings.cache:
        made["cache"] = True  # which seconds depend on
    rewards = [backends.reward(score) for score in settings.scores]
    if settings.judge or any(reward.judge for reward in rewards):
        made["judge"] = backends.judge.fingerprint  # another judge gives other verdicts on the same answers
    modules = {module for reward in rewards for module in reward.modules}
    return content_hash(
        episodes=keys, made=made, code=code_hash(prediction.__module__, *sorted(modules), stop=FINGERPRINTED)
    )


def merge(
    runs: Sequence[Sequence[Path]],
    *,
    dataset: str,
    seed: int,
    resamples: int,
    named: Callable[[Path, str], str] = lambda folder, system: system,
) -> dict[str, Any]:
    """The metrics of several evaluations side by side.

    Args:
        runs: for each run the folders of its evaluations, all of the same questions. Where another run has the same
            questions, as of a published data set, each counts once, by its mean over the runs. The built-in corpus has
            others for each seed.
        seed: of the intervals.
        named: what a system of a folder is called here, for those that share a name, or have another one in each run.

    Returns:
        As `summarize`, with the number of `runs` where there are several, and `of_fewer`: how many of them have a system, where
            that is not all.
    """
    predictions = [
        row
        | {
            "id": f"{row['id']} of run {number}" if number else row["id"],
            "system": named(folder, row["system"]),
            "pooled": (row["id"], row["question"]),
            "run": number,
        }
        for number, folders in enumerate(runs)
        for folder in folders
        for row in read_predictions(folder)
    ]
    metrics = summarize(predictions, dataset=dataset, seed=seed, resamples=resamples)
    metrics |= _alike(predictions) | _merged_backends(folder for folders in runs for folder in folders)
    if len(runs) > 1:
        have = {name: len({row["run"] for row in predictions if row["system"] == name}) for name in metrics["systems"]}
        metrics |= {"runs": len(runs), "of_fewer": {name: n for name, n in have.items() if n < len(runs)}}
    return metrics

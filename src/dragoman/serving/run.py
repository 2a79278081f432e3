"""Puts the endpoint together out of settings, and runs it until a signal ends it."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, Literal

import uvicorn

from dragoman.core.keys import Keys
from dragoman.core.listening import uvicorn_options
from dragoman.corpus.loaders import load_questions
from dragoman.evaluation.drift import words_of
from dragoman.registry.version import Version
from dragoman.registry.versions import ALIASES, CHAMPION_AGAIN, PROMOTED, ROLLED_BACK, Registry
from dragoman.retrieval.following import FollowingRetriever
from dragoman.retrieval.health import check_health
from dragoman.rollout.feedback import Feedback
from dragoman.rollout.record import Episode
from dragoman.runtime import RuntimeParams
from dragoman.serving.champion import Champion
from dragoman.serving.drift import drift_watcher
from dragoman.serving.episodes import episode_writer
from dragoman.serving.feedback import FeedbackBook
from dragoman.serving.kept import in_the_background
from dragoman.serving.metrics import Metrics
from dragoman.serving.models import Models, opener
from dragoman.serving.past import PastEpisodes
from dragoman.serving.server import create_app
from dragoman.serving.service import Service
from dragoman.serving.settings import ServeParams
from dragoman.serving.traces import PATIENCE_S, trace_writer
from dragoman.serving.trial import Trial
from dragoman.systems.system_name import SystemName

log = logging.getLogger(__name__)


@asynccontextmanager
async def open_service(
    params: RuntimeParams,
    settings: ServeParams,
    index: str,
    champion: Champion | None,
    registry: Registry = Registry(),
    trained_on: Path | None = None,
) -> AsyncIterator[Service]:
    """The service that settings describe, with its models open.

    Args:
        trained_on: the training questions, for the share of words in a question that none of them has.

    Raises:
        UserError: the index or a model cannot be used.
    """
    metrics = Metrics()
    retriever = await asyncio.to_thread(FollowingRetriever, index, params.index)
    try:
        await check_health(retriever, None)
        metrics.watch_cache(lambda: (retriever.hits, retriever.misses))
        trial, version = await asyncio.to_thread(_trial, settings, registry, metrics)
        models = Models(
            settings.models,
            opener(params, retriever, registry),
            champion,
            beside=(trial.challenger,) if trial else (),
            poll_s=settings.champion_poll_s,
            report=lambda outcome: metrics.swaps.labels(outcome).inc(),
        )
        with ExitStack() as kept:
            if trial and version:
                trial.record = kept.enter_context(_recorder(registry, version, trial))
            writers, book, past = _keepers(settings, registry, metrics, trained_on, kept)

            def keep(episode: Episode) -> None:
                for write in writers:
                    write(episode)

            async with models:
                service = Service(models, settings, metrics, keep=keep, feedback=book, past=past, trial=trial)
                try:
                    yield service
                finally:
                    await service.close()
    finally:
        await retriever.close()


def _trial(settings: ServeParams, registry: Registry, metrics: Metrics) -> tuple[Trial | None, Version | None]:
    """The trial that settings ask for, with the version that is on trial.

    None for a canary that was champion since, and while an alias names no version: it went when its version was promoted.

    Raises:
        UserError: there is no such version.
    """
    named = settings.shadow or settings.canary
    if named is None or settings.champion is None:
        return None, None
    version = registry.get(named) if named in ALIASES else registry.find(named)
    if version is None:
        log.warning("no version is the %s now, so there is no trial; start again once there is one", named)
        return None, None
    if settings.canary and version.decision.startswith((PROMOTED, ROLLED_BACK, CHAMPION_AGAIN)):
        log.warning(
            "%s was %s, so it is no canary; to try it again, delete its tag decision in MLflow",
            version.name,
            version.decision,
        )
        return None, None
    challenger = f"{SystemName.parse(settings.champion).system}@{version.name}"
    kind: Literal["shadow", "canary"] = "shadow" if settings.shadow else "canary"
    log.info("%s is asked %.0f%% of the questions, as a %s", challenger, 100 * settings.share, kind)
    trial = Trial(kind, settings.champion, challenger, settings.share, settings.rollback_once_in, metrics)
    if kind == "canary" and (reason := version.taken_back):
        log.warning(
            "%s was taken back as a canary (%s), so it answers nothing; to try it again, delete its tag trial.canary in MLflow",
            version.name,
            reason,
        )
        trial.ended = reason
    return trial, version


@contextmanager
def _recorder(registry: Registry, version: Version, trial: Trial) -> Iterator[Callable[[dict[str, Any]], None]]:
    """What writes down on a version what a trial has shown, in a thread: the store may be slow, or away.

    That a canary was taken back stays, whatever a restart shows, and ends the trial of every replica that sees it. Once that is
    on record it is not written again: somebody who wants to try it once more deletes it.
    """
    canary = trial.kind == "canary"
    over = canary and bool(version.taken_back)

    def write(shown: dict[str, Any]) -> None:
        nonlocal over
        if over:
            return
        if canary and (reason := registry.find(version.name).taken_back):
            over = True
            if not trial.ended:
                log.warning("the canary %s was taken back by another endpoint (%s)", version.name, reason)
                trial.ended = reason
            return
        registry.tried(version, trial.kind, shown)
        over = canary and bool(shown["rolled_back"])

    with in_the_background(f"trial of {version.name}", write, patience_s=PATIENCE_S) as give:
        yield give


def _keepers(
    settings: ServeParams, registry: Registry, metrics: Metrics, trained_on: Path | None, kept: ExitStack
) -> tuple[list[Callable[[Episode], None]], FeedbackBook | None, PastEpisodes | None]:
    """What keeps episodes, takes feedback and shows past questions, as settings say; open until `kept` ends."""
    writers: list[Callable[[Episode], None]] = []
    shows: list[Callable[[Feedback], None]] = []
    if settings.traces:
        trace = kept.enter_context(trace_writer(registry.store))
        writers.append(trace)
        shows.append(trace)
    if settings.episodes is None:
        return writers, None, None
    folder, most_bytes = Path(settings.episodes), settings.episodes_max_mib << 20
    past = PastEpisodes(folder) if settings.past else None
    told = past.written if past else lambda written: None
    writers.append(kept.enter_context(episode_writer(folder, most_bytes, written=told)))
    if settings.champion is not None:
        known = None
        if trained_on is not None and trained_on.is_file():
            known = words_of(question.question for question in load_questions(trained_on))
        watch = kept.enter_context(drift_watcher(folder, settings.champion, settings.drift, known, metrics))
        writers.append(watch)
        shows.append(watch)

    def show(feedback: Feedback) -> None:
        for each in shows:
            each(feedback)

    return writers, kept.enter_context(closing(FeedbackBook(folder, most_bytes, show=show))), past


async def run_server(
    params: RuntimeParams,
    settings: ServeParams,
    index: str,
    champion: Champion | None,
    keys: Keys | None,
    registry: Registry = Registry(),
    *,
    trained_on: Path | None = None,
    host: str,
    port: int,
) -> None:
    """Serve until SIGINT or SIGTERM; requests under way have their deadline to finish."""
    async with open_service(params, settings, index, champion, registry, trained_on) as service:
        config = uvicorn.Config(
            create_app(service, keys=keys, host=host),
            host=host,
            port=port,
            log_level="warning",
            access_log=False,
            **uvicorn_options(head_s=settings.body_s, connections=settings.connections),
            timeout_graceful_shutdown=int(settings.deadline_s) + 1,
        )
        log.info("http://%s:%d/v1 serves %s; /openapi.json describes it", host, port, ", ".join(settings.models))
        if settings.page:
            log.info("http://%s:%d is a page to ask it on", host, port)
        with _signals_only_stop_the_server():
            await uvicorn.Server(config).serve()


@contextmanager
def _signals_only_stop_the_server() -> Iterator[None]:
    """uvicorn raises the signal that has ended it once more, which would end the process before its engines are closed."""
    old = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)

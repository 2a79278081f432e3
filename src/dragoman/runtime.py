"""Opens what a system runs in, from settings: engines, a retriever, and the policy behind a system's name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from dragoman.core.errors import UserError
from dragoman.core.settings import Section
from dragoman.core.types import Passage
from dragoman.engines import open_engine
from dragoman.engines.base import Engine
from dragoman.engines.coalesce import CoalescingEngine
from dragoman.engines.settings import EngineParams
from dragoman.registry.versions import policy_folder
from dragoman.retrieval import check_health, open_retriever
from dragoman.retrieval.base import Retriever
from dragoman.retrieval.cache import CachedRetriever
from dragoman.rollout.backends import Backends
from dragoman.systems import build
from dragoman.systems.base import System


class RuntimeParams(Section):
    """What a system runs on."""

    llm: EngineParams = EngineParams()
    proxy: EngineParams = EngineParams()
    systems: dict[str, dict[str, Any]] = Field({})
    """Settings of each system, by its name: the fields of its class."""

    def system_settings(self, name: str) -> dict[str, Any]:
        return self.systems.get(name, {})


PROBES = 5
ORACLE = "oracle"  # as a policy: what one who knows the gold passages would do


def split_name(name: str) -> tuple[str, str]:
    """`system@policy` as (system, policy); the policy is empty for the untrained base."""
    system, _, policy = name.partition("@")
    return system, policy


def policy_model(policy: str, proxy: EngineParams, results: Path = Path("results")) -> EngineParams:
    """The engine settings of a policy: a version of the registry (`champion`, `v3`), a training stage, or a folder.

    Those of the base where the policy is empty, or `oracle`, which asks no model.

    Raises:
        UserError: there is no such policy.
    """
    if policy in ("", ORACLE):
        return proxy
    return proxy.model_copy(update={"model": str(policy_folder(policy, results))})


async def open_retriever_checked(index: str, corpus: list[Passage] | None = None) -> CachedRetriever:
    """The retriever behind an index folder or a URL, after a probe with known answers.

    Raises:
        UserError: not an index, or it does not find what it must; the message says what to rebuild.
    """
    retriever = CachedRetriever(open_retriever(index))
    sample = corpus[:: max(1, len(corpus) // PROBES)][:PROBES] if corpus else None
    await check_health(retriever, sample)
    return retriever


class Runtime:
    """Makes a backends for each system that is asked for, and loads each model once for all of them."""

    def __init__(self, params: RuntimeParams, retriever: Retriever) -> None:
        self.params, self.retriever = params, retriever
        self._engines: dict[EngineParams, Engine] = {}

    def engine(self, settings: EngineParams) -> Engine:
        key = settings.model_copy(update={"model": _resolved(settings)})
        if key not in self._engines:
            self._engines[key] = CoalescingEngine(open_checked(settings))
        return self._engines[key]

    def open(self, name: str) -> tuple[System, Backends]:
        """The system called `name` (`system` or `system@policy`) and the backends it runs in.

        Raises:
            UserError: no such system or policy, or a model that is not there.
        """
        system_name, policy = split_name(name)
        system = build(system_name, self.params.system_settings(system_name))
        if policy == ORACLE:
            system = system.for_oracle()
        llm = self.engine(self.params.llm)
        # what has no role to play, or is told what to do, must not load a proxy that it will never ask
        asked = system.roles and policy != ORACLE
        proxy = self.engine(policy_model(policy, self.params.proxy)) if asked else llm
        return system, Backends(llm=llm, proxy=proxy, retriever=self.retriever, oracle=policy == ORACLE)

    def open_sampler(self, name: str, teacher: EngineParams | None, *, shots: int) -> tuple[System, Backends]:
        """The same with a teacher in the proxy's place, where one is given, and with in-context examples."""
        system, backends = self.open(name)
        if shots:
            system = system.with_shots(shots)
        return system, replace(backends, proxy=self.engine(teacher)) if teacher else backends

    async def release(self, name: str) -> None:
        """Free the engine of a policy that will not be asked again; the frozen LLM's stays."""
        settings = policy_model(split_name(name)[1], self.params.proxy)
        key = settings.model_copy(update={"model": _resolved(settings)})
        llm = self.params.llm.model_copy(update={"model": _resolved(self.params.llm)})
        if key != llm and (engine := self._engines.pop(key, None)):
            await engine.close()

    async def close(self) -> None:
        for engine in self._engines.values():
            await engine.close()


@asynccontextmanager
async def open_runtime(
    params: RuntimeParams, index: str, corpus: list[Passage] | None = None
) -> AsyncIterator[Runtime]:
    async with AsyncExitStack() as stack:
        retriever = await open_retriever_checked(index, corpus)
        stack.push_async_callback(retriever.close)
        runtime = Runtime(params, retriever)
        stack.push_async_callback(runtime.close)
        yield runtime


def open_checked(settings: EngineParams) -> Engine:
    """The engine of these settings.

    Raises:
        UserError: there is no model in the folder.
    """
    if settings.engine != "openai" and not (Path(settings.model) / "config.json").is_file():
        raise UserError(f"{settings.model}: no model there; run `dragoman model --out {settings.model}` first")
    return open_engine(
        kind=settings.engine,
        model=settings.model,
        urls=settings.urls,
        api_key_env=settings.api_key_env,
        structured=settings.structured,
        concurrency=settings.concurrency,
        connect_timeout=settings.connect_timeout_s,
        read_timeout=settings.read_timeout_s,
        retries=settings.retries,
        max_model_len=settings.max_model_len,
        kv_cache_gib=settings.kv_cache_gib,
        max_num_seqs=settings.max_batch,
    )


def _resolved(settings: EngineParams) -> str:
    return settings.model if settings.engine == "openai" else str(Path(settings.model).resolve())

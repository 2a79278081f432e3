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
from dragoman.registry.policy import SHARED, PolicySet
from dragoman.registry.versions import policy_set
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
ORACLE = "oracle"  # as a policy: oracle actions, out of the gold passages of the question


def split_name(name: str) -> tuple[str, str]:
    """`system@policy` as (system, policy); the policy is empty for the untrained base."""
    system, _, policy = name.partition("@")
    return system, policy


def find_system(name: str, params: RuntimeParams, weights: PolicySet | None = None) -> tuple[System, PolicySet | None]:
    """The system called `name` (`system` or `system@policy`), and its policy: a version, a stage, or a folder.

    The policy is None for the untrained base, and for `oracle`, which asks no model. `weights` are a policy without a name.

    Raises:
        UserError: no such system or policy, or the policy lacks a role of the system.
    """
    system_name, policy = split_name(name)
    system = build(system_name, params.system_settings(system_name))
    if weights is None:
        if policy in ("", ORACLE):
            return system, None
        weights = policy_set(policy)
    try:
        weights.check(role.name for role in system.roles)
    except UserError as e:
        raise UserError(f"{name}: {e}") from None
    return system, weights


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
        key = self._key(settings)
        if key not in self._engines:
            self._engines[key] = CoalescingEngine(open_checked(settings))
        return self._engines[key]

    def open(self, name: str, weights: PolicySet | None = None) -> tuple[System, Backends]:
        """The system called `name` (`system` or `system@policy`) and the backends it runs in.

        `weights` are a policy without a name, such as one that is being trained.

        Raises:
            UserError: no such system or policy, a role without weights, or a model that is not there.
        """
        _, policy = split_name(name)
        system, weights = find_system(name, self.params, weights)
        if policy == ORACLE:
            system = system.for_oracle()
        llm = self.engine(self.params.llm)
        # what has no role to play, or is told what to do, must not load a proxy that it will never ask
        if not system.roles or policy == ORACLE:
            return system, Backends(llm=llm, proxy=llm, retriever=self.retriever, oracle=policy == ORACLE)
        if weights is None:
            return system, Backends(llm=llm, proxy=self.engine(self.params.proxy), retriever=self.retriever)
        engines: dict[str, Engine] = {}
        for folder, roles in weights.groups():
            engines |= dict.fromkeys(roles, self.engine(self._proxy_of(folder)))
        proxy = engines.pop(SHARED, None) or engines[system.roles[0].name]
        return system, Backends(llm=llm, proxy=proxy, retriever=self.retriever, engines=engines)

    def open_sampler(self, name: str, teacher: EngineParams | None, *, shots: int) -> tuple[System, Backends]:
        """The same with a teacher in the place of every role, where one is given, and with in-context examples."""
        system, backends = self.open(name)
        if shots:
            system = system.with_shots(shots)
        return system, replace(backends, proxy=self.engine(teacher), engines={}) if teacher else backends

    async def release(self, name: str, weights: PolicySet | None = None) -> None:
        """Free the engines of a policy that will not be asked again; the frozen LLM's stays."""
        _, weights = find_system(name, self.params, weights)
        opened = [self.params.proxy] if weights is None else [self._proxy_of(folder) for folder, _ in weights.groups()]
        for settings in opened:
            key = self._key(settings)
            if key != self._key(self.params.llm) and (engine := self._engines.pop(key, None)):
                await engine.close()

    def _proxy_of(self, folder: Path) -> EngineParams:
        return self.params.proxy.model_copy(update={"model": str(folder)})

    @staticmethod
    def _key(settings: EngineParams) -> EngineParams:
        """Equal for settings that name one model, by whatever path."""
        if settings.engine == "openai":
            return settings
        return settings.model_copy(update={"model": str(Path(settings.model).resolve())})

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
    return open_engine(settings)

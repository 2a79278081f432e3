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
from dragoman.corpus.loaders import load_corpus
from dragoman.corpus.names import CORPUS
from dragoman.engines import open_engine
from dragoman.engines.base import CannotAverage, CannotScore, Engine
from dragoman.engines.cache import AnswerCache, CachedEngine
from dragoman.engines.coalesce import CoalescingEngine
from dragoman.engines.settings import EngineParams, LlmCacheParams
from dragoman.registry.policy import SHARED, PolicySet
from dragoman.registry.trained_with import check_trained_with, warn_if_turned
from dragoman.registry.versions import Registry
from dragoman.retrieval import IndexParams, Manifest, check_health, open_retriever
from dragoman.retrieval.base import Retriever
from dragoman.retrieval.cache import CachedRetriever
from dragoman.retrieval.manifest import MANIFEST
from dragoman.retrieval.store import corpus_sha256
from dragoman.rollout.backends import Backends
from dragoman.systems import build
from dragoman.systems.base import System
from dragoman.systems.system_name import ORACLE, SystemName


class RuntimeParams(Section):
    """What a system runs on."""

    llm: EngineParams = EngineParams()
    llm_cache: LlmCacheParams = LlmCacheParams()
    judge: EngineParams | None = None
    """What judges answers, for the rewards and the evaluation that ask a judge. None: the frozen LLM."""
    proxy: EngineParams = EngineParams()
    index: IndexParams = IndexParams()
    systems: dict[str, dict[str, Any]] = Field({})
    """Settings of each system, by its name: the fields of its class."""
    allow_mismatch: bool = False
    """Take policies that were trained with other settings or prompts of their system, which are refused otherwise."""

    def system_settings(self, name: str) -> dict[str, Any]:
        return self.systems.get(name, {})


PROBES = 5


def find_system(
    name: str, params: RuntimeParams, weights: PolicySet | None = None, registry: Registry = Registry()
) -> tuple[System, PolicySet | None]:
    """The system called `name` (`system` or `system@policy`), and its policy: a version, a stage, or a folder.

    A policy may come with instructions, which the system then takes.
    In `system@policy+oracle:ROLE,...` these roles take oracle actions, so that an evaluation shows what they lose.

    The policy is None for the untrained base, and for `oracle`, which asks no model.

    Args:
        weights: a policy without a name, such as one that is being trained.
        registry: where the policy behind a name is looked for.

    Raises:
        UserError: no such system or policy, or the policy lacks a role of the system or was trained with other settings.
    """
    named = SystemName.parse(name)
    system = build(named.system, params.system_settings(named.system)).prepared()
    if named.is_oracle:
        if not system.roles:
            raise UserError(f"{name}: {named.system} has no proxy, so there is nothing that an oracle could decide")
        system = system.for_oracle()
    if unknown := {*named.oracle_roles} - {role.name for role in system.roles}:
        raise UserError(
            f"{name}: {named.system} has no role {min(unknown)!r}; it has {', '.join(role.name for role in system.roles)}"
        )
    if weights is None and named.policy in ("", ORACLE):
        return system, None
    policy = weights or registry.policy(named.policy)
    if policy.instructions:
        try:
            system = system.with_instructions(policy.instructions)
        except UserError as e:
            raise UserError(f"{name}: policy {policy.version}: {e}") from None
    if weights is None and not params.allow_mismatch:
        check_trained_with(name, system, policy.manifest)
    try:
        policy.check(role.name for role in system.roles)
    except UserError as e:
        raise UserError(f"{name}: {e}") from None
    return system, policy


async def open_retriever_checked(
    index: str, corpus: list[Passage] | None = None, params: IndexParams | None = None
) -> CachedRetriever:
    """The retriever behind an index folder or a URL, after a probe with known answers.

    Raises:
        UserError: not an index, or it is of an older corpus, or it does not find what it must; the message says what to
            rebuild.
        RetrieverFault: it gave no answer.
    """
    if corpus:
        _check_built_from(Path(index), corpus)
    retriever = CachedRetriever(open_retriever(index, params))
    sample = corpus[:: max(1, len(corpus) // PROBES)][:PROBES] if corpus else None
    await check_health(retriever, sample)
    return retriever


def _check_built_from(folder: Path, corpus: list[Passage]) -> None:
    """Refuse a dataset's index (`data/index/NAME`) that was built before its corpus (`data/NAME`) changed.

    Another index may know more than the corpus that is read, as it is meant to.
    """
    own = folder.parent.parent / folder.name / CORPUS
    if folder.parent.name != "index" or not (own.is_file() and (folder / MANIFEST).is_file()):
        return
    if Manifest.read(folder).corpus_sha256 != corpus_sha256(corpus) and load_corpus(own) == corpus:
        raise UserError(
            f"{folder}: was built before {own} changed; build it again, by `dragoman index --dataset {folder.name}`"
        )


class Runtime:
    """Opens systems, and holds the engines that they need, each once, until they are released.

    Args:
        params: what runs the LLM, the judge and the proxy, and the settings of systems.
        retriever: what all systems search; it stays the caller's to close.
        registry: where the policy behind a name is looked for.
        coalesce: compute identical requests that are pending at the same time once. Such a call goes on when one of those
            who wait for it gives up, which a server with deadlines cannot have.
        answers: where greedy answers of the frozen LLM are kept, if they are; it stays the caller's to close.
    """

    def __init__(
        self,
        params: RuntimeParams,
        retriever: Retriever,
        registry: Registry = Registry(),
        *,
        coalesce: bool = True,
        answers: AnswerCache | None = None,
    ) -> None:
        self.params, self.retriever, self.registry, self.coalesce = params, retriever, registry, coalesce
        self.answers = answers
        self._engines: dict[EngineParams, Engine] = {}  # handles: `EnginePool` shares what several runtimes have open

    def engine(self, settings: EngineParams) -> Engine:
        """The engine with these settings, which is opened where it is not open yet."""
        if settings not in self._engines:
            opened = open_checked(settings)
            self._engines[settings] = CoalescingEngine(opened) if self.coalesce else opened
        return self._engines[settings]

    def llm(self, *, averages: bool = False) -> Engine:
        """The frozen LLM, which answers from its cache where the runtime has one. The proxy never does, if it is the same.

        Args:
            averages: it is asked with several prompts at once.

        Raises:
            CannotAverage: it is, and the engine asked for takes one at a time.
        """
        settings = self.params.llm
        return self._cached(_in_transformers(settings, CannotAverage) if averages else settings)

    def judge(self) -> Engine:
        """What judges answers; its greedy verdicts are cached as the frozen LLM's answers are."""
        return self._cached(self.params.judge or self.params.llm)

    def _cached(self, settings: EngineParams) -> Engine:
        engine = self.engine(settings)
        return CachedEngine(engine, self.answers) if self.answers else engine

    def open(self, name: str, weights: PolicySet | None = None) -> tuple[System, Backends]:
        """The system called `name` (`system` or `system@policy`) and the backends it runs in.

        Args:
            weights: a policy without a name, such as one that is being trained.

        Raises:
            UserError: no such system or policy, a role without weights, or a model that is not there.
        """
        system, policy = find_system(name, self.params, weights, self.registry)
        if policy and weights is None:
            warn_if_turned(name, system, policy.manifest)
        named = SystemName.parse(name)
        llm = self.llm(averages=system.averages)
        asked = {ask: self._cached(settings) for ask, settings in system.engines.items()}
        # what has no role to play, or is told what to do, must not load a proxy that it will never ask
        if not system.roles or named.is_oracle:
            roles = [role.name for role in system.roles]
            return system, Backends(llm, llm, self.retriever, asked, oracle_roles=roles, open_judge=self.judge)
        proxies = {role: self.engine(settings) for role, settings in self._proxies(system, policy).items()}
        engines = asked | proxies
        proxy = engines.pop(SHARED, None) or engines[system.roles[0].name]
        return system, Backends(llm, proxy, self.retriever, engines, named.oracle_roles, open_judge=self.judge)

    def open_sampler(self, name: str, teacher: EngineParams | None, *, shots: int) -> tuple[System, Backends]:
        """The same with a teacher in the place of every role, where one is given, and with in-context examples."""
        system, backends = self.open(name)
        if shots:
            system = system.with_shots(shots)
        return system, replace(backends, proxy=self.engine(teacher), engines={}) if teacher else backends

    async def release(self, name: str, weights: PolicySet | None = None) -> None:
        """Free the engines of a policy that will not be asked again; those of the frozen LLM and of the judge stay."""
        system, policy = find_system(name, self.params, weights, self.registry)
        for settings in set(self._proxies(system, policy).values()) - {self.params.llm, self.params.judge}:
            if engine := self._engines.pop(settings, None):
                await engine.close()

    async def close(self) -> None:
        for engine in self._engines.values():
            await engine.close()
        self._engines.clear()

    def _proxies(self, system: System, policy: PolicySet | None) -> dict[str, EngineParams]:
        """The settings of the proxy's engine by role: those of params.yaml, with the weights of the policy.

        Raises:
            CannotScore: the system decides at marks, and the engine asked for writes text alone.
        """
        proxy = self.params.proxy
        if any(role.options for role in system.roles):
            proxy = _in_transformers(proxy, CannotScore)
        if policy is None:
            return {SHARED: proxy}
        acting = {SHARED, *(role.name for role in system.roles)}  # other weights of a set would meet asks of their name
        return {
            role: proxy.model_copy(update={"model": str(folder)})
            for folder, roles in policy.groups()
            for role in roles
            if role in acting
        }


@asynccontextmanager
async def open_runtime(
    params: RuntimeParams,
    index: str,
    corpus: list[Passage] | None = None,
    registry: Registry = Registry(),
    *,
    cache: bool = False,
) -> AsyncIterator[Runtime]:
    """A runtime with the retriever of an index folder or URL, probed with passages of `corpus`; both are closed at the end.

    Args:
        cache: take the LLM's answers from `params.llm_cache`, and keep them there. Not for what measures seconds.

    Raises:
        UserError, RetrieverFault: see `open_retriever_checked`.
    """
    async with AsyncExitStack() as stack:
        retriever = await open_retriever_checked(index, corpus, params.index)
        stack.push_async_callback(retriever.close)
        answers = None
        if cache and params.llm_cache.enabled:
            answers = AnswerCache(Path(params.llm_cache.folder), params.llm_cache.max_mib)
            stack.callback(answers.close)
        runtime = Runtime(params, retriever, registry, answers=answers)
        stack.push_async_callback(runtime.close)
        yield runtime


def _in_transformers(settings: EngineParams, refusal: type[CannotScore | CannotAverage]) -> EngineParams:
    """The settings of an engine that has to be of this kind.

    Raises:
        CannotScore, CannotAverage: as `refusal` says, where another kind is set.
    """
    if settings.engine not in ("auto", "transformers"):
        raise refusal(settings.engine)
    return settings.model_copy(update={"engine": "transformers"})


def open_checked(settings: EngineParams) -> Engine:
    """The engine of these settings.

    Raises:
        UserError: there is no model in the folder.
    """
    if settings.engine != "openai" and not (Path(settings.model) / "config.json").is_file():
        raise UserError(
            f"{settings.model}: no model there; {_how_to_get(settings.model)}, or name a server: engine openai with its "
            "urls, or --llm-url for the LLM"
        )
    return open_engine(settings)


def _how_to_get(model: str) -> str:
    """What makes a model folder: of `model.source`, or, for any other name than that of the stage, of what is named so."""
    if model == EngineParams().model:
        return f"run `dragoman model --out {model}` first"
    return (
        f"`dragoman model --source {model} --out FOLDER` makes a folder of a Hugging Face id, to be named in its place"
    )

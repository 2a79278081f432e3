"""What runs a model. `open_engine` is the way in; see `base.Engine` for what an engine does."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, Literal

from dragoman.core.errors import EngineFault, UserError
from dragoman.engines.base import Engine, Request, Result, SeveralLines, control_marks, is_dead
from dragoman.engines.settings import EngineParams

logger = logging.getLogger(__name__)


RETRY_S = 30.0
"""An engine that has broken down is loaded again at most once in so long."""


@dataclasses.dataclass
class _Loaded:
    engine: Engine
    load: Callable[[], Engine]
    """Makes it again."""
    users: int = 0
    retry_at: float = 0.0
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def revive(self) -> None:
        """Load it again if it has broken down. It blocks, and those who come meanwhile wait.

        Raises:
            EngineFault: it cannot be loaded, or its folder holds other weights by now.
        """
        with self.lock:
            if not is_dead(self.engine) or time.monotonic() < self.retry_at:
                return
            self.retry_at = time.monotonic() + RETRY_S
            logger.warning("an engine has broken down and is loaded again")
            try:
                engine = self.load()
            except Exception as e:
                raise EngineFault(f"the engine broke down, and cannot be loaded again: {e}") from e
            if engine.fingerprint != self.engine.fingerprint:
                asyncio.run(engine.close())  # this is a thread without a loop
                raise EngineFault("the engine broke down, and its folder holds other weights by now")
            self.engine = engine


class EnginePool:
    """Engines of this process, each loaded once however often it is opened, and closed with its last user."""

    def __init__(self) -> None:
        self._loaded: dict[Hashable, _Loaded] = {}
        self._lock = threading.Lock()

    def open(self, key: Hashable, load: Callable[[], Engine]) -> Engine:
        """A handle on the engine of `key`, which `load` makes where it is not open yet."""
        with self._lock:
            loaded = self._loaded.get(key)
            if loaded is None:
                loaded = self._loaded[key] = _Loaded(load(), load)
            loaded.users += 1
        return _Handle(self, key, loaded)

    async def release(self, key: Hashable) -> None:
        with self._lock:
            loaded = self._loaded[key]
            loaded.users -= 1
            if loaded.users > 0:
                return
            del self._loaded[key]
        await loaded.engine.close()

    def __len__(self) -> int:
        return len(self._loaded)


class _Handle:
    """One user's share of an engine."""

    def __init__(self, pool: EnginePool, key: Hashable, loaded: _Loaded) -> None:
        self._pool = pool
        self._key = key
        self._loaded: _Loaded | None = loaded
        self._fingerprint = loaded.engine.fingerprint
        self.control_marks: frozenset[str] = control_marks(loaded.engine)

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    async def generate(self, requests: Sequence[Request]) -> list[Result]:
        if self._loaded is None:
            raise RuntimeError("generate() after close()")
        if is_dead(self._loaded.engine):
            await asyncio.to_thread(self._loaded.revive)
        return await self._loaded.engine.generate(requests)

    async def forget(self) -> None:
        if self._loaded is not None:
            await self._loaded.engine.forget()

    async def close(self) -> None:
        if self._loaded is not None:
            self._loaded = None
            await self._pool.release(self._key)


POOL = EnginePool()
"""The process's own, which `open_engine` uses where it is not given another."""


def open_engine(settings: EngineParams, *, pool: EnginePool = POOL) -> Engine:
    """Open an engine. Loading a model blocks for seconds; opening it again with equal settings shares it.

    Args:
        pool: who shares engines with whom.

    Raises:
        UserError: a setting is not usable, the engine asked for is not installed, or a server does not say what it runs.
        EngineFault: a server does not answer.
    """
    opened = _open(settings, pool)
    return opened if settings.one_line_answers else SeveralLines(opened)


def _open(settings: EngineParams, pool: EnginePool) -> Engine:
    kind = _automatic() if settings.engine == "auto" else settings.engine
    options = {name: getattr(settings, name) for name in _OPTIONS[kind]}
    if kind == "openai":
        from dragoman.engines.openai import OpenAIEngine
        from dragoman.engines.served import Served

        served = Served(settings)  # in the key, because a server may run another model by now
        return pool.open(
            (kind, settings.urls, settings.model, served.identity, *map(repr, options.values())),
            lambda: OpenAIEngine(
                settings.urls, settings.model, identity=served.identity, check=served.check, **options
            ),
        )
    from dragoman.engines.local import fingerprint
    from dragoman.engines.precision import resolved

    folder = Path(settings.model).resolve()
    options["dtype"] = resolved(settings.dtype)
    weights = fingerprint(folder, options["dtype"])  # in the key, because a folder may have been written anew since
    return pool.open((kind, folder, weights, *options.values()), lambda: _load(kind, folder, options))


_OPTIONS = {
    "openai": ("api_key_env", "body", "concurrency", "connect_timeout_s", "read_timeout_s", "retries", "structured"),
    "vllm": ("dtype", "max_model_len", "max_batch", "kv_cache_gib"),
    "transformers": ("dtype", "max_model_len", "max_batch", "max_batch_tokens", "threads"),
}
"""What of the settings each kind takes, by the same name."""


def _load(kind: str, folder: Path, options: dict[str, Any]) -> Engine:
    if kind == "transformers":
        from dragoman.engines.transformers import TransformersEngine

        return TransformersEngine(folder, **options)
    from dragoman.engines.vllm import VllmEngine

    try:
        return VllmEngine(folder, **options)
    except ImportError as e:
        raise UserError(f"engine vllm: {e}; install it, or set the engine's kind to transformers") from e


def _automatic() -> Literal["vllm", "transformers"]:
    from dragoman.engines.vllm import import_vllm

    try:
        version = import_vllm().__version__
    except ImportError as e:
        logger.info("engine: transformers, because vllm cannot be imported (%s)", e)
        return "transformers"
    logger.info("engine: vllm %s, which is installed here", version)
    return "vllm"

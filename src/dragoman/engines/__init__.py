"""What runs a model. `open_engine` is the way in; see `base.Engine` for what an engine does."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Literal

from dragoman.core.errors import UserError
from dragoman.engines.base import Engine, Request, Result

logger = logging.getLogger(__name__)

Kind = Literal["auto", "vllm", "transformers", "openai"]
Structured = Literal["vllm", "response_format", "none"]


@dataclasses.dataclass
class _Loaded:
    engine: Engine
    users: int = 0


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
                loaded = self._loaded[key] = _Loaded(load())
            loaded.users += 1
        return _Handle(self, key, loaded.engine)

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

    def __init__(self, pool: EnginePool, key: Hashable, engine: Engine) -> None:
        self.fingerprint = engine.fingerprint
        self._pool = pool
        self._key = key
        self._engine: Engine | None = engine

    async def generate(self, requests: Sequence[Request]) -> list[Result]:
        if self._engine is None:
            raise RuntimeError("generate() after close()")
        return await self._engine.generate(requests)

    async def forget(self) -> None:
        if self._engine is not None:
            await self._engine.forget()

    async def close(self) -> None:
        if self._engine is not None:
            self._engine = None
            await self._pool.release(self._key)


POOL = EnginePool()
"""The process's own, which `open_engine` uses where it is not given another."""


def open_engine(
    *,
    kind: Kind = "auto",
    model: str,
    urls: Sequence[str] = (),
    dtype: str = "bfloat16",
    max_model_len: int | None = None,
    max_num_seqs: int = 64,
    kv_cache_gib: float = 1.0,
    max_batch_tokens: int = 32_768,
    threads: int | None = None,
    api_key_env: str = "OPENAI_API_KEY",
    concurrency: int = 32,
    connect_timeout: float = 10.0,
    read_timeout: float = 300.0,
    retries: int = 5,
    structured: Structured = "vllm",
    pool: EnginePool = POOL,
) -> Engine:
    """Open an engine. Loading a model blocks for seconds; opening it again with equal settings shares it.

    Args:
        kind: "auto" is vllm where it can be imported, and transformers elsewhere.
        model: a model folder, or for "openai" the name that the servers know the model by.
        urls: the servers, for "openai".
        dtype, max_model_len, max_num_seqs: see `VllmEngine` and `TransformersEngine`.
        kv_cache_gib: see `VllmEngine`.
        max_batch_tokens, threads: see `TransformersEngine`.
        api_key_env, concurrency, connect_timeout, read_timeout, retries, structured: see `OpenAIEngine`.
        pool: who shares engines with whom.

    Raises:
        UserError: a setting is not usable, or the engine asked for is not installed.
    """
    if kind == "auto":
        kind = _automatic()
    if kind == "openai":
        from dragoman.engines.openai import OpenAIEngine

        return pool.open(
            (kind, tuple(urls), model, api_key_env, concurrency, connect_timeout, read_timeout, retries, structured),
            lambda: OpenAIEngine(
                urls,
                model,
                api_key_env=api_key_env,
                concurrency=concurrency,
                connect_timeout=connect_timeout,
                read_timeout=read_timeout,
                retries=retries,
                structured=structured,
            ),
        )
    from dragoman.engines.local import fingerprint

    folder = Path(model).resolve()
    weights = fingerprint(folder, dtype)  # in the key, because a folder may have been written anew since
    if kind == "vllm":
        from dragoman.engines.vllm import VllmEngine

        def load_vllm() -> Engine:
            try:
                return VllmEngine(
                    folder,
                    dtype=dtype,
                    max_model_len=max_model_len,
                    kv_cache_gib=kv_cache_gib,
                    max_num_seqs=max_num_seqs,
                )
            except ImportError as e:
                raise UserError(f"engine vllm: {e}; install it, or set the engine's kind to transformers") from e

        return pool.open((kind, folder, weights, max_model_len, kv_cache_gib, max_num_seqs), load_vllm)
    if kind == "transformers":
        from dragoman.engines.transformers import TransformersEngine

        return pool.open(
            (kind, folder, weights, max_model_len, max_num_seqs, max_batch_tokens, threads),
            lambda: TransformersEngine(
                folder,
                dtype=dtype,
                max_model_len=max_model_len,
                max_num_seqs=max_num_seqs,
                max_batch_tokens=max_batch_tokens,
                threads=threads,
            ),
        )
    raise UserError(f"engine kind {kind!r} is unknown; give auto, vllm, transformers or openai")


def _automatic() -> Literal["vllm", "transformers"]:
    from dragoman.engines.vllm import import_vllm

    try:
        version = import_vllm().__version__
    except ImportError as e:
        logger.info("engine: transformers, because vllm cannot be imported (%s)", e)
        return "transformers"
    logger.info("engine: vllm %s, which is installed here", version)
    return "vllm"

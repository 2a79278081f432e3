"""The models of the endpoint: systems with their policies, opened, lent to requests, and swapped when the champion changes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dragoman.core.errors import UserError
from dragoman.core.memory import give_back
from dragoman.core.types import Question
from dragoman.registry.versions import CHAMPION, Registry
from dragoman.retrieval.base import Retriever
from dragoman.rollout.backends import Backends
from dragoman.runtime import Runtime, RuntimeParams, find_system
from dragoman.serving.champion import Champion
from dragoman.systems.base import System
from dragoman.systems.system_name import SystemName

log = logging.getLogger(__name__)

STANDARD = "standard"
"""The system that answers when a proxy fails."""
RETRY_S = 30.0
"""A champion that could not be opened, or not be asked for, is tried again after so long, or when another one is named."""


@dataclass(frozen=True)
class Opened:
    """A system in its backends, ready to be asked."""

    system: System
    backends: Backends
    version: str | None
    close: Callable[[], Awaitable[None]]
    folder: str | None = None
    """Of its policy, as `Champion` names it. Versions with equal weights have one `version`, and each its own folder."""


Opener = Callable[[str], Opened]
"""Opens a `system@policy`; it may block for as long as loading a model takes."""


def opener(params: RuntimeParams, retriever: Retriever, registry: Registry = Registry()) -> Opener:
    """Opens models as settings say. What several of them need, such as the frozen LLM, is loaded once (`EnginePool`)."""

    def open(name: str) -> Opened:
        system_name = SystemName.parse(name).system
        system, policy = find_system(name, params, registry=registry)
        system.check(Question("served", "What is asked here?"))  # what needs more than its text cannot be served
        if policy is not None and policy.manifest.get("system", system_name) != system_name:
            raise UserError(f"{name}: the policy {policy.version} was trained for {policy.manifest['system']}")
        # one for each model, which can then be closed alone; past its deadline a call must end, so none is shared
        runtime = Runtime(params, retriever, registry, coalesce=False)
        try:
            system, backends = runtime.open(name)
        except BaseException:  # the frozen LLM may be open by now, and nobody else would ever let go of it
            asyncio.run(runtime.close())  # this is a thread without a loop
            raise
        version = policy.version if policy else Path(params.proxy.model).name
        folder = str(policy.folder.resolve()) if policy else None
        return Opened(system, backends, version if system.roles else None, runtime.close, folder)

    return open


@dataclass(eq=False)
class Model:
    """What a name stands for now. `opened` is None while there is no champion that can be used."""

    name: str
    opened: Opened | None
    since: float = field(default_factory=time.time)
    users: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def system(self) -> str:
        return SystemName.parse(self.name).system

    @property
    def version(self) -> str | None:
        return self.opened.version if self.opened else None


class Models:
    """Opens every model on entry, follows the champion, and closes all on exit.

    A request keeps the model it has begun with. When the champion changes, the new one is opened beside the old one, so
    that both are in memory for a while. It takes the place of the old one for the requests that follow. The old one is
    closed when the last request that uses it is done.

    Args:
        names: the models that are offered; `system@champion` follows `champion`.
        open: opens one; it runs in a thread.
        champion: None for no registry: then nothing is ever the champion.
        beside: models that are not offered, and can be lent.
        poll_s: how often to ask who is the champion.
        report: told how each change of champion went: "swapped" or "failed".
    """

    def __init__(
        self,
        names: tuple[str, ...],
        open: Opener,
        champion: Champion | None,
        *,
        beside: tuple[str, ...] = (),
        poll_s: float = 1.0,
        report: Callable[[str], None] = lambda outcome: None,
    ) -> None:
        self._names, self._open, self._champion = names, open, champion
        self._poll_s, self._report, self._beside = poll_s, report, beside
        self._models: dict[str, Model] = {}
        self._stood_for: dict[str, set[str]] = {}  # folders
        self._follower = next((name for name in names if SystemName.parse(name).policy == CHAMPION), None)
        self._folder: str | None = None  # of the champion that is served
        self._failed_folder: str | None = (
            None  # of a champion that could not be opened; None: it could not be asked for
        )
        self._retry_at = 0.0  # when that is tried again
        # One at a time: a pool of engines is locked while it loads one, and a close that waited for it would block the loop.
        self._loading = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Models:
        try:
            for name in dict.fromkeys((STANDARD, *self._names, *self._beside)):
                following = name == self._follower
                self._models[name] = Model(name, None if following else await asyncio.to_thread(self._open, name))
        except BaseException:
            await self.__aexit__()
            raise
        await self.refresh()
        if self._follower:
            self._spawn(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for model in self._models.values():
            await self._close(model)

    @property
    def offered(self) -> Mapping[str, Model]:
        return {name: self._models[name] for name in self._names}

    @property
    def fallback(self) -> Opened:
        """Standard RAG, which answers when a proxy fails; open for as long as the models are."""
        opened = self._models[STANDARD].opened
        assert opened is not None, f"{STANDARD} is closed last"
        return opened

    def version(self, name: str) -> str | None:
        """The version of the policy that a name stands for now."""
        return self._models[name].version

    def has_been(self, name: str, other: str) -> bool:
        """Whether a name that follows the champion stands, or once stood, for the version that `other` stands for now."""
        opened = self._models[other].opened
        return opened is not None and opened.folder in self._stood_for.get(name, ())

    @contextmanager
    def lease(self, name: str) -> Iterator[Model]:
        """The model for the time of one request.

        Raises:
            KeyError: it is not offered.
        """
        if name not in (*self._names, *self._beside):
            raise KeyError(name)
        model = self._models[name]
        model.users += 1
        model.idle.clear()
        try:
            yield model
        finally:
            model.users -= 1
            if not model.users:
                model.idle.set()

    async def refresh(self) -> None:
        """Ask who is the champion, and serve it from now on if it is another one. Logs what goes wrong."""
        if self._follower is None or self._champion is None:
            return
        waiting = time.monotonic() < self._retry_at
        if waiting and self._failed_folder is None:
            return
        try:
            folder = await asyncio.to_thread(self._champion.current)
        except Exception as e:
            log.warning("the champion is not known (%s: %s); going on with %s", type(e).__name__, e, self._folder)
            self._failed(None)
            return
        if folder is None or folder == self._folder or (waiting and folder == self._failed_folder):
            return
        name = self._follower
        try:
            async with self._loading:
                new = await asyncio.to_thread(self._open, f"{SystemName.parse(name).system}@{folder}")
        except Exception:  # whatever is wrong with a new model is no reason to stop serving the old one
            log.exception("the champion %s cannot be served; going on with %s", folder, self._folder)
            self._failed(folder)
            return
        log.info("the champion is now %s, it was %s", folder, self._folder)
        self._folder = folder
        old, self._models[name] = self._models[name], Model(name, new)
        self._stood_for.setdefault(name, set()).add(folder)
        self._spawn(self._retire(old))
        self._report("swapped")

    def _failed(self, folder: str | None) -> None:
        """Wait before this folder is tried again; None: before the champion is asked for again."""
        self._failed_folder, self._retry_at = folder, time.monotonic() + RETRY_S
        self._report("failed")

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            try:
                await self.refresh()
            except Exception:  # whatever it is: the next champion must still be seen
                log.exception("following the champion failed; going on with %s", self._folder)
                self._failed(None)

    async def _retire(self, model: Model) -> None:
        try:
            if model.users:
                await model.idle.wait()
        finally:  # also when the server ends
            async with self._loading:
                await self._close(model)
        await asyncio.to_thread(give_back)

    async def _close(self, model: Model) -> None:
        opened, model.opened = model.opened, None
        if opened is not None:
            await opened.close()

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

"""A service with scripted models and a small corpus, and ways to talk to it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fakes import ListRetriever, Script, ScriptedEngine
from listening import PromptServer

from dragoman.core.keys import Keys
from dragoman.core.types import Passage
from dragoman.engines.base import Request, Result
from dragoman.retrieval.base import Hit
from dragoman.rollout.backends import Backends
from dragoman.rollout.record import Episode
from dragoman.serving.episodes import episode_writer
from dragoman.serving.feedback import FeedbackBook
from dragoman.serving.metrics import Metrics
from dragoman.serving.models import Models, Opened
from dragoman.serving.past import PastEpisodes
from dragoman.serving.server import create_app
from dragoman.serving.service import Service
from dragoman.serving.settings import ServeParams
from dragoman.serving.trial import Trial
from dragoman.systems import build
from dragoman.systems.system_name import SystemName

PASSAGES = [
    Passage("brisa", "Brisa", "The capital of Brisa is Port Salt."),
    Passage("jorvik", "Jorvik", "The capital of Jorvik is Woolton."),
    Passage("salt", "Port Salt", "The river of Port Salt is the Merin."),
    Passage("wool", "Woolton", "Woolton is known for its wool."),
]
QUESTION = "What is the capital of Brisa?"


def searching(prompt: str, random: Any) -> str:
    """A proxy that searches for the question's words and keeps the first passage."""
    return "Action: [1]" if "Write Action:" in prompt else "[Retrieval] capital of Brisa"


def answering(prompt: str, random: Any) -> str:
    """An LLM that knows one answer, and one standalone question."""
    return QUESTION if "Last question:" in prompt else "Port Salt"


@dataclass
class Model(ScriptedEngine):
    """A scripted engine that can wait, and that knows how often it was closed and which calls were taken from it."""

    script: Script
    seconds: float = 0.0
    jitter: None = None
    requests: list[Request] = field(default_factory=list)
    closed: int = 0
    abandoned: int = 0
    running: int = 0

    async def generate(self, requests: Sequence[Request]) -> list[Result]:
        assert not self.closed, "asked after it was closed"
        self.running += 1
        try:
            await asyncio.sleep(self.seconds)
            return await super().generate(requests)
        except asyncio.CancelledError:
            self.abandoned += 1
            raise
        finally:
            self.running -= 1

    async def close(self) -> None:
        assert not self.running, "closed while it was asked"
        self.closed += 1


class Held(Model):
    """A model whose calls wait until it is let go on."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.go_on = asyncio.Event()

    async def generate(self, requests: Sequence[Request]) -> list[Result]:
        self.running += 1
        try:
            await self.go_on.wait()
        finally:
            self.running -= 1
        return await super().generate(requests)


class Registry:
    """A champion that tests name."""

    def __init__(self, folder: str | None = None) -> None:
        self.folder: str | Exception | None = folder

    def current(self) -> str | None:
        if isinstance(self.folder, Exception):
            raise self.folder
        return self.folder


class Failing(ListRetriever):
    def __init__(self, error: Exception) -> None:
        super().__init__([])
        self.error = error

    async def search(self, queries: Sequence[str], k: int, page: int = 0) -> list[list[Hit]]:
        raise self.error


@dataclass
class Parts:
    """What a service is made of. `proxies` are by policy; one that is not there cannot be opened."""

    llm: Model = field(default_factory=lambda: Model(answering))
    proxies: dict[str, Model] = field(default_factory=lambda: {"": Model(searching)})
    retriever: Any = field(default_factory=lambda: ListRetriever(PASSAGES))
    champion: Registry | None = None
    models: tuple[str, ...] = ("c3po", "standard", "direct")
    settings: dict[str, Any] = field(default_factory=dict)
    keys: Keys | None = None
    host: str = "localhost"
    systems: dict[str, dict[str, Any]] = field(default_factory=dict)
    service: Service = field(init=False)
    episodes: list[Episode] = field(default_factory=list)
    poll_s: float = 0.01
    trial: dict[str, Any] = field(default_factory=dict)
    """Fields of the trial of c3po@v7 beside c3po@champion; without any there is none."""
    shown: list[dict[str, Any]] = field(default_factory=list)
    """What the trial has written down."""
    feedback: Path | None = None
    """The folder where feedback is kept; None takes none."""
    past: Path | None = None
    """The folder where episodes are written, and shown to who asked; None shows none."""
    most_bytes: int = 1 << 20
    """Of a file there."""

    def open(self, name: str) -> Opened:
        named = SystemName.parse(name)
        system = build(named.system, self.systems.get(named.system))
        proxy = self.proxies[named.policy] if system.roles else self.llm

        async def close() -> None:
            if system.roles:
                await proxy.close()

        backends = Backends(llm=self.llm, proxy=proxy, retriever=self.retriever)
        return Opened(system, backends, (named.policy or "base") if system.roles else None, close, named.policy)

    @asynccontextmanager
    async def app(self) -> AsyncIterator[Any]:
        metrics = Metrics()
        settings = ServeParams(**{"models": self.models, "deadline_s": 5, **self.settings})
        report = lambda outcome: metrics.swaps.labels(outcome).inc()  # noqa: E731
        trial = None
        if self.trial:
            named = {
                "champion": "c3po@champion",
                "challenger": "c3po@v7",
                "share": 1.0,
                "once_in": 10_000,
                **self.trial,
            }
            trial = Trial(**named, metrics=metrics, record=self.shown.append)
        beside = (trial.challenger,) if trial else ()
        async with AsyncExitStack() as opened:
            past, write = None, lambda episode: None
            if self.past:
                past = PastEpisodes(self.past)
                write = opened.enter_context(episode_writer(self.past, self.most_bytes, written=past.written))

            def keep(episode: Episode) -> None:
                self.episodes.append(episode)
                write(episode)

            models = await opened.enter_async_context(
                Models(self.models, self.open, self.champion, beside=beside, poll_s=self.poll_s, report=report)
            )
            book = FeedbackBook(self.feedback, 1 << 20) if self.feedback else None
            self.service = Service(models, settings, metrics, keep=keep, feedback=book, past=past, trial=trial)
            yield create_app(self.service, keys=self.keys, host=self.host)
            await self.service.close()
            if book is not None:
                book.close()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        async with self.app() as app:
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                yield client

    @asynccontextmanager
    async def server(self) -> AsyncIterator[str]:
        """Over a real socket, in this event loop. Yields the URL of the API."""
        async with self.app() as app:
            listener = socket.socket(
                socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP
            )  # see benchmarks/serving.py
            listener.bind(("127.0.0.1", 0))
            listener.listen(512)
            server = PromptServer(uvicorn.Config(app, log_level="error", lifespan="off"))
            server.capture_signals = nullcontext  # signals are pytest's
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            while not server.started:
                await asyncio.sleep(0.005)
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
            finally:
                server.should_exit = True
                await serving

    @contextmanager
    def server_in_thread(self) -> Iterator[str]:
        """Over a real socket, for clients that block. Yields the URL of the server, without /v1."""
        ready, done = threading.Event(), threading.Event()
        url: list[str] = []

        async def serve() -> None:
            async with self.server() as base:
                url.append(base.removesuffix("/v1"))
                ready.set()
                await asyncio.to_thread(done.wait)

        thread = threading.Thread(target=lambda: asyncio.run(serve()))
        thread.start()
        try:
            assert ready.wait(300)
            yield url[0]
        finally:
            done.set()
            thread.join()

    def metric(self, name: str, **labels: str) -> float:
        return self.service.metrics.registry.get_sample_value(name, labels) or 0.0


def chat(question: str = QUESTION, model: str = "c3po", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": question}], **more}


async def ask(client: httpx.AsyncClient, *arguments: Any, **more: Any) -> httpx.Response:
    return await client.post("/v1/chat/completions", json=chat(*arguments, **more))


async def eventually(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)

"""Real servers in a thread of this process."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI


class PromptServer(uvicorn.Server):
    """Ends at once when it is told to. uvicorn looks ten times a second, and hundreds of tests would wait for that."""

    async def main_loop(self) -> None:
        await self.on_tick(0)  # the headers of all answers
        while not self.should_exit:
            await asyncio.sleep(0.005)


@contextmanager
def listening(app: FastAPI, port: int = 0) -> Iterator[str]:
    """The URL of a server on this machine, at a port that an earlier one had, or at a free one."""
    listener = socket.create_server(("127.0.0.1", port))
    server = PromptServer(uvicorn.Config(app, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()

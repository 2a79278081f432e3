"""How the servers of this project listen: what one client may hold, and for how long."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from starlette.types import Message, Receive

from dragoman.core.errors import UserError

KEEP_ALIVE_S = 75
"""How long an idle connection is kept. uvicorn's default of 5 s is also httpx's, so that one side may close a connection just as
the other sends on it."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def check_free(host: str, port: int) -> None:
    """Find out whether a server can listen there, before it loads anything.

    Raises:
        UserError: the port is taken or may not be had, or the host is no address of this machine.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        socket.create_server((host, port), family=family).close()
    except (OSError, UnicodeError) as e:  # UnicodeError: a host whose part between two dots is empty or too long
        reason = getattr(e, "strerror", None) or e
        raise UserError(f"--host {host} --port {port}: {reason}; give another of the two") from None


def bounded(
    receive: Receive,
    *,
    most_bytes: int,
    seconds: float,
    too_large: Callable[[], Exception],
    too_slow: Callable[[], Exception],
) -> Receive:
    """`receive` for a body of at most so many bytes, which is there after so many seconds. What follows it may take its time.

    Args:
        too_large, too_slow: what is raised otherwise.
    """
    until = asyncio.get_running_loop().time() + seconds
    read, whole = 0, False

    async def receive_bounded() -> Message:
        nonlocal read, whole
        try:
            async with asyncio.timeout_at(None if whole else until):
                message = await receive()
        except TimeoutError:
            raise too_slow() from None
        whole = not message.get("more_body", False)
        read += len(message.get("body", b""))
        if read > most_bytes:
            raise too_large()
        return message

    return receive_bounded


def uvicorn_options(*, head_s: float, connections: int) -> dict[str, Any]:
    """Options of `uvicorn.Config` for a server that closes a connection whose request does not come.

    Args:
        head_s: seconds for the head of a request, from the first byte or, on a new connection, from its beginning. So many has
            the rest of a request that is answered before it is there.
        connections: how many are kept open; a further one is closed at once.
    """
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    base: Any = AutoHTTPProtocol

    class Impatient(base):
        _waits: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > connections:
                transport.close()
            else:
                self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.cycle.more_body:  # it was answered before it was there, and the rest may never come
                self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _watch(self) -> None:
            """Let the time run while part of a head, or the rest of an answered request, may be there, and none is answered."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop()
            elif self._waits is None:
                self._waits = self.loop.call_later(head_s, self._give_up)

        def _stop(self) -> None:
            if self._waits is not None:
                self._waits.cancel()
                self._waits = None

        def _give_up(self) -> None:
            self._waits = None
            if self.cycle is None or self.cycle.response_complete:
                self.transport.close()

    return {"http": Impatient, "timeout_keep_alive": KEEP_ALIVE_S}

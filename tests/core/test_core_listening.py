"""Where a server may listen, and connections that hold a place and send nothing, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import httpx
import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse

from dragoman.core.errors import UserError
from dragoman.core.listening import check_free, uvicorn_options


async def app(scope, receive, send) -> None:
    if scope["path"] == "/refused":
        await JSONResponse({"read": 0})(scope, receive, send)
        return
    body = await Request(scope, receive).body()
    await asyncio.sleep(0.5 if scope["path"] == "/slow" else 0)
    await JSONResponse({"read": len(body)})(scope, receive, send)


@asynccontextmanager
async def serving(**limits: float) -> AsyncIterator[int]:
    options = uvicorn_options(**{"head_s": 0.2, "connections": 100, **limits})
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off", **options))
    server.capture_signals = nullcontext  # signals are pytest's
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await task


async def closed_after(port: int, sent: bytes) -> bool:
    """Whether the server closes a connection on which this was sent, without a word."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    async with asyncio.timeout(20):
        end = await reader.read() == b""
    writer.close()
    return end


async def answers(port: int) -> bool:
    """Whether the server answers on a connection of its own; otherwise it closes that."""
    async with httpx.AsyncClient() as client:
        try:
            return (await client.get(f"http://127.0.0.1:{port}/")).status_code == 200
        except httpx.TransportError:
            return False


async def test_a_connection_without_a_whole_head_is_closed():
    async with serving() as port:
        halves = [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n"]
        assert all(await asyncio.gather(*(closed_after(port, half) for half in halves)))


async def test_a_head_that_stops_half_way_on_a_used_connection_closes_it():
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" in await reader.readuntil(b"}")
        await asyncio.sleep(0.3)  # idle, which is no fault
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" in await reader.readuntil(b"}")
        writer.write(b"GET / HT")
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()


async def test_an_answer_may_take_longer_than_its_question():
    async with serving() as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        assert (await client.post("/slow", content=b"12345")).json() == {"read": 5}


async def test_a_request_that_is_answered_before_it_is_there_does_not_keep_its_connection():
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n12")
        assert b"200" in await reader.readuntil(b"}")
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()


async def test_a_request_that_is_answered_unread_keeps_its_connection_where_it_was_there():
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(b"POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n12")
            assert b"200" in await reader.readuntil(b"}")
            await asyncio.sleep(0.4)
        writer.close()


async def test_of_too_many_connections_the_last_is_closed():
    async with serving(connections=2, head_s=30) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert await closed_after(port, b"")
        held[0][1].close()
        async with asyncio.timeout(10):
            while not await answers(port):
                await asyncio.sleep(0.05)
        held[1][1].close()


@pytest.mark.parametrize("host", ["my..host", "x" * 64 + ".org", "192.0.2.1"])
def test_a_host_that_is_no_address_of_this_machine_is_refused_by_name(host: str) -> None:
    with pytest.raises(UserError, match=f"--host {host} --port 0: .*give another of the two"):
        check_free(host, 0)

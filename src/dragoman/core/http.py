"""How a call to a server is made and repeated, and how its key is read and kept secret, for every client of this project."""

from __future__ import annotations

import asyncio
import os
import re

import httpx
from httpx_retries import Retry, RetryTransport

from dragoman.core.errors import UserError

PASSING_STATUS = (408, 429, *range(500, 600))
_LAST_PORT = 65_535
_HOST = re.compile(r"(?:[A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{1,63}\.?")
_KEY = re.compile(r"[!-~]*")


class WholeAnswers(httpx.AsyncHTTPTransport):
    """Gives an answer once all of it is there, so that `retrying` asks again where one breaks off or does not end.

    Args:
        patience: seconds for a try, from its beginning to the end of its answer. The timeout of httpx bounds each chunk alone.
        kept: connections that are kept open. There is no limit to those in use: the pool would count one whose request was
            cancelled while it was made, for ever.
    """

    def __init__(self, patience: float, kept: int) -> None:
        super().__init__(limits=httpx.Limits(max_connections=None, max_keepalive_connections=kept))
        self._patience = patience

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        sending = asyncio.ensure_future(self._whole(request))
        sending.add_done_callback(lambda done: done.cancelled() or done.exception())  # which somebody has seen
        try:
            async with asyncio.timeout(self._patience):
                return await asyncio.shield(sending)
        except TimeoutError:
            raise httpx.ReadTimeout(f"no whole answer in {self._patience:g} s", request=request) from None
        finally:
            sending.cancel()  # once, however often its caller is: a second time would leave its connection open

    async def _whole(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        await response.aread()
        return response


def retrying(
    transport: httpx.AsyncBaseTransport | httpx.BaseTransport, *, retries: int, first_wait: float, longest_wait: float
) -> RetryTransport:
    """A transport that asks again after a transport error, 408, 429 or a 5xx, and at last lets it through.

    Args:
        retries: how often it asks again.
        first_wait: seconds before the first retry, doubled before each later one. Up to half is taken off at random, lest
            all callers come back in the same instant. What a Retry-After header asks for counts instead.
        longest_wait: seconds, whatever a server asks for.
    """
    policy = Retry(
        total=retries,
        allowed_methods=["GET", "POST"],
        status_forcelist=PASSING_STATUS,
        retry_on_exceptions=[httpx.TransportError],
        backoff_factor=first_wait / 2,  # it is doubled before the first retry, too
        backoff_jitter=0.5,
        max_backoff_wait=longest_wait,
    )
    return RetryTransport(transport, policy)


def url_fault(url: str) -> str:
    """What is wrong with the address of a server; empty for nothing. It repeats no secret that may stand in the address."""
    try:
        parts = httpx.URL(url)
        host = parts.host
    except (httpx.InvalidURL, UnicodeError) as e:  # UnicodeError: a label that begins with xn-- and stands for nothing
        return f"not an http(s) URL ({e})"
    if parts.userinfo or parts.query or parts.fragment:
        return (
            f"the URL of {host or 'a server'} holds a user, a password, a query or a fragment. URLs are written into "
            "records: leave scheme, host, port and path alone, and put the key into an environment variable"
        )
    if parts.scheme not in ("http", "https") or not host:
        return f"{url!r} is not an http(s) URL; give one such as http://localhost:8000/v1"
    if parts.port is not None and not 1 <= parts.port <= _LAST_PORT:
        return f"{url!r} is not an http(s) URL: a port is a number from 1 to {_LAST_PORT}"
    if ":" not in host and not _HOST.fullmatch(parts.raw_host.decode()):  # that of an IPv6 address has been looked at
        return f"{url!r} is not an http(s) URL: the parts of a host between its dots have 1 to 63 letters, digits and hyphens"
    return ""


def key_in(variable: str) -> str:
    """The key of a server in an environment variable, without blanks around it; empty where there is none.

    Raises:
        UserError: no header can hold it. The message names the variable and repeats nothing of the key.
    """
    key = os.environ.get(variable, "").strip()  # a key out of a file often ends in a line break
    if not _KEY.fullmatch(key):
        raise UserError(
            f"the key in the environment variable {variable} cannot be sent: it has a blank, a line break or a character "
            "beyond ASCII within it; set the variable to the key alone"
        )
    return key


def hidden(text: str, key: str) -> str:
    """A text without the key that it may repeat. It is to be cut afterwards: a part of the key would not be found."""
    return text.replace(key, "***") if key else text

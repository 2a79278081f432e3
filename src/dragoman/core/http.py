"""How a call to a server is repeated, and how its key is read and kept secret, for every client of this project."""

from __future__ import annotations

import os
import re

import httpx
from httpx_retries import Retry, RetryTransport

from dragoman.core.errors import UserError

PASSING_STATUS = (408, 429, *range(500, 600))
_KEY = re.compile(r"[!-~]*")


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
    except httpx.InvalidURL as e:
        return f"not an http(s) URL ({e})"
    if parts.userinfo or parts.query or parts.fragment:
        return (
            f"the URL of {parts.host or 'a server'} holds a user, a password, a query or a fragment. URLs are written into "
            "records: leave scheme, host, port and path alone, and put the key into an environment variable"
        )
    if parts.scheme not in ("http", "https") or not parts.host:
        return f"{url!r} is not an http(s) URL; give one such as http://localhost:8000/v1"
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

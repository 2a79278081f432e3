"""How a call to a server is repeated, for every client of this project."""

from __future__ import annotations

import httpx
from httpx_retries import Retry, RetryTransport

PASSING_STATUS = (408, 429, *range(500, 600))


def retrying(
    transport: httpx.AsyncBaseTransport, *, retries: int, first_wait: float, longest_wait: float
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

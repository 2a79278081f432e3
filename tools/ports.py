"""Ports for servers that are started later, and again after they were killed."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

PORTS = range(10_000, 32_000)
"""Below those that systems give to clients and to whoever asks for any port, so that nobody else takes one meanwhile."""
_drawn = iter(random.SystemRandom().sample(PORTS, len(PORTS)))  # seeds, which tests set, do not make them equal


def free_port(host: str = "127.0.0.1") -> int:
    """One of `PORTS` that nobody listens at, and that this process has not been given before.

    Raises:
        OSError: none is left.
    """
    for port in _drawn:
        with socket.socket() as listener, suppress(OSError):
            listener.bind((host, port))
            return port
    raise OSError(f"{host}: no port of {PORTS.start} to {PORTS.stop - 1} is left")

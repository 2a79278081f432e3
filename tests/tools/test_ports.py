"""Ports that stay free until a server is started."""

from __future__ import annotations

import socket

import pytest

from tools import ports
from tools.ports import free_port

FIRST_OF_LINUX = 32_768
"""From here on it gives ports to clients."""


def test_a_free_port_is_none_that_the_system_gives_to_a_client_and_is_given_once():
    given = [free_port() for _ in range(500)]
    assert min(given) >= 1024 and max(given) < FIRST_OF_LINUX
    assert len(set(given)) == 500


def test_a_port_that_is_taken_is_not_given(monkeypatch):
    other = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(ports, "_drawn", iter([taken.getsockname()[1], other]))
        assert free_port() == other
        with pytest.raises(OSError, match=r"127\.0\.0\.1: no port of 10000 to 31999 is left"):
            free_port()

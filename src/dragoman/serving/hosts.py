"""By which names the endpoint may be called. A page in a browser can have its own name lead here, and would then read answers."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection

from dragoman.core.listening import LOOPBACK

_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]/\s]+))(?::\d*)?", re.IGNORECASE)


def host_of(header: str) -> str:
    """The name or address in a `Host` header, in lower case and without its port; empty where there is none."""
    found = _HOST.fullmatch(header)
    return (found[1] or found[2]).lower() if found else ""


def is_own(host: str, names: Collection[str]) -> bool:
    """Whether a host is this machine's loopback, one of the names, or an address.

    A foreign name can lead to an address (DNS rebinding). A browser that says an address was led there by none.
    """
    return host in LOOPBACK or host in names or _is_address(host)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True

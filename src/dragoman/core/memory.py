"""Memory that was freed, and that the process still holds."""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """Return it to the system, where the C library is glibc; others need not be told. It may take some 100 ms.

    Loading a model frees more than it keeps, and glibc holds on to that for what may come: an endpoint would carry it along
    for ever after each change of its champion. So it is with a training run, whose rollouts and steps are done by other threads each
    time: glibc keeps the memory of each thread for that thread.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)

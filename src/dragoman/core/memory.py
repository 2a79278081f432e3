"""Memory that was freed: what the C library keeps of it, and when the system gets it back. Where that is not glibc, nothing is done."""

from __future__ import annotations

import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8  # of glibc's <malloc.h>


def keep_freed() -> None:
    """Keep what is freed for what comes next, until `give_back`. To be called before a process has threads.

    Each pass of a model frees and takes the same hundreds of MiB. glibc would return much of them each time, and the system
    clears every page again, which costs time without a GPU. Threads share one arena, since what lies in that of an engine's
    thread is returned whatever the threshold.
    """
    if set_option := getattr(ctypes.CDLL(None), "mallopt", None):
        set_option(ARENA_MAX, 1)
        if not set_option(MMAP_THRESHOLD, 2**30):
            set_option(MMAP_THRESHOLD, 2**25)  # the most that older versions take
        set_option(TRIM_THRESHOLD, 2**31 - 1)


def give_back() -> None:
    """Return it to the system. It may take some 100 ms.

    Loading a model frees more than it keeps, and glibc holds on to that for what may come: an endpoint would carry it along
    for ever after each change of its champion. So it is with a training run, after its rollouts and its steps.
    """
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)

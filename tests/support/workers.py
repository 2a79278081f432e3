"""Which worker of pytest-xdist runs which tests."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

BUSY = ("tools/test_drill", "flows/", "tools/test_endurance")
"""Modules with servers at work. Two Prefect servers side by side on a slow disk were seen not to answer for minutes."""


class BusyOnOneWorker(LoadScopeScheduling):
    """Like `--dist loadscope`, but all `BUSY` modules are of one scope: one worker runs them, one after another."""

    def _split_scope(self, nodeid: str) -> str:
        return "busy" if nodeid.removeprefix("tests/").startswith(BUSY) else super()._split_scope(nodeid)

"""Collects what is wrong with an input, so that a person can mend a whole file and not one line per run."""

from __future__ import annotations

from pathlib import Path

from dragoman.core.errors import UserError

SHOWN = 5


class Faults:
    """The faults of one source: counts all, keeps the first `SHOWN`, and raises them as one error."""

    def __init__(self, source: Path | str, remedy: str = "mend them and run again") -> None:
        self.source = source
        self.remedy = remedy
        self.total = 0
        self._first: list[str] = []

    def add(self, what: str, line: int | None = None, path: Path | str | None = None) -> None:
        """Note one fault, at a line (from 1) of `path`, which is the source itself unless another file is named."""
        place = f"{path or self.source}" + (f":{line}" if line is not None else "")
        self.total += 1
        if len(self._first) < SHOWN:
            self._first.append(f"{place}: {what}")

    def check(self) -> None:
        """Raise what was noted, if anything was.

        Raises:
            UserError: one sentence for one fault; for several, how many there are and the first of them.
        """
        if self.total == 1:
            raise UserError(self._first[0])
        if self.total > 1:
            which = "" if self.total <= SHOWN else f", here the first {SHOWN}"
            listed = "".join(f"\n  {fault}" for fault in self._first)
            raise UserError(f"{self.source}: {self.total} faults ({self.remedy}){which}:{listed}")

"""Snapshots: pools at the end of each round, as data that the judge is trained on (section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator

from dragoman.core import files, rows
from dragoman.core.types import Passage, Question, fields_of
from dragoman.systems.maps.pool import Pool, Search


class SnapshotRow(BaseModel):
    """A line of a file of snapshots."""

    question: Annotated[Question, BeforeValidator(lambda row: fields_of(row) if isinstance(row, dict) else row)]
    pool: tuple[Search, ...] = Field(min_length=1)
    round: int

    @model_validator(mode="after")
    def _the_round_is_that_of_the_pool(self) -> SnapshotRow:
        if self.round != len(self.pool) - 1:
            raise ValueError(f"round is {self.round}, and the pool has {len(self.pool) - 1} searches after the first")
        return self

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot(self.question, Pool(self.pool))


@dataclass(frozen=True)
class Snapshot:
    """A question with its pool after so many rounds."""

    question: Question
    pool: Pool

    @property
    def round(self) -> int:
        """How many searches followed the one for the question."""
        return len(self.pool.searches) - 1

    def to_json(self) -> dict[str, Any]:
        return {
            "question": self.question.to_json(),
            "pool": [
                {"query": search.query, "passages": [asdict(passage) for passage in search.passages]}
                for search in self.pool.searches
            ],
            "round": self.round,
        }


def snapshots(question: Question, searches: Sequence[tuple[str, Sequence[Passage]]], most: int) -> list[Snapshot]:
    """One for each search of a trajectory, in which the pool holds what was found up to then, and at most `most` passages."""
    found, pool = [], Pool()
    for query, passages in searches:
        pool = pool.extended(query, passages, most)
        found.append(Snapshot(question, pool))
    return found


def write_snapshots(path: Path, found: Sequence[Snapshot]) -> None:
    """Write snapshots as JSONL, all or nothing."""
    files.write(path, (snapshot.to_json() for snapshot in found))


def read_snapshots(path: Path) -> list[Snapshot]:
    """Read snapshots from JSONL.

    Raises:
        UserError: no such file, or lines that are no snapshots; each is named with its line and key.
    """
    found, faults = [], rows.Faults(path, "mend them, or make the file anew with `dragoman debate`")
    for line, row in files.read(path, faults):
        try:
            found.append(SnapshotRow.model_validate(row).snapshot)
        except ValidationError as e:
            first = e.errors(include_url=False)[0]
            faults.add(f"{'.'.join(map(str, first['loc'])) or 'snapshot'}: {first['msg']}", line)
    faults.check()
    return found

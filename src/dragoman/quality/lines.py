"""JSONL files read line by line: what is a row of its kind, and what is wrong with the lines that are none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Generic, TypeVar

from pydantic import BaseModel, Field, ValidationError

from dragoman.core import rows

Identity = Annotated[str, Field(pattern=r"\S")]


class PassageRow(BaseModel):
    id: Identity | None
    title: str | None
    text: str | None


class QuestionRow(BaseModel):
    id: Identity | None
    question: str | None
    answers: list[str] | None
    type: str | None = ""
    supporting_ids: list[str] | None = None
    categories: dict[str, str] | None = None


R = TypeVar("R", bound=BaseModel)


@dataclass(frozen=True)
class Lines(Generic[R]):
    """A JSONL file: its rows by line, and what is wrong with the lines that are none."""

    rows: dict[int, R]
    faults: dict[int, str]


def read_lines(path: Path, model: type[R]) -> Lines[R]:
    """Every line that is not blank as a row, or as a fault."""
    read: dict[int, R] = {}
    faults: dict[int, str] = {}
    for number, row in rows.each(path):
        if isinstance(row, str):
            faults[number] = row
            continue
        try:
            read[number] = model.model_validate(row)
        except ValidationError as e:
            first = e.errors(include_url=False)[0]
            faults[number] = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return Lines(read, faults)

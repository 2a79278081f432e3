"""JSONL files read line by line: what is a row of its kind, and what is wrong with the lines that are none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from pydantic import AliasChoices, BaseModel, BeforeValidator, Field, ValidationError

from dragoman.core import rows
from dragoman.corpus.fields import ID_KEYS, QUESTION_KEYS, TEXT_KEYS, TITLE_KEYS

Identity = Annotated[str, Field(pattern=r"\S")]


def _title(value: Any) -> Any:
    """None is no title, as it is to `load_corpus`."""
    return "" if value is None else value


def _categories(value: Any) -> Any:
    """Those of a synthetic question. What has another form is a key of someone else, which means nothing here."""
    is_ours = isinstance(value, dict) and all(isinstance(part, str) for pair in value.items() for part in pair)
    return value if is_ours else None


class PassageRow(BaseModel):
    id: Identity | None = Field(validation_alias=AliasChoices(*ID_KEYS))
    title: Annotated[str, BeforeValidator(_title)] = Field("", validation_alias=AliasChoices(*TITLE_KEYS))
    text: str | None = Field(validation_alias=AliasChoices(*TEXT_KEYS))


class QuestionRow(BaseModel):
    id: Identity | None = Field(validation_alias=AliasChoices(*ID_KEYS))
    question: str | None = Field(validation_alias=AliasChoices(*QUESTION_KEYS))
    answers: list[str] | None
    type: str | None = ""
    supporting_ids: list[str] | None = None
    categories: Annotated[dict[str, str] | None, BeforeValidator(_categories)] = None


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

"""Settings of stage `corpus`, and whose questions are meant."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from dragoman.core.settings import Section

Source = Literal["gold", "synthetic"]
"""Whose questions: the dataset's own, or those of stage `synthesize`."""


class Chunking(Section):
    by: Literal["tokens", "words"] = "words"
    size: int = Field(100, ge=1)
    overlap: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _overlap_is_smaller(self) -> Chunking:
        if self.overlap >= self.size:
            raise ValueError(f"overlap {self.overlap} must be smaller than size {self.size}")
        return self


class CorpusParams(Section):
    """Stage `corpus`, one for each dataset: where passages and questions come from."""

    source: str = "atlas"
    """`atlas` (built in), or a corpus: JSONL, BEIR folder, folder of text files, `hf:NAME`, file of triples. Of triples, each is a
    passage, and gold are those that a question names as `triples`."""
    chunk: Chunking | None = None
    """How to cut long texts; None leaves them whole."""
    train: str | None = None
    """Question files (JSONL), for a source other than `atlas`. A split that is None is left out."""
    dev: str | None = None
    test: str | None = None
    passages: int = Field(1500, ge=50)
    """`atlas` only: how many passages, and how many questions in each split."""
    train_questions: int = Field(600, ge=1)
    dev_questions: int = Field(150, ge=1)
    test_questions: int = Field(150, ge=1)

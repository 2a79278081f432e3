"""Settings of stage `corpus`, and whose questions are meant."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from dragoman.core.settings import Section

Source = Literal["gold", "synthetic"]
"""Whose questions: the dataset's own, or those of stage `synthesize`."""


Paths = str | Annotated[tuple[str, ...], Field(min_length=1)]
"""One path, or several, which are joined."""


def listed(paths: Paths | None) -> tuple[str, ...]:
    """The paths of a setting, one after the other."""
    return () if paths is None else (paths,) if isinstance(paths, str) else paths


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

    source: Paths = "atlas"
    """`atlas` (built in), or a corpus: JSONL, BEIR folder, folder of text files, `hf:NAME`, file of triples. Of triples, each is a
    passage, and gold are those that a question names as `triples`. A list of corpora is one corpus, of all their passages."""
    chunk: Chunking | None = None
    """How to cut long texts; None leaves them whole."""
    train: Paths | None = None
    """A question file (JSONL), or a list of them, for a source other than `atlas`. A split that is None is left out."""
    dev: Paths | None = None
    test: Paths | None = None
    passages: int = Field(1500, ge=50)
    """`atlas` only: how many passages, and how many questions in each split."""
    train_questions: int = Field(600, ge=1)
    dev_questions: int = Field(150, ge=1)
    test_questions: int = Field(150, ge=1)

    @model_validator(mode="after")
    def _the_built_in_corpus_stands_alone(self) -> CorpusParams:
        if "atlas" in listed(self.source) and self.source != "atlas":
            raise ValueError(
                "source: atlas is built, not read, so it is no part of a list; name data/atlas/corpus.jsonl, which stage corpus writes"
            )
        return self

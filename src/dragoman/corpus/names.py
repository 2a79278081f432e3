"""What the files of a data set are called: passages, the questions of each split, and the triples where it has some."""

from __future__ import annotations

from typing import Literal, get_args

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
CORPUS = "corpus.jsonl"
TRIPLES = "triples.tsv"

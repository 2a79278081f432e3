"""Stage `index`: the search index of a corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typing_extensions import Doc

from dragoman.core.progress import bar
from dragoman.core.types import Passage
from dragoman.corpus import load_corpus
from dragoman.pipeline.project import Project
from dragoman.retrieval import Manifest, build_index
from dragoman.retrieval.settings import IndexParams


@dataclass(frozen=True, kw_only=True)
class Options:
    dataset: Annotated[str | None, Doc("Index data/DATASET/corpus.jsonl; train.dataset by default.")] = None
    corpus: Annotated[Path | None, Doc("Any corpus, instead of a dataset.")] = None
    out: Annotated[Path | None, Doc("The index folder; data/index/DATASET by default.")] = None

    def folder(self, project: Project) -> Path:
        return self.out or project.index(self.corpus.stem if self.corpus else self.dataset)


async def run(project: Project, options: Options) -> dict[str, Any]:
    """Build the index.

    Raises:
        UserError: the corpus cannot be read, or the folder holds something that is not an index.
    """
    passages = load_corpus(options.corpus or project.made(project.corpus(options.dataset), options.dataset))
    built = build(passages, options.folder(project), project.params.index)
    return {"passages": built.passages, "method": built.name}


def build(passages: Sequence[Passage], folder: Path, settings: IndexParams) -> Manifest:
    """Build an index of the passages in `folder`, as the settings say."""
    embedded = 0
    with bar(f"index {folder}", len(passages)) as advance:

        def progress(done: int, total: int) -> None:
            nonlocal embedded
            advance(steps=done - embedded)
            embedded = done

        return build_index(passages, folder, settings, progress=progress)

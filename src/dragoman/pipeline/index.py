"""Stage `index`: the search index of a corpus."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from filelock import FileLock, Timeout
from typing_extensions import Doc

from dragoman.core.errors import RetrieverFault, UserError
from dragoman.core.progress import bar
from dragoman.core.types import Passage
from dragoman.corpus import load_corpus
from dragoman.corpus.names import CORPUS
from dragoman.pipeline.project import Project
from dragoman.retrieval import Manifest, build_index, check_health, open_retriever
from dragoman.retrieval.manifest import MANIFEST
from dragoman.retrieval.rerank import RerankParams
from dragoman.retrieval.settings import IndexParams
from dragoman.retrieval.store import corpus_sha256

log = logging.getLogger(__name__)

INDEXED = "-index"
"""Behind the name of results: the folder of the index that was built for them."""
PROBES = 5
"""Passages by which a finished index is tried."""
TRIAL = Passage("trial", "Trial", "This is indexed alone, to see which manifest the settings give.")


@dataclass(frozen=True, kw_only=True)
class Options:
    dataset: Annotated[str | None, Doc("Index data/DATASET/corpus.jsonl; train.dataset by default.")] = None
    corpus: Annotated[Path | None, Doc("Any corpus, instead of a dataset.")] = None
    out: Annotated[
        Path | None, Doc("The index folder; data/index/NAME by default, by the dataset or the corpus's file.")
    ] = None

    def folder(self, project: Project) -> Path:
        return self.out or project.index(named_after(self.corpus) if self.corpus else self.dataset)


def beside(out: Path) -> Path:
    """The folder of the index that is built for results."""
    out = out if out.name else out.resolve()  # `.` has no name
    return out.with_name(f"{out.name}{INDEXED}")


def named_after(corpus: Path) -> str:
    """What an index and results call a corpus that is no dataset."""
    corpus = corpus.resolve()
    return (corpus.parent.name if corpus.name == CORPUS else corpus.stem) or "corpus"


async def run(project: Project, options: Options) -> dict[str, Any]:
    """Build the index, unless it is there and finds its passages.

    Raises:
        UserError: the corpus cannot be read, the folder is a dataset's or holds something that is not an index, or a server
            does not know it.
    """
    folder, settings = options.folder(project), project.params.index
    if options.corpus and not options.out and folder.name in project.params.corpus:
        own = project.corpus(folder.name)
        if options.corpus.resolve() != own.resolve():
            raise UserError(f"--corpus {options.corpus}: {folder} is of {own}; name another folder with --out")
    passages = load_corpus(options.corpus or project.made(project.corpus(options.dataset), options.dataset))
    built = _built(passages, folder, settings)
    if built is None or not await _finds(passages, folder, settings):
        built = _build(passages, folder, settings)
    return {"passages": built.passages, "method": built.name}


def build(passages: Sequence[Passage], folder: Path, settings: IndexParams) -> Manifest:
    """Build an index of the passages in `folder`, as the settings say, unless it is there. Whoever opens it has to probe it.

    Where another command builds it, as of other questions about the same corpus, it is waited for.
    """
    if built := _built(passages, folder, settings):
        return built
    with _turn(folder):
        return _built(passages, folder, settings) or _build(passages, folder, settings)


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Wait until no other command is in here for this index."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(f".{folder.name}.turn"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        log.info("%s: another command builds it, and is waited for", folder)
        lock.acquire()
    try:
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)  # while it is held: who waits for this file then makes a new one
        lock.release()


def _built(passages: Sequence[Passage], folder: Path, settings: IndexParams) -> Manifest | None:
    """The manifest of the index in `folder`, if it is the one that would be built: by what is in it, not by the machine.

    Of dragoman's own code it is the manifest's SCHEMA that counts.
    """
    if settings.method == "server" or not (folder / MANIFEST).is_file():  # a server is asked each time what it knows
        return None
    try:
        there = Manifest.read(folder)
        if there.corpus_sha256 != corpus_sha256(passages):
            return None
        with TemporaryDirectory() as scratch:
            trial = Path(scratch) / folder.name
            build_index([TRIAL], trial, settings)
            if _kinds(folder) != _kinds(trial):
                return None
    except (UserError, RetrieverFault, UnicodeEncodeError):  # the build says what is wrong
        return None
    log.info("%s: is built already and is used; to have it built again, delete the folder", folder)
    return there


def _kinds(folder: Path) -> dict[str, Any]:
    """Of an index, and of those inside it, all that equal settings make equal, by their folders in it."""
    manifests = {path.parent: Manifest.read(path.parent) for path in folder.rglob(MANIFEST)}
    return {str(path.relative_to(folder)): (m.method, m.settings, m.versions) for path, m in manifests.items()}


async def _finds(passages: Sequence[Passage], folder: Path, settings: IndexParams) -> bool:
    """Whether the index opens, and finds a sample of its passages."""
    try:
        retriever = open_retriever(folder, settings.model_copy(update={"rerank": RerankParams()}))
        try:
            await check_health(retriever, passages[:: max(1, len(passages) // PROBES)][:PROBES])
        finally:
            await retriever.close()
    except (UserError, RetrieverFault) as e:
        log.warning("%s: is built again: %s", folder, e)
        return False
    return True


def _build(passages: Sequence[Passage], folder: Path, settings: IndexParams) -> Manifest:
    embedded = 0
    with bar(f"index {folder}", len(passages)) as advance:

        def progress(done: int, total: int) -> None:
            nonlocal embedded
            advance(steps=done - embedded)
            embedded = done

        return build_index(passages, folder, settings, progress=progress)

"""Stage `corpus`: whatever the source, one folder with `corpus.jsonl` and a question file for each split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from typing_extensions import Doc

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.types import Question
from dragoman.corpus import build_atlas, chunk, load_corpus
from dragoman.corpus.chunking import with_wholes
from dragoman.corpus.hub import place_of
from dragoman.corpus.loaders import TRIPLE_SUFFIXES, join_passages
from dragoman.corpus.names import CORPUS, SPLITS, TRIPLES
from dragoman.corpus.settings import CorpusParams, listed
from dragoman.engines.fetch import FETCH, loading
from dragoman.pipeline.project import Project
from dragoman.pipeline.questions import load_mixed


@dataclass(frozen=True, kw_only=True)
class Options:
    dataset: Annotated[str | None, Doc("A name under `corpus` in params.yaml; train.dataset by default.")] = None
    source: Annotated[str | None, Doc("atlas, or JSONL, BEIR folder, text folder, hf:NAME.")] = None
    out: Annotated[Path | None, Doc("Where it goes; data/DATASET by default.")] = None

    def folder(self, project: Project) -> Path:
        return self.out or project.dataset(_named_after(self.source) if self.source else self.dataset)


async def run(project: Project, options: Options) -> dict[str, Any]:
    """Write the dataset. Returns how many passages and how many questions of each split there are.

    Raises:
        UserError: no such dataset, a file cannot be read, or a gold passage is not in the corpus.
    """
    known, name = project.params.corpus, options.dataset or project.params.train.dataset
    if options.source is not None:
        if options.dataset is not None:
            raise UserError(
                "corpus: --dataset names an entry of params.yaml, and --source is another one; give one of the two"
            )
        entry = known.get(_named_after(options.source))
        settings = entry if entry and entry.source == options.source else CorpusParams(source=options.source)
    elif name in known:
        settings = known[name]
    else:
        raise UserError(f"corpus: no dataset {name!r} there in params.yaml; there are: {', '.join(known)}")
    out = options.folder(project)
    if settings.source != "atlas":
        by_tokens = settings.chunk is not None and settings.chunk.by == "tokens"
        return _import(settings, out, _tokenizer(Path(project.params.proxy.model)) if by_tokens else None)
    build_atlas(
        out,
        seed=project.params.seed,
        passages=settings.passages,
        train=settings.train_questions,
        dev=settings.dev_questions,
        test=settings.test_questions,
    )
    written = {"passages": CORPUS} | {split: f"{split}.jsonl" for split in SPLITS}
    return {name: sum(1 for _ in files.read(out / file)) for name, file in written.items()}


def _named_after(source: str) -> str:
    """What a dataset of no entry is called: by the last part of its source, which for `.` is the folder's own name.

    Raises:
        UserError: it has none.
    """
    if name := Path(source).resolve().stem:
        return name
    raise UserError(f"corpus: --source {source} has no name to call the dataset by; say where it goes with --out")


def _tokenizer(model: Path) -> Any:
    """The proxy's, by which chunks are counted."""
    from transformers import AutoTokenizer

    if not (model / "tokenizer_config.json").is_file():
        raise UserError(f"chunk: {model} has no tokenizer to count by; `dragoman model` makes it, or say by: words")
    with loading(f"chunk: {model}", "its tokenizer cannot be loaded", FETCH):
        return AutoTokenizer.from_pretrained(model)


def _import(settings: CorpusParams, out: Path, tokenizer: Any) -> dict[str, Any]:
    corpora = listed(settings.source)
    given = [*corpora, *(path for split in SPLITS for path in listed(getattr(settings, split)))]
    if inside := [path for path in given if place_of(path).resolve().is_relative_to(out.resolve())]:
        raise UserError(
            f"corpus: {inside[0]} lies in {out}, which is written anew; give the dataset another name, or --out"
        )
    splits = {split: paths for split in SPLITS if (paths := listed(getattr(settings, split)))}
    for name in (TRIPLES, *(f"{split}.jsonl" for split in SPLITS if split not in splits)):
        if (out / name).exists():  # written by hand, or about another corpus
            raise UserError(
                f"corpus: {out / name} is there, and the dataset would have none; move it away, or name another --out"
            )
    passages = join_passages((source, load_corpus(source)) for source in corpora)
    graph = all(Path(source).suffix in TRIPLE_SUFFIXES for source in corpora)
    ids = with_wholes(p.id for p in passages)
    if settings.chunk is not None:
        cut = settings.chunk
        passages = list(chunk(passages, by=cut.by, size=cut.size, overlap=cut.overlap, tokenizer=tokenizer))
    files.write(out / CORPUS, (asdict(p) for p in passages))
    counts = {"passages": len(passages)}
    for split, paths in splits.items():
        questions = _questions(paths, ids, graph)
        files.write(out / f"{split}.jsonl", (q.to_json() for q in questions))
        counts[split] = len(questions)
    return counts


def _questions(paths: Sequence[str], ids: set[str], graph: bool) -> list[Question]:
    """The questions of some files, evenly mixed, whose gold passages are all in the corpus."""
    mixed = load_mixed([(path, Path(path)) for path in paths])
    questions = mixed.of_graph().questions if graph else mixed.questions
    for question in questions:
        if missing := set(question.supporting_ids) - ids:
            raise UserError(
                f"{mixed.sources[question.id]}: question {question.id} names passage {min(missing)!r}, which the corpus lacks"
            )
    return questions

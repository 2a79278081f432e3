"""Stage `synthesize`: questions with answers for a corpus that has none."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from typing_extensions import Doc

from dragoman import tracking
from dragoman.config import Params
from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.identity import FINGERPRINTED, code_hash
from dragoman.core.journal import digest
from dragoman.core.text import same_question
from dragoman.core.types import Passage, Triple
from dragoman.corpus import chunk, load_corpus
from dragoman.corpus.loaders import is_texts, load_questions
from dragoman.corpus.names import CORPUS, SPLITS, TRIPLES
from dragoman.engines.base import Engine
from dragoman.engines.fetch import BUILT_IN
from dragoman.engines.settings import EngineParams
from dragoman.pipeline import index
from dragoman.pipeline.project import Project
from dragoman.registry.policy import read_manifest
from dragoman.retrieval.base import Retriever
from dragoman.retrieval.health import check_ids
from dragoman.runtime import open_checked, open_retriever_checked
from dragoman.synthesis import difficulty, filters
from dragoman.synthesis.brief import Writer
from dragoman.synthesis.card import CARD, card, write_card
from dragoman.synthesis.facts import Fact, facts_of, left_out, unambiguous
from dragoman.synthesis.filters import Filter
from dragoman.synthesis.grounded import GroundedWriter
from dragoman.synthesis.plan import PLAN, Plan, load_plan, plan_text
from dragoman.synthesis.reader import Reader
from dragoman.synthesis.settings import SynthesizeParams
from dragoman.synthesis.synthesize import JOURNAL, Filled, synthesize
from dragoman.synthesis.written import EngineWriter, MixedWriter

log = logging.getLogger(__name__)

PROBES = 10
"""Passages that a server has to find under their ids."""
WORDS = 100
"""A folder of texts is cut to passages of so many words."""
MAKERS = (synthesize, GroundedWriter, EngineWriter, filters.grounded)
"""What writes questions, and what refuses them: what other code of theirs has made is something else."""


@dataclass(frozen=True, kw_only=True)
class Options:
    dataset: Annotated[str | None, Doc("A dataset of params.yaml; train.dataset by default.")] = None
    corpus: Annotated[Path | None, Doc("Any corpus: JSONL, BEIR folder, or folder of texts.")] = None
    chunk: Annotated[
        int | None, Doc(f"Cut texts to so many words; {WORDS} for a folder of texts, else not at all.")
    ] = None
    index: Annotated[str | None, Doc("An index folder or the URL of a retriever server.")] = None
    out: Annotated[Path | None, Doc("Where the questions go; results/synthesize by default, for train.dataset.")] = None

    def folder(self, project: Project) -> Path:
        return self.out or project.results("synthesize")


async def run(project: Project, options: Options) -> dict[str, Any]:
    """Make the questions; see `make_questions`.

    Raises:
        UserError: the corpus cannot be read, nothing can be asked about it, it is not the pipeline's and has no folder of its own,
            or another process writes into the folder.
    """
    from dragoman.corpus.triples import read_triples  # rdflib takes a tenth of a second

    settings, out = project.params.synthesize, options.folder(project)
    if options.out is None and options.corpus is not None:
        raise UserError(f"--corpus: say with --out where its questions go; {out} is the pipeline's")
    if options.corpus is not None and settings.backend == "none":
        raise UserError(
            f"--corpus {options.corpus}: synthesize.backend is none, which makes no questions, and would replace those of before; "
            "say --backend grounded or engine"
        )
    if options.corpus is not None and is_texts(options.corpus) and out.resolve() == options.corpus.resolve():
        raise UserError(
            f"--out {out}: the texts are there, and a corpus.jsonl would be read in their place; name another folder"
        )
    _check_made_here(out, settings.plan)
    trained = project.params.train.dataset
    if options.out is None and options.dataset not in (None, trained):
        raise UserError(
            f"--dataset {options.dataset}: say with --out where its questions go; those in {out} are about {trained}"
        )
    source = options.corpus or project.made(project.corpus(options.dataset), options.dataset)
    passages = load_corpus(source)
    if options.chunk is not None or is_texts(source):
        passages = list(chunk(passages, by="words", size=WORDS if options.chunk is None else options.chunk))
    beside = (source if source.is_dir() else source.parent) / TRIPLES
    triples = read_triples(beside) if beside.is_file() else []
    if options.corpus and settings.backend in ("grounded", "mixed"):
        _tell_unused(left_out(passages, triples), len(triples), beside)
    # beside a corpus of one's own lies whatever lies there
    gold = [] if options.corpus else [source.parent / f"{split}.jsonl" for split in SPLITS]
    target = options.index
    with files.only_writer(out):
        if target is None and options.corpus:
            target = str(index.beside(out))
            if settings.retrievable or settings.draws:
                index.build(passages, Path(target), project.params.index)
        return await make_questions(
            project.params,
            passages,
            triples,
            index=target or str(project.index(options.dataset)),
            out=out,
            source=str(source),
            seed=project.params.seed,
            track=project.tracking,
            gold={same_question(q.question) for path in gold if path.is_file() for q in load_questions(path)},
        )


def _check_made_here(out: Path, plan: str | None) -> None:
    """
    Raises:
        UserError: there are questions, a corpus or another plan in `out` that no run of this stage has written.
    """
    there = [name for name in (*(f"{split}.jsonl" for split in SPLITS), CORPUS, PLAN) if (out / name).exists()]
    if PLAN in there and plan and (out / PLAN).resolve() == Path(plan).resolve():
        there.remove(PLAN)
    if there and not any((out / name).exists() for name in (JOURNAL, CARD)):
        raise UserError(
            f"synthesize: {out / there[0]} would be written anew, and is not of an earlier run; name another --out"
        )


async def make_questions(
    params: Params,
    passages: Sequence[Passage],
    triples: Sequence[Triple],
    *,
    index: str,
    out: Path,
    source: str,
    seed: int,
    track: Path | None,
    gold: Collection[str] = (),
) -> dict[str, Any]:
    """Write a set of questions about `passages` into `out`, with their corpus and a card.

    Whoever calls it is the only writer of `out`.

    Files: `train.jsonl`, `dev.jsonl`, `test.jsonl`, `corpus.jsonl`, `plan.yaml`, `rejected.jsonl`, `card.html`, `metrics.json`;
    and journals of what has been computed, from which a run that was stopped goes on.

    Args:
        gold: the questions that there are, of all splits, as `same_question` has them. None of them is made again.

    Returns:
        What the card shows.

    Raises:
        UserError: no question passed the filters, a plan or a model cannot be read, or there are too few passages.
    """
    settings, clock = params.synthesize, time.monotonic()
    if settings.backend == "none":
        return _unasked(passages, settings, out, source)
    own = Path(settings.plan) if settings.plan else None
    plan, written = load_plan(own), plan_text(own)
    plan.require("number_of_documents", {"single-doc", "multi-doc"})
    plan.require("interaction_type", {"single-turn", "two-turn"})
    if settings.backend != "engine":
        GroundedWriter.check(plan)
    known, ambiguous = unambiguous({} if settings.backend == "engine" else facts_of(passages, triples), passages)
    askable = [p for p in passages if p.id in known] if settings.backend == "grounded" else list(passages)
    if not askable:
        raise UserError(f"{source}: nothing was found in it to ask for without a model; choose --backend engine")
    async with AsyncExitStack() as stack:

        def opened(model: Any) -> Engine:
            engine = open_checked(model)
            stack.push_async_callback(engine.close)
            return engine

        writes = settings.backend != "grounded"
        reads = settings.answerable or settings.draws > 0
        llm = opened(params.llm) if reads or (writes and settings.engine is None) else None
        author = opened(settings.engine) if writes and settings.engine is not None else llm
        if writes:
            _tell_too_small(settings.engine or params.llm)
        retriever: Retriever | None = None
        if settings.retrievable or settings.draws:
            retriever = await open_retriever_checked(index, list(passages), params.index)
            stack.push_async_callback(retriever.close)
            if "://" in index:  # of a server that goes by other ids no draft would be found
                await check_ids(retriever, passages[:: max(1, len(passages) // PROBES)][:PROBES])
        checks = _checks(settings, retriever, llm)
        filled = await synthesize(
            askable,
            triples,
            _writer(settings, plan, known, author),
            plan,
            checks,
            settings,
            n=settings.n,
            seed=seed,
            out=out,
            origin=_origin(askable, triples, settings, retriever, llm),
            known=gold,
        )
        if settings.draws and llm is not None and retriever is not None:
            reader = Reader(llm, draws=settings.draws, seed=seed)
            by_id = {p.id: p for p in passages}
            for split, rows in filled.questions.items():
                filled.questions[split] = await difficulty.rate(
                    rows, by_id, reader, retriever, k=settings.k, concurrency=settings.concurrency, out=out
                )
                files.write(out / f"{split}.jsonl", filled.questions[split])
    files.write(out / CORPUS, (asdict(p) for p in passages))
    files.write_text(out / PLAN, written)  # by which `validate` compares the categories of these questions
    chosen = settings.model_dump(mode="json")
    values = card(
        filled,
        plan,
        settings=chosen | {"seed": seed},
        source=source,
        seconds=time.monotonic() - clock,
        ambiguous=ambiguous,
    )
    write_card(values, out)
    if track is not None:
        tracking.start(track)
        tracking.log_synthesis(out, parameters=chosen)
    return values


def _tell_unused(unused: Mapping[str, int], of: int, where: Path) -> None:
    """Say how many triples a user has written for nothing, and why."""
    if unused:
        reasons = ", ".join(f"{count} {why}" for why, count in unused.items())
        log.warning("%s: %d of %d triples are not asked for: %s", where, sum(unused.values()), of, reasons)


def _tell_too_small(author: EngineParams) -> None:
    if author.engine != "openai" and read_manifest(Path(author.model)).get("source") == BUILT_IN:
        log.warning(
            "%s: the built-in model of 135M parameters is too small to write questions to decide by; name an able LLM, in "
            "section `llm` of params.yaml or by --llm-url",
            author.model,
        )


def _unasked(passages: Sequence[Passage], settings: SynthesizeParams, out: Path, source: str) -> dict[str, Any]:
    """What other stages wait for, without a question: that of a dataset which has its own."""
    nothing = Filled({split: [] for split in settings.shares}, rejected=[], open=0)
    for split, rows in nothing.questions.items():
        files.write(out / f"{split}.jsonl", rows)
    files.write(out / CORPUS, (asdict(p) for p in passages))
    values = card(nothing, load_plan(None), settings=settings.model_dump(mode="json"), source=source, seconds=0)
    write_card(values, out)
    return values


def _writer(settings: SynthesizeParams, plan: Plan, known: dict[str, list[Fact]], author: Engine | None) -> Writer:
    if settings.backend == "grounded" or author is None:
        return GroundedWriter(known)
    engine = EngineWriter(
        author, plan, temperature=settings.temperature, passage_words=settings.passage_words, spans=settings.spans
    )
    return (
        engine if settings.backend == "engine" else MixedWriter(engine, settings.engine_attempts, GroundedWriter(known))
    )


def _checks(settings: SynthesizeParams, retriever: Retriever | None, llm: Engine | None) -> dict[str, Filter]:
    """The filters, cheapest first. Near-duplicates are looked for last, among what has been kept."""
    checks: dict[str, Filter] = {
        "length": filters.length(settings.min_words, settings.max_words),
        "another language": filters.language,
        "answer leaked": filters.leakage,
        "answer not in its passages": filters.grounded,
    }
    if settings.retrievable and retriever is not None:
        checks["not retrievable"] = filters.retrievable(retriever, settings.retrievable)
    if settings.answerable and llm is not None:
        checks["not answerable"] = filters.answerable(Reader(llm))
    return checks


def _origin(
    passages: Sequence[Passage],
    triples: Sequence[Triple],
    settings: SynthesizeParams,
    retriever: Retriever | None,
    llm: Engine | None,
) -> str:
    """What a candidate and its fate depend on, beside its brief and its writer."""
    filtered = settings.model_dump(include={"shares", "min_words", "max_words", "retrievable", "answerable"})
    models = (retriever.fingerprint if retriever else "", llm.fingerprint if llm and settings.answerable else "")
    return digest(
        code_hash(*(part.__module__ for part in MAKERS), stop=FINGERPRINTED),
        [(p.id, p.title, p.text) for p in passages],
        list(triples),
        sorted(filtered.items(), key=str),
        models,
    )

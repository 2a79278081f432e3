"""What a stage that asks questions works on: those of a dataset, or any files."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge
from typing_extensions import Doc

from dragoman.core.errors import UserError
from dragoman.core.types import Passage
from dragoman.corpus import load_corpus
from dragoman.corpus.chunking import gold_id, with_wholes
from dragoman.corpus.triple_passages import triple_id, triple_of
from dragoman.pipeline.index import beside, build
from dragoman.pipeline.project import Project
from dragoman.pipeline.questions import QuestionSet, load_mixed
from dragoman.retrieval.base import Retriever, missing
from dragoman.retrieval.methods.graph import holds_triples
from dragoman.rollout.shards import Shard

log = logging.getLogger(__name__)

SAMPLE = 20
"""Questions that are searched to see which ids an index has, and passages that are looked at for each."""
FEW = 5
"""Of fewer questions a right index, too, may find no gold passage."""
NOBODYS = "dragoman: an id that no passage has"
"""A retriever that does not miss it cannot say what it lacks."""
LOOKED_UP = 999
"""Ids that a retriever is asked about at once, beside that one: a server takes 1,000."""


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """Whose questions are asked, and what is searched."""

    dataset: Annotated[str | None, Doc("A dataset of params.yaml; train.dataset by default.")] = None
    questions: Annotated[Path | None, Doc("Any question file (JSONL), instead of the dataset's.")] = None
    corpus: Annotated[Path | None, Doc("Any corpus; it is indexed beside the results.")] = None
    index: Annotated[str | None, Doc("An index folder or the URL of a retriever server.")] = None


@dataclass(frozen=True, kw_only=True)
class ShardOptions:
    """Whether a command does its whole work, a part of it, or puts the parts together."""

    shard: Annotated[str | None, Doc("I/N: only the I-th of N parts, on any machine.")] = None
    merge: Annotated[int | None, Ge(1), Doc("Put so many finished shards together; runs no model.")] = None
    processes: Annotated[
        int, Ge(1), Doc("Do so many shards at once on this machine, each with models and processors of its own.")
    ] = 1

    def part(self) -> Shard | None:
        """The shard, if it is to be one.

        Raises:
            UserError: there is no such shard, or it is to be merged at once, or divided.
        """
        if sum((self.shard is not None, self.merge is not None, self.processes > 1)) > 1:
            raise UserError("give one of --shard I/N, --merge N and --processes N")
        return Shard.parse(self.shard) if self.shard is not None else None

    def place(self, out: Path) -> Path:
        """Where the results go, of which the whole has the folder `out`."""
        part = self.part()
        return part.folder(out) if part else out


@dataclass(frozen=True, kw_only=True)
class ShardInputOptions(ShardOptions, InputOptions):
    """Whose questions are asked, and how many of them here."""

    def part(self) -> Shard | None:
        """See `ShardOptions.part`.

        Raises:
            UserError: so too where each shard would index the corpus.
        """
        if (self.shard or self.merge or self.processes > 1) and self.corpus and not self.index:
            raise UserError("--corpus: each shard would index it; give --index too")
        return super().part()


@dataclass(frozen=True)
class Inputs:
    asked: QuestionSet
    index: str
    passages: list[Passage] | None
    """To probe the index with; None where it is not known what is in it."""


def open_inputs(
    project: Project,
    options: InputOptions,
    split: str,
    out: Path,
    *,
    sources: Sequence[str],
    limit: int | None = None,
) -> Inputs:
    """Load questions and passages, and index a corpus that has no index.

    Args:
        project: whose datasets are meant.
        options: what of it, or which files instead.
        split: of the dataset's questions.
        out: the results' folder. An index is built beside it, as a run that starts anew empties it.
        sources: whose questions of the dataset; see `Project.question_file`.
        limit: the first so many questions.

    Raises:
        UserError: a file cannot be read, or it is not known which questions are meant.
    """
    if options.corpus and not (options.questions or options.dataset):
        raise UserError(
            f"--corpus {options.corpus}: what is to be asked about it? Name a file with --questions, or with --dataset a dataset "
            "of params.yaml, whose questions are asked then; `dragoman synthesize` makes questions for a corpus that has none"
        )
    asked = (
        load_mixed([("file", options.questions)], limit=limit)
        if options.questions
        else project.questions(split, sources, dataset=options.dataset, limit=limit)
    )
    if options.corpus is None and options.index is not None:
        return Inputs(known_to(options.index, asked), options.index, None)
    corpus = options.corpus or project.made(project.corpus(options.dataset), options.dataset)
    passages = load_corpus(corpus)
    if triple_of(passages[0]):
        asked = asked.of_graph()
    if options.corpus or options.questions:  # those of a dataset were checked when it was made
        check_gold(asked, passages, corpus)
    if options.index is not None:
        return Inputs(known_to(options.index, asked), options.index, passages)
    index = beside(out) if options.corpus else project.index(options.dataset)
    if options.corpus:
        build(passages, index, project.params.index)
    return Inputs(asked, str(index), passages)


def open_dev(
    project: Project,
    options: InputOptions,
    dev: Path | None,
    inputs: Inputs,
    out: Path,
    *,
    sources: Sequence[str],
    limit: int | None,
) -> Inputs:
    """The dev questions that choose a policy, of a file or of the dataset, over what the questions to learn from search.

    Args:
        inputs: of the questions to learn from.

    Raises:
        UserError: it is not known which ones are meant, or the file cannot be read.
    """
    if options.questions and (options.corpus or options.index) and not (dev or options.dataset):
        raise UserError(
            "--dev: whose answers are to choose the policy? Name a file of questions about the same passages"
        )
    found = open_inputs(
        project,
        InputOptions(dataset=options.dataset, questions=dev, index=inputs.index),
        "dev",
        out,
        sources=sources,
        limit=limit,
    )
    if dev and inputs.passages:
        check_gold(found.asked, inputs.passages, options.corpus or project.corpus(options.dataset))
    return found


def known_to(index: str, asked: QuestionSet) -> QuestionSet:
    """The questions by the ids of the index: of one that holds triples, the gold passages are those behind the answers."""
    return asked.of_graph() if holds_triples(index) else asked


def check_gold(asked: QuestionSet, passages: Sequence[Passage], corpus: Path) -> None:
    """
    Raises:
        UserError: questions name passages that the corpus lacks. A proxy would be taught, and an oracle judged, by those.
    """
    known = with_wholes(passage.id for passage in passages)
    astray = {q.id: gone[0] for q in asked.questions if (gone := [id for id in q.supporting_ids if id not in known])}
    if astray:
        raise UserError(f"{_lacking(asked, astray, str(corpus))}; give the ids of the corpus, or leave the key out")


async def check_gold_in_index(retriever: Retriever, asked: QuestionSet, passages: Sequence[Passage] = ()) -> None:
    """Refuse questions that know their gold passages by other ids than the index: an oracle would keep none of them.

    A retriever that can say which passages it lacks is asked for all. Of another, a sample of the questions is searched; a
    warning is given where they are too few to refuse. Where the index is of a graph, the triples behind an answer are its gold passages.

    Args:
        passages: of the corpus, where it is known. If one of them is found, the index goes by its ids.

    Raises:
        UserError: the index lacks a gold passage, or no known passage is found for `FEW` questions or more.
        RetrieverFault: it gave no answer.
    """
    mend = "export the index as JSONL of its own ids, give that as --corpus beside --index, and ask questions that name those ids"
    questions = [question for question in asked.questions if question.supporting_ids]
    triples = {question.id: set(map(triple_id, question.triples)) for question in questions}
    gold = {id for question in questions for id in (*question.supporting_ids, *triples[question.id])}
    gone = await _missing(retriever, sorted(gold))
    if gone is None:
        sample = questions[:: max(1, len(questions) // SAMPLE)][:SAMPLE]
        found = await retriever.search([question.question for question in sample], SAMPLE)
        ids = [hit.passage.id for hits in found for hit in hits]
        known = {*gold, *(passage.id for passage in passages)}
        if not any(gold_id(id, known) for id in ids):
            others = f"finds others, such as {ids[0]!r}" if ids else "finds nothing"
            problem = (
                f"{', '.join(map(str, asked.files))}: question {sample[0].id} names passage {sample[0].supporting_ids[0]!r} in "
                f"supporting_ids, but none of the gold passages was found: for {len(sample)} of the questions {retriever!r} "
                f"{others}; if its ids are not those of the questions, {mend}"
            )
            if len(sample) >= FEW:
                raise UserError(problem)
            log.warning("%s", problem)
        return
    astray = {
        q.id: lost[0]
        for q in questions
        if (lost := [id for id in q.supporting_ids if id in gone]) and (not q.triples or triples[q.id] & gone)
    }
    if astray:
        raise UserError(f"{_lacking(asked, astray, repr(retriever))}; {mend}")


async def _missing(retriever: Retriever, ids: Sequence[str]) -> set[str] | None:
    """Those of `ids` of which the index has neither the passage nor a chunk. None where the retriever cannot say."""
    forms = {id: (id, f"{id}#0", f"{id}#1") for id in ids}  # a first chunk of white space is left out
    asked = [form for those in forms.values() for form in those]
    gone: set[str] = set()
    for start in range(0, len(asked), LOOKED_UP):
        part = await missing(retriever, [NOBODYS, *asked[start : start + LOOKED_UP]])
        if NOBODYS not in part:
            return None
        gone.update(part)
    return {id for id, those in forms.items() if gone.issuperset(those)}


def _lacking(asked: QuestionSet, astray: Mapping[str, str], where: str) -> str:
    """What is wrong with questions that name passages which are not there: by the question's id, the first that it names."""
    first, passage = next(iter(astray.items()))
    return (
        f"{', '.join(map(str, asked.files))}: question {first} names passage {passage!r} in supporting_ids, which {where} lacks "
        f"({len(astray)} of {len(asked.questions)} questions name such)"
    )

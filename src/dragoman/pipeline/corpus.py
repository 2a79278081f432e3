"""Stage `corpus`: whatever the source, one folder with `corpus.jsonl` and a question file for each split."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.corpus import build_atlas, chunk, load_corpus, load_questions
from dragoman.corpus.settings import CorpusParams


def prepare(settings: CorpusParams, out: Path, *, seed: int) -> dict[str, int]:
    """Write the dataset into `out`. Returns how many passages and how many questions of each split there are.

    Raises:
        UserError: the source or a question file cannot be read, or a gold passage is not in the corpus.
    """
    if settings.source == "atlas":
        build_atlas(
            out,
            seed=seed,
            passages=settings.passages,
            train=settings.train_questions,
            dev=settings.dev_questions,
            test=settings.test_questions,
        )
        counts = {"passages": sum(1 for _ in files.read(out / "corpus.jsonl"))}
        return counts | {s: sum(1 for _ in files.read(out / f"{s}.jsonl")) for s in ("train", "dev", "test")}
    passages = load_corpus(settings.source)
    ids = {p.id for p in passages}
    if settings.chunk is not None:
        cut = settings.chunk
        passages = list(chunk(passages, by=cut.by, size=cut.size, overlap=cut.overlap))
    files.write(out / "corpus.jsonl", (asdict(p) for p in passages))
    counts = {"passages": len(passages)}
    for split in ("train", "dev", "test"):
        path = getattr(settings, split)
        if path is None:
            continue
        questions = load_questions(path)
        for question in questions:
            if missing := set(question.supporting_ids) - ids:
                raise UserError(f"{path}: question {question.id} names passage {min(missing)}, which the corpus lacks")
        files.write(out / f"{split}.jsonl", (q.to_json() for q in questions))
        counts[split] = len(questions)
    return counts

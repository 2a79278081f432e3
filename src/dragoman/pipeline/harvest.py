"""Stage `harvest`: a data set out of the questions that the endpoint was asked, with answers that somebody stands for."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typing_extensions import Doc

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.keys import Keys
from dragoman.core.progress import bar
from dragoman.core.settings import near
from dragoman.core.text import same_question
from dragoman.core.types import Question
from dragoman.corpus.loaders import load_questions
from dragoman.corpus.names import CORPUS, SPLITS, TRIPLES
from dragoman.pipeline.project import Project
from dragoman.quality import validate
from dragoman.quality.artifacts import read_corpus
from dragoman.rollout.feedback import Feedback, aside, read_feedback, served_rows
from dragoman.rollout.record import SCHEMA, Episode, validated
from dragoman.rollout.store import EPISODES
from dragoman.synthesis.harvest import Harvest, harvest, split_of
from dragoman.tracking.review import reviewed

NAME = "served"
HARVESTED = "harvest.json"
"""In a folder that this stage has written."""


@dataclass(frozen=True, kw_only=True)
class Options:
    episodes: Annotated[
        tuple[Path, ...],
        Doc("Folders with episodes.jsonl, and feedback.jsonl if there is any; serve.episodes by default."),
    ] = ()
    out: Annotated[Path | None, Doc(f"Where the data set goes; data/{NAME} by default.")] = None

    def folder(self, project: Project) -> Path:
        return self.out or project.dataset(NAME)


async def run(project: Project, options: Options) -> dict[str, Any]:
    """Write the data set: `corpus.jsonl` of the one that was searched, and questions in splits. Then validate it.

    What it rests on is only read, also while an endpoint writes there.

    Returns:
        What `results/harvest/NAME/metrics.json` holds: `episodes`, `questions` by split, `labels`, `dropped` by reason.

    Raises:
        UserError: nothing is kept there, a line cannot be read, another data set was searched, no question can be used, or an
            expectation is not met.
    """
    params, settings, out = project.params, project.params.harvest, options.folder(project)
    folders = options.episodes or (project.episodes,)
    base = project.dataset(settings.dataset)
    _check_base(base, settings.dataset, out)
    splits = ((split, base / f"{split}.jsonl") for split in SPLITS)
    gold: dict[str, list[Question]] = {split: load_questions(path) for split, path in splits if path.is_file()}
    limits, passages = params.validation, read_corpus(base / CORPUS).ids
    done = harvest(
        _searching(kept_episodes(folders), passages, settings.dataset),
        with_reviews(kept_feedback(folders), reviewed(project.store) if project.track else {}),
        settings,
        words=(limits.min_question_words, limits.max_question_words),
        passages=passages,
        known={same_question(question.question) for questions in gold.values() for question in questions},
    )
    _check_names(settings.forbidden, done.askers, params.serve.keys)
    kept = gold if settings.gold else {}
    if not done.questions and not kept:
        raise UserError(f"harvest: none of {done.episodes} episodes can be used: {_reasons(done)}")
    harvested = _in_splits(done.questions, settings.shares, closed={"dev", "test"} & {*kept})
    report = project.results("harvest") / out.name
    with files.only_writer(out):
        out.mkdir(parents=True, exist_ok=True)
        files.write_json(out / HARVESTED, {"dataset": settings.dataset})
        _copy_corpus(base, out)
        _write_questions(out, kept, harvested)
        metrics = _metrics(done, harvested)
        files.write_json(report / "metrics.json", metrics)
        validate([out], project.results("validate") / out.name, limits, track=project.tracking)
    project.record("harvest", report, metrics, settings.model_dump())
    return metrics


def _check_base(base: Path, name: str, out: Path) -> None:
    """
    Raises:
        UserError: the data set that was searched has no corpus, or is the one that would be written.
    """
    if out.resolve() == base.resolve():
        raise UserError(f"{out}: that is the data set that was searched; name another folder with --out")
    there = [file for file in (CORPUS, TRIPLES, *(f"{split}.jsonl" for split in SPLITS)) if (out / file).exists()]
    if there and not (out / HARVESTED).is_file():
        raise UserError(
            f"harvest: {out / there[0]} would be written anew, and is not of an earlier harvest; name another --out, or remove that folder"
        )
    if not (base / CORPUS).is_file():
        raise UserError(f"{base / CORPUS}: no such file; `dragoman corpus --dataset {name}` makes it")


def _searching(episodes: Iterable[Episode], passages: Collection[str], name: str) -> Iterator[Episode]:
    """The episodes, of which one at least has found one of these passages, unless none has found any.

    Raises:
        UserError: at their end: no passage that was found is in the corpus, so another one was searched.
    """
    stray, known = "", False
    for episode in episodes:
        if not known:
            searches = [call.output for call in episode.calls if call.kind == "search"]
            found = [id for ids in (*searches, *(t.passages for t in episode.trajectories)) for id in ids]
            known = any(id in passages for id in found)
            stray = stray or next(iter(found), "")
        yield episode
    if stray and not known:
        raise UserError(
            f"harvest.dataset: {name} is not what was searched: its corpus lacks passage {stray!r} and all others of the "
            "episodes; name the data set that the endpoint searches"
        )


def _in_splits(
    questions: Iterable[Question], shares: Mapping[str, float], *, closed: Collection[str]
) -> dict[str, list[Question]]:
    """The questions of each split, by its share; those of closed splits go to the others."""
    open_shares = {split: share for split, share in shares.items() if split not in closed} or {"train": 1.0}
    found: dict[str, list[Question]] = {split: [] for split in SPLITS}
    for question in questions:
        found[split_of(question, open_shares)].append(question)
    return found


def _copy_corpus(base: Path, out: Path) -> None:
    """Copy passages and triples, and remove what an earlier base had and this one lacks."""
    for name in (CORPUS, TRIPLES):
        if (base / name).is_file():
            with files.replacing(out / name) as copy:
                shutil.copyfile(base / name, copy)
        else:
            (out / name).unlink(missing_ok=True)


def _write_questions(
    out: Path, gold: Mapping[str, Sequence[Question]], harvested: Mapping[str, Sequence[Question]]
) -> None:
    """Write each split, first its gold questions; the file of one that has none is removed."""
    for split in SPLITS:
        if rows := [question.to_json() for question in (*gold.get(split, ()), *harvested[split])]:
            files.write(out / f"{split}.jsonl", rows)
        else:
            (out / f"{split}.jsonl").unlink(missing_ok=True)


def _metrics(done: Harvest, harvested: Mapping[str, Sequence[Question]]) -> dict[str, Any]:
    return {
        "episodes": done.episodes,
        "questions": {split: len(questions) for split, questions in harvested.items()},
        "labels": dict(sorted(done.labels.items())),
        "dropped": dict(done.dropped.most_common()),
        "passages_gone": done.passages_gone,
        "feedback_alone": done.feedback_alone,
    }


def kept_episodes(folders: Sequence[Path]) -> Iterator[Episode]:
    """Those of all folders, one after the other; large ones do not fit into memory together.

    Raises:
        UserError: a folder has none, or a line is no episode.
    """
    parts = [path for folder in folders for path in (aside(folder / EPISODES), folder / EPISODES) if path.is_file()]
    for folder in folders:
        if not {aside(folder / EPISODES), folder / EPISODES} & {*parts}:
            raise UserError(f"{folder / EPISODES}: no such file; the endpoint keeps episodes where serve.episodes says")
    with bar("harvest", sum(_lines(path) for path in parts)) as advance:
        for folder in folders:
            for path, number, row in served_rows(folder / EPISODES):
                if (schema := row.get("schema_version", SCHEMA)) != SCHEMA:
                    raise UserError(
                        f"{path}:{number}: written with schema {schema}, this version reads {SCHEMA}; move the file away"
                    )
                yield validated(Episode, row, f"{path}:{number}", "an episode")
                advance()


def _lines(path: Path) -> int:
    with path.open("rb") as lines:
        return sum(1 for _ in lines)


def kept_feedback(folders: Iterable[Path]) -> dict[str, Feedback]:
    """The feedback that counts, of all folders, by the key of its episode."""
    return {key: feedback for folder in folders for key, feedback in read_feedback(folder).items()}


def with_reviews(feedback: Mapping[str, Feedback], reviews: Mapping[str, Feedback]) -> dict[str, Feedback]:
    """Feedback, and what reviewers said after it: that takes its place, but for the passages, of which they say nothing."""
    both = dict(feedback)
    for key, review in reviews.items():
        user = feedback.get(key)
        if user is None or user.at <= review.at:
            both[key] = review.model_copy(update={"passages": user.passages if user else []})
    return both


def _check_names(forbidden: Sequence[str], askers: Iterable[str], keys: str | None) -> None:
    """
    Raises:
        UserError: a name is that of no key. Misspelt, it would let through what it is to keep out.
    """
    known = {*askers, *(Keys(Path(keys)).names if keys and Path(keys).is_file() else ())}
    for name in forbidden:
        if name not in known:
            raise UserError(f"harvest.forbidden: {name!r} is the name of no key{near(name, known)}; mend or remove it")


def _reasons(done: Harvest) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in done.dropped.most_common()) or "there is none"

"""Stage `bench`: a matrix of systems by data sets, with the same frozen LLM, index and questions.

A cell is what `evaluate` makes for one system on one data set. Finished cells are not done again, and one that fails keeps no
other from being done.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge
from filelock import FileLock
from typing_extensions import Doc

from dragoman import tracking
from dragoman.config import Params
from dragoman.core import files
from dragoman.core.errors import Fault, UserError
from dragoman.core.identity import content_hash
from dragoman.core.progress import grid
from dragoman.core.text import folder_name
from dragoman.corpus import load_questions
from dragoman.evaluation.evaluate import Evaluation, evaluate, identity, merge, store_of
from dragoman.evaluation.matrix import Cell, write_matrix
from dragoman.evaluation.predictions import read_predictions, write_predictions
from dragoman.evaluation.report import interval, write_report
from dragoman.evaluation.suite import DataParams, Suite, read_suite
from dragoman.pipeline.inputs import InputOptions, Inputs, ShardOptions, check_gold_in_index, open_inputs
from dragoman.pipeline.project import Project, check_results
from dragoman.published.catalogue import catalogue, find
from dragoman.retrieval import Manifest
from dragoman.rollout.shards import Shard, keep
from dragoman.rollout.store import EPISODES, read_episodes
from dragoman.runtime import Runtime, open_checked
from dragoman.systems import system_class
from dragoman.systems.base import StopReason
from dragoman.systems.system_name import SystemName

log = logging.getLogger(__name__)

DONE = "cell.json"
"""In a cell's folder, once it is finished: the hash of what it depends on."""
SECTIONS = ("seed", "evaluate", "index", "llm", "proxy")
"""The settings that cells have in common. Under others, cells stand under another run in MLflow."""

Place = tuple[str, str]
"""A cell's data set and system."""


@dataclass(frozen=True, kw_only=True)
class Options(ShardOptions):
    suite: Annotated[str, Doc("The file of cells: its name in conf/bench/, or its path.")] = "quick"
    systems: Annotated[tuple[str, ...], Doc("Only these of its systems, separated by commas.")] = ()
    datasets: Annotated[tuple[str, ...], Doc("Only these of its data sets, separated by commas.")] = ()
    limit: Annotated[int | None, Ge(1), Doc("Only the first so many questions of each; the suite says how many.")] = (
        None
    )
    out: Annotated[Path | None, Doc("Where the results go; results/bench/SUITE by default.")] = None

    def folder(self, project: Project) -> Path:
        return self.out or project.results("bench") / Path(self.suite).stem


class AllFailed(Exception):
    """A system has answered no question."""


class NotRun(Exception):
    """A system cannot run here: it lacks weights, a URL, or the file that it is taught from. Nothing has gone wrong."""


async def run(project: Project, options: Options) -> dict[str, Any]:
    """Do the cells of a suite that are not done yet, and put all of them side by side. A shard does every N-th of them.

    Returns:
        `cells`, a `Cell` each, and `datasets`, the metrics of each data set of which a cell is finished; none of a shard.

    Raises:
        UserError: an unknown suite, system, data set or column, questions without answers, no LLM; before the first cell.
            Or a shard that is not finished.
        EngineFault: the LLM's server does not answer.
    """
    check_results(options.folder(project))
    (suite, absent), whole, part = _checked(project, options), options.folder(project), options.part()
    out = options.place(whole)
    wanted = [(dataset, system) for dataset in suite.datasets for system in suite.systems]
    made_with = project.params.model_dump(mode="json", include={*SECTIONS, "systems"}) | {
        "suite": suite.model_dump(mode="json")
    }
    with files.only_writer(out):
        if options.merge is not None:
            cells = _merged(whole, options.merge, wanted, made_with)
        else:
            if part:
                wanted = part.part(wanted, "cells")
                part.begin(whole)
            cells = await _done(project, suite, absent, wanted, whole, out)
    if part:
        part.finish(whole, [asdict(cell) for cell in cells], made_with)
        return {"cells": cells, "datasets": {}}
    metrics = {}
    for dataset in suite.datasets:
        folder = out / folder_name(dataset)
        finished = [folder / folder_name(c.system) for c in cells if (c.dataset, c.status) == (dataset, "finished")]
        if finished:
            resamples = project.params.evaluate.bootstrap
            metrics[dataset] = merge([finished], dataset=dataset, seed=project.params.seed, resamples=resamples)
            write_report(metrics[dataset], folder)
            answers = (row for cell in finished for row in read_predictions(cell))
            write_predictions(folder, answers)  # as `evaluate` leaves them, for `report --joined`
    write_matrix(suite, metrics, cells, out)
    return {"cells": cells, "datasets": metrics}


async def _done(
    project: Project, suite: Suite, absent: Mapping[str, str], wanted: Sequence[Place], whole: Path, out: Path
) -> list[Cell]:
    """These cells, in folders of `out`, and recorded as those of the bench in `whole`.

    Args:
        absent: the data sets that are not at hand, with the reason.
    """
    cells: list[Cell] = []
    async with AsyncExitStack() as stack:
        stack.push_async_callback(open_checked(project.params.llm).close)  # held, so that no cell loads it again
        if project.track:
            whole.mkdir(parents=True, exist_ok=True)
            with FileLock(whole / ".mlflow.lock"):  # of shards that begin at once, one makes the run
                stack.enter_context(_group(project, suite, whole))
        show = stack.enter_context(grid("system", suite.systems, tuple(suite.datasets)))
        for dataset in suite.datasets:
            systems = [system for of, system in wanted if of == dataset]
            if dataset in absent:
                cells += [Cell(dataset, system, "not run", absent[dataset]) for system in systems]
                for system in systems:
                    show(system, dataset, "not run")
            elif systems:
                cells += await _DataSet(project, suite, dataset, systems, out / folder_name(dataset), show).cells()
    return cells


def _merged(out: Path, of: int, wanted: Sequence[Place], made_with: Mapping[str, Any]) -> list[Cell]:
    """The cells of finished shards, whose folders are then in `out` as well.

    Raises:
        UserError: a shard is not finished, or belongs to another bench.
    """
    done = dict[Place, tuple[Cell, Path]]()
    for shard in Shard.all(of):
        finished = shard.finished(out)
        shard.check(out, finished.made_with, made_with)
        done |= {(c["dataset"], c["system"]): (Cell(**c), shard.folder(out)) for c in finished.left}
    for cell, folder in done.values():
        at, store = Path(folder_name(cell.dataset), folder_name(cell.system)), store_of(cell.system)
        if (episodes := folder / at / store / EPISODES).is_file():
            shutil.copytree(folder / at, out / at, ignore=shutil.ignore_patterns(EPISODES), dirs_exist_ok=True)
            keep(read_episodes(episodes), out / at / store)
    return [done[cell][0] for cell in wanted]


def _checked(project: Project, options: Options) -> tuple[Suite, dict[str, str]]:
    """The suite with the cells that are asked for, and why a data set is not at hand.

    Raises:
        UserError: one of them cannot be one.
    """
    suite, path = read_suite(options.suite, project.root / "conf" / "bench")
    suite.check(project.params.evaluate, origin=str(path))
    suite = suite.only(options.systems, options.datasets, options.limit, origin=str(path))
    for name in suite.systems:
        system_class(SystemName.parse(name).system)
    datasets, absent, settings = dict(suite.datasets), dict[str, str](), project.params.evaluate
    for name, data in suite.datasets.items():
        here = f"{path}: data set {name!r}"
        _with_systems(project, data, origin=here)
        asked = data.questions or project.question_file(settings.questions, settings.split, name)
        corpus = data.corpus or (None if data.index else project.corpus(name))
        own = [file for file, given in ((corpus, data.corpus), (asked, data.questions)) if file and not given]
        if missing := next((file for file in own if not file.is_file()), None):
            absent[name] = _how_to_get(missing, name, data, project, here)
            continue
        if own and name not in project.params.corpus:  # in data/NAME/: it is searched and asked as any files are
            data = datasets[name] = data.model_copy(update={"questions": asked, "corpus": corpus})
        load_questions(asked, limit=data.limit)
        if corpus and not (corpus.exists() or str(corpus).startswith("hf:")):
            raise UserError(f"{here}: {corpus}: no such corpus")
        if not data.corpus and not data.index:
            try:
                Manifest.read(project.index(name))
            except UserError as e:
                absent[name] = f"{e}; `dragoman index --dataset {name}` does"
    return suite.model_copy(update={"datasets": datasets}), absent


def _with_systems(project: Project, data: DataParams, *, origin: str) -> Project:
    """The project under the settings that systems have on a data set alone.

    Raises:
        UserError: one of them is refused.
    """
    return project.changed({f"systems.{name}": own for name, own in data.systems.items()}, origin=origin)


def _how_to_get(missing: Path, name: str, data: DataParams, project: Project, here: str) -> str:
    """What brings a file of a data set that is not there.

    Raises:
        UserError: no such data set is known.
    """
    if name in project.params.corpus:
        stage = f"corpus --dataset {name}" if missing.parent == project.dataset(name) else "synthesize"
        return f"{missing}: not there. `dragoman {stage}` makes it; then run `dragoman index --dataset {name}`"
    if data.catalogue:
        try:
            find(data.catalogue)
        except UserError as e:
            raise UserError(f"{here}: catalogue: {e}") from e
    elif name not in catalogue():
        raise UserError(
            f"{here} has no entry under corpus in params.yaml, which has {', '.join(project.params.corpus)}; "
            "add one there, or give it `questions` and `corpus` here"
        )
    return (
        f"{missing}: not there. `dragoman data get {data.catalogue or name} --questions 1000` fetches it and "
        f"prints lines for params.yaml: put them there under the name {name}, or files of yours; then run "
        f"`dragoman corpus --dataset {name}` and `dragoman index --dataset {name}`"
    )


@dataclass(frozen=True)
class _DataSet:
    """The cells of a data set, whose folders are in `out`."""

    project: Project
    suite: Suite
    name: str
    systems: Sequence[str]
    out: Path
    show: Callable[[str, str, str], None]

    async def cells(self) -> list[Cell]:
        """What became of each system. Where the data set cannot be opened, all have failed."""
        done = dict[str, Cell]()
        data, settings = self.suite.datasets[self.name], self.project.params.evaluate
        options = InputOptions(dataset=self.name, questions=data.questions, corpus=data.corpus, index=data.index)
        limit = data.limit or (None if data.questions else settings.limit)
        sources = (settings.questions,)
        try:
            inputs = open_inputs(self.project, options, settings.split, self.out, sources=sources, limit=limit)
            async with self.project.runtime(inputs.index, inputs.passages, cache=settings.cache) as runtime:
                for system in self.systems:
                    done[system] = await self._cell(system, inputs, runtime)
        except Exception as e:
            reason = _sentence(e)
            for system in self.systems:
                if system not in done:
                    done[system] = Cell(self.name, system, "failed", reason)
                    self.show(system, self.name, "failed")
        return list(done.values())

    async def _cell(self, system: str, inputs: Inputs, shared: Runtime) -> Cell:
        """One system: as it was finished before, or evaluated now."""
        self.show(system, self.name, "...")
        try:
            summary = await self._summary(system, inputs, shared)
        except NotRun as e:
            cell = Cell(self.name, system, "not run", str(e))
        except Exception as e:  # whatever it is, the other cells may be well
            cell = Cell(self.name, system, "failed", _sentence(e))
        else:
            failed, away, score, reason = summary["failed"], summary["judge_faults"], self.suite.columns[0], ""
            n = len(inputs.asked.questions)
            if again := _asked_again(summary):
                reason = f"{again} of {n} questions failed, and the next run asks them again"
            elif away:
                reason = f"{away} of {n} answers were not judged, and the next run has them judged"
            elif failed:
                reason = f"{failed} of {n} questions have no answer, nor would they in another run"
            cell = Cell(self.name, system, "finished", reason)
            self.show(system, self.name, interval(summary[score]) if score in summary else "done")
            return cell
        self.show(system, self.name, cell.status)
        return cell

    async def _summary(self, system: str, inputs: Inputs, shared: Runtime) -> Mapping[str, Any]:
        """The figures of a system, of `metrics.json`.

        Raises:
            NotRun: it cannot run here.
            Exception: whatever has kept it from answering.
        """
        out, settings, seed = self.out / folder_name(system), self.project.params.evaluate, self.project.params.seed
        questions = inputs.asked.questions
        evaluation = Evaluation(dataset=self.name, settings=settings, seed=seed, out=out, track=self.project.tracking)
        own = Runtime(self._params(system), shared.retriever, self.project.registry, answers=shared.answers)
        try:
            try:
                opened = own.open(system)
            except UserError as e:
                raise NotRun(str(e)) from e
            key = {"key": identity(system, *opened, questions, settings, seed)}
            if _read(out / DONE) == key and (before := _read(out / "metrics.json")):
                summary: Mapping[str, Any] = before["systems"][system]
                return summary
            if self.suite.datasets[self.name].index and SystemName.parse(system).needs_gold:
                await check_gold_in_index(shared.retriever, inputs.asked, inputs.passages or ())
            (out / DONE).unlink(missing_ok=True)
            metrics = await evaluate((system,), questions, own, evaluation)
        finally:
            await own.close()
        summary = metrics["systems"][system]
        if summary["failed"] == len(questions):
            first = next(read_predictions(out))
            raise AllFailed(f"every question failed, the first with: {first['error']}")
        if not _asked_again(summary) and not summary["judge_faults"]:  # else the next run has work to do
            files.write_json(out / DONE, key)
        return summary

    def _params(self, system: str) -> Params:
        """The settings on this data set, with the weights of a system that brings its own in the place of the LLM.

        They do not judge: what judges answers stays the same.

        Raises:
            NotRun: they are not served.
        """
        project = _with_systems(self.project, self.suite.datasets[self.name], origin=self.name)
        served = self.suite.served.get(system)
        if served is None:
            return project.params
        if not served.urls:
            raise NotRun(
                f"its own weights are not served: name a URL of {served.model} under served.{system} of the suite"
            )
        changes = {"llm.engine": "openai", "llm.model": served.model, "llm.urls": served.urls}
        judge = {"judge": (project.params.judge or project.params.llm).model_dump()}
        return project.changed(changes | judge, origin=f"served.{system}").params


def _asked_again(summary: Mapping[str, Any]) -> int:
    """How many questions another run would ask again; see `EpisodeStore`."""
    stops = {StopReason(stop): count for stop, count in summary["stops"].items()}
    return sum(count for stop, count in stops.items() if stop.is_fault or stop is StopReason.PROMPT_TOO_LONG)


def _sentence(error: Exception) -> str:
    """What a table says of an error. One that is not of our own making is logged with its place in the code."""
    if isinstance(error, (UserError, Fault, AllFailed)):
        return str(error)
    log.error("unexpected", exc_info=error)
    return f"{type(error).__name__}: {error}"


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _group(project: Project, suite: Suite, out: Path) -> AbstractContextManager[str]:
    """The run in MLflow under which those of all cells stand, whichever process does them. Other settings make another."""
    shared = project.params.model_dump(mode="json", include=set(SECTIONS))
    return tracking.grouped(
        f"bench {out.name}",
        content_hash(out=str(out), bench=shared),
        project.store,
        tags={"stage": "bench", "git.revision": tracking.git_revision()},
        parameters={"suite": suite.model_dump(mode="json"), **shared},
        assessed=project.params.evaluate.assessments,
    )

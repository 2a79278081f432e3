"""Stage `transfer`: the trained policy out of its domain, with another retriever, another LLM, or other data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typing_extensions import Doc

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.text import folder_name
from dragoman.evaluation.evaluate import store_of
from dragoman.evaluation.predictions import PREDICTIONS, read_predictions
from dragoman.evaluation.report import write_report
from dragoman.evaluation.transfer import losses, markdown
from dragoman.pipeline import evaluate
from dragoman.pipeline.project import Project
from dragoman.retrieval import methods
from dragoman.rollout.store import EPISODES, read_episodes
from dragoman.systems.system_name import SystemName


@dataclass(frozen=True, kw_only=True)
class Options:
    change: Annotated[str, Doc("What is another one: retriever, llm or data; several as in retriever-llm.")]
    out: Annotated[Path | None, Doc("Where the results go; results/transfer/CHANGE by default.")] = None

    def folder(self, project: Project) -> Path:
        return self.out or project.results("transfer") / self.change


async def run(project: Project, options: Options) -> dict[str, dict[str, Any]]:
    """Evaluate the trained policy under a change, and compare it with what stage `evaluate` has found in domain.

    Returns:
        The metrics of this change, and of all others whose folders lie beside its own, by the folders' names.

    Raises:
        UserError: no such change, no setting for it, no policy, or it has not been evaluated in domain.
    """
    changed = _changes(project, options.change)
    params, settings, out = project.params, project.params.transfer, options.folder(project)
    systems = (*settings.beside, f"{params.train.system}@{settings.policy}")
    home = {system: _predictions(_in_domain(project, system), system) for system in systems}
    metrics = await evaluate.run(_under(project, changed), _asked(project, changed, systems, out))
    away = {system: _predictions(out, system) for system in systems}
    paired = "data" not in changed
    for system in systems:
        _check_alike(system, _in_domain(project, system), home[system], out, away[system], changed)
    drawn = {"resamples": params.evaluate.bootstrap, "seed": params.seed}
    metrics["transfer"] = {
        "from": params.train.dataset,
        "paired": paired,
        "systems": {system: losses(home[system], away[system], paired=paired, **drawn) for system in systems},
    }
    write_report(metrics, out)
    grid = {out.name: metrics} | _beside(out)
    files.write_text(out / "transfer.md", markdown({options.change: metrics}))
    return grid


def _changes(project: Project, named: str) -> dict[str, Any]:
    """What is another one, with the setting that says what it is.

    Raises:
        UserError: see `run`.
    """
    changes, data = project.params.transfer.changes(named), project.params.transfer.data
    if "data" in changes and (data not in project.params.corpus or data == project.params.train.dataset):
        there = ", ".join(name for name in project.params.corpus if name != project.params.train.dataset) or "no other"
        raise UserError(f"transfer.data: {data!r} is no other dataset under corpus; there are: {there}")
    return changes


def _under(project: Project, changed: Mapping[str, Any]) -> Project:
    """The project with another LLM or another method of its index. What judges answers stays the same."""
    changes: dict[str, Any] = {}
    if "llm" in changed:
        changes = {f"llm.{key}": value for key, value in changed["llm"].model_dump().items()}
        changes["judge"] = (project.params.judge or project.params.llm).model_dump()
    if changed.get("retriever") in methods.names():
        changes["index.method"] = changed["retriever"]
    return project.changed(changes, origin="transfer")


def _asked(project: Project, changed: Mapping[str, Any], systems: tuple[str, ...], out: Path) -> evaluate.Options:
    """The questions of the dataset, or of the other one, and what is searched: its own index or another one."""
    dataset, retriever = changed.get("data", project.params.train.dataset), changed.get("retriever", "")
    if retriever in methods.names():  # indexed beside the results
        return evaluate.Options(dataset=dataset, corpus=project.corpus(dataset), systems=systems, out=out)
    return evaluate.Options(dataset=dataset, index=retriever or None, systems=systems, out=out)


def _in_domain(project: Project, system: str) -> Path:
    """The folder in which stage `evaluate` has left what a system answered in domain.

    Raises:
        UserError: it has not.
    """
    dataset = project.params.train.dataset
    folder = project.results("evaluate") / f"{dataset}-{folder_name(system)}"
    if not (folder / PREDICTIONS).is_file():
        raise UserError(
            f"{folder}: {system} has not been evaluated in domain; run "
            f"`dragoman evaluate --dataset {dataset} --systems {system} --out {folder}` first"
        )
    return folder


def _check_alike(
    system: str,
    folder: Path,
    home: Mapping[str, dict[str, Any]],
    out: Path,
    away: Mapping[str, dict[str, Any]],
    changed: Mapping[str, Any],
) -> None:
    """
    Args:
        folder, out: of the evaluations in domain and out of it.
        home, away: the system's predictions in each.

    Raises:
        UserError: they differ in more than what was changed: in the policy, say, which was trained again in between.
    """
    again = f"run the `dragoman evaluate` again that made {folder}"
    if "data" not in changed and not any(
        row["question"] == away.get(id, {}).get("question") for id, row in home.items()
    ):
        raise UserError(f"{folder}: was asked other questions than now; {again}")
    before, now = _config(folder, home), _config(out, away)
    asked = () if SystemName.parse(system).is_oracle else ("proxy",)  # in an oracle's place nobody is asked
    for part in ("settings", "seed", *asked, *(() if "llm" in changed else ("llm", "engines"))):
        if before and now and before.get(part) != now.get(part):
            raise UserError(f"{folder}: was made with another `{part}` than now; {again}")


def _config(folder: Path, rows: Mapping[str, dict[str, Any]]) -> dict[str, Any] | None:
    """With what the episodes were made that these predictions are of; None where they are gone."""
    row = next(iter(rows.values()), None)
    if row is None or not (path := folder / store_of(row["system"]) / EPISODES).is_file():
        return None
    made = (e for e in read_episodes(path) if (e.question["id"], round(e.started, 3)) == (row["id"], row["started"]))
    return next((episode.config for episode in made), None)


def _predictions(folder: Path, system: str) -> dict[str, dict[str, Any]]:
    """Of one system, by the question's id."""
    return {row["id"]: row for row in read_predictions(folder) if row["system"] == system}


def _beside(out: Path) -> dict[str, dict[str, Any]]:
    """The metrics of other changes, in the order of their names."""
    found = {}
    for path in sorted(out.parent.glob("*/metrics.json")):
        metrics = json.loads(path.read_text(encoding="utf-8"))
        if path.parent != out and "transfer" in metrics:
            found[path.parent.name] = metrics
    return found

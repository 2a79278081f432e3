"""A suite: which systems the bench compares on which data sets, as a YAML file says it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from dragoman.core.errors import UserError
from dragoman.core.settings import Section, near, parse_section, read_yaml
from dragoman.evaluation.metrics import COSTS, USUAL
from dragoman.evaluation.settings import EvaluateParams

MORE_COSTS = ("seconds", "latency", "failed")


class DataParams(Section):
    """A data set: one of `params.yaml` by its name, or files."""

    limit: int | None = Field(None, ge=1)
    """The first so many questions; None takes all."""
    questions: Path | None = None
    """Any question file (JSONL), instead of the data set's."""
    corpus: Path | None = None
    """Any corpus; it is indexed beside the results."""
    index: str | None = None
    """An index folder or the URL of a retriever server."""
    catalogue: str = ""
    """Its name for `dragoman data get`, where that is another one."""
    systems: dict[str, dict[str, Any]] = Field({})
    """Settings of systems on this data set alone, by the system's name: over those of `params.yaml`."""


class ServedParams(Section):
    """Weights that a system brings along, in the place of the LLM."""

    model: str
    """Their name at the server."""
    urls: tuple[str, ...] = ()
    """OpenAI-compatible servers; without one the system is not run."""


class Suite(Section):
    """The cells of a bench: each system on each data set."""

    systems: tuple[str, ...] = Field(min_length=1)
    """Each `system` or `system@policy`, in the order of the table."""
    datasets: dict[str, DataParams] = Field(min_length=1)
    against: str = "standard"
    """The system from which the others' differences are shown. `metrics.json` has those of all pairs."""
    columns: tuple[str, ...] = Field(("cover_em", "f1", "recall", "calls", "tokens", "seconds", "failed"), min_length=1)
    """Scores and costs that the table shows. The first is the score of the differences and of the plots."""
    served: dict[str, ServedParams] = Field({})
    """Systems whose own weights take the LLM's place."""

    def only(self, systems: Sequence[str], datasets: Sequence[str], limit: int | None, *, origin: str) -> Suite:
        """The cells of these systems and data sets alone; an empty choice takes all.

        Args:
            limit: at most so many questions of each data set; None leaves the suite's own.
            origin: what an error is to name.

        Raises:
            UserError: one of them is not in the suite.
        """
        _check_known(f"{origin}: system", systems, self.systems)
        _check_known(f"{origin}: data set", datasets, self.datasets)
        kept = {name: data for name, data in self.datasets.items() if not datasets or name in datasets}
        if limit is not None:
            kept = {name: data.model_copy(update={"limit": limit}) for name, data in kept.items()}
        chosen = tuple(name for name in dict.fromkeys(self.systems) if not systems or name in systems)
        return self.model_copy(update={"systems": chosen, "datasets": kept})

    def check(self, settings: EvaluateParams, *, origin: str) -> None:
        """
        Raises:
            UserError: a column that no evaluation under these settings has, or a system that is not in the suite.
        """
        scores = [score for score in USUAL if score != "judge" or settings.judge]
        scores += settings.scores
        hint = "; judge needs evaluate.judge: true" if "judge" in self.columns and not settings.judge else ""
        _check_known(f"{origin}: column", self.columns, (*scores, *COSTS, *MORE_COSTS), hint)
        if self.columns[0] not in scores:
            raise UserError(f"{origin}: columns: the first must be a score, of {', '.join(scores)}")
        _check_known(f"{origin}: against: system", [self.against], self.systems)
        _check_known(f"{origin}: served: system", self.served, self.systems)


def read_suite(name: str, folder: Path) -> tuple[Suite, Path]:
    """The suite of a name in `folder`, or of a path, and its file.

    Raises:
        UserError: no such suite, or it cannot be read.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else folder / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in folder.glob("*.yaml"))) or "none"
        raise UserError(f"--suite {name}: no such file {path}; in {folder} there are: {known}")
    return parse_section(Suite, read_yaml(path), origin=str(path)), path


def _check_known(what: str, names: Collection[str], known: Collection[str], hint: str = "") -> None:
    """
    Raises:
        UserError: a name that is not known.
    """
    for name in names:
        if name not in known:
            there = near(name, known) or f"; there are: {', '.join(known)}"
            raise UserError(f"{what} {name!r} is unknown{there}{hint}")

"""A project on disk: the one place that knows where data, results and the MLflow store lie."""

from __future__ import annotations

import csv
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dragoman import tracking
from dragoman.config import Params, load_params
from dragoman.core.errors import UserError
from dragoman.core.types import Passage
from dragoman.corpus.names import CORPUS, TRIPLES
from dragoman.pipeline.questions import QuestionSet, load_mixed
from dragoman.registry.policy import PolicySet
from dragoman.registry.versions import Registry
from dragoman.retrieval.manifest import MANIFEST
from dragoman.runtime import Runtime, find_system, open_runtime
from dragoman.systems import build, system_names
from dragoman.systems.base import System

PARAMS = Path("params.yaml")


@dataclass(frozen=True)
class Project:
    """A folder with `data/`, `results/` and `mlruns/`, and its settings."""

    root: Path = Path()
    params: Params = field(default_factory=Params)
    track: bool = True
    """Whether stages record their runs in MLflow."""

    @classmethod
    def load(
        cls,
        file: Path = PARAMS,
        *,
        changes: Mapping[str, Any] | None = None,
        origin: str = "settings",
        track: bool = True,
    ) -> Project:
        """The project in the current folder, with the settings of `file`.

        Args:
            changes: other values for some dotted keys. Another `profile` brings its numbers along.
            origin: what an error about them is to name.

        Raises:
            UserError: the file cannot be read, or a key or value in it or in the changes is refused.
        """
        rest = dict(changes or {})
        return cls(params=load_params(file, profile=rest.pop("profile", None)), track=track).changed(
            rest, origin=origin
        )

    def changed(self, changes: Mapping[str, Any], *, origin: str = "settings") -> Project:
        """The same project with other values for some dotted keys; see `Params.changed`."""
        return replace(self, params=self.params.changed(changes, origin=origin)) if changes else self

    @property
    def model(self) -> Path:
        """The folder that stage `model` fills."""
        return self.root / "data" / "model"

    @property
    def store(self) -> Path:
        """The folder of MLflow's store."""
        return self.root / "mlruns"

    @property
    def tracking(self) -> Path | None:
        """The same, or None where runs are not recorded."""
        return self.store if self.track else None

    def dataset(self, name: str | None = None) -> Path:
        """The folder of a dataset; that of `train.dataset` without a name, here and below."""
        return self.root / "data" / (name or self.params.train.dataset)

    def corpus(self, dataset: str | None = None) -> Path:
        return self.dataset(dataset) / CORPUS

    def triples(self) -> Path:
        return self.dataset() / TRIPLES

    def index(self, dataset: str | None = None) -> Path:
        return self.root / "data" / "index" / (dataset or self.params.train.dataset)

    @property
    def episodes(self) -> Path:
        """The folder in which the endpoint keeps what it serves.

        Raises:
            UserError: `params.yaml` names none.
        """
        if not self.params.serve.episodes:
            raise UserError("serve.episodes in params.yaml names no folder; name one with --episodes")
        return Path(self.params.serve.episodes)

    def results(self, stage: str) -> Path:
        """The folder of a stage's results."""
        return self.root / "results" / stage

    @property
    def registry(self) -> Registry:
        """The versions of the proxy."""
        return Registry(self.store, self.root / "results")

    def policy(self, name: str) -> PolicySet:
        """The weights of a policy: a version of the registry, a training stage, or a folder.

        Raises:
            UserError: there is no such policy.
        """
        return self.registry.policy(name)

    def check_systems(self, *names: str) -> None:
        """Refuse unknown systems and policies before anything slow is done.

        Raises:
            UserError: a `system@policy` whose system or policy does not exist.
        """
        for name in names:
            self.system(name)

    def system(self, name: str) -> System:
        """The system called `name`, without models to run it.

        Raises:
            UserError: a `system@policy` whose system or policy does not exist.
        """
        return find_system(name, self.params, registry=self.registry)[0]

    def trained_system(self) -> System:
        """The system that is to be trained.

        Raises:
            UserError: see `system`; or it has no proxy.
        """
        name = self.params.train.system
        if not (system := self.system(name)).roles:
            others = ", ".join(other for other in system_names() if build(other).roles)
            raise UserError(f"train.system: {name} has no proxy to train; choose from {others}")
        return system

    def question_file(self, source: str, split: str, dataset: str | None = None) -> Path:
        """The questions of a split: `gold` are the dataset's own, `synthetic` those of stage `synthesize`.

        Raises:
            UserError: there are no synthetic questions about that dataset.
        """
        if source != "synthetic":
            return self.dataset(dataset) / f"{split}.jsonl"
        folder, trained = self.results("synthesize"), self.params.train.dataset
        if dataset not in (None, trained):
            raise UserError(
                f"{folder} has questions about {trained}, not about {dataset}: name a question file instead"
            )
        return folder / f"{split}.jsonl"

    def made(self, path: Path, dataset: str | None) -> Path:
        """A file of a dataset, if stage `corpus` has made it.

        Raises:
            UserError: it has not, or no dataset has that name.
        """
        name = dataset or self.params.train.dataset
        if not path.exists() and path.is_relative_to(self.dataset(name)):
            known = sorted(self.params.corpus)
            if name not in known:
                raise UserError(
                    f"{path}: no such file, and params.yaml has no dataset {name!r}; it has {', '.join(known)}"
                )
            raise UserError(f"{path}: no such file; `dragoman corpus --dataset {name}` makes it")
        return path

    def questions(
        self, split: str, sources: Sequence[str] = ("gold",), *, dataset: str | None = None, limit: int | None = None
    ) -> QuestionSet:
        """The questions of a split out of several sources, evenly mixed.

        Raises:
            UserError: a file that cannot be read, or two questions with one id.
        """
        return load_mixed(
            [(s, self.made(self.question_file(s, split, dataset), dataset)) for s in sources], limit=limit
        )

    @property
    def held_out(self) -> Path:
        """The questions by which a challenger is judged."""
        settings = self.params.promote
        return self.question_file(settings.questions, settings.split, settings.dataset)

    @asynccontextmanager
    async def runtime(
        self, index: str, passages: list[Passage] | None = None, *, cache: bool = False
    ) -> AsyncIterator[Runtime]:
        """What systems run in: engines and the retriever of `index`, probed with `passages`. For `cache` see `open_runtime`.

        Raises:
            UserError: it is a dataset's index, and neither that nor the corpus was made yet; or see `open_runtime`.
        """
        folder = Path(index)
        if folder == self.index(folder.name) and not folder.exists():
            self.made(self.corpus(folder.name), folder.name)  # first things first
        async with open_runtime(self.params, index, passages, self.registry, cache=cache) as runtime:
            yield runtime

    def record(self, stage: str, out: Path, metrics: dict[str, Any], parameters: dict[str, Any]) -> None:
        """Record a finished training stage in MLflow: its settings, its figures, and its curves (`out/*.csv`)."""
        if not self.track:
            return
        curves = {path.stem: list(csv.DictReader(path.open(encoding="utf-8"))) for path in sorted(out.glob("*.csv"))}
        tracking.start(self.store)
        tracking.log_training(stage, out, metrics, curves, parameters=parameters)


def check_results(out: Path) -> None:
    """
    Raises:
        UserError: results would lie among files of another kind in `out`, and go where these are made anew.
    """
    kinds = {CORPUS: "a dataset", MANIFEST: "an index, a model or a policy"}
    for name, kind in kinds.items():
        if (out / name).is_file():
            raise UserError(f"{out}: is the folder of {kind} ({name}); name another one for results with --out")

"""`params.yaml` as frozen models: one section per stage, unknown keys refused by name.

Numbers that depend on the size of the machine live in `conf/PROFILE.yaml`, and the setting `profile` picks the file. What
`params.yaml` says itself wins over the profile. The settings of a system for a profile lie beside the system. Where one
algorithm of stage `rl` needs other numbers, they lie in a section of the profile under `per_algorithm`, by its name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, PrivateAttr, model_validator

from dragoman.core.errors import UserError
from dragoman.core.settings import keys, merged, near, parse_section, read_yaml
from dragoman.corpus.hub import place_of
from dragoman.corpus.settings import CorpusParams, listed
from dragoman.engines.settings import ModelParams
from dragoman.evaluation.settings import EvaluateParams, PromoteParams, TransferParams
from dragoman.quality.settings import ValidateParams
from dragoman.runtime import RuntimeParams
from dragoman.serving.settings import ServeParams
from dragoman.synthesis.settings import HarvestParams, SynthesizeParams
from dragoman.systems import ablation, baseline_names, build, profile_settings, system_names
from dragoman.training import algorithms
from dragoman.training.gepa.settings import GepaParams
from dragoman.training.settings import (
    ChainParams,
    DebateParams,
    LabelParams,
    PairsParams,
    RlParams,
    SeedsParams,
    SftParams,
    TrainParams,
)

PER_ALGORITHM = "per_algorithm"


class Layers(NamedTuple):
    """Where settings come from: what stands further down wins, each value by itself.

    So it is with `rl.questions` where the profile says 100, and 200 under `per_algorithm`, `mygo`:

    - `train: {algorithm: mygo}` in `params.yaml`: 200, and with another algorithm 100;
    - `rl: {questions: 50}` beside it: 50, whatever the algorithm;
    - and `--set rl.questions=20` on the command line: 20.

    Where `params.yaml` names another `index.method` than the profile, nothing counts that the profile says under `index`.
    """

    profile: dict[str, Any]
    per_algorithm: dict[str, dict[str, Any]]
    """Of the profile: sections by algorithm."""
    own: dict[str, Any]
    """Of `params.yaml` and the command line."""

    def values(self, algorithm: str | None = None) -> dict[str, Any]:
        """All of them, for `algorithm` or the one that they name."""
        train = merged(self.profile, self.own).get("train")
        named = algorithm or (train.get("algorithm") if isinstance(train, dict) else None) or TrainParams().algorithm
        below = merged(self.profile, self.per_algorithm.get(named, {}) if isinstance(named, str) else {})
        if _method(self.own) not in (None, _method(below)):
            below = below | {"index": {}}  # what it says there is of another method
        return merged(below, self.own)


def _method(values: Mapping[str, Any]) -> Any:
    """The index method that values name, if they do."""
    index = values.get("index")
    return index.get("method") if isinstance(index, dict) else None


def _lies_in(path: str, folder: Path) -> bool:
    """Whether a path of a data set is in a folder, by how it is written or by where its links lead.

    Raises:
        ValueError: it begins with hf: and is no address of a data set.
    """
    try:
        place = place_of(path)
    except UserError as e:
        raise ValueError(str(e)) from None
    return any(Path(form(place)).is_relative_to(form(folder)) for form in (os.path.abspath, os.path.realpath))


class Params(RuntimeParams):
    """The whole of `params.yaml`."""

    profile: str = "cpu"
    seed: int = Field(0, ge=0, lt=2**32)  # what NumPy and torch take
    datasets: tuple[str, ...] = ("atlas",)
    evaluated: tuple[str, ...] = ("direct", "standard", "c3po")
    """The systems of the evaluation matrix, untrained."""
    baselines: tuple[str, ...] = ()
    """And the files of `systems/baselines/` that are evaluated too."""
    oracles: tuple[str, ...] = ()
    """Datasets on which an oracle is evaluated too, in the system that is trained: its questions have `supporting_ids`."""
    policies: tuple[str, ...] = ()
    """Training stages whose policy is evaluated too, in the system that is trained."""
    model: ModelParams = ModelParams()
    corpus: dict[str, CorpusParams] = Field({"atlas": CorpusParams()})
    synthesize: SynthesizeParams = SynthesizeParams()
    harvests: tuple[str, ...] = ()
    """The data sets that the pipeline makes of served traffic: stage `harvest`. They can be trained and judged on as any other."""
    harvest: HarvestParams = HarvestParams()
    train: TrainParams = TrainParams()
    seeds: SeedsParams = SeedsParams()
    sft: SftParams = SftParams()
    rl: RlParams = RlParams()
    gepa: GepaParams = GepaParams()
    optimised: tuple[Literal["gepa"], ...] = ()
    """What the pipeline also rewrites the instructions of the trained system with, and evaluates: stage `gepa`."""
    evaluate: EvaluateParams = EvaluateParams()
    validation: ValidateParams = Field(ValidateParams(), alias="validate")
    """In the file it is `validate`, as its command is; pydantic's models have a method of that name."""
    serve: ServeParams = ServeParams()
    promote: PromoteParams = PromoteParams()
    ablations: tuple[str, ...] = ()
    """Which of the paper's ablations the pipeline runs; see `dragoman ablate --help`."""
    transfers: tuple[str, ...] = ()
    """Out of which domains the pipeline carries the trained policy: retriever, llm, data, or several as in retriever-llm."""
    transfer: TransferParams = TransferParams()
    pairs: PairsParams = PairsParams()
    chains: tuple[str, ...] = ()
    """The datasets on which the pipeline trains each agent of MAPS by itself: stage `chain`."""
    chain: ChainParams = ChainParams()
    debate: DebateParams = DebateParams()
    label: LabelParams = LabelParams()
    _layers: Layers | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _data_sets_are_known(self) -> Params:
        named = [("datasets", name) for name in self.datasets]
        named += [("chains", name) for name in self.chains]
        named += [
            ("train.dataset", self.train.dataset),
            ("promote.dataset", self.promote.dataset or self.train.dataset),
        ]
        if taken := sorted({*self.harvests} & {*self.corpus}):
            raise ValueError(f"harvests: {taken[0]!r} is the name of a data set under corpus; give it another")
        for key, name in named:
            if name not in self.corpus and (key in ("datasets", "chains") or name not in self.harvests):
                there = ", ".join(self.corpus)
                raise ValueError(f"{key}: {name!r} has no entry under corpus; there are: {there}")
        if unmade := [name for name in self.oracles if name not in (*self.datasets, *self.harvests)]:
            raise ValueError(
                f"oracles: {unmade[0]!r} is not under datasets, so no stage makes it; leave it out, or name it there"
            )
        return self

    @model_validator(mode="after")
    def _no_source_lies_where_a_data_set_is_written(self) -> Params:
        for name, given in self.corpus.items():
            for key in ("source", "train", "dev", "test"):
                if any(_lies_in(path, Path("data", name)) for path in listed(getattr(given, key))):
                    raise ValueError(
                        f"corpus.{name}.{key}: lies in data/{name}/, which DVC empties before stage corpus writes it: "
                        f"give the data set another name than {name!r}"
                    )
        return self

    @model_validator(mode="after")
    def _baselines_are_files_of_their_folder(self) -> Params:
        of_files = set(baseline_names())
        if misplaced := sorted({*self.evaluated} & of_files):
            raise ValueError(f"evaluated: {misplaced[0]!r} is a file of systems/baselines/: name it under baselines")
        if misplaced := [name for name in self.baselines if name not in of_files]:
            raise ValueError(f"baselines: {misplaced[0]!r} is none; choose from {', '.join(sorted(of_files))}")
        return self

    @model_validator(mode="after")
    def _synthetic_questions_are_made(self) -> Params:
        if self.train.curriculum and not ("synthetic" in self.train.questions and self.synthesize.draws):
            raise ValueError("train.curriculum: needs train.questions with synthetic, and synthesize.draws above 0")
        asks = {
            "train.questions": "synthetic" in self.train.questions,
            "evaluate.questions": self.evaluate.questions == "synthetic",
            "promote.questions": self.promote.questions == "synthetic",
        }
        if self.synthesize.backend == "none" and (wanted := [setting for setting, does in asks.items() if does]):
            raise ValueError(f"{wanted[0]}: synthetic needs questions, and synthesize.backend: none makes none")
        return self

    @model_validator(mode="after")
    def _a_judge_judges(self) -> Params:
        if self.promote.score == "judge" and not self.evaluate.judge:
            raise ValueError("promote.score: judge needs evaluate.judge: true")
        return self

    @model_validator(mode="after")
    def _systems_can_be_built(self) -> Params:
        try:
            for name, settings in self.systems.items():
                if settings != profile_settings(name, self.profile):  # those that a system brings along fit it
                    build(name, settings)
            for name in (*self.evaluated, *self.serve.models, *self.pairs.systems):
                build(name.partition("@")[0])
            build(self.train.system)
            build(self.promote.baseline)
            for name in self.ablations:
                ablation(self.train.system, name)
            for name in self.transfers:
                self.transfer.changes(name)
        except UserError as e:
            raise ValueError(str(e)) from None
        return self

    def compared(self, dataset: str) -> tuple[str, ...]:
        """The systems of the report on a dataset, by name."""
        oracle = ("oracle",) if dataset in self.oracles else ()
        return (
            *self.evaluated,
            *self.baselines,
            *(f"{self.train.system}@{policy}" for policy in (*self.policies, *self.optimised, *oracle)),
        )

    def changed(self, changes: Mapping[str, Any], *, origin: str) -> Params:
        """These settings with other values for some keys, checked anew. Another algorithm brings its own numbers along.

        So `--set train.algorithm=mygo` takes the profile's numbers for `mygo`, but only where neither `params.yaml` nor an earlier change
        has said one. What is changed here counts as said: it stays when a later change names another algorithm.

        Args:
            changes: values by dotted key, such as `rl.iterations`; a system's name is short for `systems.NAME`.
            origin: what an error is to name.

        Raises:
            UserError: a key or a value that is refused, named in full.
        """
        values, systems = self.model_dump(by_alias=True), system_names()
        known, layers = set(values), self._layers
        if layers and "train.algorithm" in changes:
            values = layers.values(changes["train.algorithm"])
        own: dict[str, Any] = {}
        if "index.method" in changes:  # what only the other method has is no setting of this one
            try:
                values["index"] = self.index.with_method(changes["index.method"]).model_dump()
            except UserError as e:
                raise UserError(f"{origin}: {e}") from None
            if layers:
                layers = layers._replace(own=layers.own | {"index": values["index"]})
        for key, value in changes.items():
            if key == "profile":
                raise UserError(f"{origin}: profile: names a file of conf/, beside a params.yaml; there is none")
            first, *rest = key.split(".")
            if first in systems:
                first, rest = "systems", [first, *rest]
            elif first not in known:
                raise UserError(f"{origin}: {key}: unknown key{near(key, [*keys(Params), *systems])}")
            for part in reversed([first, *rest]):
                value = {part: value}
            values, own = merged(values, value), merged(own, value)
        params = parse_params(values, origin=origin)
        if layers:
            params._layers = layers._replace(own=merged(layers.own, own))
        return params


def load_params(path: Path | str = "params.yaml", *, profile: str | None = None) -> Params:
    """Read `params.yaml` over its profile.

    Raises:
        UserError: no such file or profile, YAML that cannot be read, or a key or value that is refused, named in full.
    """
    path = Path(path)
    own = read_yaml(path)
    name = profile or own.get("profile", "cpu")
    conf = path.parent / "conf"
    profile_path = conf / f"{name}.yaml"
    if not profile_path.is_file():
        known = ", ".join(sorted(p.stem for p in conf.glob("*.yaml"))) or "none"
        raise UserError(f"{path}: profile {name!r} has no file {profile_path}; there are: {known}")
    systems = {"systems": {system: profile_settings(system, name) for system in system_names()}}
    of_profile, per_algorithm = _by_algorithm(read_yaml(profile_path), profile_path)
    layers = Layers(merged(systems, of_profile), per_algorithm, own | {"profile": name})
    params = parse_params(layers.values(), origin=f"{path} (profile {name})")
    params._layers = layers
    return params


def _by_algorithm(profile: dict[str, Any], path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """A profile without what holds for one algorithm alone, and that, by algorithm and section.

    Raises:
        UserError: no such algorithm, or no mapping from algorithms.
    """
    common, found = dict(profile), dict[str, dict[str, Any]]()
    for section, values in profile.items():
        if not isinstance(values, dict) or PER_ALGORITHM not in values:
            continue
        common[section] = {key: value for key, value in values.items() if key != PER_ALGORITHM}
        by_algorithm = values[PER_ALGORITHM] or {}
        if not isinstance(by_algorithm, dict):
            raise UserError(f"{path}: {section}.{PER_ALGORITHM}: not a mapping from algorithms to their settings")
        for algorithm, numbers in by_algorithm.items():
            if algorithm not in algorithms.names():
                raise UserError(
                    f"{path}: {section}.{PER_ALGORITHM}.{algorithm}: no such algorithm; "
                    f"choose from {', '.join(algorithms.names())}"
                )
            found.setdefault(algorithm, {})[section] = numbers
    return common, found


def parse_params(values: dict[str, Any], *, origin: str) -> Params:
    return parse_section(Params, values, origin=origin)

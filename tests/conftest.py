from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in model, fetched once for all tests."""
    from dragoman.model import fetch_model

    folder = tmp_path_factory.mktemp("smollm2") / "model"
    fetch_model("smollm2", folder)
    return folder

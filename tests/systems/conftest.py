from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dragoman.engines.base import Engine


@pytest.fixture
async def tiny_engine(tiny_model: Path) -> AsyncIterator[Engine]:
    from dragoman.engines.transformers import TransformersEngine

    engine = TransformersEngine(tiny_model, dtype="float32", threads=1)
    yield engine
    await engine.close()

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Driver, driven


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    with driven(tmp_path / "profile") as driver:
        yield driver

"""What a build has worked out so far, in a file beside a plan that says what it is the beginning of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dragoman.core import files

PLAN = "plan.json"


def begin(plan: dict[str, Any], file: Path) -> None:
    """Leave `file` alone if it belongs to an equal plan; else begin an empty one."""
    beside = file.with_name(PLAN)
    try:
        same = json.loads(beside.read_text(encoding="utf-8")) == plan and file.is_file()
    except (OSError, ValueError):
        same = False
    if not same:
        beside.unlink(missing_ok=True)
        file.write_bytes(b"")
        files.write_text(beside, json.dumps(plan))


def end(file: Path) -> None:
    """Delete both, since the index has what was in them."""
    file.unlink()
    file.with_name(PLAN).unlink()

"""What a rollout leaves beside its episodes: samples, figures and views of trees."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dragoman.core import files
from dragoman.core.text import folder_name
from dragoman.rollout.figures import figures
from dragoman.rollout.record import Episode
from dragoman.rollout.samples import samples, write_samples
from dragoman.rollout.view import write_tree

SAMPLES = "samples.parquet"
_LONGEST_NAME = 80
"""A file system takes some 255 bytes."""


def write_rollout(episodes: Sequence[Episode], reward: str, out: Path, views: int) -> dict[str, Any]:
    """Write samples, figures, and an HTML view of the first `views` trees.

    Returns:
        What `out/metrics.json` holds.
    """
    metrics = figures(episodes, reward)
    write_samples(out / SAMPLES, [sample for episode in episodes for sample in samples(episode, reward)])
    files.write_json(out / "metrics.json", metrics)
    for episode in episodes[:views]:
        write_tree(episode, reward, out / "trees" / _view_name(str(episode.question["id"])))
    return metrics


def _view_name(identity: str) -> str:
    """The file of a question's tree. Where the id is not its name, a hash keeps it apart: `问题1` and `答案1` are both `-1`."""
    name = folder_name(identity)
    if name == identity and len(name) <= _LONGEST_NAME:
        return f"{name}.html"
    return f"{name[:_LONGEST_NAME]}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}.html"

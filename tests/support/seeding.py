"""Stage `seeds` on models that a test has opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dragoman.core.types import Question
from dragoman.engines.local import Vocabulary
from dragoman.pipeline.rollout import roll_out_questions
from dragoman.pipeline.seeds import choose, explored
from dragoman.rollout.backends import Backends
from dragoman.systems.base import System
from dragoman.training.settings import SeedsParams


async def make_seeds(
    name: str,
    system: System,
    backends: Backends,
    questions: Sequence[Question],
    settings: SeedsParams,
    vocabulary: Callable[[], Vocabulary],
    *,
    out: Path,
) -> dict[str, Any]:
    """What `metrics.json` holds then."""
    drawn: dict[str, Any] = {"reward": "cover_em", "seed": 0, "out": out}
    episodes, grown = await roll_out_questions(
        name,
        system,
        backends,
        questions,
        exploration=explored(system, settings),
        draws=1,
        concurrency=4,
        views=0,
        **drawn,
    )
    return choose(system, episodes, grown, settings, vocabulary, **drawn)

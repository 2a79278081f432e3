"""A toy system with two arms, opened on the tiny model."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from toy import QUESTIONS, ToyRuntime

from dragoman.rewards import Reward
from dragoman.rollout.exploration import Exploration
from dragoman.rollout.samples import Sample, samples
from dragoman.rollout.scheduler import roll_out
from dragoman.rollout.store import EpisodeStore


@pytest.fixture
async def runtime() -> AsyncIterator[ToyRuntime]:
    opened = ToyRuntime()
    yield opened
    await opened.close()


@pytest.fixture
async def toy_samples(tiny_model, runtime, tmp_path) -> list[Sample]:
    """Siblings of both arms for each toy question, as the real engine drew them."""
    system, backends = runtime.open(f"toy@{tiny_model}")
    with EpisodeStore(tmp_path / "episodes") as store:
        episodes = await roll_out(
            QUESTIONS,
            "toy",
            system,
            backends,
            store,
            exploration=Exploration(breadth=(1,)),
            reward=Reward.of("cover_em"),
        )
    return [sample for episode in episodes for sample in samples(episode, "cover_em")]

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
    return await drawn(tiny_model, runtime, tmp_path, Exploration(breadth=(1,)))


@pytest.fixture
async def free_samples(tiny_model, runtime, tmp_path) -> list[Sample]:
    """Two draws for each toy question, at a temperature; no arm was forced."""
    return await drawn(tiny_model, runtime, tmp_path, Exploration(breadth=(2,), force=0, temperature=0.7))


async def drawn(tiny_model, runtime, tmp_path, exploration: Exploration) -> list[Sample]:
    system, backends = runtime.open(f"toy@{tiny_model}")
    with EpisodeStore(tmp_path / "episodes") as store:
        episodes = await roll_out(
            QUESTIONS,
            "toy",
            system,
            backends,
            store,
            exploration=exploration,
            reward=Reward.of("cover_em"),
        )
    return [sample for episode in episodes for sample in samples(episode, "cover_em")]

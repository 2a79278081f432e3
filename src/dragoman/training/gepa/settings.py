"""Settings of stage `gepa`."""

from __future__ import annotations

from pydantic import Field

from dragoman.core.settings import Section
from dragoman.engines.settings import EngineParams


class GepaParams(Section):
    """Stage `gepa`: other instructions for the roles, which train nothing, as a baseline for training."""

    reflection: EngineParams | None = None
    """What reads how questions went and writes instructions: a section as `llm`. None: there is none, and the stage is off."""
    max_metric_calls: int = Field(400, ge=1)
    """Most answers that are scored in all, on training and dev questions. A question that is asked anew for other instructions
    counts again."""
    minibatch: int = Field(3, ge=1)
    """Training questions that are read for each rewriting, and asked again with what was written."""
    dev_questions: int = Field(30, ge=1)
    """What has gained on its minibatch is asked so many dev questions, which choose."""
    temperature: float = Field(1.0, ge=0)
    """Of the reflection model."""
    max_tokens: int = Field(2048, ge=1)
    """Of a reply of the reflection model."""
    concurrency: int = Field(32, ge=1)

"""Settings of stage `validate`."""

from __future__ import annotations

from pydantic import Field

from dragoman.core.settings import Section


class ValidateParams(Section):
    """Stage `validate`: the limits within which data is fit for a training run."""

    min_passage_words: int = Field(1, ge=1)
    max_passage_words: int = Field(2000, ge=1)
    """Longer texts should have been cut (`chunk`)."""
    min_question_words: int = Field(2, ge=1)
    max_question_words: int = Field(200, ge=1)
    min_category_p: float = Field(1e-4, ge=0, lt=1)
    """Synthetic questions: how improbable their categories may be under the plan (chi-square); 0 allows any."""
    max_invalid_actions: float = Field(0.5, ge=0, le=1)
    """Share of an episode file's nodes whose text was no action."""
    max_failed_trajectories: float = Field(0.1, ge=0, le=1)
    """Share of its trajectories that an engine, a retriever or a bug ended."""
    max_sample_tokens: int | None = Field(None, ge=1)
    """Tokens of prompt and completion together; None takes `proxy.max_model_len`."""
    min_credit: float = -1.0
    """A price can take credit below 0."""
    max_credit: float | None = None
    """None takes the most that `train.reward` with `rl.shaping` can give."""

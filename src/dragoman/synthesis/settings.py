"""Settings of what makes questions: `synthesize` and `harvest`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from dragoman.core.settings import Section
from dragoman.corpus.names import SPLITS
from dragoman.engines.settings import EngineParams


class HarvestParams(Section):
    """Stage `harvest`: a data set out of the questions that the endpoint was asked."""

    dataset: str = "atlas"
    """The data set whose corpus was searched."""
    gold: bool = True
    """Put what is harvested beside that data set's own questions: into its train questions, and into the splits that it lacks.
    False leaves its questions out."""
    shares: dict[str, float] = Field({"train": 0.8, "dev": 0.1, "test": 0.1})
    """The splits that harvested questions go to, as far as those are open to them."""
    draws: int = Field(0, ge=0)
    """Without feedback, an answer counts as right that so many draws agree on; 0 asks for feedback. A draw is an answer of
    one system, policy, index and LLM; the same ones asked again answer alike, and are no second draw."""
    max_answer_words: int = Field(12, ge=1)
    """A longer answer is none that others could be compared with."""
    forbidden: tuple[str, ...] = ()
    """Names of API keys whose questions are not to be harvested."""

    @model_validator(mode="after")
    def _shares_are_of_splits(self) -> HarvestParams:
        if (
            not self.shares.keys() <= {*SPLITS}
            or min(self.shares.values(), default=0) < 0
            or not any(self.shares.values())
        ):
            raise ValueError(f"shares: expected shares of {', '.join(SPLITS)}, none below 0 and one above")
        return self


class SynthesizeParams(Section):
    """Stage `synthesize`: questions about a corpus that has none (mRAG section 2; DataMorgana)."""

    n: int = Field(200, ge=1)
    """How many, of all splits together."""
    backend: Literal["grounded", "engine", "mixed", "none"] = "grounded"
    """Write without a model, with one, or with one and then without for what is still wanted. `none` writes no question: for a
    pipeline whose dataset has its own."""
    plan: str | None = None
    """A YAML file that says what the questions are to be like; None takes the built-in one (`dragoman synthesize --help`)."""
    shares: dict[str, Annotated[float, Field(gt=0, lt=1)]] = Field({"train": 0.7, "dev": 0.08, "test": 0.22})
    """Of questions and of passages: no split asks about another's. The paper has 3,500 to train on and 1,000 to test with."""
    engine: EngineParams | None = None
    """What writes; None takes the frozen LLM."""
    temperature: float = Field(0.8, gt=0, le=2)
    candidates: int = Field(2, ge=1)
    """Written at once for one question; the first that passes is kept."""
    attempts: int = Field(40, ge=1)
    """Rounds, each with other passages, until a question is given up."""
    engine_attempts: int = Field(6, ge=1)
    """Backend `mixed`: rounds that the engine has."""
    passage_words: int = Field(120, ge=10)
    """Each passage is cut to this many words in a writer's prompt."""
    spans: bool = True
    """An engine chooses answers among the names, dates and numbers of the passages; False lets a capable one answer freely."""
    min_words: int = Field(2, ge=1)
    max_words: int = Field(100, ge=1)
    """Words of a question."""
    retrievable: int = Field(20, ge=0)
    """One of its passages must be among the first so many that a search for the question finds; 0 asks for nothing."""
    answerable: bool = False
    """The frozen LLM must answer with the passages, and must not without."""
    duplicate: float = Field(0.8, gt=0, lt=1)
    """Estimated Jaccard similarity of word triples from which on two questions are one."""
    draws: int = Field(0, ge=0)
    """Answers of the frozen LLM by which difficulty is judged, of each kind; 0 judges none."""
    k: int = Field(5, ge=1)
    """Passages of a search, when difficulty is judged."""
    concurrency: int = Field(32, ge=1)

    @model_validator(mode="after")
    def _shares_add_up(self) -> SynthesizeParams:
        if self.shares.keys() != {"train", "dev", "test"}:
            raise ValueError(f"shares: expected train, dev and test, found {', '.join(self.shares)}")
        if abs(sum(self.shares.values()) - 1) > 1e-6:
            raise ValueError(f"shares: they add up to {sum(self.shares.values()):g}, not to 1")
        if self.min_words > self.max_words:
            raise ValueError(f"min_words {self.min_words} is more than max_words {self.max_words}")
        return self

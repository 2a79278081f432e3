"""Settings of what measures: `evaluate`, `transfer`, `promote` and `drift`."""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from dragoman.core.errors import UserError
from dragoman.core.settings import Section
from dragoman.core.stats import smallest_window
from dragoman.corpus.settings import Source
from dragoman.engines.settings import EngineParams
from dragoman.rewards.settings import RewardSetting


class EvaluateParams(Section):
    """Stage `evaluate`: which questions, and how they are put."""

    split: Literal["train", "dev", "test"] = "test"
    questions: Source = "gold"
    """Those of the dataset, or those of stage `synthesize`."""
    limit: int | None = Field(None, ge=1)
    """The first so many questions; None takes all."""
    concurrency: int = Field(32, ge=1)
    """Questions under way at once."""
    bootstrap: int = Field(2000, ge=100)
    """Resamples for the 95% intervals."""
    traces: int = Field(10, ge=0)
    """Questions whose trace goes to MLflow."""
    assessments: bool = True
    """In a bench, also put the scores of each answer on a trace of it in MLflow; docs/bench.md says what it costs."""
    judge: bool = False
    """Also let the judge say of each answer whether it is right (C-3PO appendix D.2)."""
    scores: tuple[RewardSetting, ...] = ()
    """Rewards that each answer is scored by too: `[nuggets, faithfulness, citation_precision, citation_recall, answer_words]`."""
    cache: bool = False
    """Take the LLM's answers from `llm_cache` where they are known. Seconds are then not comparable with any others."""


CHANGES = ("retriever", "llm", "data")
"""What can be another one where a policy is carried over; each is a key of the section `transfer`."""


class TransferParams(Section):
    """Stage `transfer`: what is another one where a trained policy is carried out of its domain."""

    policy: str = "rl"
    """The stage whose policy of `train.system` is carried over."""
    beside: tuple[str, ...] = ("standard",)
    """Systems that are evaluated beside it: what they lose, they lose without any training."""
    retriever: str = ""
    """A retrieval method, by which the corpus is indexed beside the results; or the folder of an index, or a server's URL."""
    llm: EngineParams | None = None
    """Another frozen LLM, with the keys of the section `llm`."""
    data: str = ""
    """Another dataset under `corpus`, with its questions and its index."""

    def changes(self, named: str) -> dict[str, Any]:
        """What is another one under a name such as `retriever-llm`, with the setting that says what it is.

        Raises:
            UserError: an unknown change, or one without a setting.
        """
        parts = list(dict.fromkeys(named.split("-")))
        for part in parts:
            if part not in CHANGES:
                raise UserError(
                    f"transfer {named}: unknown change {part!r}; name {', '.join(CHANGES)}, with - between several"
                )
            if not getattr(self, part):
                raise UserError(f"transfer {named}: set transfer.{part} in params.yaml to what is to be another one")
        return {part: getattr(self, part) for part in parts}


class CostParams(Section):
    """What a question may cost; None sets no limit."""

    calls: float | None = Field(None, gt=0)
    """Decisions of the proxy and calls of the LLM."""
    tokens: float | None = Field(None, gt=0)
    seconds: float | None = Field(None, gt=0)


class PromoteParams(Section):
    """Stage `promote`: when a challenger becomes the champion."""

    dataset: str | None = None
    """Whose held-out questions; None takes `train.dataset`."""
    split: Literal["dev", "test"] = "test"
    questions: Source = "gold"
    """The dataset's own, or those of stage `synthesize`."""
    limit: int | None = Field(None, ge=1)
    """The first so many questions; None takes all."""
    score: Literal["cover_em", "em", "f1", "precision", "judge"] = "cover_em"
    """What the gain is measured in; `judge` needs `evaluate.judge`."""
    margin: float = Field(0.0, ge=0, lt=1)
    """The lower bound of the gain (95%, paired bootstrap) must exceed this."""
    min_questions: int = Field(30, ge=1)
    """Of fewer questions a bootstrap says too little."""
    baseline: str = "standard"
    """What the first challenger is compared with, while there is no champion: a system, untrained."""
    max_failed: float = Field(0.02, ge=0, le=1)
    """Share of the challenger's questions that ended in a fault. They have no score, so they must be few. With `score: judge` it is
    that of questions without a verdict, of either system: the challenger's, or the other's answers that were not judged."""
    max_cost_ratio: float = Field(1.5, gt=0)
    """Calls, tokens and seconds a question, each as a multiple of the champion's."""
    max_cost: CostParams = CostParams()
    """The same in absolute numbers, which hold for the first challenger too."""


Measure = Literal["kind", "words", "unseen", "strategy", "passages", "answer_words", "seconds", "rating", "recall"]
"""What drift is looked for in; docs/served-traffic.md says what each one is."""

PERMUTATIONS = 9999
"""By so many the p-value of a measure that is no number is found, so it is never below one in so many and one."""


class DriftParams(Section):
    """When traffic counts as different from what it was when the champion was promoted."""

    reference: int = Field(500, ge=30)
    """The first so many values of a measure under a policy: what the following ones are compared with."""
    difference: float = Field(0.25, gt=0, le=1)
    """A difference of two distributions that has to be seen: as large as the share of values that would have to change."""
    false_alarms: float = Field(0.02, gt=0, le=0.2)
    """The most that a window may give an alarm, in whichever measure, where nothing has changed."""
    measures: tuple[Measure, ...] = get_args(Measure)
    """Those that are compared. Leave `seconds` out where they follow the load."""

    @property
    def level(self) -> float:
        """Of the test of one measure."""
        return self.false_alarms / len(self.measures)

    @property
    def window(self) -> int:
        """The fewest values that show the difference four times out of five."""
        found = smallest_window(self.reference, self.difference, self.level)
        assert found is not None, "checked"
        return found

    @model_validator(mode="after")
    def _can_tell(self) -> DriftParams:
        if not self.measures:
            raise ValueError("measures: name at least one, such as kind")
        if self.level <= (least := 1 / (1 + PERMUTATIONS)):
            raise ValueError(
                f"false_alarms: {self.false_alarms:g} over {len(self.measures)} measures is less than what {PERMUTATIONS} "
                f"permutations can show; give more than {least * len(self.measures):g}, or name fewer measures"
            )
        if smallest_window(self.reference, self.difference, self.level) is None:
            raise ValueError(
                f"no window shows a difference of {self.difference:g} from {self.reference} values; take more"
            )
        return self

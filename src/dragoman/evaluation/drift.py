"""Drift: whether what a policy is asked, and what it does with it, is still what it was when it became the champion.

Each answer gives a value to some measures: numbers and categories, no text. Of each measure the first values under a policy are
its reference, and those that follow are compared with it a window at a time. No value is in two windows, so a value
counts once, and the chance of a false alarm is that of one test.

Numbers are compared by the two-sample test of Kolmogorov and Smirnov. Categories are compared by the Population Stability Index,
PSI = sum of (q - p) ln(q / p) over shares p of the reference and q of the window. Its p-value comes from permutations: the
usual limits (0.1, 0.25) know nothing of how many values there are. Measures share the level of a false alarm (Bonferroni).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from dragoman.core.errors import UserError
from dragoman.core.stats import detectable_distance
from dragoman.core.tables import table_lines
from dragoman.core.text import content_words, key
from dragoman.evaluation.settings import PERMUTATIONS, DriftParams
from dragoman.rollout.feedback import Feedback
from dragoman.rollout.record import Episode

Value = str | float
STATE = "drift.json"
"""The file beside the episodes."""
CATEGORIES = frozenset({"kind", "strategy", "rating"})
"""The measures that are no numbers."""
KEPT = 3
"""Policies whose windows are remembered: after a rollback, the earlier champion is compared with its own reference."""
BINS = 5
"""Of a number, for its PSI: the reference has as many values in each."""
_KIND = re.compile(r"\b(what|which|who|whom|whose|where|when|why|how)\b")
_YES_OR_NO = re.compile(r"(is|are|was|were|do|does|did|has|have|had|can|could|will|would|should)\b")
_ONE = {"whom": "who", "whose": "who"}


def values_of(episode: Episode, known: Collection[str] | None) -> dict[str, Value]:
    """What a served question and its answer give to each measure. Without an answer there is no value for those of answers.

    Args:
        known: the words of the training questions, as `words_of` gives them; None leaves `unseen` out.
    """
    question, trajectory = episode.question["question"], episode.trajectories[0]
    values: dict[str, Value] = {"kind": kind_of(question), "words": float(len(question.split()))}
    if known is not None and (asked := words_of([question])):
        values["unseen"] = len(asked - set(known)) / len(asked)
    if episode.nodes and episode.nodes[0].kind:
        values["strategy"] = episode.nodes[0].kind
    if trajectory.answer is not None:
        values["answer_words"] = float(len(trajectory.answer.split()))
        values["passages"] = float(len(trajectory.passages))
        values["seconds"] = episode.seconds
    return values


def values_said(feedback: Feedback, passages: Collection[str]) -> dict[str, Value]:
    """What feedback on an answer gives: its rating, and the share of the passages it names that the answer was written from."""
    values: dict[str, Value] = {"rating": feedback.rating} if feedback.rating else {}
    if feedback.passages:
        values["recall"] = sum(id in passages for id in feedback.passages) / len(feedback.passages)
    return values


def kind_of(question: str) -> str:
    """The first question word in it, wherever it stands; else `whether`, or `other`."""
    text = question.lower().strip()
    if found := _KIND.search(text):
        return _ONE.get(found[1], found[1])
    return "whether" if _YES_OR_NO.match(text) else "other"


def words_of(questions: Iterable[str]) -> frozenset[str]:
    """Their words, folded, without the small ones."""
    return frozenset(word for question in questions for word in map(key, content_words(question)) if word)


class _State(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Comparison(_State):
    """A window of a measure against its reference."""

    n: int
    psi: float
    ks: float | None
    """The largest distance of the two distributions, from 0 to 1; None of categories."""
    p: float
    alarm: bool


class Series(_State):
    """The values of one measure under one policy."""

    reference: list[Value] = []
    window: list[Value] = []
    windows: int = 0
    """How many have been compared."""
    alarms: int = 0
    last: Comparison | None = None


class Traffic(_State):
    """What was served under one policy."""

    policy: str
    vocabulary: str = ""
    """A hash of the words that count as seen. With other words, shares of unseen ones are not comparable."""
    answers: int = 0
    alarmed_at: float | None = None
    """Unix time of the first alarm."""
    alarmed_by: str = ""
    series: dict[str, Series] = {}


class Drift(_State):
    """The state of a monitor, as `drift.json` holds it. The policy that was served last stands last."""

    traffic: list[Traffic] = []

    @classmethod
    def read(cls, path: Path) -> Drift:
        """
        Raises:
            UserError: not such a file.
        """
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"{path}: no such file; the endpoint writes it where serve.episodes says") from None
        except (ValidationError, UnicodeDecodeError):
            raise UserError(f"{path}: not the state of a drift monitor; move it away, a new one is begun") from None


@dataclass
class Monitor:
    """Compares traffic as it comes. It keeps numbers and categories, never a question or an answer.

    Args:
        settings: how many values there are in a reference, and which difference has to be seen.
        known: see `values_of`.
        state: to go on with.
    """

    settings: DriftParams
    known: Collection[str] | None = None
    state: Drift = field(default_factory=Drift)

    def __post_init__(self) -> None:
        text = " ".join(sorted(self.known or ()))
        self._vocabulary = hashlib.sha256(text.encode()).hexdigest()[:16]

    def answered(self, policy: str, values: Mapping[str, Value], at: float) -> dict[str, Comparison]:
        """Take the values of an answer. Returns the comparisons of the windows that they have filled, by measure."""
        traffic = self._traffic(policy)
        traffic.answers += 1
        return dict(self._take(traffic, values, at))

    def said(self, policy: str, values: Mapping[str, Value], at: float) -> dict[str, Comparison]:
        """The same for feedback on an answer. It may be of an earlier policy, which is not served for that."""
        found = next((one for one in self.state.traffic if one.policy == policy), None)
        return dict(self._take(found, values, at)) if found else {}

    def _take(self, traffic: Traffic, values: Mapping[str, Value], at: float) -> Iterator[tuple[str, Comparison]]:
        for measure, value in values.items():
            if measure not in self.settings.measures:
                continue
            series = traffic.series.setdefault(measure, Series())
            if len(series.reference) < self.settings.reference:
                series.reference.append(value)
                continue
            series.window.append(value)
            if len(series.window) < self.settings.window:
                continue
            found = compare(series.reference, series.window, measure in CATEGORIES, self.settings.level)
            series.window, series.last = [], found
            series.windows += 1
            if found.alarm:
                series.alarms += 1
                if traffic.alarmed_at is None:
                    traffic.alarmed_at, traffic.alarmed_by = at, measure
            yield measure, found

    def _traffic(self, policy: str) -> Traffic:
        found = next((one for one in self.state.traffic if one.policy == policy), None) or Traffic(policy=policy)
        if found.vocabulary != self._vocabulary:
            found.vocabulary = self._vocabulary
            found.series.pop("unseen", None)
        others = [one for one in self.state.traffic if one.policy != policy]
        self.state.traffic = [*others, found][-KEPT:]
        return found


def compare(reference: Sequence[Value], window: Sequence[Value], categories: bool, level: float) -> Comparison:
    """Two samples of one measure.

    Args:
        categories: the values have no order.
        level: the p-value below which it is an alarm.
    """
    if categories:
        value, p = _psi_test(reference, window)
        return Comparison(n=len(window), psi=round(value, 4), ks=None, p=p, alarm=p < level)
    from scipy.stats import ks_2samp

    tested = ks_2samp(reference, window)
    ks, p = float(tested.statistic), float(tested.pvalue)
    value = psi(*_counts(_binned(reference, reference), _binned(window, reference)))
    return Comparison(n=len(window), psi=round(value, 4), ks=round(ks, 4), p=p, alarm=p < level)


def psi(reference: Sequence[float], window: Sequence[float]) -> float:
    """Population Stability Index of two lists of counts. Half a value more in each cell lets one be empty."""
    ps, qs = _shares(reference), _shares(window)
    return sum((q - p) * math.log(q / p) for p, q in zip(ps, qs, strict=True))


def _psi_test(reference: Sequence[Value], window: Sequence[Value]) -> tuple[float, float]:
    """PSI of categories, and how often as large a one comes from dealing the same values out at random."""
    import numpy as np

    was, is_now = _counts(reference, window)
    found = psi(was, is_now)
    if len(was) == 1:
        return found, 1.0
    both = np.array(was) + np.array(is_now)
    dealt = np.random.default_rng(0).multivariate_hypergeometric(both, len(window), size=PERMUTATIONS)
    p, q = ((counts + 0.5) / (counts + 0.5).sum(axis=1, keepdims=True) for counts in (both - dealt, dealt))
    drawn = ((q - p) * np.log(q / p)).sum(axis=1)
    return found, float((1 + (drawn >= found - 1e-12).sum()) / (1 + PERMUTATIONS))


def _counts(reference: Iterable[Value], window: Iterable[Value]) -> tuple[list[int], list[int]]:
    was, is_now = Counter(reference), Counter(window)
    cells = sorted({*was, *is_now}, key=str)
    return [was[cell] for cell in cells], [is_now[cell] for cell in cells]


def _binned(values: Sequence[Value], reference: Sequence[Value]) -> list[Value]:
    import numpy as np

    edges = np.unique(np.quantile(np.array(reference, dtype=float), np.arange(1, BINS) / BINS))
    return [float(place) for place in np.searchsorted(edges, np.array(values, dtype=float))]


def _shares(counts: Sequence[float]) -> list[float]:
    total = sum(counts) + len(counts) / 2
    return [(count + 0.5) / total for count in counts]


def markdown(traffic: Traffic, settings: DriftParams) -> str:
    """What was found under a policy as a Markdown table: the last window of each measure."""
    least = detectable_distance(settings.reference, settings.window, settings.level)
    lines = [
        f"policy {traffic.policy}: {traffic.answers} answers; windows of {settings.window} against the first "
        f"{settings.reference} values; alarm at p < {settings.level:.4f}",
        "",
    ]
    rows = []
    for measure in settings.measures:
        series = traffic.series.get(measure, Series())
        has = [measure, f"{len(series.reference)} of {settings.reference}", str(series.windows)]
        if found := series.last:
            ks = "–" if found.ks is None else f"{found.ks:.2f}"
            rows.append([*has, f"{found.psi:.2f}", ks, f"{found.p:.4f}", "**alarm**" if found.alarm else ""])
        else:
            rows.append([*has, "–", "–", "–", "too few"])
    lines += table_lines(["measure", "reference", "windows", "PSI", "KS", "p", ""], rows)
    lines += ["", f"*KS*: a true distance of {least:.2f} is found four times out of five."]
    if traffic.alarmed_at is not None:
        lines += ["", f"**Drift**, first in {traffic.alarmed_by}."]
    return "\n".join(lines) + "\n"

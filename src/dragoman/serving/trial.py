"""A trial: a challenger on real questions beside the champion, in its shadow or as a canary.

In the *shadow* of the champion, the challenger is asked once the champion has answered, and nobody sees its answer. As a *canary* it
answers a share of the questions itself, and is taken back where it fails more often than the champion, or is slower.

That is decided after each answer, by Page's test (Page 1954, Continuous inspection schemes). Each answer of the challenger
adds log(p1 / p0) to a sum if it was bad, and else log((1 - p1) / (1 - p0)). The sum never falls below 0. p0 is how often that
is usual, and p1 what would be too often. Where nothing is worse than usual, the sum reaches log(N) at most once in N answers on
average (Lorden 1971). Two sums, of failures and of slow answers, share that.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from dragoman.rewards.answer import normalize
from dragoman.rollout.feedback import Feedback
from dragoman.serving.errors import ApiError
from dragoman.serving.metrics import Metrics

log = logging.getLogger(__name__)

CHAMPION, CHALLENGER = ARMS = ("champion", "challenger")
RECENT, PLACE = 59, 3
"""An answer is slow if it takes longer than all but two of the champion's latest 59: of equal ones 3 in 60 do."""
SLOW, TOO_SLOW = PLACE / (RECENT + 1), 0.3
"""How often that is usual, and what is too often."""
OUTCOMES, LATEST = 200, 5
"""The champion's latest answers, whose failures are usual, and the latest of these, which show first that both fail."""
FEWEST_FAILURES, MORE_FAILURES = 0.01, 0.2
"""The least that is taken for usual, and what is too often beyond it."""
MOST_KNOWN = 10_000
"""The latest answers of the trial, on which feedback counts."""
RECORD_S = 60.0
"""How often what the trial has shown is written down, at most."""


@dataclass
class PageTest:
    """Page's test: one of many answers was bad, or it was not."""

    bound: float
    value: float = 0.0

    def add(self, bad: bool, usual: float, too_often: float) -> bool:
        """Whether that is more than can be usual."""
        step = math.log(too_often / usual) if bad else math.log((1 - too_often) / (1 - usual))
        self.value = max(0.0, self.value + step)
        return self.value >= self.bound


@dataclass
class Arm:
    """What the champion or the challenger has shown. Seconds are those of answers, without the queue."""

    answers: int = 0
    failed: int = 0
    seconds: float = 0.0
    up: int = 0
    down: int = 0

    @property
    def figures(self) -> dict[str, Any]:
        mean = round(self.seconds / self.answers, 3) if self.answers else None
        return {"answers": self.answers, "failed": self.failed, "seconds": mean, "up": self.up, "down": self.down}


@dataclass
class Tried:
    """The answers of a question by arm, first the one that was served, and what feedback on it counts for."""

    answers: dict[str, str]
    ratings: dict[str, str] = field(default_factory=dict)


@dataclass
class Watched:
    """One answer that is under way."""

    failed: bool = False
    """The proxy did: standard RAG answers in its place, or nobody does."""
    slow: bool = False
    """It takes or took longer than usual, and that is counted."""
    excused: bool = False
    """It took longer while something failed that both need."""


@dataclass
class Trial:
    """One challenger against the champion, from the start of the endpoint to its end.

    Args:
        kind: `shadow` or `canary`.
        champion: the name of the model that clients ask for.
        challenger: the name of the other one.
        share: of the questions that the challenger is asked.
        once_in: a canary that is no worse is taken back at most once in so many of its answers, on average.
        record: told what the trial has shown, now and then and at its end.
    """

    kind: Literal["shadow", "canary"]
    champion: str
    challenger: str
    share: float
    once_in: int
    metrics: Metrics
    record: Callable[[dict[str, Any]], None] = lambda shown: None
    ended: str = ""
    """Why the canary was taken back."""
    excused: Callable[[], bool] = lambda: False
    """Whether something fails that both need: how long their answers take then is no fault of either."""
    agreed: int = 0
    compared: int = 0
    skipped: int = 0
    """Questions of the share that no shadow was free for."""
    arms: dict[str, Arm] = field(default_factory=lambda: {arm: Arm() for arm in ARMS})

    def __post_init__(self) -> None:
        bound = math.log(2 * self.once_in)
        self._failures, self._slow = PageTest(bound), PageTest(bound)
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._hanging = 0  # answers of the champion that take longer than usual, and are not over
        self._outcomes: deque[bool] = deque(maxlen=OUTCOMES)
        self._tried: OrderedDict[str, Tried] = OrderedDict()
        self._since = self._recorded = time.time()

    def chooses(self, who: str) -> bool:
        """Whether the questions of somebody are of the share: always or never, by a hash."""
        place = hashlib.sha256(f"{self.challenger} {who}".encode(errors="replace")).hexdigest()[:13]
        return int(place, 16) / 16**13 < self.share

    @property
    def limit(self) -> float:
        """Seconds after which an answer is slow; infinite until the champion has answered often enough, and while it hangs."""
        if len(self._recent) < RECENT:
            return math.inf
        return sorted((*self._recent, *[math.inf] * self._hanging))[-PLACE]

    @contextmanager
    def watch(self, model: str) -> Iterator[Watched]:
        """Around one answer of either, to be told whether the proxy failed. One that hangs is slow before it has ended."""
        watched, arm = Watched(), {self.champion: CHAMPION, self.challenger: CHALLENGER}.get(model)
        if arm is None:
            yield watched
            return
        loop, limit, timer = asyncio.get_running_loop(), self.limit, None
        started = loop.time()
        if self.kind == "canary" and limit < math.inf:
            timer = loop.call_later(limit, self._hangs, arm, watched, limit)
        try:
            yield watched
        except ApiError:  # the LLM's or the retriever's fault, or the client's
            raise
        except Exception:
            watched.failed = True
            self._answered(arm, watched, loop.time() - started)
            raise
        else:
            self._answered(arm, watched, loop.time() - started)
        finally:
            if timer is not None:
                timer.cancel()
            if arm == CHAMPION and watched.slow:
                self._hanging -= 1

    def shadowed(self, key: str, answers: dict[str, str], seconds: float, *, failed: bool) -> None:
        """What a challenger in the shadow came to.

        Args:
            key: of the champion's answer.
            answers: of both, by arm; without the challenger's where it failed.
        """
        self._answered(CHALLENGER, Watched(failed), seconds)
        if not failed:
            agrees = normalize(answers[CHAMPION]) == normalize(answers[CHALLENGER])
            self.compared, self.agreed = self.compared + 1, self.agreed + agrees
            self.metrics.trial_agreement.labels("yes" if agrees else "no").inc()
            self.remember(key, answers)

    def skip(self) -> None:
        self.skipped += 1
        self.metrics.trial_skipped.inc()

    def remember(self, key: str, answers: dict[str, str]) -> None:
        """The answers of a question by arm, first the one that was served."""
        self._tried[key] = Tried(answers)
        if len(self._tried) > MOST_KNOWN:
            self._tried.popitem(last=False)

    def said(self, feedback: Feedback) -> None:
        """Count feedback: for who has answered, and for who would have answered the same, or what is right.

        It takes the place of what was said before of the same answer. No test rests on it; the gate's record shows it.
        """
        tried = self._tried.get(feedback.id)
        if tried is None or (ratings := _ratings(feedback, tried.answers)) == tried.ratings:
            return
        for arm, rating in tried.ratings.items():
            self._rate(arm, rating, -1)
        for arm, rating in ratings.items():
            self._rate(arm, rating, 1)
            self.metrics.trial_feedback.labels(arm, rating).inc()  # a counter, which takes nothing back
        tried.ratings = ratings

    def _rate(self, arm: str, rating: str, count: int) -> None:
        setattr(self.arms[arm], rating, getattr(self.arms[arm], rating) + count)

    @property
    def shown(self) -> dict[str, Any]:
        """What the gate's record says of it."""
        shown = {
            "since": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(self._since)),
            "share": self.share,
            "rolled_back": self.ended,
            **{name: arm.figures for name, arm in self.arms.items()},
        }
        if self.kind == "shadow":
            shown |= {"compared": self.compared, "agreed": self.agreed, "skipped": self.skipped}
        return shown

    def write_down(self) -> None:
        self._recorded = time.time()
        self.record(self.shown)

    def _answered(self, arm: str, watched: Watched, seconds: float) -> None:
        counts = self.arms[arm]
        counts.answers, counts.failed = counts.answers + 1, counts.failed + watched.failed
        counts.seconds += seconds
        self.metrics.trial_answers.labels(arm, "failed" if watched.failed else "served").inc()
        self.metrics.trial_seconds.labels(arm).observe(seconds)
        if arm == CHAMPION:
            self._recent.append(seconds)
            self._outcomes.append(watched.failed)
        elif self.kind == "canary":
            if not (watched.slow or watched.excused) and (limit := self.limit) < math.inf:
                self._is_slow(watched, seconds > limit)
            usual = min(max(FEWEST_FAILURES, *map(self._failing, (OUTCOMES, LATEST))), 0.99)
            if self._failures.add(watched.failed, usual, usual + MORE_FAILURES * (1 - usual)):
                self._take_back("errors")
        if time.time() - self._recorded >= RECORD_S:
            self.write_down()

    def _hangs(self, arm: str, watched: Watched, seconds: float) -> None:
        """An answer has taken so long, and is not over. Where the champion hangs too, that is no fault of the challenger."""
        if arm == CHAMPION:
            watched.slow = True
            self._hanging += 1
        elif seconds >= self.limit:
            watched.excused = self.excused()
            if not watched.excused:
                self._is_slow(watched, True)

    def _failing(self, latest: int) -> float:
        """How many of the champion's latest answers failed, as a share."""
        outcomes = list(self._outcomes)[-latest:]
        return sum(outcomes) / max(1, len(outcomes))

    def _is_slow(self, watched: Watched, slow: bool) -> None:
        watched.slow = slow
        if self._slow.add(slow, SLOW, TOO_SLOW):
            self._take_back("latency")

    def _take_back(self, reason: str) -> None:
        if self.ended:
            return
        self.ended = reason
        log.warning("the canary %s is taken back (%s); %s answers again", self.challenger, reason, self.champion)
        self.metrics.trial_rollbacks.labels(reason).inc()
        self.write_down()


def _ratings(feedback: Feedback, answers: dict[str, str]) -> dict[str, str]:
    """By arm, what feedback says of its answer: `up` or `down`, where it says anything."""
    if not (feedback.rating or feedback.answer):
        return {}
    served = next(iter(answers.values()))
    right = served if feedback.rating == "up" else feedback.answer
    same = {arm: normalize(text) == normalize(right or served) for arm, text in answers.items()}
    if right:
        return {arm: "up" if is_same else "down" for arm, is_same in same.items()}
    return {arm: "down" for arm, is_same in same.items() if is_same}  # what is right, nobody says

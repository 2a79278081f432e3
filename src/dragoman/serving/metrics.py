"""What `/metrics` says, for Prometheus. Each server has a registry of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from dragoman.rollout.record import Call, Node

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        # also those that are no answers
        self.responses = counter("dragoman_responses", "HTTP responses", ["route", "status"])
        self.answers = counter("dragoman_answers", "Questions answered, by the model asked for", ["model"])
        self.phases = histogram(
            "dragoman_phase_seconds",
            "Seconds of single calls (proxy, search, llm), in the queue, and of whole answers (total)",
            ["phase"],
            buckets=SECONDS,
        )
        self.strategies = counter("dragoman_strategies", "First decisions of the proxy", ["model", "strategy"])
        self.degradations = counter(
            "dragoman_degradations", "Answers of standard RAG in a proxy's place", ["model", "reason"]
        )
        self.errors = counter("dragoman_errors", "Requests without an answer", ["code"])
        self.tokens = counter(
            "dragoman_tokens",
            "Tokens read (prompt), of them out of a prefix cache (cached), and written (completion)",
            ["kind"],
        )
        self.key_answers = counter("dragoman_key_answers", "Questions answered, by the name of the key", ["key"])
        self.key_tokens = counter(
            "dragoman_key_tokens",
            "Tokens read (prompt) and written (completion), by the name of the key",
            ["key", "kind"],
        )
        self.feedback = counter("dragoman_feedback", "Feedback taken, by its rating", ["rating"])
        self.swaps = counter("dragoman_champion_changes", "Changes of the champion", ["outcome"])
        self.drift_psi = gauge("dragoman_drift_psi", "Population Stability Index of the latest window", ["measure"])
        self.drift_p = gauge(
            "dragoman_drift_p", "How likely so large a difference is in traffic that has not changed", ["measure"]
        )
        self.drift_windows = counter(
            "dragoman_drift_windows",
            "Windows of the champion's traffic, by whether they gave an alarm",
            ["measure", "outcome"],
        )

        self.trial_answers = counter(
            "dragoman_trial_answers",
            "Answers of champion and challenger in a trial, by whether their proxy served",
            ["arm", "outcome"],
        )
        self.trial_seconds = histogram(
            "dragoman_trial_seconds", "Seconds of these answers, without the queue", ["arm"], buckets=SECONDS
        )
        self.trial_agreement = counter(
            "dragoman_trial_agreement", "Whether a challenger in the shadow said what the champion said", ["agrees"]
        )
        self.trial_skipped = counter("dragoman_trial_skipped", "Questions that no shadow was free for")
        self.trial_feedback = counter(
            "dragoman_trial_feedback", "Feedback in a trial, by whom it concerns", ["arm", "rating"]
        )
        self.trial_rollbacks = counter("dragoman_canary_rollbacks", "Canaries that were taken back", ["reason"])

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A gauge that is read when it is asked for."""
        Gauge(name, text, registry=self.registry).set_function(value)

    def watch_cache(self, counts: Callable[[], tuple[int, int]]) -> None:
        """The hits and misses of the search cache, which counts them itself."""
        self.registry.register(_SearchCache(counts))

    def step(self, step: Node | Call, owner: str | None) -> None:
        """Count a step of a request whose key has that name, if it needed one."""
        self.phases.labels(phase_of(step)).observe(step.seconds)
        self.tokens.labels("prompt").inc(step.prompt_tokens)
        self.tokens.labels("completion").inc(step.completion_tokens)
        if isinstance(step, Node):
            self.tokens.labels("cached").inc(step.cached_tokens)
        if owner is not None:
            self.key_tokens.labels(owner, "prompt").inc(step.prompt_tokens)
            self.key_tokens.labels(owner, "completion").inc(step.completion_tokens)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _SearchCache(Collector):
    def __init__(self, counts: Callable[[], tuple[int, int]]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily("dragoman_searches", "Searches, by whether the cache had them", labels=["cache"])
        hits, misses = self._counts()
        family.add_metric(["hit"], hits)
        family.add_metric(["miss"], misses)
        yield family


def phase_of(step: Node | Call) -> str:
    if isinstance(step, Node):
        return "proxy"
    return "search" if step.kind == "search" else "llm"

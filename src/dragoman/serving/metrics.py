"""What `/metrics` says, for Prometheus. Each server has a registry of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from dragoman.rollout.record import Call, Node

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120)


class Metrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.responses = Counter(
            "dragoman_responses", "HTTP responses", ["route", "status"], registry=registry
        )  # also those that are no answers
        self.answers = Counter(
            "dragoman_answers", "Questions answered, by the model asked for", ["model"], registry=registry
        )
        self.phases = Histogram(
            "dragoman_phase_seconds",
            "Seconds of single calls (proxy, search, llm), in the queue, and of whole answers (total)",
            ["phase"],
            buckets=SECONDS,
            registry=registry,
        )
        self.strategies = Counter(
            "dragoman_strategies", "First decisions of the proxy", ["model", "strategy"], registry=registry
        )
        self.degradations = Counter(
            "dragoman_degradations",
            "Answers of standard RAG in a proxy's place",
            ["model", "reason"],
            registry=registry,
        )
        self.errors = Counter("dragoman_errors", "Requests without an answer", ["code"], registry=registry)
        self.tokens = Counter(
            "dragoman_tokens",
            "Tokens read (prompt), of them out of a prefix cache (cached), and written (completion)",
            ["kind"],
            registry=registry,
        )
        self.feedback = Counter("dragoman_feedback", "Feedback taken, by its rating", ["rating"], registry=registry)
        self.swaps = Counter("dragoman_champion_changes", "Changes of the champion", ["outcome"], registry=registry)
        self.drift_psi = Gauge(
            "dragoman_drift_psi", "Population Stability Index of the latest window", ["measure"], registry=registry
        )
        self.drift_p = Gauge(
            "dragoman_drift_p",
            "How likely so large a difference is in traffic that has not changed",
            ["measure"],
            registry=registry,
        )
        self.drift_windows = Counter(
            "dragoman_drift_windows",
            "Windows of the champion's traffic, by whether they gave an alarm",
            ["measure", "outcome"],
            registry=registry,
        )

        self.trial_answers = Counter(
            "dragoman_trial_answers",
            "Answers of champion and challenger in a trial, by whether their proxy served",
            ["arm", "outcome"],
            registry=registry,
        )
        self.trial_seconds = Histogram(
            "dragoman_trial_seconds",
            "Seconds of these answers, without the queue",
            ["arm"],
            buckets=SECONDS,
            registry=registry,
        )
        self.trial_agreement = Counter(
            "dragoman_trial_agreement",
            "Whether a challenger in the shadow said what the champion said",
            ["agrees"],
            registry=registry,
        )
        self.trial_skipped = Counter(
            "dragoman_trial_skipped", "Questions that no shadow was free for", registry=registry
        )
        self.trial_feedback = Counter(
            "dragoman_trial_feedback", "Feedback in a trial, by whom it concerns", ["arm", "rating"], registry=registry
        )
        self.trial_rollbacks = Counter(
            "dragoman_canary_rollbacks", "Canaries that were taken back", ["reason"], registry=registry
        )

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A gauge that is read when it is asked for."""
        Gauge(name, text, registry=self.registry).set_function(value)

    def watch_cache(self, counts: Callable[[], tuple[int, int]]) -> None:
        """The hits and misses of the search cache, which counts them itself."""
        self.registry.register(_SearchCache(counts))

    def step(self, step: Node | Call) -> None:
        self.phases.labels(phase_of(step)).observe(step.seconds)
        self.tokens.labels("prompt").inc(step.prompt_tokens)
        self.tokens.labels("completion").inc(step.completion_tokens)
        if isinstance(step, Node):
            self.tokens.labels("cached").inc(step.cached_tokens)

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

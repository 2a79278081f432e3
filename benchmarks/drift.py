"""How soon drift is found, and how often where there is none, on generated traffic.

Traffic is made of templates about places, with strategies, lengths, seconds and feedback drawn at random. After a reference comes
traffic of the same kind, or, from some question on, of another kind. A delay counts questions from the change to the alarm.

    python -m benchmarks.drift --series 200
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
from scipy.stats import binomtest

from dragoman.evaluation.drift import Monitor, Value, kind_of, words_of
from dragoman.evaluation.settings import DriftParams

WINDOWS = 20
"""Of each series without a change."""
LIMIT = 200
"""Questions within which a change should be found."""
PATIENCE = 3000
"""Questions after which a change counts as not found."""
PLACES = (
    "What is the capital of {0}?",
    "Which river flows through {0}?",
    "Which currency is used in the country whose capital is {0}?",
    "Is {0} larger than {1}?",
    "Where does the river of {0} end?",
)
ELEMENTS = (
    "Who discovered the element with the symbol {2}?",
    "What is the atomic number of the metal that was discovered by {1} in the laboratory of {0}?",
    "How many protons does an atom of {2} have?",
    "When was {2} isolated?",
)
KNOWN = words_of(PLACES) | {f"town{n}" for n in range(300)}
"""As if training questions had asked about some of the towns."""
FIRST, SHIFTED = (0.2, 0.5, 0.3), (0.45, 0.4, 0.15)
"""Shares of strategies: from memory, one search, plan."""


class Source:
    """Traffic of one kind.

    Args:
        other: share of questions about elements.
        strategies: shares of first decisions.
        slower: factor of the seconds.
        longer: factor of the mean length of answers.
        down: share of bad ratings.
        rated: share of answers that have feedback.
    """

    def __init__(
        self,
        other: float = 0.0,
        strategies: Sequence[float] = FIRST,
        slower: float = 1.0,
        longer: float = 1.0,
        down: float = 0.15,
        rated: float = 0.1,
    ) -> None:
        self.other, self.strategies, self.slower, self.longer = other, strategies, slower, longer
        self.down, self.rated = down, rated

    def draw(self, rng: np.random.Generator) -> dict[str, Value]:
        templates = ELEMENTS if rng.random() < self.other else PLACES
        towns = [f"Town{n}" for n in rng.integers(0, 400, 2)]
        question = templates[rng.integers(len(templates))].format(*towns, f"Metal{rng.integers(90)}")
        words = words_of([question])
        values: dict[str, Value] = {
            "kind": kind_of(question),
            "words": float(len(question.split())),
            "unseen": len(words - KNOWN) / len(words),
            "strategy": ("NoRetrieval", "Search", "Plan")[rng.choice(3, p=self.strategies)],
            "passages": float(rng.binomial(5, 0.4)),
            "answer_words": 1.0 + rng.poisson(1.5 * self.longer),
            "seconds": float(rng.lognormal(0.3, 0.5)) * self.slower,
        }
        if rng.random() < self.rated:
            values["rating"] = "down" if rng.random() < self.down else "up"
            values["recall"] = float(rng.binomial(2, 0.8)) / 2
        return values


CHANGES: dict[str, Source] = {
    "all questions are of another kind": Source(other=1.0),
    "half of the questions are": Source(other=0.5),
    "a quarter of them": Source(other=0.25),
    "from memory 20% -> 45%": Source(strategies=SHIFTED),
    "1.5 times the seconds": Source(slower=1.5),
    "answers twice as long": Source(longer=2.0),
    "thumbs down 15% -> 50%, one in ten rated": Source(down=0.5),
}


def false_alarms(series: int, settings: DriftParams) -> tuple[int, int]:
    """Windows with an alarm in any measure, and all windows, of traffic that does not change."""
    found = 0
    for seed in range(series):
        rng, source, monitor = np.random.default_rng(seed), Source(), Monitor(settings)
        for _ in range(settings.reference):
            monitor.answered("p", source.draw(rng), 0.0)
        for _ in range(WINDOWS):
            done = [monitor.answered("p", source.draw(rng), 0.0) for _ in range(settings.window)]
            found += any(one.alarm for each in done for one in each.values())
    return found, series * WINDOWS


def delay(changed: Source, seed: int, settings: DriftParams) -> int:
    """Questions from the change, somewhere in a window, to the first alarm."""
    rng, monitor = np.random.default_rng(seed), Monitor(settings)
    before = settings.reference + int(rng.integers(settings.window))
    if changed.down != Source().down:  # feedback comes slowly: its reference has to be there first
        before = int(1.2 * settings.reference / Source().rated)
    for _ in range(before):
        monitor.answered("p", Source().draw(rng), 0.0)
    for asked in range(1, PATIENCE + 1):
        if any(one.alarm for one in monitor.answered("p", changed.draw(rng), 0.0).values()):
            return asked
    return PATIENCE


def share(found: int, of: int) -> str:
    interval = binomtest(found, of).proportion_ci(method="wilson")
    return f"{found / of:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def main(argv: Sequence[str] | None = None, say: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=200, help="series without a change, and delays of each change")
    options = parser.parse_args(argv)
    settings = DriftParams()
    say(f"windows of {settings.window} against {settings.reference} values; alarm at p < {settings.level:.5f}")
    found, windows = false_alarms(options.series, settings)
    say(f"no change: {share(found, windows)} of {windows} windows give an alarm, {WINDOWS * found / windows:.2f} in 20")
    say(
        f"| change (n = {options.series} each) | median delay | 95% within | share within {LIMIT} [95%] |\n|---|---|---|---|"
    )
    for name, changed in CHANGES.items():
        delays = sorted(delay(changed, seed, settings) for seed in range(options.series))
        late = delays[min(len(delays) - 1, int(0.95 * len(delays)))]
        within = share(sum(one <= LIMIT for one in delays), len(delays))
        say(f"| {name} | {median(delays):.0f} | {late if late < PATIENCE else f'> {PATIENCE}'} | {within} |")


if __name__ == "__main__":
    main()

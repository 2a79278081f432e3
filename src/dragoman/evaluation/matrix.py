"""A bench as people read it: systems by data sets in Markdown and HTML, and accuracy against its costs as pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dragoman.core import files
from dragoman.core.tables import table_lines
from dragoman.core.text import folder_name
from dragoman.evaluation.report import CACHED, COLUMNS, interval, ran_on, remarks, save, unscored
from dragoman.evaluation.suite import Suite

PAGE = Path(__file__).with_name("matrix.html")
TITLES = {**dict(COLUMNS), "seconds": "s/question", "latency": "latency, s"}
FORMATS = {"calls": ".1f", "searches": ".1f", "tokens": ".0f", "seconds": ".2f", "latency": ".2f", "failed": "d"}
PLOTTED = ("seconds", "tokens")
SECONDS = ("seconds", "latency")
NOTHING = "–"


@dataclass(frozen=True)
class Cell:
    """What became of one system on one data set."""

    dataset: str
    system: str
    status: Literal["finished", "not run", "failed"]
    reason: str = ""


@dataclass(frozen=True)
class Table:
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", *table_lines(self.head, self.rows)]
        return "\n".join([*lines, *(["", self.note] if self.note else [])]) + "\n"


def write_matrix(suite: Suite, metrics: Mapping[str, dict[str, Any]], cells: Sequence[Cell], out: Path) -> None:
    """Write `table.md`, `table.html`, `metrics.json`, and in `plots/` a picture of each data set and `costs.csv`.

    Args:
        metrics: of each data set of which a cell is finished, by its name; see `metrics.summarize`.
        cells: all of them.
        out: the folder.
    """
    from jinja2 import Environment, StrictUndefined

    made = list(tables(suite, metrics, cells))
    files.write_json(out / "metrics.json", {"datasets": metrics, "cells": [asdict(cell) for cell in cells]})
    files.write_text(out / "table.md", "\n".join(table.markdown() for table in made))
    files.write_csv(out / "plots" / "costs.csv", [row for m in metrics.values() for row in _costs(m, suite.columns[0])])
    pictures = {name: f"plots/{folder_name(name)}.png" for name in metrics}
    for name, picture in pictures.items():
        _plot(metrics[name], suite.columns[0], out / picture)
    # everything is escaped: a reason may quote what a server has said
    page = Environment(autoescape=True, undefined=StrictUndefined).from_string(PAGE.read_text(encoding="utf-8"))
    files.write_text(out / "table.html", page.render(name=out.name, tables=made, pictures=pictures))


def tables(suite: Suite, metrics: Mapping[str, dict[str, Any]], cells: Sequence[Cell]) -> Iterator[Table]:
    """The tables of a bench: all data sets in one score, then each by itself, then what is missing and why."""
    status = {(cell.dataset, cell.system): cell.status for cell in cells}
    score = suite.columns[0]

    def summary(dataset: str, system: str) -> Mapping[str, Any] | None:
        return metrics[dataset]["systems"][system] if status[dataset, system] == "finished" else None

    if len(suite.datasets) > 1:
        rows = []
        for system in suite.systems:
            found = {name: summary(name, system) for name in suite.datasets}
            rows.append([system, *(_whole(s, score) if s else status[name, system] for name, s in found.items())])
        yield Table(f"{_title(score)} on all data sets", ["system", *suite.datasets], rows)
    for dataset in suite.datasets:
        rows = []
        for system in suite.systems:
            if s := summary(dataset, system):
                own = [_whole(s, score), *(_shown(s, column) for column in suite.columns[1:])]
                rows.append([system, *own, *_difference(metrics[dataset]["paired"], system, suite.against, score)])
            else:
                rows.append([system, status[dataset, system], *[NOTHING] * (len(suite.columns) + 1)])
        head = ["system", *map(_title, suite.columns), f"{_title(score)} minus {suite.against}", "detectable"]
        yield Table(dataset, head, rows, _note(suite, metrics.get(dataset)))
    if missing := list(_missing(suite, cells)):
        yield Table("What is missing", ["system", "data set", "", "why"], missing)


def _missing(suite: Suite, cells: Sequence[Cell]) -> Iterator[list[str]]:
    """A row for each reason; of a data set that none was run on, for one and the same, a single row."""
    for dataset in suite.datasets:
        those = [cell for cell in cells if cell.dataset == dataset]
        if len(those) > 1 and len({(cell.status, cell.reason) for cell in those}) == 1:
            those = [replace(those[0], system="all")]
        yield from ([cell.system, dataset, cell.status, cell.reason] for cell in those if cell.reason)


def pareto(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Those of (cost, score) to which nobody else is preferred: who scores more costs more. The cheapest comes first.

    Of equal ones, the first.
    """
    front, best = list[str](), float("-inf")
    for name, (_, score) in sorted(points.items(), key=lambda point: (point[1][0], -point[1][1])):
        if score > best:
            front.append(name)
            best = score
    return front


def _note(suite: Suite, metrics: Mapping[str, Any] | None) -> str:
    if metrics is None:
        return "No system was run."
    cached = any(s in suite.columns for s in SECONDS) and any(map(_cached, metrics["systems"].values()))
    notes = [
        f"n = {metrics['n']}, seed {metrics['seed']}; 95% bootstrap intervals, those of differences over the same questions"
        f"{ran_on(metrics)}.",
        "Detectable: the smallest true difference that so many questions show four times out of five.",
        *(
            f"{name} answers with its own weights ({s.model}), not with the LLM."
            for name, s in suite.served.items()
            if name in metrics["systems"]
        ),
        *remarks(metrics),
        *([CACHED] if cached else []),
    ]
    return " ".join(filter(None, notes))


def _difference(paired: Mapping[str, Any], system: str, against: str, score: str) -> list[str]:
    """The difference to `against` and the smallest that could have been seen. A pair stands in the order of the systems."""
    if found := paired.get(f"{system} - {against}", {}).get(score):
        mean = found
    elif found := paired.get(f"{against} - {system}", {}).get(score):
        mean = {"mean": 0 - found["mean"], "low": 0 - found["high"], "high": 0 - found["low"]}  # not -0.0
    else:
        return [NOTHING, NOTHING]
    return [interval(mean, sign=True), f"{found['detectable']:.2f}" if "detectable" in found else NOTHING]


def _whole(summary: Mapping[str, Any], score: str) -> str:
    """The score, and of how many questions there is none."""
    lost = {"failed": summary["failed"], "unscored": unscored(summary).get(score, 0)}
    said = ", ".join(f"{count} {how}" for how, count in lost.items() if count)
    return _shown(summary, score) + (f" ({said})" if said else "")


def _shown(summary: Mapping[str, Any], column: str) -> str:
    if column not in summary:
        return NOTHING
    mark = " *" if column in SECONDS and _cached(summary) else ""
    return format(summary[column], FORMATS[column]) + mark if column in FORMATS else interval(summary[column])


def _title(column: str) -> str:
    return TITLES.get(column, column)


def _cached(summary: Mapping[str, Any]) -> bool:
    """Whether the cache has answered for the LLM. Then its seconds were not spent."""
    return bool(summary.get("llm_hits"))


def _plotted(metrics: Mapping[str, Any]) -> list[str]:
    """The costs by which all systems can be compared."""
    cached = any(map(_cached, metrics["systems"].values()))
    return [cost for cost in PLOTTED if not (cached and cost in SECONDS)]


def _points(metrics: Mapping[str, Any], score: str, cost: str) -> dict[str, tuple[float, float]]:
    return {name: (s[cost], s[score]["mean"]) for name, s in metrics["systems"].items() if score in s}


def _costs(metrics: Mapping[str, Any], score: str) -> Iterator[dict[str, Any]]:
    """What the pictures show, a row for each system."""
    fronts = {cost: pareto(_points(metrics, score, cost)) for cost in _plotted(metrics)}
    for name, s in metrics["systems"].items():
        if score in s:
            row = {"dataset": metrics["dataset"], "system": name, "score": score, **s[score]}
            for cost in PLOTTED:
                row |= {cost: s[cost], f"best_for_{cost}": name in fronts[cost] if cost in fronts else ""}
            yield row


def _plot(metrics: Mapping[str, Any], score: str, path: Path) -> None:
    """The score against each cost; a line joins those that are worth their cost (the Pareto front)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    costs = _plotted(metrics)
    size = (6 * len(costs), 5)
    figure, panels = plt.subplots(1, len(costs), figsize=size, layout="constrained", sharey=True, squeeze=False)
    for axes, cost in zip(panels[0], costs, strict=True):
        points = _points(metrics, score, cost)
        front = pareto(points)
        for name, (x, y) in points.items():
            s = metrics["systems"][name][score]
            bars = [[max(0.0, y - s["low"])], [max(0.0, s["high"] - y)]]
            best = name in front
            axes.errorbar([x], [y], yerr=bars, fmt="o", capsize=3, alpha=1 if best else 0.4)
            weight = "bold" if best else "normal"
            axes.annotate(name, (x, y), xytext=(5, 4), textcoords="offset points", fontsize=8, weight=weight)
        if front:
            xs, ys = zip(*(points[name] for name in front), strict=True)
            axes.plot(xs, ys, "--", color="gray", zorder=0, label="Pareto front")
            axes.legend(frameon=False)
        axes.set(xlabel=f"{cost} per question", ylabel=_title(score), ylim=(0, None), xlim=(0, None))
    figure.suptitle(f"{metrics['dataset']}, n = {metrics['n']}")
    save(figure, path)

"""A comparison as people read it: a Markdown table, and pictures of decisions and of costs."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dragoman.core import files
from dragoman.core.tables import table_lines
from dragoman.core.text import printable
from dragoman.systems.base import StopReason

COLUMNS = (
    ("cover_em", "cover-EM"),
    ("em", "EM"),
    ("f1", "F1"),
    ("judge", "judge"),
    ("recall", "recall"),
)
CACHED = "*: some answers of the LLM came from its cache, so the seconds are no measure."
ALIKE = 60
"""Characters that are shown of an answer to most questions."""


def markdown(metrics: dict[str, Any]) -> str:
    """The comparison as Markdown: a row for each system, then the paired differences."""
    systems = metrics["systems"]
    shown = [(key, title) for key, title in COLUMNS if any(key in s for s in systems.values())]
    head = ["system", *(title for _, title in shown), "calls", "tokens", "s/question", "failed"]
    of = f"{metrics['runs']} runs pooled, the first of seed" if "runs" in metrics else "seed"
    rows = []
    for name, s in systems.items():
        cells = [interval(s[key]) if key in s else "–" for key, _ in shown]
        seconds = f"{s['seconds']:.2f}{' *' if s.get('llm_hits') else ''}"
        cells += [f"{s['calls']:.1f}", f"{s['tokens']:.0f}", seconds, str(s["failed"])]
        rows.append([name, *cells])
    lines = [
        f"{metrics['dataset']}, n = {metrics['n']}, {of} {metrics['seed']}; 95% bootstrap intervals{ran_on(metrics)}",
        "",
        *table_lines(head, rows),
    ]
    for note in (*remarks(metrics), *([CACHED] if any(s.get("llm_hits") for s in systems.values()) else [])):
        lines += ["", note]
    if fewer := metrics.get("of_fewer"):
        lines += ["", f"Not in all runs: {', '.join(f'{name} ({count})' for name, count in fewer.items())}."]
    if metrics["paired"]:
        lines += ["", *_differences(metrics["paired"])]
    if "sequential" in metrics:
        lines += ["", verdict(metrics["sequential"])]
    lines += _more_scores(metrics)
    return "\n".join(lines) + "\n"


def write_report(metrics: dict[str, Any], out: Path) -> None:
    """Write `metrics.json`, `table.md`, and in `plots/` the data (CSV, for `dvc plots`) and the pictures (PNG)."""
    files.write_json(out / "metrics.json", metrics)
    files.write_text(out / "table.md", markdown(metrics))
    write_plots([metrics], out / "plots")


def write_joint_report(
    by_dataset: dict[str, dict[str, Any]],
    out: Path,
    *,
    sources: dict[str, dict[str, Any]] | None = None,
    served: str | None = None,
) -> None:
    """The same for several datasets: their metrics by name, and one table after the other.

    Args:
        sources: figures of stage `seeds` for each source of training questions. Several make one more table.
        served: what command `drift` last said of served traffic, as Markdown.
    """
    files.write_json(out / "metrics.json", by_dataset)
    tables = [markdown(m) for m in by_dataset.values()]
    if sources and len(sources) > 1:
        tables.append(_sources_table(sources))
    if served is not None:
        tables.append(f"Served traffic, {served}")
    files.write_text(out / "table.md", "\n".join(tables))
    write_plots(list(by_dataset.values()), out / "plots")


def write_plots(all_metrics: Sequence[dict[str, Any]], folder: Path) -> None:
    """Write the shares of first decisions and of depths as CSV, and the pictures of each dataset."""
    for name, column in (("strategies", "strategy"), ("depths", "depth")):
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["dataset", "system", column, "share"])
        for metrics in all_metrics:
            for system, s in metrics["systems"].items():
                total = sum(s[name].values())
                shares = [[key, round(count / total, 4)] for key, count in s[name].items()]
                writer.writerows([metrics["dataset"], system, *share] for share in shares)
        files.write_text(folder / f"{name}.csv", text.getvalue())
    for metrics in all_metrics:
        _write_pictures(metrics, folder / metrics["dataset"] if len(all_metrics) > 1 else folder)


def ran_on(metrics: Mapping[str, Any]) -> str:
    """The end of a line: the names of LLM, proxy and index, of those that are known."""
    titles = {"llm": "LLM", "proxy": "proxy", "index": "index"}
    known = metrics.get("backends", {})
    named = ", ".join(f"{title} {known[part]}" for part, title in titles.items() if part in known)
    return f"; {named}" if named else ""


def _same(answer: str) -> str:
    text = printable(" ".join(answer.split())).replace("`", "'")
    return f"read alike: `{text[:ALIKE]}`" if text else "are empty"


def remarks(metrics: Mapping[str, Any]) -> list[str]:
    """What a reader has to know of some systems, a sentence each: nothing where there is nothing to say of any.

    Args:
        metrics: of one data set; see `metrics.summarize`.
    """
    systems, n = metrics["systems"], metrics["n"]
    own = [name for name, s in systems.items() if s.get("answered_by") == "proxy"]
    fewer = [f"{name} ({s['n']})" for name, s in systems.items() if s.get("n", n) < n]
    unread = {name: s.get("stops", {}).get(StopReason.UNREADABLE_REPLY, 0) for name, s in systems.items()}
    plain = [f"{name} ({count})" for name, count in unread.items() if count]
    bare = {name: ", ".join(f"{score} {count}" for score, count in unscored(s).items()) for name, s in systems.items()}
    unmeasured = [f"{name} ({counts})" for name, counts in bare.items() if counts]
    said = {
        f"The LLM was not asked: the proxy, or the oracle in its place, answers in {', '.join(own)}.": own,
        f"Of fewer questions: {', '.join(fewer)}.": fewer,
        "Questions in which the LLM did not write what the method asks of it, so that it went on without: "
        f"{', '.join(plain)}.": plain,
        f"Answers without a score, which no mean counts: {', '.join(unmeasured)}.": unmeasured,
    }
    alike = [
        f"{name}: of {same['of']} answers {same['count']} {_same(same['answer'])}."
        for name, same in metrics.get("alike", {}).items()
    ]
    return [sentence for sentence, named in said.items() if named] + alike


def unscored(summary: Mapping[str, Any]) -> dict[str, int]:
    """How many answers of a system lack a score that was asked for, by the score: a judge failed, or said neither."""
    counts = {"judge": summary.get("unjudged", 0) - summary["failed"], **summary.get("unscored", {})}
    return {score: count for score, count in counts.items() if count > 0}


def verdict(sequential: Mapping[str, Any]) -> str:
    """What looking again and again at one difference came to; see `evaluation.sequential`."""
    s = sequential
    asked = f"look {s['look']} of {s['looks']}, {s['n']} of {s['of']} questions"
    if "mean" not in s:
        return f"{s['pair']} in {s['score']}: no question has a score of both ({asked})."
    end = "clear of zero" if s["clear"] else "not clear of zero"
    return (
        f"{s['pair']} in {s['score']}: {interval(s, sign=True)} at {s['level']:.1%}, {end} ({asked}). "
        "This interval is corrected for the looks, those above are not."
    )


def _differences(paired: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The table of paired differences, and what its words mean. Where answers were judged, the judge comes first."""
    judged = any("judge" in differences for differences in paired.values())
    mains = ["judge", "cover_em"] if judged else ["cover_em"]
    titles = dict(COLUMNS)
    head = ["difference, same questions"]
    for score in mains:
        head += [titles[score], "detectable"]
    rows = []
    for pair, differences in paired.items():
        cells = []
        for score in mains:
            d = differences.get(score)
            cells += (
                [interval(d, sign=True), f"{d['detectable']:.2f}" if "detectable" in d else "–"] if d else ["–", "–"]
            )
        others = [interval(differences[s], sign=True) if s in differences else "–" for s in ("em", "f1")]
        if any(score in differences for score in mains):
            rows.append([pair, *cells, *others])
    of = " and ".join(titles[score] for score in mains)
    note = f"*detectable*: the smallest true difference of {of} that so many questions show four times out of five."
    return [*table_lines([*head, "EM", "F1"], rows), "", note]


def _more_scores(metrics: dict[str, Any]) -> list[str]:
    """A table of the scores that were asked for beside the usual ones, and of their paired differences; else nothing."""
    scores = metrics.get("scores", [])
    rows = [(name, s, False) for name, s in metrics["systems"].items()]
    rows += [(pair, differences, True) for pair, differences in metrics["paired"].items()]
    shown = [(name, s, sign) for name, s, sign in rows if any(score in s for score in scores)]
    if not shown:
        return []
    cells = ([name, *(_scored(s[score], sign) if score in s else "–" for score in scores)] for name, s, sign in shown)
    return ["", *table_lines(["", *scores], cells)]


def _scored(value: Mapping[str, float], difference: bool) -> str:
    """A score; of a difference also the smallest that so many questions would show."""
    smallest = f", detectable {value['detectable']:.2f}" if difference and "detectable" in value else ""
    return interval(value, sign=difference) + smallest


def _sources_table(sources: dict[str, dict[str, Any]]) -> str:
    rows = []
    for name, s in sources.items():
        reward = "–" if s["reward"] is None else f"{s['reward']:.2f}"
        rows.append([name, str(s["questions"]), reward, str(s["actions"])])
    return "\n".join(table_lines(["seed questions", "trees", "mean reward", "actions kept"], rows)) + "\n"


def interval(value: Mapping[str, float], *, sign: bool = False) -> str:
    """A mean with its interval, as tables have it."""
    form = "{:+.2f} [{:+.2f}, {:+.2f}]" if sign else "{:.2f} [{:.2f}, {:.2f}]"
    return form.format(value["mean"], value["low"], value["high"])


def _write_pictures(metrics: dict[str, Any], folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    acting = {name: s for name, s in metrics["systems"].items() if s["strategies"]}
    for name, title in (("strategies", "first decision"), ("depths", "decisions per question")):
        if not acting:
            continue
        figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
        keys = sorted({k for s in acting.values() for k in s[name]}, key=lambda k: (len(k), k))
        width = 0.8 / len(acting)
        for i, (system, s) in enumerate(acting.items()):
            total = sum(s[name].values())
            axes.bar(
                [j + i * width for j in range(len(keys))],
                [s[name].get(k, 0) / total for k in keys],
                width,
                label=system,
            )
        axes.set_xticks([j + 0.4 - width / 2 for j in range(len(keys))], keys)
        axes.set(xlabel=title, ylabel="share of questions", ylim=(0, 1))
        axes.legend(frameon=False)
        save(figure, folder / f"{name}.png")
    scored = {name: s for name, s in metrics["systems"].items() if "cover_em" in s and not s.get("llm_hits")}
    if not scored:
        return
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    for system, s in scored.items():
        score = s["cover_em"]
        bars = [[max(0.0, score["mean"] - score["low"])], [max(0.0, score["high"] - score["mean"])]]
        axes.errorbar([s["seconds"]], [score["mean"]], yerr=bars, fmt="o", capsize=3, label=system)
    axes.set(xlabel="seconds per question", ylabel="cover-EM", ylim=(0, None), xlim=(0, None))
    axes.legend(frameon=False)
    save(figure, folder / "accuracy_against_seconds.png")


def save(figure: Any, path: Path) -> None:
    """Write a figure of matplotlib, and free it."""
    from matplotlib import pyplot as plt

    figure.savefig(path, dpi=120)
    plt.close(figure)

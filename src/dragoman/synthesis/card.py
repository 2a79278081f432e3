"""The card of a synthetic set: what was wanted, what came of it, what was refused and why, and examples, on one page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dragoman.core import files
from dragoman.core.stats import chi_square
from dragoman.synthesis.difficulty import LABELS
from dragoman.synthesis.plan import Plan
from dragoman.synthesis.synthesize import Filled

CARD = "card.html"
PAGE = Path(__file__).with_name(CARD)
EXAMPLES = 12
Z = 1.96  # of a 95% interval


def card(
    filled: Filled, plan: Plan, *, settings: dict[str, Any], source: str, seconds: float, ambiguous: int = 0
) -> dict[str, Any]:
    """What the page shows, as data.

    Args:
        ambiguous: facts that were left out, as `unambiguous` counts them.
    """
    rows = [row for questions in filled.questions.values() for row in questions]
    candidates = filled.kept + len(filled.rejected)
    return {
        "source": source,
        "settings": settings,
        "seconds": round(seconds, 1),
        "kept": {split: len(questions) for split, questions in filled.questions.items()},
        "open": filled.open,
        "candidates": candidates,
        "acceptance": filled.kept / candidates if candidates else 0.0,
        "writers": dict(Counter(row["writer"] for row in rows)),
        "rejected": filled.reasons,
        "ambiguous": ambiguous,
        "categories": _categories(rows, plan),
        "difficulty": _difficulty(rows),
        "examples": rows[:: max(1, len(rows) // EXAMPLES)][:EXAMPLES],
    }


def _categories(rows: Sequence[dict[str, Any]], plan: Plan) -> list[dict[str, Any]]:
    """Each categorization with the shares that were planned and found, and how probable so uneven a draw is."""
    found = []
    for name, categories in plan.categorizations.items():
        counts = Counter(row["categories"][name] for row in rows if name in row["categories"])
        n = counts.total()
        if not n:
            continue
        planned = {category: c.probability for category, c in categories.items()}
        entries = []
        for category, p in planned.items():
            half = Z * (p * (1 - p) / n) ** 0.5
            share = counts[category] / n
            within = p - half <= share <= p + half
            entries.append(
                {"name": category, "planned": p, "found": share, "count": counts[category], "within": within}
            )
        p_value = chi_square(counts, {category: p for category, p in planned.items() if p})
        found.append({"name": name, "n": n, "p": p_value, "categories": entries})
    return found


def _difficulty(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Labels and mean success of each way of answering, of all questions and of those about one document."""
    rated = [row for row in rows if "difficulty" in row]
    if not rated:
        return {}
    counts = Counter(row["difficulty"]["label"] for row in rated)
    groups = {
        "all questions": rated,
        "about one document": [r for r in rated if r["categories"].get("number_of_documents") == "single-doc"],
    }
    ways = ("direct", "standard", "gold")
    means = {
        name: {way: sum(row["difficulty"][way] for row in group) / len(group) for way in ways} | {"n": len(group)}
        for name, group in groups.items()
        if group
    }
    return {"labels": {name: counts[name] for name in LABELS}, "success": means}


def write_card(values: dict[str, Any], out: Path) -> None:
    """Write `card.html`, to read, and `metrics.json`, to compare."""
    from jinja2 import Environment, StrictUndefined

    # everything is escaped: questions and passages are data
    page = Environment(autoescape=True, undefined=StrictUndefined).from_string(PAGE.read_text(encoding="utf-8"))
    files.write_text(out / CARD, page.render(values))
    figures = {"backend": values["settings"]["backend"]}
    figures |= {
        name: values[name] for name in ("kept", "open", "candidates", "acceptance", "writers", "rejected", "ambiguous")
    }
    success = values["difficulty"].get("success", {})
    p_values = {entry["name"]: entry["p"] for entry in values["categories"]}
    files.write_json(out / "metrics.json", figures | {"categories_p": p_values, "difficulty": success})

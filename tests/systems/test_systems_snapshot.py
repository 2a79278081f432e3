"""What each role is shown and may say does not change by accident: recorded runs and trained policies depend on it.

A system is run with a policy that follows its oracles. What every role and every request to the LLM comes to is hashed.
After a change that is meant, write the file anew: `python tests/systems/test_systems_snapshot.py`. Where roles are shown other
things by the same settings and prompts, raise `views` of the system first, so that policies of before are refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from dragoman.config import load_params
from dragoman.core.types import Passage, Question
from dragoman.systems import build
from dragoman.systems.base import Gold
from dragoman.systems.mujica.slots import Search
from dragoman.systems.options import rendered

HERE = Path(__file__).parent
SNAPSHOT = HERE / "snapshot.json"
PASSAGES = [
    Passage(
        "tarn", "Tarn Bridge", "The Tarn Bridge was opened in 1871; Edith Marlowe drew it. It is of iron, by St. John."
    ),
    Passage("osse", "Osse Viaduct", "The Osse Viaduct was opened in 1902. Its {question} is [old]."),
    Passage("all", "All", "All bridges of the Osse are of stone."),
    Passage("untitled", "", "Perth is where Edith Marlowe was born " + "and lived " * 60),
    Passage("perth", "Perth", "Perth lies on the Tay. Its bridge was opened in 1771."),
]
QUESTION = Question(
    "q",
    "Where was the designer of the Tarn Bridge, and not of the Osse Viaduct, born?",
    ("Perth",),
    supporting_ids=("tarn", "untitled"),
    triples=(("Tarn Bridge", "designer", "Edith Marlowe"), ("Edith Marlowe", "born in", "Perth")),
)
VARIANTS = {
    "c3po": [
        *({"queries": queries, "shots": 2} for queries in ("span", "phrase", "names")),
        {"queries": "names", "select": "titles", "filter_words": 5},
        {"thoughts": True, "strategy": "Plan", "query_chars": 20},
        {"queries": "names", "prompts": "brief", "shots": 1},
    ],
    "maps": [
        {"queries": "span", "answers": "agent", "shots": 1},
        {"answers": "agent", "query_words": 3, "max_documents": 6},
        {"rounds": "fixed", "queries": "span"},
        {"extension": "pages"},
    ],
    "mrag": [
        {"answers": "guided", "information_chars": 40, "reason_chars": 20},
        {"agents": "single"},
        {"agents": "single", "decide": "marks", "max_reads": 1},
        {"k": 1, "max_items": 2, "line_chars": 30, "validator": False},
    ],
    "mujica": [
        {"queries": "span", "answers": "planner", "shots": 1},
        {"queries": "span", "environment": "graph", "candidates": "gold"},
        {"queries": "span", "environment": "graph", "thoughts": True, "answers": "planner"},
        {"split": False, "queries": "span", "max_iterations": 1, "answers": "planner"},
        {"max_questions": 1, "thoughts": True},
        {"queries": "span", "context": "dialogue", "answers": "planner", "memory": True, "shots": 1},
    ],
}
PROFILES = ("smoke", "cpu", "gpu", "paper")
CASES = [(name, profile) for name in ("direct", "standard", *VARIANTS) for profile in PROFILES]
CASES += [(name, variant) for name, variants in VARIANTS.items() for variant in variants]


class FollowsOracles:
    """A context in which every role does what its oracle says, and the first decision is the `first`-th kind of action."""

    def __init__(self, first: int | None) -> None:
        self.first, self.seen = first, defaultdict[str, list[Any]](list)

    async def act(self, role: Any, *, history: Any = (), **state: Any) -> Any:
        grammar = role.grammar(**state)
        kinds = [_allowed(kind) for kind in grammar.alternatives()]
        told = await role.oracle(
            Gold(frozenset(QUESTION.supporting_ids), self.find, ("Perth",), QUESTION.triples), **state
        )
        shown = [role.messages(state, history), _allowed(grammar), kinds, role.max_tokens, role.stop, repr(told)]
        listed = [rendered(role.options(**state))] if role.options else []
        self.seen[role.name].append([*shown, *listed])
        first, self.first = self.first, None
        if first is not None:
            kind = grammar.alternatives()[first % len(kinds)].cls
            values = {"query": "Tarn Bridge", "questions": ("Tarn Bridge", "Osse Viaduct"), "answer": "Perth"}
            values["searches"] = (Search("Who drew it?", "Tarn Bridge"), Search("Where is it?", "Osse Viaduct"))
            action = kind(**{f.name: values[f.name] for f in fields(kind) if f.name in values})
        else:
            action = told[0]
        return replace(action, thought="It is the next step.") if hasattr(action, "thought") else action

    async def ask(self, ask: Any, *, history: Any = (), **state: Any) -> str:
        self.seen[f"ask {ask.name}"].append([ask.messages(state, history), ask.max_tokens, ask.stop])
        return "1. find the designer"

    async def retrieve(self, query: str, *, k: int, page: int = 0) -> list[Passage]:
        self.seen["search"].append([query, k, page])
        spoken = set(query.lower().split())
        ranked = sorted(PASSAGES, key=lambda p: (-len(spoken & set(f"{p.title} {p.text}".lower().split())), p.id))
        return ranked[page * min(k, 3) : (page + 1) * min(k, 3)]

    async def find(self, query: str, k: int) -> list[str]:
        return [p.id for p in await self.retrieve(query, k=k)]

    async def parallel(self, branches: Mapping[str, Callable[[Any], Awaitable[Any]]]) -> dict[str, Any]:
        return {name: await branch(self) for name, branch in branches.items()}


def _allowed(grammar: Any) -> str | None:
    constraint = grammar.constraint()
    return constraint.regex or constraint.json_schema


def fingerprints(name: str, case: str | dict[str, Any]) -> dict[str, str]:
    """One hash for each role, request to the LLM and search, over runs that begin with each kind of action."""
    settings = case
    if isinstance(case, str):
        settings = load_params(HERE.parents[1] / "params.yaml", profile=case).system_settings(name)
    system, seen = build(name, settings), defaultdict[str, list[Any]](list)
    for first in (None, *range(4 if system.roles else 0)):
        ctx = FollowsOracles(first)
        outcome = asyncio.run(system.run(QUESTION, ctx))
        for what, shown in {
            **ctx.seen,
            "outcome": [outcome.answer, outcome.stop, [p.id for p in outcome.passages]],
        }.items():
            seen[what].append(shown)
    return {what: hashlib.sha256(json.dumps(seen[what]).encode()).hexdigest()[:10] for what in sorted(seen)}


def key(name: str, case: str | dict[str, Any]) -> str:
    return f"{name} {case if isinstance(case, str) else json.dumps(case)}"


@pytest.mark.parametrize(("name", "case"), CASES, ids=lambda value: json.dumps(value))
def test_prompts_and_grammars_of_a_system_are_those_of_the_snapshot(name, case):
    assert fingerprints(name, case) == json.loads(SNAPSHOT.read_text())[key(name, case)]


def test_the_snapshot_has_the_views_that_systems_count():
    assert json.loads(SNAPSHOT.read_text())["views"] == counted()


def counted() -> dict[str, int]:
    return {name: build(name).views for name in VARIANTS}


if __name__ == "__main__":
    table = {key(name, case): fingerprints(name, case) for name, case in CASES}
    rows = [f"{json.dumps(case)}: {json.dumps(hashes)}" for case, hashes in table.items()]
    before, views = json.loads(SNAPSHOT.read_text()), counted()
    rows.insert(0, f'"views": {json.dumps(views)}')
    changed = {case.split()[0] for case in table if table[case] != before.get(case, table[case])}
    SNAPSHOT.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    if same := [name for name in views if name in changed and views[name] == before["views"][name]]:
        sys.exit(
            f"changed: {', '.join(same)}; raise `views` where policies are shown other things by the same settings"
        )

"""Packages import downwards only, and nothing goes in circles."""

from __future__ import annotations

import ast
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
LEVELS = (
    ("__main__",),
    ("cli",),
    ("pipeline",),
    ("config",),
    ("serving", "quality"),
    ("evaluation", "synthesis", "training"),
    ("runtime",),
    ("registry",),
    ("tracking",),
    ("rollout",),
    ("rewards",),
    ("systems",),
    ("engines", "retrieval"),
    ("published",),
    ("corpus",),
    ("core",),
)
"""From the top down. A package imports from those below it alone, and not from its neighbours in a row."""
LEVEL = {package: level for level, row in enumerate(LEVELS) for package in row}


def modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in SOURCE.rglob("*.py")
    }


def imports(name: str, path: Path, known: set[str]) -> set[str]:
    """The project's modules that a module imports anywhere in its code, except for type checking alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & known
            found |= inner or {node.module}
    return (found & known) - {name}


GRAPH = {name: imports(name, path, set(modules())) for name, path in modules().items()}


def package(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_every_package_has_a_level():
    assert {package(name) for name in GRAPH} - {""} == set(LEVEL)


@pytest.mark.parametrize("name", sorted(GRAPH))
def test_a_module_imports_from_packages_below_its_own(name):
    upward = {
        other
        for other in GRAPH[name]
        if package(other) and package(other) != package(name) and LEVEL[package(other)] <= LEVEL.get(package(name), -1)
    }
    assert not upward


def test_no_files_import_each_other_in_a_circle():
    circle: list[str] = []
    try:
        TopologicalSorter(GRAPH).prepare()
    except CycleError as error:
        circle = error.args[1]
    assert circle == []


def test_nothing_below_the_flows_imports_prefect_and_only_tracking_imports_mlflow():
    users = defaultdict(set)
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for imported in names:
                users[imported.split(".")[0]].add(name)
    assert not users["prefect"]
    assert {package(name) for name in users["mlflow"]} == {"tracking"}

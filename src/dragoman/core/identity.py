"""What a result depends on, as one hash: the code that made it, and values such as settings and fingerprints.

The code behind a result is the import closure of the module that made it: the module, what it imports, what those import,
and so on, with the prompts and data files beside them. It is read from the source; nothing is run for it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Collection, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dragoman.core.hashing import sha256_of

PROJECT = __name__.partition(".")[0]
SETTINGS = frozenset({"settings.py", "config.py", "profiles.yaml"})
"""Not part of a closure: the values of settings that a result depends on are hashed themselves."""
DISCOVERY = frozenset({"import_module", "iter_modules"})
"""A module that calls one of these imports what its source does not name: it counts with the whole of its package."""


def content_hash(**parts: Any) -> str:
    """Hash of named values that JSON can hold, in whatever order they are given."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:20]


@cache
def code_hash(*modules: str, stop: Collection[str] = ()) -> str:
    """Hash of the import closures of these modules, as they were when this process asked first."""
    files = {path for module in modules for path in import_closure(module, stop)}
    return content_hash(files=sorted([path.name, sha256_of([path])] for path in files))[:12]


def import_closure(module: str, stop: Collection[str] = ()) -> list[Path]:
    """The files behind a module: its source, that of all it imports, and the data files of their packages.

    Imports are followed anywhere in the code, except for type checking alone, into dragoman and into the module's own top
    package. The `__init__` of a package counts where the package itself is imported.

    Args:
        module: its dotted name, in dragoman or in any other package that can be imported.
        stop: modules and packages to leave out, with all that is below them.

    Returns:
        Absolute paths, sorted; none when the module has no source file.
    """
    packages = {PROJECT, module.partition(".")[0]}
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in found or name.partition(".")[0] not in packages:
            continue
        if any(name == other or name.startswith(f"{other}.") for other in stop):
            continue
        path = _source(name)
        if path is not None and path.name not in SETTINGS:
            found[name] = path
            waiting += _imports(name, path, packages)
    data = {file for folder in {path.parent for path in found.values()} for file in _data(folder)}
    return sorted({*found.values(), *data})


def _source(module: str) -> Path | None:
    """The file of a module, without importing it."""
    top, *below = module.split(".")
    loaded = sys.modules.get(top)
    file = getattr(loaded, "__file__", None) if loaded else getattr(find_spec(top), "origin", None)
    if file is None or not file.endswith(".py"):
        return None
    path = Path(file).resolve()
    if below:
        inside = path.parent.joinpath(*below)
        candidates = (inside.with_name(f"{inside.name}.py"), inside / "__init__.py")
        path = next((candidate for candidate in candidates if candidate.is_file()), Path())
    return path if path.is_file() else None


def _imports(name: str, path: Path, packages: Collection[str]) -> Iterator[str]:
    """The modules that the source of module `name` imports; of top packages other than `packages`, perhaps too few."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join(filter(None, (*above, node.module)))
            inside = [f"{origin}.{alias.name}" for alias in node.names]
            ours = origin.partition(".")[0] in packages
            yield from {other if ours and _source(other) else origin for other in inside}
        elif isinstance(node, ast.Name | ast.Attribute):
            called = node.id if isinstance(node, ast.Name) else node.attr
            if called in DISCOVERY:
                yield from _below(package, path.parent)


def _below(package: str, folder: Path) -> Iterator[str]:
    """All modules of a package and of the packages in it."""
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).with_suffix("").parts
        yield ".".join((package, *parts)).removesuffix(".__init__")


def _data(folder: Path) -> Iterator[Path]:
    """The files of a package that are not Python: its prompts and tables. Pages to look at (HTML) change no result."""
    if not (folder / "__init__.py").is_file():
        return
    waiting = [folder]
    while waiting:
        for path in waiting.pop().iterdir():
            if path.is_dir() and path.name != "__pycache__" and not any(path.glob("*.py")):
                waiting.append(path)
            elif path.is_file() and path.suffix not in (".py", ".html") and path.name not in SETTINGS:
                yield path

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
from typing import Any, NamedTuple

from dragoman.core.hashing import sha256_of

PROJECT = __name__.partition(".")[0]
SETTINGS = frozenset({"settings.py", "config.py", "profiles.yaml"})
"""Not part of a closure: the values of settings that a result depends on are hashed themselves."""
FINGERPRINTED = ("dragoman.engines", "dragoman.retrieval")
"""To leave out where a result names what these serve by fingerprints."""
DISCOVERY = frozenset({"import_module", "iter_modules"})
"""A module that calls one of these imports what its source does not name: it counts with the whole of its package."""


def content_hash(**parts: Any) -> str:
    """Hash of named values that JSON can hold, in whatever order they are given."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:20]


class Code(NamedTuple):
    """A module, as `import_closure` reads it."""

    path: Path
    imports: frozenset[str]
    """Names of modules, and others that no module has."""
    data: tuple[Path, ...]
    """The prompts and tables beside it."""


@cache
def code_hash(*modules: str, stop: Collection[str] = ()) -> str:
    """Hash of the import closures of these modules, as they were when this process asked first."""
    files = {path for module in modules for path in import_closure(module, stop)}
    return content_hash(files=sorted([path.name, sha256_of([path])] for path in files))[:12]


def import_closure(module: str, stop: Collection[str] = (), known: dict[str, Code | None] | None = None) -> list[Path]:
    """The files behind a module: its source, that of all it imports, and the data files of their packages.

    Imports are followed anywhere in the code, except for type checking alone, into dragoman and into the module's own top
    package. The `__init__` of a package counts where the package itself is imported.

    Args:
        module: its dotted name, in dragoman or in any other package that can be imported.
        stop: modules and packages to leave out, with all that is below them.
        known: what earlier calls have read, to which this one adds, for many modules of one top package.

    Returns:
        Absolute paths, sorted; none when the module has no source file.
    """
    packages = frozenset({PROJECT, module.partition(".")[0]})
    known = {} if known is None else known
    found: dict[str, Code] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in found or name.partition(".")[0] not in packages:
            continue
        if any(name == other or name.startswith(f"{other}.") for other in stop):
            continue
        if name not in known:
            known[name] = _read(name, packages)
        if code := known[name]:
            found[name] = code
            waiting += code.imports
    return sorted({path for code in found.values() for path in (code.path, *code.data)})


def _read(name: str, packages: frozenset[str]) -> Code | None:
    """What is to be known of a module. None where it has no source, or nothing but settings."""
    path = _source(name)
    if path is None or path.name in SETTINGS:
        return None
    source = path.read_text(encoding="utf-8")
    return Code(path, _imports(name, path, source, packages), tuple(_data(path, source)))


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


@cache
def _imports(name: str, path: Path, source: str, packages: frozenset[str]) -> frozenset[str]:
    """What the source of module `name` imports from these top packages, and other names that no module of them has."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    try:
        tree = ast.parse(source)
    except SyntaxError:  # whoever needs it is to say so
        return frozenset()
    found: set[str] = set()
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join(filter(None, (*above, node.module)))
            inside = [f"{origin}.{alias.name}" for alias in node.names]
            ours = origin.partition(".")[0] in packages
            found.update(other if ours and _source(other) else origin for other in inside)
    if any(called in source for called in DISCOVERY):
        for node in ast.walk(tree):
            if isinstance(node, ast.Name | ast.Attribute):
                called = node.id if isinstance(node, ast.Name) else node.attr
                if called in DISCOVERY:
                    found.update(_below(package, path.parent))
    return frozenset(found)


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """All statements, without what is for type checking alone, which is cut out. Expressions, most of a tree, hold no imports."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            node.body = []
        if isinstance(node, ast.stmt):
            yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += getattr(node, field, ())


def _below(package: str, folder: Path) -> Iterator[str]:
    """All modules of a package and of the packages in it."""
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).with_suffix("").parts
        yield ".".join((package, *parts)).removesuffix(".__init__")


def _data(module: Path, source: str) -> Iterator[Path]:
    """The prompts and tables of a module: the files beside it that its source names, and all in folders without Python."""
    folder = module.parent
    if not (folder / "__init__.py").is_file():
        return
    yield from (path for path in folder.iterdir() if path.is_file() and _counts(path) and path.name in source)
    for inner in folder.iterdir():
        if inner.is_dir() and inner.name != "__pycache__" and not any(inner.rglob("*.py")):
            yield from (path for path in inner.rglob("*") if path.is_file() and _counts(path))


def _counts(path: Path) -> bool:
    """Whether a file that is no module can change a result. A page to look at cannot."""
    return path.suffix not in (".py", ".html") and path.name not in SETTINGS

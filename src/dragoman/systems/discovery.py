"""Finds the systems: the folders here, the files of `baselines/`, and the entry points of other distributions.

Finding imports nothing. A package is imported when its system is asked for, so that one that is broken harms no other.
"""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from dragoman.core.errors import UserError

GROUP = "dragoman.systems"
"""The group of entry points. The name of one is that of its system, its value a package that exports `SYSTEM`."""
HERE = Path(__file__).parent
BASELINES = "baselines"
"""The folder here in which each file is a system, with `-` in its name for `_`."""
SHARED = {"grammar", BASELINES}
"""The folders here that are no systems."""


def system_names() -> tuple[str, ...]:
    """The names of all systems, in alphabetical order."""
    return tuple(sorted({*_modules(), *(entry.name for entry in _installed())}))


def baseline_names() -> tuple[str, ...]:
    """The names of those that are files of `baselines/`."""
    return tuple(name for name, module in sorted(_modules().items()) if module.startswith(f"{BASELINES}."))


def import_system(name: str) -> ModuleType:
    """The package of the system called `name`, or the module of a baseline.

    Raises:
        UserError: there is none, there are several, or it fails to import.
    """
    entry = _entry(name)
    module = entry.module if entry else f"{__package__}.{_modules()[name]}"
    try:
        return import_module(module)
    except Exception as e:  # the code is somebody else's
        origin = f" of {_distribution(entry)}" if entry else ""
        raise UserError(f"system {name!r}: {module}{origin} fails to import: {type(e).__name__}: {e}") from e


def system_folder(name: str) -> Path | None:
    """The folder of a system's package, without an import; None where it is not found or not a folder. Baselines share one.

    Raises:
        UserError: there is no such system, or there are several.
    """
    entry = _entry(name)
    if entry is None:
        return HERE / _modules()[name].partition(".")[0]
    try:
        spec = find_spec(entry.module)
    except ImportError:  # `import_system` is to report it
        return None
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def _modules() -> Mapping[str, str]:
    """The module of each system here, below this package, by the system's name."""
    return _modules_in(HERE)


@cache
def _modules_in(package: Path) -> Mapping[str, str]:
    """Those of one folder, which is read once: settings ask for each system, each time that they are checked."""
    folders = {module.name for module in pkgutil.iter_modules([str(package)]) if module.ispkg} - SHARED
    files = {module.name for module in pkgutil.iter_modules([str(package / BASELINES)])}
    return {name: name for name in folders} | {name.replace("_", "-"): f"{BASELINES}.{name}" for name in files}


def _installed() -> tuple[EntryPoint, ...]:
    """The entry points of other distributions."""
    folders = (path for path in (p or "." for p in sys.path) if os.path.exists(path))  # noqa: PTH110  # asked for often
    return _entries(tuple((path, os.stat(path).st_mtime_ns) for path in folders))  # noqa: PTH116


@lru_cache(maxsize=1)
def _entries(folders: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    """Those below folders of some age. A search reads a file of every distribution."""
    return tuple(entry_points(group=GROUP))


def _entry(name: str) -> EntryPoint | None:
    """The entry point of a system, or None where it is a folder here.

    Raises:
        UserError: there is no such system, or there are several.
    """
    entries = [entry for entry in _installed() if entry.name == name]
    origins = [*(["dragoman"] if name in _modules() else []), *map(_distribution, entries)]
    if len(origins) > 1:
        raise UserError(f"two systems are called {name!r}, of {' and '.join(origins)}: uninstall or rename one")
    if not origins:
        near = get_close_matches(name, system_names(), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UserError(f"unknown system {name!r}: choose from {', '.join(system_names())}{hint}")
    return entries[0] if entries else None


def _distribution(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value

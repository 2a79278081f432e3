"""The ways to find passages, a module each, named as `index.method` names it. A new file here is a new method.

A module holds `Settings` (a frozen section with every knob of the method), `build` and `open_index`. It imports what is
heavy (torch, FAISS, numpy, Java) inside its functions, since its settings are read with every `params.yaml`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, Protocol, cast

from dragoman.core.errors import UserError
from dragoman.core.settings import Section
from dragoman.core.types import Passage
from dragoman.retrieval.base import Retriever

if TYPE_CHECKING:
    from dragoman.retrieval.manifest import Manifest

Progress = Callable[[int, int], None]
"""Called with (passages embedded, passages in all)."""


class Method(Protocol):
    Settings: type[Section]

    def build(
        self, passages: Iterable[Passage], folder: Path, settings: Any, progress: Progress | None = None
    ) -> Manifest:
        """Index the passages in `folder`, replacing an index that is there.

        Raises:
            UserError: the corpus is empty or has a bad passage, or `folder` holds something that is not an index.
        """
        ...

    def open_index(self, folder: Path, settings: Any) -> Retriever:
        """The retriever of a folder that `build` wrote. Of the settings only those of the machine count here.

        Raises:
            UserError: the folder is not a whole index of this method, or what the method needs is not installed.
        """
        ...


@cache
def names() -> tuple[str, ...]:
    return tuple(sorted(module.name for module in iter_modules(__path__)))


def load(name: str) -> Method:
    """The method of that name.

    Raises:
        UserError: there is none.
    """
    if name not in names():
        raise UserError(f"{name!r} is not a retrieval method: choose one of {', '.join(names())}")
    return cast(Method, import_module(f"{__name__}.{name}"))

"""Which published data sets there are: addresses, checksums and licences, out of `catalogue.yaml`."""

from __future__ import annotations

from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from dragoman.core.errors import UserError
from dragoman.core.settings import Section, near, parse_section, read_yaml
from dragoman.corpus.names import Split


class Remote(Section):
    """A file where it is published. What is None is not known for certain."""

    url: str
    file: str = ""
    """Its name on disk; by default the last part of the URL's path."""
    member: str = ""
    """The file in it, for a zip."""
    split: Split | None = None
    """Whose questions it holds; None where it says so itself, or holds passages."""
    format: str
    """In the catalogue, that of its variant where it says no other."""
    bytes: int | None = None
    sha256: str | None = None
    md5: str | None = None
    """For those of whom no SHA-256 is published."""

    @property
    def name(self) -> str:
        return self.file or PurePosixPath(urlsplit(self.url).path).name

    @property
    def checksum(self) -> tuple[str, str] | None:
        """Algorithm (as `hashlib` names it) and digest in hexadecimal; None where none is known."""
        if self.sha256:
            return "sha256", self.sha256
        return ("md5", self.md5) if self.md5 else None


class Variant(Section):
    """One way to ask the questions of a data set: over a few paragraphs each, over all of Wikipedia, or without passages."""

    format: str
    about: str
    files: tuple[Remote, ...]
    questions: dict[Split, int] = Field(default_factory=dict)
    """How many are published, by the project's splits, before any are held out; empty where that was not verified."""
    passages: int | None = None
    """The same for a corpus that is published as a whole."""
    hold_out: int = Field(0, ge=0)
    """So many questions of `train` become `dev`, for a set that has no third split with answers."""

    @model_validator(mode="before")
    @classmethod
    def _files_have_its_format(cls, values: dict[str, Any]) -> dict[str, Any]:
        return values | {"files": [{"format": values["format"]} | file for file in values["files"]]}

    @property
    def downloads(self) -> tuple[Remote, ...]:
        """What is fetched, each file once, however many of its members are read."""
        return tuple({remote.name: remote for remote in self.files}.values())

    @property
    def size(self) -> str:
        """Of all downloads together, to read; with a + where some are not known."""
        sizes = [remote.bytes for remote in self.downloads]
        known = sum(size for size in sizes if size is not None)
        return f"{known / 1e6:,.0f} MB{'+' if None in sizes else ''}" if known else "?"


class DataSet(Section):
    title: str
    home: str
    licence: str | None
    """As the publisher names it; None where that was not verified."""
    good_for: str
    variants: dict[str, Variant]

    def variant(self, name: str | None) -> tuple[str, Variant]:
        """The variant of that name, or the first one.

        Raises:
            UserError: there is no such variant.
        """
        chosen = name or next(iter(self.variants))
        if chosen not in self.variants:
            raise UserError(f"{self.title} has no variant {chosen!r}; there are: {', '.join(self.variants)}")
        return chosen, self.variants[chosen]


@cache
def catalogue() -> dict[str, DataSet]:
    """The data sets by name."""
    path = Path(__file__).with_name("catalogue.yaml")
    return {name: parse_section(DataSet, values, origin=f"{path}: {name}") for name, values in read_yaml(path).items()}


def find(name: str) -> DataSet:
    """The data set of that name.

    Raises:
        UserError: it is not known.
    """
    known = catalogue()
    if name not in known:
        raise UserError(
            f"no data set {name!r}{near(name, known)}; there are: {', '.join(known)}. Files that you have are converted by "
            "`dragoman data import`"
        )
    return known[name]

"""Names on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path


def split_revision(name: str) -> tuple[str, str | None]:
    """`NAME@REVISION` -> name, revision: a commit, a tag or a branch. What is a folder here, or has no `@`, is a name alone.

    Of these only a commit cannot come to mean something else.
    """
    whole, at, revision = name.rpartition("@")
    return (whole, revision) if at and whole and revision and not Path(name).exists() else (name, None)

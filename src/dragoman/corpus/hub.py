"""Rows of a Hugging Face data set, from the hub or from a folder that `save_to_disk` wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dragoman.core.errors import UserError
from dragoman.core.hub import split_revision
from dragoman.core.rows import Row
from dragoman.corpus.fields import ID_KEYS, TEXT_KEYS, TITLE_KEYS


def hub_address(address: str) -> tuple[str, str | None, str | None]:
    """`hf:NAME[@REVISION][:CONFIG][:SPLIT]` -> name with its revision, config, split."""
    name, *rest = address.removeprefix("hf:").split(":")
    if not name or len(rest) > 2:
        raise UserError(f"{address}: expected hf:NAME, hf:NAME:CONFIG or hf:NAME:CONFIG:SPLIT")
    config, split = (*rest, "", "")[:2]
    return name, config or None, split or None


def place_of(source: str) -> Path:
    """Where a source of passages or questions lies if it is on this disk, as that of an hf: address may be, too.

    Raises:
        UserError: it begins with hf: and is no address of a data set.
    """
    return Path(hub_address(source)[0] if source.startswith("hf:") else source)


def dataset_rows(address: str, name: str, config: str | None, split: str | None) -> Iterator[tuple[int, Row]]:
    """The rows of one split, numbered from 0, under the keys `id`, `title` and `text`."""
    import datasets
    from datasets.exceptions import DatasetsError

    whole, revision = split_revision(name)
    try:
        if Path(name).is_dir():
            loaded = datasets.load_from_disk(name)
        else:
            loaded = datasets.load_dataset(whole, config, revision=revision)
    except (
        OSError,
        ValueError,
        RuntimeError,
        DatasetsError,
    ) as e:  # no such name or config, no network, broken, a script
        raise UserError(f"{address}: this data set could not be loaded ({e})") from e
    data = _split_of(address, loaded, split) if isinstance(loaded, datasets.DatasetDict) else loaded
    columns = {
        key: next((c for c in names if c in data.column_names), None)
        for key, names in (("id", ID_KEYS), ("title", TITLE_KEYS), ("text", TEXT_KEYS))
    }
    if columns["text"] is None:
        raise UserError(f"{address}: no text column; found {data.column_names}, expected one of {list(TEXT_KEYS)}")
    # the others are not read: an image that is damaged, or a sound that no installed package reads, is no fault of its text
    for number, record in enumerate(data.select_columns([column for column in columns.values() if column is not None])):
        row = {key: record[column] for key, column in columns.items() if column is not None}
        if columns["id"] is None or (isinstance(row["id"], int) and not isinstance(row["id"], bool)):
            row["id"] = str(row.get("id", number))  # columns of whole numbers are common as ids
        yield number, row


def _split_of(address: str, splits: Any, wanted: str | None) -> Any:
    """The split asked for; else the only one, or the one that holds a corpus by its name."""
    names = list(splits)
    usual = [name for name in ("corpus", "passages", "train") if name in names]
    choice = wanted or (names[0] if len(names) == 1 else usual[0] if usual else None)
    if choice not in names:
        asked = f"no split {choice!r}" if choice else "several splits"
        raise UserError(f"{address}: {asked}; choose one of {names} as hf:NAME:CONFIG:SPLIT (CONFIG may be empty)")
    return splits[choice]

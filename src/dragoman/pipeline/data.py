"""Published data sets in a project: fetched to `data/downloads/`, converted to `data/sets/`, and from there into the pipeline.

It is no stage: DVC runs what `params.yaml` says, and `data get` prints what is to stand there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.core.errors import UserError
from dragoman.core.files import only_writer
from dragoman.core.hashing import sha256_of
from dragoman.core.http import url_fault
from dragoman.corpus.names import CORPUS, SPLITS, TRIPLES, Split
from dragoman.published import beir
from dragoman.published.catalogue import DataSet, Remote, Variant, catalogue, find
from dragoman.published.convert import Part, convert, written
from dragoman.published.download import Download, Unreachable, fetch
from dragoman.published.formats import NAMES
from dragoman.published.source import Source

DOWNLOADS = Path("data", "downloads")
SETS = Path("data", "sets")
FORM = 2
"""Counts changes of what the same files are converted to; an older folder is then converted anew."""


@dataclass(frozen=True)
class Converted:
    """A data set in the project's form."""

    folder: Path
    manifest: Mapping[str, Any]
    unverified: tuple[str, ...] = ()
    """The downloads of which no checksum is published."""

    @property
    def source(self) -> Path | None:
        """What is searched: its passages, or its triples; None for open-domain questions."""
        files = (self.folder / name for name in (CORPUS, TRIPLES))
        return next((file for file in files if file.is_file()), None)

    @property
    def counts(self) -> str:
        """What is in it, and what was left out, in a sentence."""
        questions = ", ".join(f"{n:,} {split}" for split, n in self.manifest["questions"].items())
        left_out = "".join(f"; {n:,} {what}" for what, n in self.manifest["left_out"].items())
        return f"{self.manifest['passages']:,} passages; questions: {questions}" + (
            f"\nleft out{left_out[1:]}" if left_out else ""
        )

    def settings(self, name: str) -> str:
        """The lines of params.yaml that make the pipeline use it; a corpus of yours stands there if it has none."""
        splits = [split for split in SPLITS if split in self.manifest["questions"]]
        source = self.source or "path/to/corpus.jsonl    # yours: this set has none"
        lines = [f"datasets: [{name}]", f"oracles: []    # [{name}] where its questions name their passages"]
        lines += ["corpus:", f"  {name}:", f"    source: {source}"]
        lines += [f"    {split}: {self.folder / f'{split}.jsonl'}" for split in splits]
        if "train" in splits and self.source:
            lines.append(f"train: {{dataset: {name}}}")
        return "\n".join(lines)


def get(
    root: Path,
    name: str,
    variant: str | None = None,
    *,
    questions: int | None = None,
    mirror: str = "",
    wait: float = 1.0,
) -> Converted:
    """Have a data set of the catalogue in the project: fetch what is not there, check all of it, and convert it.

    Args:
        questions: at most so many of each split; see `convert`.
        mirror: the URL of a folder with `NAME/FILE` for each file, instead of where the files are published.
        wait: seconds before a server is asked again, doubled each time.

    Raises:
        UserError: no such data set or variant; the network refuses; a file is not what it should be; or another process is at it.
    """
    if mirror and (fault := url_fault(mirror)):
        raise UserError(f"--mirror: {fault}")
    if questions is not None and questions < 1:
        raise UserError(f"--questions must be at least 1, found {questions}")
    data_set = find(name)
    label, chosen = data_set.variant(variant)
    folder = root / DOWNLOADS / name
    again = f"dragoman data get {name} --variant {label}" + (f" --questions {questions}" if questions else "")
    with only_writer(folder):
        downloads = {
            remote.name: _fetched(
                remote, folder, f"{mirror.rstrip('/')}/{name}/{remote.name}" if mirror else None, wait, missing
            )
            for remote, missing in _to_fetch(chosen, folder, again)
        }
    parts = [Part(file.format, Source(downloads[file.name].path, file.member), file.split) for file in chosen.files]
    made_of = {
        "dataset": name,
        "variant": label,
        "files": {file: download.sha256 for file, download in downloads.items()},
        "questions": questions,
        "form": FORM,
    }
    out = root / SETS / ("-".join([name, label, *([str(questions)] if questions else [])]))
    manifest = convert(parts, out, made_of=made_of, hold_out=chosen.hold_out, most=questions)
    return Converted(out, manifest, tuple(file for file, download in downloads.items() if not download.known))


def _to_fetch(variant: Variant, folder: Path, command: str) -> Iterator[tuple[Remote, str]]:
    """The files of a variant, each with what a person can do where the network does not give it."""
    for remote in variant.downloads:
        missing = [other for other in variant.downloads if not (folder / other.name).is_file()]
        listed = "".join(f"\n  {other.url}\n    -> {folder / other.name}{_known(other)}" for other in missing)
        yield (
            remote,
            f"Fetch what is missing where there is a network, and put it there under these names:{listed}\n"
            f"then go on with: {command}\n"
            f"or take all of it from a mirror, a URL with NAME/FILE below it: {command} --mirror http://HOST/PATH",
        )


def _known(remote: Remote) -> str:
    checksum = f"{remote.checksum[0].upper()} {remote.checksum[1]}" if remote.checksum else "no checksum known"
    return f" ({remote.bytes:,} bytes, {checksum})" if remote.bytes else f" ({checksum})"


def _fetched(remote: Remote, folder: Path, url: str | None, wait: float, missing: str) -> Download:
    try:
        return fetch(remote, folder, url=url, first_wait=wait)
    except Unreachable as e:
        raise UserError(f"{url or remote.url}: {e}. {missing}") from None


def import_files(root: Path, inputs: Sequence[str], form: str, out: Path | None = None) -> Converted:
    """Convert files that are here.

    Args:
        inputs: each a path, or SPLIT=PATH. Without a split, it is read off the file's name (train, dev or valid, test).
        form: the format, one of `NAMES`.
        out: the folder; by default `data/sets/` with the name of the first file.

    Raises:
        UserError: see `convert`; or a file's split is not to be told.
    """
    if form not in NAMES:
        raise UserError(f"no format {form!r}; there are: {', '.join(NAMES)}")
    parts = [_part(text, form) for text in inputs]
    hashes = {str(part.source.path): sha256_of(_files(part.source.path)) for part in parts}
    made_of = {"format": form, "files": hashes, "splits": [part.split for part in parts], "form": FORM}
    first = parts[0].source.path
    folder = out or root / SETS / (first.name if first.is_dir() else first.name.partition(".")[0])
    if out is None and (before := written(folder)) and _named(before["made_of"]) != _named(made_of):
        raise UserError(f"{folder}: has what was imported from other files; name another folder with --out")
    return Converted(folder, convert(parts, folder, made_of=made_of))


def _named(made_of: Mapping[str, Any]) -> tuple[str | None, list[str]]:
    """The format and the files of an import, whatever they hold."""
    return made_of.get("format"), [*made_of.get("files", ())]


_SPLIT = re.compile(r"(?<![a-z])(train|dev|valid|test)(?:ation|ing|set)?(?![a-z])")
"""What a file's name says of its split: `latest.json` and `device.json` say nothing."""


def _part(text: str, form: str) -> Part:
    said, equals, rest = text.partition("=")
    given: Split | None = next((split for split in SPLITS if equals and split == said), None)
    path = Path(rest if given else text)
    if not path.exists():
        raise UserError(f"{path}: no such file or folder")
    if form == beir.NAME:
        if given:
            raise UserError(f"{text}: a BEIR folder names its splits itself; give {path} alone")
        return Part(form, Source(path))
    if path.is_dir() or path.suffix == ".zip":
        raise UserError(f"{path}: the format {form} is a file; name it" + (", unpacked" if path.is_file() else ""))
    named = {{"valid": "dev"}.get(split, split) for split in _SPLIT.findall(path.name.casefold())}
    told = next((split for split in SPLITS if named == {split}), None)
    return Part(form, Source(path), given or told)


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def table() -> list[tuple[str, ...]]:
    """The catalogue, a row a variant under a header: name, download, questions, passages, licence, what it is good for."""
    rows: list[tuple[str, ...]] = [("name", "download", "questions", "passages", "licence", "good for")]
    for name, data_set in catalogue().items():
        rows += [_row(name, label, data_set, variant) for label, variant in data_set.variants.items()]
    return rows


def _row(name: str, label: str, data_set: DataSet, variant: Variant) -> tuple[str, ...]:
    asked = ", ".join(f"{n:,} {split}" for split, n in variant.questions.items())
    passages = {"distractor": "with the questions", "questions": "none"}.get(label, "?")
    return (
        f"{name} {label}",
        variant.size,
        asked or "?",
        f"{variant.passages:,}" if variant.passages else passages,
        data_set.licence or "?",
        data_set.good_for,
    )

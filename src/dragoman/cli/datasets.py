"""Commands about published data sets: `dragoman data ...`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.command import Interrupted, app
from dragoman.pipeline import data
from dragoman.published.beir import export as export_beir
from dragoman.published.catalogue import find
from dragoman.published.formats import NAMES

commands = typer.Typer(
    help="Published data sets: which there are, fetching them, converting their formats.", no_args_is_help=True
)
app.add_typer(commands, name="data")


@commands.command("list")
def show() -> None:
    """Show the data sets that `data get` knows. What is not certain about one is marked with ?.

    Example: dragoman data list
    """
    rows = data.table()
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(map(str.ljust, row, widths)).rstrip())
    print(
        "\n?: not verified; look at the home page, which `data get NAME` names. MB+: and files whose size is not known"
    )


@commands.command()
def get(
    name: Annotated[str | None, typer.Argument(help="A data set; without one, they are listed.")] = None,
    variant: Annotated[
        str | None, typer.Option(help="distractor, fullwiki, ...: see `data list`; the first by default.")
    ] = None,
    questions: Annotated[
        int | None,
        typer.Option(help="Take at most so many of each split, and only the passages that come with them."),
    ] = None,
    mirror: Annotated[str, typer.Option(help="A URL below which NAME/FILE lies, for each file.")] = "",
) -> None:
    """Fetch a data set, check it, convert it, and say what to put into params.yaml.

    A half download is gone on with. Files that you put into data/downloads/NAME/ are taken from there.

    Example: dragoman data get hotpotqa --questions 1000
    Example: dragoman data get nq --variant fullwiki
    """
    if name is None:
        show()
        return
    data_set = find(name)
    label, chosen = data_set.variant(variant)
    print(f"{data_set.title}, {data_set.home}; licence: {data_set.licence or 'not verified, see there'}")
    print(f"{label}: {chosen.about}")
    with _interruptible():
        made = data.get(Path(), name, variant, questions=questions, mirror=mirror)
    if made.unverified:
        print(f"no checksum is published of {', '.join(made.unverified)}: a later file that differs will be refused")
    _tell(made, name)


@commands.command("import")
def import_(
    files: Annotated[list[str], typer.Argument(help="FILE or SPLIT=FILE; a BEIR folder or zip.", metavar="FILE...")],
    form: Annotated[str, typer.Option("--format", help=", ".join(NAMES))],
    out: Annotated[Path | None, typer.Option(help="The folder to write; data/sets/FILE by default.")] = None,
) -> None:
    """Convert files in a published format to corpus.jsonl and a question file for each split.

    Example: dragoman data import hotpot_train_v1.1.json hotpot_dev_distractor_v1.json --format hotpotqa --out data/sets/hotpot
    Example: dragoman data import test=questions.json --format squad
    Example: dragoman data import scifact.zip --format beir
    """
    with _interruptible():
        made = data.import_files(Path(), files, form, out)
    _tell(made, made.folder.name)


@commands.command()
def export(
    folder: Annotated[Path, typer.Argument(help="A folder with corpus.jsonl and train.jsonl, dev.jsonl, test.jsonl.")],
    out: Annotated[Path, typer.Option(help="The BEIR folder to write.")],
) -> None:
    """Write a corpus and its questions as a BEIR folder, which other tools read. `data import` gives the same again.

    Example: dragoman data export data/atlas --out atlas-beir
    """
    with _interruptible():
        counts = export_beir(folder, out)
    print(f"{out}: " + ", ".join(f"{n:,} {what}" for what, n in counts.items()))


def _tell(made: data.Converted, name: str) -> None:
    print(f"{made.folder}: {made.counts}")
    if made.source:
        print(f"\nTo use it, change these keys of params.yaml, and leave the others:\n\n{made.settings(name)}")
    else:
        print(
            "\nIt has no passages: open-domain questions only. Put them to a corpus of your own, in params.yaml or by\n"
            f"  dragoman evaluate --corpus CORPUS --questions {made.folder}/{next(reversed(made.manifest['questions']))}.jsonl"
            f"\n\n{made.settings(name)}"
        )


@contextmanager
def _interruptible() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted from None

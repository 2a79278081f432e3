"""Makes a command out of a function of a project and a stage's options.

A command has three kinds of flags: those of its stage's `Options`; aliases, each of which sets a parameter; and `--set`,
which sets any parameter.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer
import yaml
from annotated_types import Ge
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from typing_extensions import Doc

from dragoman.core.errors import UserError
from dragoman.core.text import printable
from dragoman.pipeline.project import PARAMS, Project

app = typer.Typer(
    help="Train a small proxy between a retriever and a language model, and see what it gains.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

C = TypeVar("C", bound=Callable[..., Awaitable[None]])

PARAMS_FILE = Annotated[
    Path,
    typer.Option(
        "--params", help="The settings file. What it names, data/ and results/ are looked for in the current folder."
    ),
]
SET = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Any setting of params.yaml: rl.iterations=2, c3po.max_depth=9. Repeatable."
    ),
]
TRACK = Annotated[bool, typer.Option(help="Record the run in MLflow (mlruns/).")]


class Interrupted(Exception):
    """Ctrl-C. Of its own kind, because typer would turn a KeyboardInterrupt into the word "Aborted"."""


@dataclass(frozen=True)
class Alias:
    """A flag that sets a parameter: `--iterations 2` is `--set rl.iterations=2`."""

    flag: str
    key: str
    help: str
    type: type = str
    several: bool = False
    """Its value is a list, separated by commas."""
    also: Mapping[str, Any] = field(default_factory=dict)
    """What it sets besides."""

    @property
    def name(self) -> str:
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def parameter(self) -> Parameter:
        option = typer.Option(self.flag, help=f"{self.help} ({self.key})")
        return _parameter(self.name, Annotated[self.type | None, option], None)

    def changes(self, value: Any) -> dict[str, Any]:
        return {**self.also, self.key: value.split(",") if self.several else value}


SEED = Alias("--seed", "seed", "Seed of all that is drawn.", int)
SYSTEM = Alias("--system", "train.system", "A system.")
ALLOW_MISMATCH = Alias(
    "--allow-mismatch", "allow_mismatch", "Take a policy that was trained with other settings or prompts.", bool
)
LLM = (
    Alias(
        "--llm-url",
        "llm.urls",
        "An OpenAI-compatible server as frozen LLM.",
        several=True,
        also={"llm.engine": "openai"},
    ),
    Alias("--llm-model", "llm.model", "The model's name at that server."),
    Alias(
        "--llm-revision", "llm.revision", "Your name for what runs there, where the server's `/models` does not tell."
    ),
)


def command(
    *aliases: Alias, name: str | None = None, arguments: Sequence[str] = (), track: bool = False, anywhere: bool = False
) -> Callable[[C], C]:
    """Make `async def function(project, options)` a command; the type of `options` says which flags it has.

    Args:
        aliases: flags that set parameters.
        name: of the command; the function's by default.
        arguments: options that are given by their place, although they have a default.
        track: whether the command can record its run.
        anywhere: whether it also works without a params.yaml, with the default settings.

    A function may do without `options`. Further parameters of it are flags as they are.
    """

    def decorate(function: C) -> C:
        hints = get_type_hints(function, include_extras=True)
        stage = hints.get("options")
        own = [p for p in signature(function).parameters if p not in ("project", "options")]

        def call(**given: Any) -> None:
            changes, origin = _changes(aliases, given)
            file, tracked = given.pop("params"), given.pop("track", True)
            without = anywhere and file == PARAMS and not file.exists()
            if without:
                project = Project(track=tracked).changed(changes, origin=origin)
            else:
                project = Project.load(file, changes=changes, origin=origin, track=tracked)
            extra = {key: given.pop(key) for key in own}
            run(function(project, *([stage(**_values(stage, given))] if stage else []), **extra))

        flags = [
            *(list(_flags(stage, arguments)) if stage else []),
            *(_parameter(p, hints[p], signature(function).parameters[p].default) for p in own),
            *(alias.parameter for alias in aliases),
            *([_parameter("track", TRACK, True)] if track else []),
            _parameter("set", SET, None),
            _parameter("params", PARAMS_FILE, PARAMS),
        ]
        call.__name__, call.__doc__ = function.__name__, _with_examples_as_written(function.__doc__ or "")
        call.__signature__ = Signature(sorted(flags, key=lambda p: p.default is not Parameter.empty))  # type: ignore[attr-defined]
        app.command(name)(call)
        return function

    return decorate


def _with_examples_as_written(text: str) -> str:
    """A command's help text in which each example keeps its line. Click would make one paragraph of them."""
    return re.sub(r"\n\n( *)(?=Example:)", r"\n\n\1\b\n\1", text)


def run(coroutine: Awaitable[None]) -> None:
    """Run a command to its end.

    Raises:
        Interrupted: Ctrl-C.
    """

    async def main() -> None:
        await coroutine

    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        raise Interrupted from None


class PrintableFormatter(logging.Formatter):
    """Lines of the log that a terminal can show whatever they quote."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def say_error(error: object) -> None:
    """What went wrong, in a line that a terminal can show whatever it quotes: a file's name need not be text."""
    print(f"error: {printable(str(error))}", file=sys.stderr)


def parse_change(text: str) -> tuple[str, Any]:
    """`a.b=value` as a key and a value, which is read as in `params.yaml`; but a URL within brackets needs no quotes.

    Raises:
        UserError: it is not that.
    """
    key, equals, value = text.partition("=")
    try:
        if equals and key:
            try:
                return key, YAML(typ="safe").load(value)
            except YAMLError:
                return key, yaml.safe_load(value)
    except yaml.YAMLError:
        raise UserError(f"--set {text}: the value is not valid YAML") from None
    except ValueError as e:  # of a date that there is not
        raise UserError(f"--set {text}: {e}; a text that looks like a date stands in quotes") from None
    raise UserError(f"--set {text}: expected KEY=VALUE, for example rl.iterations=2")


def _changes(aliases: Sequence[Alias], given: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """What the flags of a command set, by dotted key, and those flags as they were given. They are taken out of `given`."""
    changes: dict[str, Any] = {}
    flags: list[str] = []
    for alias in aliases:
        if (value := given.pop(alias.name)) is not None:
            changes |= alias.changes(value)
            flags.append(f"{alias.flag} {value}")
    for text in given.pop("set") or []:
        key, value = parse_change(text)
        changes[key] = value
        flags.append(f"--set {text}")
    return changes, ", ".join(flags)


def _flags(stage: type, arguments: Sequence[str]) -> Iterator[Parameter]:
    """The flags of a stage's options. What has no default is an argument."""
    hints = get_type_hints(stage, include_extras=True)
    for option in fields(stage):
        kind, *notes = get_args(hints[option.name])
        text = next(note.documentation for note in notes if isinstance(note, Doc))
        least: Any = next((note.ge for note in notes if isinstance(note, Ge)), None)
        default, placed = _default(option), option.name in arguments or option.default is MISSING
        if get_origin(kind) is tuple:  # separated by commas, or by spaces where they are arguments
            (item, _), default = get_args(kind), None
            kind = (list[item] if placed else str) | None  # type: ignore[valid-type]
        folder = option.name == "out"  # every stage writes to a folder of its own
        about = typer.Argument(help=text) if placed else typer.Option(help=text, min=least, file_okay=not folder)
        yield _parameter(option.name, Annotated[kind, about], default)


def _default(option: Field[Any]) -> Any:
    return Parameter.empty if option.default is MISSING else option.default


def _parameter(name: str, annotation: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _values(stage: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a stage's options as their types want them."""
    hints = get_type_hints(stage)
    values = dict(given)
    for name, value in given.items():
        if get_origin(hints[name]) is tuple:
            item, _ = get_args(hints[name])
            values[name] = tuple(map(item, value.split(",") if isinstance(value, str) else value or ()))
    return values

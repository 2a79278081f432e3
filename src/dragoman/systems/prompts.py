"""Prompts are text files: sections `[system]` and `[user]`, with named slots in braces, filled in one pass.

A section `[assistant]` at the end is the beginning of the reply, which the model goes on with.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from dragoman.core.text import clip, content_words, count_words, sentences, stem, words
from dragoman.core.types import Passage

Messages = tuple[tuple[str, str], ...]  # (chat role, content) pairs

TITLE_WORDS = 40
"""Far more than any title has."""
_SLOT = re.compile(r"\{(\w+)\}")
_ORDERS = (["user"], ["system", "user"], ["user", "assistant"], ["system", "user", "assistant"])


class Quoting(str):
    """A text that quotes passages, and knows where. Whoever shows it to a model may still set them apart."""

    quoted: tuple[slice, ...] = ()

    def marked(self, mark: Callable[[str], str]) -> str:
        """The text with each quotation as `mark` makes it."""
        parts: list[str] = []
        end = 0
        for quotation in self.quoted:
            parts += [self[end : quotation.start], mark(self[quotation])]
            end = quotation.stop
        return "".join([*parts, self[end:]])


@dataclass(frozen=True)
class Prompt:
    """A chat prompt with slots.

    Example states with their outputs, for in-context learning, lie beside `NAME.txt` in `NAME.examples.json`: a list of
    objects with an `"output"` and a value for each slot; those that are left out are the state's own.
    """

    name: str
    system: str
    user: str
    examples: tuple[dict[str, Any], ...] = ()
    assistant: str = ""

    @classmethod
    def parse(cls, name: str, text: str, examples: Sequence[dict[str, Any]] = ()) -> Prompt:
        """The prompt that a file has as its text.

        Raises:
            ValueError: other sections, or in another order.
        """
        sections = re.split(r"^\[(system|user|assistant)\]\n", text, flags=re.M)
        if sections[0].strip() or sections[1::2] not in _ORDERS:
            raise ValueError("expected [user], perhaps with [system] before and [assistant] after")
        texts = dict(zip(sections[1::2], (s.strip() for s in sections[2::2]), strict=True))
        return cls(name, texts.get("system", ""), texts["user"], tuple(examples), texts.get("assistant", ""))

    @property
    def text(self) -> str:
        """The text of its file, without examples: `parse` reads it back."""
        sections = (("system", self.system), ("user", self.user), ("assistant", self.assistant))
        return "\n".join(f"[{name}]\n{text}" for name, text in sections if text or name == "user")

    @property
    def slots(self) -> frozenset[str]:
        return frozenset(_SLOT.findall(self.system + self.user + self.assistant))

    def messages(
        self, state: dict[str, Any], *, shots: int = 0, history: Messages = (), quotes: Collection[str] = ()
    ) -> Messages:
        """The chat messages for `state`: system, `shots` examples, earlier turns, the user's message, what the reply begins with.

        A message with a slot of `quotes` is `Quoting`, also where it comes back as an earlier turn.
        """
        turns: list[tuple[str, str]] = []
        if self.system:
            turns.append(("system", _fill(self.system, state, quotes)))
        for example in self.examples[:shots]:
            turns += [("user", _fill(self.user, state | example)), ("assistant", example["output"])]
        begun = _fill(self.assistant, state, quotes)
        return (*turns, *history, ("user", _fill(self.user, state, quotes)), *([("assistant", begun)] if begun else []))


@cache
def load(package: str, name: str) -> Prompt:
    """Read `prompts/NAME.txt` of a system's package."""
    folder = resources.files(package) / "prompts"
    examples = folder / f"{name}.examples.json"
    shots = json.loads(examples.read_text(encoding="utf-8")) if examples.is_file() else []
    try:
        return Prompt.parse(name, (folder / f"{name}.txt").read_text(encoding="utf-8"), shots)
    except ValueError as e:
        raise ValueError(f"{package}/prompts/{name}.txt: {e}") from None


def number(passages: Sequence[Passage], max_words: int) -> str:
    """Passages as a numbered list, each cut to `max_words` words; `(none)` when there are none."""
    return "\n".join(f"[{i}] {one_line(p, max_words)}" for i, p in enumerate(passages, start=1)) or "(none)"


def one_line(passage: Passage, max_words: int) -> str:
    """A passage on one line: its title, of at most `TITLE_WORDS` words, and so many words of its text (see `clip`)."""
    text = clip(passage.text, max_words)
    return f"{clip(passage.title, TITLE_WORDS)}: {text}" if passage.title else text


def focused(passage: Passage, max_words: int, question: str) -> str:
    """As `one_line`, but of the sentences that share most words with a question, in the order of the text.

    The words of the title do not count: each of its sentences is about those.
    """
    wanted = set(map(stem, content_words(question))) - set(map(stem, words(passage.title)))
    read = sentences(passage.text)
    shared = [len(wanted & set(map(stem, words(sentence)))) for sentence in read]
    shown, left = dict[int, str](), max_words
    for place in sorted(range(len(read)), key=lambda place: -shared[place]):
        if left > 0:
            shown[place] = clip(read[place], left)
            left -= count_words(read[place])
    return one_line(replace(passage, text=" ".join(shown[place] for place in sorted(shown))), max_words)


def _fill(template: str, state: dict[str, Any], quotes: Collection[str] = ()) -> str:
    # One pass: braces inside a passage or a question are data, and are not filled again.
    text = ""
    quoted: list[slice] = []
    for place, piece in enumerate(_SLOT.split(template)):  # text, slot, text, slot, ..., text
        value = piece
        if place % 2:
            if piece not in state:
                raise KeyError(f"the prompt has a slot {{{piece}}}, the state has {sorted(state)}")
            value = str(state[piece])
            if piece in quotes:
                quoted.append(slice(len(text), len(text) + len(value)))
        text += value
    if not quoted:
        return text
    quoting = Quoting(text)
    quoting.quoted = tuple(quoted)
    return quoting

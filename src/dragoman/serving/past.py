"""What each key has asked before: where its kept episodes lie, and how they are read again."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from dragoman.core.errors import UserError
from dragoman.rollout.feedback import aside
from dragoman.rollout.record import Episode
from dragoman.rollout.store import EPISODES
from dragoman.serving.episodes import KeptEpisode, kept_episodes, owner_of
from dragoman.serving.errors import ApiError
from dragoman.serving.gate import Gate
from dragoman.serving.past_steps import past_steps, phases, usage
from dragoman.serving.wire import COMPLETION, PastAnswer, PastQuestion, PastQuestions

log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_LISTED = 1000
"""The latest answers of a key, which it may see again."""
READERS, WAITING = 2, 16
"""How many read the disk at once, and how many may wait for that. Others are to come again: answers use the same threads."""
_NODES = b',"nodes":['
"""Behind the question and before all that is long. No text can hold it, since its quotes would be escaped there."""
_HEAD_BYTES = 16_384
_END = re.compile(rb'"started":([\d.e+-]+),"seconds":([\d.e+-]+)\}\n$')
_END_BYTES = 128


class PastEpisodes:
    """The kept answers of each key, newest first. Nothing but their places is held; what the disk has lost is gone.

    Only answers are shown: an episode that became none, or a shadow's, has a name behind its key, and nobody is told of it.

    Args:
        folder: of the episodes.

    Raises:
        UserError: a file cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / EPISODES
        self._lock = threading.Lock()  # a thread writes, and others ask
        self._of: defaultdict[str | None, OrderedDict[str, tuple[int, KeptEpisode]]] = defaultdict(OrderedDict)
        """By who asked, then by key: with the number of its file."""
        self._file = 0
        self._gate = Gate(READERS, WAITING, "looks at past questions")
        try:
            for part in (aside(self._path), self._path):
                if part.is_file() and part.stat().st_size:
                    self._begin_file()
                    for kept in kept_episodes(part):
                        self._add(kept)
        except OSError as e:
            raise UserError(f"serve.episodes: {self._path}: cannot read ({e.strerror})") from None

    def written(self, kept: KeptEpisode) -> None:
        """From now on, who asked can see this episode."""
        with self._lock:
            if kept.offset == 0:
                self._begin_file()
            self._add(kept)

    async def page(self, by: str | None, limit: int, after: str | None = None) -> PastQuestions:
        """The latest questions of a key, or those before the one called `after`.

        Raises:
            ApiError: 404, `by` has none of that name; 429, too many look.
        """
        with self._lock:
            places = list(reversed(self._of[by].values())) if by in self._of else []
        if after is not None:
            key = after.removeprefix(COMPLETION)
            start = next((i for i, (_, kept) in enumerate(places, start=1) if kept.key == key), None)
            if start is None:
                raise _not_found("after")
            places = places[start:]

        def read() -> list[PastQuestion]:
            found: list[PastQuestion] = []
            for _, kept in places:
                if len(found) > limit:
                    break
                if (one := self._read(kept, _question)) is not None:
                    found.append(one)
            return found

        async with self._gate.enter():
            found = await asyncio.to_thread(read)
        return PastQuestions(data=found[:limit], has_more=len(found) > limit)

    async def find(self, by: str | None, id: str) -> PastAnswer:
        """All of an answer that this key was given.

        Raises:
            ApiError: 404, it was given none of that name, or it is not kept any more; 429, too many look.
        """
        with self._lock:
            place = self._of[by].get(id.removeprefix(COMPLETION)) if by in self._of else None
        if place is None:
            raise _not_found("id")
        async with self._gate.enter():
            found = await asyncio.to_thread(self._read, place[1], _answer)
        if found is None:
            raise _not_found("id")
        return found

    def _add(self, kept: KeptEpisode) -> None:
        if "/" in kept.key:
            return
        places = self._of[kept.by]
        places[kept.key] = (self._file, kept)
        if len(places) > MOST_LISTED:
            places.popitem(last=False)

    def _begin_file(self) -> None:
        """A new file is begun, so the one before it is put aside, and the one that was there is no more."""
        self._file += 1
        for places in self._of.values():
            while places and next(iter(places.values()))[0] < self._file - 1:
                places.popitem(last=False)

    def _read(self, kept: KeptEpisode, parse: Callable[[_Line], T | None]) -> T | None:
        """What a kept line says. None where it is not there any more, or another one is: whose it is, the line itself must say."""
        for part in (self._path, aside(self._path)):  # it may be put aside at any moment, where it has the same place
            with suppress(OSError), part.open("rb") as file:
                line = _Line(file, kept)
                if owner_of(line.head(_HEAD_BYTES)) == (kept.key, kept.by):
                    return parse(line)
        return None


class _Line:
    """An episode's line in an open file."""

    def __init__(self, file: Any, kept: KeptEpisode) -> None:
        self._file, self._kept = file, kept

    def head(self, most_bytes: int) -> bytes:
        self._file.seek(self._kept.offset)
        return bytes(self._file.read(min(most_bytes, self._kept.length)))

    def end(self, most_bytes: int) -> bytes:
        most_bytes = min(most_bytes, self._kept.length)
        self._file.seek(self._kept.offset + self._kept.length - most_bytes)
        return bytes(self._file.read(most_bytes))

    @property
    def whole(self) -> bytes:
        return self.head(self._kept.length)


def _question(line: _Line) -> PastQuestion | None:
    """Read from both ends of the line alone: what lies between may be megabytes."""
    head, found = line.head(_HEAD_BYTES), _END.search(line.end(_END_BYTES))
    if _NODES not in head:
        head = line.whole
    cut = head.find(_NODES)
    try:
        row = json.loads(head[:cut] + b"}")
        return _as_question(row, *map(float, found.groups())) if found else None
    except (ValueError, KeyError, TypeError):
        return None


def _answer(line: _Line) -> PastAnswer | None:
    try:
        episode = Episode.model_validate_json(line.whole)
        (end,) = episode.trajectories
        row = episode.model_dump(include={"key", "question", "system", "config"})
        return PastAnswer(
            **vars(_as_question(row, episode.started, episode.seconds)),
            answer=end.answer or "",
            stop=str(end.stop),
            decisions=len(end.nodes),
            passages=end.passages,
            phases=phases(episode),
            usage=usage(episode),
            steps=past_steps(episode),
        )
    except (ValueError, KeyError):  # no text of it: that is private
        log.warning("a kept episode cannot be read by this version")
        return None


def _as_question(row: dict[str, Any], started: float, seconds: float) -> PastQuestion:
    return PastQuestion(
        id=f"{COMPLETION}{row['key']}",
        created=int(started),
        model=row["system"],
        policy=row["config"].get("policy"),
        question=row["question"]["question"],
        seconds=round(seconds, 4),
    )


def _not_found(param: str) -> ApiError:
    # alike for others' answers, unknown ones and those that are gone, so that nobody learns of others' answers
    return ApiError(404, "episode_not_found", "no such answer is kept for this key, or it is gone", param=param)

"""Feedback on answers: who may say what of which one, and where it is kept."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from dragoman.core.errors import RetrieverFault, UserError
from dragoman.retrieval.base import Retriever, missing, well_formed
from dragoman.rollout.feedback import FEEDBACK, Feedback, aside, read_feedback
from dragoman.rollout.store import EPISODES
from dragoman.serving.episodes import kept_episodes
from dragoman.serving.errors import ApiError
from dragoman.serving.guard import plain
from dragoman.serving.kept import KeptLines
from dragoman.serving.wire import COMPLETION, FeedbackRequest, Said

log = logging.getLogger(__name__)

MOST_KNOWN = 200_000
"""The latest answers, on which feedback is taken."""
LOOKUP_S = 10.0
"""How long the index may take to say whether it has the passages. It reads its ids once, when it is first asked."""


class FeedbackBook:
    """Takes feedback on the answers whose episodes are kept in a folder.

    Args:
        folder: of the episodes. Its owner holds its lock, and `close` is the owner's to call.
        most_bytes: as for `KeptLines`.
        show: told of feedback that is new.

    Raises:
        UserError: the file cannot be read or written.
    """

    def __init__(
        self, folder: Path, most_bytes: int, *, show: Callable[[Feedback], None] = lambda feedback: None
    ) -> None:
        self._show, self._lock = show, threading.Lock()
        self._askers: OrderedDict[str, str | None] = OrderedDict()  # who got the answer of this id
        self._kept: dict[str, str] = {}  # what has been said of it
        try:
            self._lines = KeptLines(folder / FEEDBACK, most_bytes)
        except OSError as e:
            raise UserError(f"serve.episodes: {folder / FEEDBACK}: cannot write ({e.strerror})") from None
        for part in (aside(folder / EPISODES), folder / EPISODES):
            for kept in kept_episodes(part):
                if "/" not in kept.key:  # else it was a shadow, or failed: nobody was given its answer
                    self.answered(kept.key, kept.by)
        said = read_feedback(folder)
        self._kept |= {key: feedback.said for key, feedback in said.items() if key in self._askers}

    def answered(self, key: str, by: str | None) -> None:
        """From now on, feedback on this answer is taken from who asked."""
        self._askers[key] = by
        self._askers.move_to_end(key)
        if len(self._askers) > MOST_KNOWN:
            oldest, _ = self._askers.popitem(last=False)
            self._kept.pop(oldest, None)

    async def take(self, given: FeedbackRequest, by: str | None, retriever: Retriever) -> Feedback:
        """Check what is given, and write it unless just that has been said of the answer before.

        Raises:
            ApiError: 400, it says nothing, or names a passage that the index lacks; 404, `by` got no such answer; 503, the index
                does not answer, or the disk is full.
        """
        key = given.id.removeprefix(COMPLETION)
        if key not in self._askers or self._askers[key] != by:  # alike, so that nobody learns of others' answers
            raise ApiError(404, "answer_not_found", "no such answer was given to this key, or long ago", param="id")
        feedback = Feedback(
            id=key,
            by=by,
            rating=given.rating,
            answer=_text(given.answer),
            passages=list(dict.fromkeys(given.passages)),
            comment=_text(given.comment),
            at=time.time(),
        )
        if not (feedback.rating or feedback.answer or feedback.passages or feedback.comment):
            raise ApiError(400, "empty_feedback", "give at least one of rating, answer, passages and comment")
        if feedback.passages:
            await _check(feedback.passages, retriever)
        try:
            await asyncio.to_thread(self._keep, feedback)
        except OSError as e:
            log.error("%s: cannot write (%s); feedback is refused until that is mended", self._lines.path, e.strerror)
            raise ApiError(503, "feedback_not_kept", "feedback cannot be kept now", retry_after=60) from None
        return feedback

    def said_of(self, key: str) -> Said | None:
        """What counts of all that was said of an answer; None where nothing was. Whose it is, the caller has checked."""
        said = self._kept.get(key)
        return Said(**json.loads(said)) if said else None

    def close(self) -> None:
        self._lines.close()

    def _keep(self, feedback: Feedback) -> None:
        with self._lock:
            if self._kept.get(feedback.id) == feedback.said:
                return
            self._lines.append(feedback.model_dump(mode="json"))
            self._kept[feedback.id] = feedback.said
            self._show(feedback)  # inside: what is said later of an answer is shown later


async def _check(passages: list[str], retriever: Retriever) -> None:
    try:
        async with asyncio.timeout(LOOKUP_S):
            absent = await missing(retriever, passages)
    except (RetrieverFault, TimeoutError):
        raise ApiError(503, "retriever_unavailable", "the search engine does not answer", retry_after=5) from None
    if absent:
        named = ", ".join(well_formed(id)[:100] for id in absent[:3])
        more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
        raise ApiError(400, "passage_not_found", f"the index has no passage {named}{more}", param="passages")


def _text(given: str | None) -> str | None:
    """As it may stand in a prompt: feedback is trained on."""
    return plain(well_formed(given or "")).strip() or None

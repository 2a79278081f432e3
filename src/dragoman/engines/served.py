"""Which model a server runs under a name. Names stay when models change, so an engine's fingerprint needs more than the name."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from dragoman.core.errors import EngineFault, UserError
from dragoman.core.http import PASSING_STATUS, WholeAnswers, hidden, key_in, retrying
from dragoman.engines.settings import EngineParams

_TELLING = ("root", "parent", "meta")
"""Fields of a model's card that follow what is loaded: paths (vLLM), counts and sizes (llama.cpp)."""
_STAMP_S = 5.0
"""vLLM, SGLang and llama.cpp give the time of their answer as the time at which the model was made."""
_SAID_OF_EVERY_MODEL = frozenset({1_677_610_602})
"""Times of making that a gateway gives every model alike, which tell none from another: LiteLLM's, as of an example of OpenAI's."""
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 10.0


class Served:
    """What the servers of these settings run, and whether they still do.

    Its identity is `settings.revision`, or a hash of what they all say of the model.

    Raises:
        EngineFault: a server does not answer.
        UserError: one does not say what it runs, or runs something else than the first one, or no header can hold the key.
    """

    def __init__(self, settings: EngineParams) -> None:
        self._settings = settings
        self._first: dict[str, Any] = {}
        if settings.revision:
            self.identity = settings.revision
            return
        said = self._ask(settings.urls)
        first = settings.urls[0]
        self._first = said[first]
        for url, other in said.items():
            if other != said[first]:
                raise UserError(
                    f"engine openai: {first} and {url} run different models as {settings.model!r} ({said[first]} and "
                    f"{other}); give URLs of equal servers, or set `revision` where they are"
                )
        self.identity = hashlib.sha256(repr([*said[first].items()]).encode()).hexdigest()[:16]

    def check(self, url: str) -> None:
        """Ask one of the servers again. It blocks. Where a revision names what they run, nothing is asked.

        Raises:
            EngineFault: it runs another model by now, or does not say.
        """
        if self._settings.revision:
            return
        try:
            now = self._ask([url])[url]
        except UserError as e:
            raise EngineFault(str(e)) from None
        then = self._first
        fields = {*then, *now} - (set() if "created" in then and "created" in now else {"created"})  # see `_is_stamp`
        if any(then.get(field) != now.get(field) for field in fields):
            raise EngineFault(
                f"{url} runs another model as {self._settings.model!r} than when it was opened ({then}, and now {now}), so "
                "its answers are not kept as those of the first; give the command again, or restart the endpoint"
            )

    def _ask(self, urls: Sequence[str]) -> dict[str, dict[str, Any]]:
        with ThreadPoolExecutor(max_workers=1) as thread:  # for this one may have a loop of its own
            return thread.submit(asyncio.run, self._all_said(urls)).result()

    async def _all_said(self, urls: Sequence[str]) -> dict[str, dict[str, Any]]:
        settings = self._settings
        key, seconds = key_in(settings.api_key_env), settings.connect_timeout_s
        transport = retrying(
            WholeAnswers(2 * seconds, 1),  # to connect and to answer
            retries=settings.retries,
            first_wait=_FIRST_WAIT_S,
            longest_wait=_LONGEST_WAIT_S,
        )
        async with httpx.AsyncClient(
            transport=transport, timeout=seconds, headers={"Authorization": f"Bearer {key}"} if key else {}
        ) as client:
            return {url: await _said(client, url, settings, key) for url in urls}


async def _said(client: httpx.AsyncClient, url: str, settings: EngineParams, key: str) -> dict[str, Any]:
    """What the card of a model says of what is loaded, by field.

    Args:
        key: which no message repeats.

    Raises:
        EngineFault: the server does not answer.
        UserError: it says nothing that would change with the model.
    """
    url, model = url.rstrip("/"), settings.model
    try:
        response = await client.get(f"{url}/models")
    except (httpx.TransportError, httpx.DecodingError) as e:
        problem = hidden(f"{type(e).__name__} {e}", key)
        raise EngineFault(f"{url}/models: {problem}; start the server, or check the URL") from None
    if response.status_code in PASSING_STATUS:
        raise EngineFault(f"{url}/models: HTTP {response.status_code}; wait until the server is up")
    try:
        cards = {card["id"]: card for card in response.raise_for_status().json()["data"]}
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as e:
        raise UserError(
            f"engine openai: {url}/models does not list what runs there ({hidden(str(e), key)}); check the URL, which ends "
            f"in /v1, and the key in {settings.api_key_env}, or set the engine's `revision` to a name for what it runs"
        ) from None
    if model not in cards:
        raise UserError(f"engine openai: {url} serves no {model!r}, but {', '.join(cards) or 'nothing'}; set `model`")
    card = cards[model]
    said = {field: card[field] for field in _TELLING if card.get(field) and card[field] != model}
    if card.get("created") and not _is_stamp(card, response.headers):
        said["created"] = card["created"]
    if not said:
        raise UserError(
            f"engine openai: {url} does not say which model it runs as {model!r}, so answers of another one could not "
            "be told apart; set the engine's `revision` to a name for it (`--llm-revision` for the LLM), and change that with the model"
        )
    return said


def _is_stamp(card: Mapping[str, Any], headers: Mapping[str, str]) -> bool:
    """Whether the server has put the time of its answer, or one for all models, where the model's belongs."""
    try:
        if card["created"] in _SAID_OF_EVERY_MODEL:
            return True
        answered = parsedate_to_datetime(headers["date"]).timestamp()
        return abs(answered - float(card["created"])) < _STAMP_S
    except (KeyError, ValueError, TypeError):
        return True  # nothing to compare it with: it shows nothing

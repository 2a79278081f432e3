"""What every request passes before a route sees it: size limit, API key or host, trace id; and the log."""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dragoman.core.keys import Keys
from dragoman.core.listening import bounded
from dragoman.serving.errors import ApiError
from dragoman.serving.hosts import host_of, is_own
from dragoman.serving.metrics import Metrics
from dragoman.serving.settings import ServeParams

log = logging.getLogger(__name__)

_KEYED = "/v1/"
"""Routes below this path need a key or, where there are no keys, a name of ours."""


class RequestMiddleware:
    """Limits requests, checks keys, gives trace ids, and logs: never a text, a key or a header.

    Args:
        names: by which the endpoint may be called where it has no keys, beside those of `hosts.is_own`.
    """

    def __init__(
        self, app: ASGIApp, *, metrics: Metrics, settings: ServeParams, keys: Keys | None, names: Collection[str]
    ) -> None:
        self.app, self.metrics, self.settings, self.keys, self.names = app, metrics, settings, keys, names
        self._under_way: Counter[str] = Counter()  # requests, by the name of their key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        trace_id = uuid.uuid4().hex
        scope.setdefault("state", {})["trace_id"] = trace_id
        started, status = time.monotonic(), 0  # a status of 0 is logged where the client had gone

        async def send_traced(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = trace_id
            await send(message)

        owner: str | None = None
        try:
            headers = Headers(scope=scope)
            owner = scope["state"]["owner"] = self._owner(scope["path"], headers)
            if int(headers.get("content-length", 0)) > self.settings.max_body_bytes:
                raise self._too_large()
            body = bounded(
                receive,
                most_bytes=self.settings.max_body_bytes,
                seconds=self.settings.body_s,
                too_large=self._too_large,
                too_slow=self._too_slow,
            )
            with self._place(owner):
                await self.app(scope, body, send_traced)
        except ApiError as refusal:
            self.metrics.errors.labels(refusal.code).inc()
            await refusal.response()(scope, receive, send_traced)
        except Exception:
            if status:  # what has begun cannot become another answer
                raise
            log.exception("%s: failed", trace_id)
            bug = ApiError(500, "internal_error", f"an error in the server; its log knows {trace_id}")
            self.metrics.errors.labels(bug.code).inc()
            await bug.response()(scope, receive, send_traced)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.responses.labels(route, str(status)).inc()
            if scope["path"].startswith(_KEYED):
                by, seconds = f" by {owner}" if owner else "", time.monotonic() - started
                log.info("%s: %s %s%s: %s in %.3f s", trace_id, scope["method"], route, by, status, seconds)

    def _too_large(self) -> ApiError:
        most = self.settings.max_body_bytes
        return ApiError(413, "request_too_large", f"a request may have at most {most} bytes", close=True)

    def _too_slow(self) -> ApiError:
        return ApiError(
            408, "request_timeout", f"the request was not there after {self.settings.body_s:g} s", close=True
        )

    @contextmanager
    def _place(self, owner: str | None) -> Iterator[None]:
        """One of the places that a key may hold.

        Raises:
            ApiError: 429, it holds all of them.
        """
        if owner is None:
            yield
            return
        if self._under_way[owner] >= self.settings.most_per_key:
            raise ApiError(
                429, "key_busy", f"{self._under_way[owner]} requests of this key are under way", retry_after=1
            )
        self._under_way[owner] += 1
        try:
            yield
        finally:
            self._under_way[owner] -= 1

    def _owner(self, path: str, headers: Headers) -> str | None:
        """
        Raises:
            ApiError: 401, a key is needed and none of ours is given; 421, none is, and it was called by a foreign name.
        """
        if not path.startswith(_KEYED):
            return None
        if self.keys is None:
            if not is_own(host_of(headers.get("host", "")), self.names):
                raise ApiError(
                    421,
                    "foreign_host",
                    "without keys, this endpoint answers to an address, to localhost and to the names in its setting "
                    "serve.hosts: add the one that you called it by",
                )
            return None
        owner = self.keys.owner(headers.get("authorization", ""))
        if owner is None:
            raise ApiError(401, "invalid_api_key", "give a valid API key: `Authorization: Bearer KEY`")
        return owner

"""What every request passes before a route sees it: size limit, API key, trace id; and the log."""

from __future__ import annotations

import logging
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dragoman.serving.errors import ApiError
from dragoman.serving.keys import Keys
from dragoman.serving.metrics import Metrics

log = logging.getLogger(__name__)

_KEYED = "/v1/"
"""Routes below this path need a key."""


class RequestMiddleware:
    """Limits the size of requests, checks keys, gives trace ids, and logs: never a text, a key or a header."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, max_body_bytes: int, keys: Keys | None) -> None:
        self.app, self.metrics, self.keys = app, metrics, keys
        self.max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        trace_id = uuid.uuid4().hex
        scope.setdefault("state", {})["trace_id"] = trace_id
        started, status, read = time.monotonic(), 0, 0  # a status of 0 is logged where the client had gone

        async def receive_limited() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.max_body_bytes:
                raise self._too_large
            return message

        async def send_traced(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = trace_id
            await send(message)

        owner: str | None = None
        try:
            headers = Headers(scope=scope)
            owner = self._owner(scope["path"], headers)
            if int(headers.get("content-length", 0)) > self.max_body_bytes:
                raise self._too_large
            await self.app(scope, receive_limited, send_traced)
        except ApiError as refusal:
            self.metrics.errors.labels(refusal.code).inc()
            await refusal.response()(scope, receive, send_traced)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.responses.labels(route, str(status)).inc()
            if scope["path"].startswith(_KEYED):
                by, seconds = f" by {owner}" if owner else "", time.monotonic() - started
                log.info("%s: %s %s%s: %s in %.3f s", trace_id, scope["method"], route, by, status, seconds)

    @property
    def _too_large(self) -> ApiError:
        return ApiError(413, "request_too_large", f"a request may have at most {self.max_body_bytes} bytes")

    def _owner(self, path: str, headers: Headers) -> str | None:
        """
        Raises:
            ApiError: 401, a key is needed and none of ours is given.
        """
        if self.keys is None or not path.startswith(_KEYED):
            return None
        owner = self.keys.owner(headers.get("authorization", ""))
        if owner is None:
            raise ApiError(401, "invalid_api_key", "give a valid API key: `Authorization: Bearer KEY`")
        return owner

"""What a request is refused with, in the shape that OpenAI's clients expect."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(HTTPException):
    """An answer that is no answer. `code` is stable, for programs and for the metrics; the message is for people."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after: int | None = None,
        close: bool = False,
    ) -> None:
        headers = {"Retry-After": str(retry_after)} if retry_after is not None else {}
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if status == 504:  # OpenAI's clients would ask twice more, and hold a place for a deadline each time
            headers["x-should-retry"] = "false"
        if close:  # the rest of the request is not read
            headers["Connection"] = "close"
        super().__init__(status, message, headers)
        self.code, self.param = code, param

    @property
    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status_code, "server_error" if self.status_code >= 500 else "invalid_request_error")
        return {"error": {"message": self.detail, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        return JSONResponse(self.body, self.status_code, self.headers)

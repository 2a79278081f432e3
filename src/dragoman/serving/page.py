"""The page at `/`: asks the endpoint like any other client, and shows what it does on the way to an answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse

_FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}
_HEADERS = {
    # whatever a passage or an answer holds: nothing else is run, loaded or told
    "Content-Security-Policy": "; ".join(f"{what} {whence}" for what, whence in _POLICY.items()),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_page(app: FastAPI) -> None:
    """Add the page and the two files that it loads. They are the same for everybody, so they need no key."""
    for path, (name, media_type) in _FILES.items():
        app.add_api_route(path, _sender(name, media_type), methods=["GET", "HEAD"], include_in_schema=False)


def _sender(name: str, media_type: str) -> Callable[[], FileResponse]:
    return lambda: FileResponse(Path(__file__).with_name(name), media_type=media_type, headers=_HEADERS)

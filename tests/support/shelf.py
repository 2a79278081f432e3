"""An HTTP server on this machine that serves small files as publishers do: with ranges and ETags, and with faults on demand."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Shelf:
    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    """By path, without the first slash."""
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and Range header of each request."""
    cuts: dict[str, list[int]] = field(default_factory=dict)
    """The next replies of a file break off after so many bytes."""
    statuses: dict[str, int] = field(default_factory=dict)
    content_type: str = "application/octet-stream"
    ranges: bool = True


@contextmanager
def shelf() -> Iterator[Shelf]:
    """A server of an empty shelf, for as long as the context lasts."""
    stock = Shelf()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.lstrip("/")
            wanted = self.headers.get("Range")
            stock.asked.append((path, wanted))
            if (status := stock.statuses.get(path, 200 if path in stock.files else 404)) != 200:
                self.send_error(status)
                return
            whole = stock.files[path]
            etag = f'"{hashlib.sha1(whole).hexdigest()}"'
            start = 0
            if wanted and stock.ranges and self.headers.get("If-Range") == etag:
                start = int(wanted.removeprefix("bytes=").rstrip("-"))
                if start >= len(whole):
                    self.send_error(416)
                    return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(whole) - 1}/{len(whole)}")
            self.send_header("Content-Length", str(len(whole) - start))
            self.send_header("Content-Type", stock.content_type)
            self.send_header("ETag", etag)
            self.end_headers()
            cut = stock.cuts.get(path)
            self.wfile.write(whole[start:][: cut.pop(0) if cut else None])

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    stock.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield stock
    finally:
        server.shutdown()
        server.server_close()

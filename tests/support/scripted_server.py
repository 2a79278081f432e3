"""A language model's HTTP server whose answers a test writes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Handler = Callable[[BaseHTTPRequestHandler, int], None]


class Server:
    """A real HTTP server whose behaviour is `handle(request, how many came before)`.

    Its models are `m` and the built-in one, each with what `card` tells of it.
    """

    def __init__(self, handle: Handler, card: dict[str, str] | None = None) -> None:
        self.seen = 0
        cards = [{"id": name} | ({"root": "/m"} if card is None else card) for name in ("m", "data/model")]

        class Requests(BaseHTTPRequestHandler):
            def do_GET(inner) -> None:
                reply(inner, 200, json.dumps({"data": cards}))

            def do_POST(inner) -> None:
                inner.rfile.read(int(inner.headers["Content-Length"]))
                n, self.seen = self.seen, self.seen + 1
                handle(inner, n)

            def log_message(inner, *arguments: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Requests)
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


def reply(request: BaseHTTPRequestHandler, status: int, body: str, kind: str = "application/json", **headers) -> None:
    request.send_response(status)
    request.send_header("Content-Type", kind)
    for name, value in headers.items():
        request.send_header(name.replace("_", "-"), value)
    request.end_headers()
    request.wfile.write(body.encode())


def completion(request: BaseHTTPRequestHandler, _: int) -> None:
    message = {"index": 0, "message": {"role": "assistant", "content": "river 7"}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    reply(request, 200, json.dumps({"id": "x", "model": "m", "choices": [message], "usage": usage}))

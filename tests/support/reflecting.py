"""A reflection model behind a URL, which rewrites the instructions that it is shown as a function says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from openai_stub import serving

from dragoman.engines.settings import EngineParams

SHOWN = re.compile(r"Instructions:\n(.*?)\n\nThe examples below", re.DOTALL)


@contextmanager
def reflection_model(write: Callable[[str], str | None], asked: list[str] | None = None) -> Iterator[EngineParams]:
    """The settings of one that replies with `write(instructions)`, or fails where that is None. What it is asked is added to `asked`."""
    app = FastAPI()

    @app.get("/v1/models")
    async def models() -> dict:
        return {"data": [{"id": "r", "root": "/r"}]}

    @app.post("/v1/chat/completions")
    def chat(body: dict) -> Response:
        prompt = body["messages"][-1]["content"]
        if asked is not None:
            asked.append(prompt)
        text = write(SHOWN.search(prompt)[1])
        if text is None:
            return JSONResponse({"error": "out of order"}, status_code=400)
        message = {"role": "assistant", "content": f"Here they are:\n```\n{text}\n```\nGood luck."}
        usage = {"prompt_tokens": 9, "completion_tokens": 9}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        return JSONResponse({"model": "r", "choices": choices, "usage": usage})

    with serving(app) as url:
        yield EngineParams(engine="openai", model="r", urls=(url,), structured="none", retries=0)

"""A server that speaks OpenAI's protocol as vLLM does, over a real socket, with a real model behind it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from listening import listening

from dragoman.core.errors import EngineFault
from dragoman.engines.base import Completion, Constraint, Engine, Request, Result


@contextmanager
def serving(app: FastAPI, *, url: str = "") -> Iterator[str]:
    """Serve on a free port of this machine, or at a URL that an earlier server had. Yields the base URL, /v1 included."""
    with listening(app, port=urlsplit(url).port or 0) as found:
        yield f"{found}/v1"


def protocol(engine: Engine, model: str) -> FastAPI:
    app = FastAPI()

    async def run(prompt: tuple[Any, ...], body: dict[str, Any]) -> Result | JSONResponse:
        assert body["model"] == model
        assert body["return_token_ids"] is True
        assert (body["top_p"], body["top_k"], body["min_p"], body["repetition_penalty"]) == (1, 0, 0, 1)
        constraint = body.get("structured_outputs", {})
        schema = constraint.get("json")
        grammar = Constraint(constraint.get("regex"), json.dumps(schema) if schema else None) if constraint else None
        request = Request(
            prompt=prompt,
            max_tokens=body["max_tokens"],
            n=body["n"],
            temperature=body["temperature"],
            stop=tuple(body.get("stop", ())),
            grammar=grammar,
            seed=body.get("seed", 0),
            alternatives=body.get("top_logprobs", 0),
        )
        try:
            (result,) = await engine.generate([request])
        except EngineFault as e:
            return JSONResponse({"error": {"message": str(e), "code": 400}}, status_code=400)
        return result

    def place(completion: Completion, number: int) -> dict[str, Any]:
        top = completion.alternatives[number] if completion.alternatives else ()
        return {
            "token": "",
            "logprob": completion.logprobs[number],
            "top_logprobs": [{"token": token, "logprob": p} for token, p in top],
        }

    def usage(result: Result) -> dict[str, Any]:
        return {"prompt_tokens": result.prompt_tokens, "completion_tokens": result.completion_tokens}

    @app.post("/v1/chat/completions")
    async def chat(body: dict[str, Any]) -> Response:
        result = await run(tuple((m["role"], m["content"]) for m in body["messages"]), body)
        if isinstance(result, JSONResponse):
            return result
        choices = [
            {
                "index": i,
                "message": {"role": "assistant", "content": c.text},
                "logprobs": {"content": [place(c, at) for at in range(len(c.logprobs))]},
                "finish_reason": c.finish_reason,
                "token_ids": c.token_ids,
            }
            for i, c in enumerate(result.completions)
        ]
        row = {"model": model, "choices": choices, "usage": usage(result), "prompt_token_ids": result.prompt_ids}
        return JSONResponse(row)

    @app.post("/v1/completions")
    async def complete(body: dict[str, Any]) -> Response:
        result = await run(tuple(body["prompt"]), body)
        if isinstance(result, JSONResponse):
            return result
        choices = [
            {
                "index": i,
                "text": c.text,
                "logprobs": {"token_logprobs": c.logprobs},
                "finish_reason": c.finish_reason,
                "token_ids": c.token_ids,
                "prompt_token_ids": result.prompt_ids,
            }
            for i, c in reversed(list(enumerate(result.completions)))
        ]
        return JSONResponse({"model": model, "choices": choices, "usage": usage(result)})

    return app

"""Servers of search engines, in the shapes that their documentation shows, over any retriever."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Header, Response
from fastapi.responses import HTMLResponse, JSONResponse

from dragoman.retrieval.base import Hit, Retriever

TAVILY_KEY = "tvly-a-key-that-nobody-may-see"
PAGE = 10  # results on a page of SearXNG


class EngineStub:
    """SearXNG (GET /search) and Tavily (POST /search). What a test puts into `answers` is given first."""

    def __init__(self, retriever: Retriever) -> None:
        self.answers: list[Response] = []
        self.asked: list[dict[str, Any]] = []
        self.app = app = FastAPI()

        @app.get("/search")
        async def searxng(q: str, format: str = "html", pageno: int = 1) -> Response:
            self.asked.append({"q": q, "format": format, "pageno": pageno})
            if self.answers:
                return self.answers.pop(0)
            if format != "json":
                return HTMLResponse("<html>results</html>")
            [hits] = await retriever.search([q], PAGE, pageno - 1)
            engines = {
                "engine": "duckduckgo",
                "engines": ["duckduckgo"],
                "category": "general",
                "template": "default.html",
            }
            results = [_result(hit) | engines for hit in hits]
            nothing: dict[str, list[str]] = {"answers": [], "corrections": [], "infoboxes": [], "suggestions": []}
            return JSONResponse(
                {"query": q, "number_of_results": 0, "results": results, **nothing, "unresponsive_engines": []}
            )

        @app.post("/search")
        async def tavily(body: dict[str, Any], authorization: Annotated[str, Header()] = "") -> Response:
            self.asked.append(body)
            if self.answers:
                return self.answers.pop(0)
            if authorization != f"Bearer {TAVILY_KEY}":
                return JSONResponse({"detail": {"error": "Unauthorized: missing or invalid API key."}}, 401)
            [hits] = await retriever.search([body["query"]], min(body["max_results"], 20))
            results = [_result(hit) | {"raw_content": None} for hit in hits]
            return JSONResponse(
                {"query": body["query"], "answer": None, "images": [], "results": results, "response_time": 0.5}
            )


def _result(hit: Hit) -> dict[str, Any]:
    return {"url": hit.passage.id, "title": hit.passage.title, "content": hit.passage.text, "score": hit.score}

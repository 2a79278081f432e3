"""Any retriever behind HTTP: our own route, and those that the code of C-3PO and of Search-R1 calls."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from dragoman.core.errors import RetrieverFault
from dragoman.core.keys import Keys
from dragoman.retrieval.base import Hit, Retriever, missing
from dragoman.retrieval.http import wire
from dragoman.retrieval.http.limits import Limits


def create_app(retriever: Retriever, *, keys: Keys | None = None) -> FastAPI:
    """The application that serves `retriever`, which stays the caller's to close.

    A request outside the limits (100 passages a query, 1,000 queries, none of them empty) is answered with 422, and a search
    that failed with 503 and the reason. For the others see `limits.py`.

    Args:
        keys: who may search; None for everybody.
    """
    app = FastAPI(title="dragoman retriever", docs_url=None, redoc_url=None)
    app.add_middleware(Limits, keys=keys)

    @app.exception_handler(RetrieverFault)
    async def unavailable(request: Request, fault: RetrieverFault) -> JSONResponse:
        return JSONResponse({"detail": str(fault)}, status_code=503)

    @app.get("/healthz")
    async def healthz() -> wire.Health:
        if look := getattr(retriever, "look", None):  # clients with a cache ask for nothing else
            look()
        count = getattr(retriever, "passage_count", None)
        return wire.Health(status="ok", fingerprint=retriever.fingerprint, passages=count)

    @app.post("/v1/search")
    async def search(request: wire.SearchRequest) -> wire.SearchResponse:
        fingerprint = retriever.fingerprint  # by which the search begins; it may be another one at the end
        found = await retriever.search(request.queries, request.k, request.page)
        return wire.SearchResponse(fingerprint=fingerprint, results=_on_the_wire(found))

    @app.post("/v1/missing")
    async def which_are_missing(request: wire.MissingRequest) -> wire.MissingResponse:
        """Which of these ids no passage has."""
        return wire.MissingResponse(missing=await missing(retriever, request.ids))

    @app.get("/search")
    async def search_one(q: wire.Query, k: wire.Depth = 5, page: wire.Page = 0) -> wire.OneSearchResponse:
        fingerprint = retriever.fingerprint
        found = await retriever.search([q], k, page)
        return wire.OneSearchResponse(fingerprint=fingerprint, results=_on_the_wire(found)[0])

    @app.post("/search")
    async def search_for_c3po(request: wire.C3PORequest) -> list[list[wire.WireHit]]:
        return _on_the_wire(await retriever.search(request.queries, request.n_docs))

    @app.post("/retrieve")
    async def search_for_search_r1(request: wire.SearchR1Request) -> wire.SearchR1Response:
        found = await retriever.search(request.queries, request.topk)
        hits = [[_search_r1_hit(hit) for hit in hits] for hits in found]
        if request.return_scores:
            return wire.SearchR1Response(result=hits)
        return wire.SearchR1Response(result=[[hit.document for hit in row] for row in hits])

    return app


def _on_the_wire(found: list[list[Hit]]) -> list[list[wire.WireHit]]:
    return [[wire.WireHit.of(hit) for hit in hits] for hits in found]


def _search_r1_hit(hit: Hit) -> wire.SearchR1Hit:
    passage = hit.passage
    document = wire.SearchR1Document(id=passage.id, contents=f"{passage.title}\n{passage.text}")
    return wire.SearchR1Hit(document=document, score=hit.score)

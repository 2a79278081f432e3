"""The routes on which a key sees what it has asked before."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request
from fastapi.params import Depends

from dragoman.core.listening import LOOPBACK
from dragoman.serving import wire
from dragoman.serving.errors import ApiError
from dragoman.serving.hosts import host_of
from dragoman.serving.past import PastEpisodes
from dragoman.serving.service import Service

MOST_PER_PAGE = 50
Id = Annotated[str, Path(max_length=100)]
After = Annotated[str | None, Query(max_length=100, description="The id of the last question of the page before.")]
Limit = Annotated[int, Query(ge=1, le=MOST_PER_PAGE, description="How many at most.")]


def add_past(app: FastAPI, service: Service, key: Depends, responses: dict[int | str, dict[str, Any]]) -> None:
    """Add the routes.

    Args:
        key, responses: what the API's description says of them.
    """
    described: dict[str, Any] = {
        "dependencies": [key],
        "responses": {status: responses[status] for status in (400, 401, 404, 421, 429)},
    }

    @app.get("/v1/episodes", **described)
    async def episodes(request: Request, limit: Limit = 20, after: After = None) -> wire.PastQuestions:
        """What this key has asked before, the newest first."""
        return await _past(service, request).page(request.state.owner, limit, after)

    @app.get("/v1/episodes/{id}", **described)
    async def episode(request: Request, id: Id) -> wire.PastAnswer:
        """An answer that this key was given, with its steps as a tree."""
        found = await _past(service, request).find(request.state.owner, id)
        if service.feedback is not None:
            found.feedback = service.feedback.said_of(found.id.removeprefix(wire.COMPLETION))
        return found


def _past(service: Service, request: Request) -> PastEpisodes:
    """
    Raises:
        ApiError: 404, there is nothing to see, or nobody can tell whether it is the caller's.
    """
    if service.past is None:
        raise ApiError(404, "episodes_not_shown", "this endpoint shows no past questions")
    if request.state.owner is None and not _is_local(request):
        # Without keys all are one. Behind a proxy, or in a page of a foreign name that leads here, they are not.
        raise ApiError(
            404, "episodes_not_shown", "without keys, past questions are shown on the endpoint's machine alone"
        )
    return service.past


def _is_local(request: Request) -> bool:
    by_name = host_of(request.headers.get("host", "")) in LOOPBACK
    return by_name and request.client is not None and request.client.host in LOOPBACK

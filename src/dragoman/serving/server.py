"""The HTTP side: OpenAI's routes, health, metrics and the page. `middleware` checks and logs what comes in."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from dragoman.core.keys import Keys
from dragoman.engines.base import FinishReason
from dragoman.retrieval.base import well_formed
from dragoman.rollout.record import Call, Node
from dragoman.serving import wire
from dragoman.serving.conversation import Conversation
from dragoman.serving.errors import ApiError
from dragoman.serving.metrics import Metrics
from dragoman.serving.middleware import RequestMiddleware
from dragoman.serving.models import STANDARD, Model
from dragoman.serving.page import add_page
from dragoman.serving.past_routes import add_past
from dragoman.serving.request import Answer, ServedRequest
from dragoman.serving.service import Service, strategy_of

T = TypeVar("T")

_DOCUMENTED = {400, 401, 404, 413, 421, 429, 500, 503, 504}
_MOST_NAMED = 32
"""How many ignored parameters an answer names."""


def create_app(service: Service, *, keys: Keys | None = None, host: str = "localhost") -> FastAPI:
    """The application that serves `service`, whose models are open and stay the caller's to close.

    Args:
        host: where it listens. Without keys it may be called by that name, and by those of `serve.hosts`.
    """
    metrics = service.metrics
    app = FastAPI(
        title="dragoman",
        description="Questions answered by a system: a trained proxy between a search engine and a language model.",
        docs_url=None,  # these pages load their programs from elsewhere: without a network they are empty
        redoc_url=None,
    )
    names = {name.lower() for name in (host, *service.settings.hosts)}
    app.add_middleware(RequestMiddleware, metrics=metrics, settings=service.settings, keys=keys, names=names)
    _answer_errors(app, metrics)
    _add_probes(app, service)

    # for the documentation: the middleware checks keys, before bodies are read
    bearer = Depends(HTTPBearer(auto_error=False))
    responses: dict[int | str, dict[str, Any]] = {status: {"model": wire.ErrorBody} for status in _DOCUMENTED}

    @app.get("/v1/models", dependencies=[bearer], responses={status: responses[status] for status in (401, 421)})
    async def models() -> wire.ModelList:
        return wire.ModelList(data=[_card(model) for model in service.models.offered.values()])

    @app.get(
        "/v1/models/{name:path}",
        dependencies=[bearer],
        responses={status: responses[status] for status in (401, 404, 421)},
    )
    async def model(name: str) -> wire.ModelCard:
        service.check(name)
        return _card(service.models.offered[name])

    @app.post("/v1/chat/completions", dependencies=[bearer], response_model=wire.ChatCompletion, responses=responses)
    async def chat(body: wire.ChatRequest, request: Request) -> Any:
        service.check(body.model)
        conversation = Conversation.of(
            body.messages,
            max_question_chars=service.settings.max_question_chars,
            max_history_chars=service.settings.max_history_chars,
        )
        served = ServedRequest(request.state.trace_id, body.model, conversation, request.state.owner, user=body.user)
        if not body.stream:
            return _completion(body, served, await _while_connected(request, service.answer(served)))
        events = _events(service, served, trace=body.dragoman.trace)
        # The response begins with the first thing there is to say, so that what fails before has its proper status.
        first = await _while_connected(request, anext(events))
        return StreamingResponse(
            _stream(body, served, first, events, metrics),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )

    @app.post("/v1/feedback", dependencies=[bearer], responses=responses)
    async def feedback(body: wire.FeedbackRequest, request: Request) -> wire.FeedbackReceipt:
        """Say whether an answer was right, or what is. The same once more changes nothing; another takes its place."""
        taken = await service.take_feedback(body, request.state.owner)
        return wire.FeedbackReceipt(id=f"{wire.COMPLETION}{taken.id}", created=int(taken.at))

    add_past(app, service, bearer, responses)
    if service.settings.page:
        add_page(app)
    return app


def _answer_errors(app: FastAPI, metrics: Metrics) -> None:
    """Whatever goes wrong has the shape of OpenAI's errors, and is counted."""

    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> Response:
        metrics.errors.labels(error.code).inc()
        return error.response()

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        # what was sent is left out: it may be long, private, or no Unicode
        faults = [(".".join(map(str, e["loc"][1:])), e["msg"]) for e in error.errors()[:3]]
        message = "; ".join(f"{where}: {what}" if where else what for where, what in faults)
        return await refused(request, ApiError(400, "invalid_request", well_formed(message)[:500]))

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
        shaped = ApiError(error.status_code, code, str(error.detail))
        shaped.headers = error.headers
        return await refused(request, shaped)


def _add_probes(app: FastAPI, service: Service) -> None:
    """Add what those who watch over the process ask: whether it runs, whether it can answer, and how it does."""

    @app.get("/healthz")
    async def healthz() -> wire.Health:
        """The process runs."""
        return wire.Health()

    @app.get("/readyz", response_model=wire.Readiness, responses={503: {"model": wire.Readiness}})
    async def readyz() -> Response:
        """Models are open, and LLM and retriever answer: requests can be sent here."""
        ready = await service.ready()
        versions = {name: model.version for name, model in service.models.offered.items()}
        state = wire.Readiness(
            status="ready" if ready else "not ready",
            llm=service.llm.works,
            retriever=service.retriever.works,
            models=versions,
        )
        return JSONResponse(state.model_dump(), 200 if ready else 503)

    @app.get("/metrics", response_class=Response)
    async def prometheus() -> Response:
        """Counters and histograms, for Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _while_connected(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is ended when the client goes away: its answer would reach nobody.

    Raises:
        ApiError: 499, for the log and the metrics.
    """

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(499, "client_closed_request", "the client has gone")
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


def _card(model: Model) -> wire.ModelCard:
    extension = wire.ModelExtension(system=model.system, policy=model.version)
    return wire.ModelCard(id=model.name, created=int(model.since), dragoman=extension)


def _completion(body: wire.ChatRequest, served: ServedRequest, answer: Answer) -> wire.ChatCompletion:
    extension = _extension(body, served, answer)
    if body.dragoman.trace:
        extension.steps = [wire.Step.of(step) for step in served.steps]
    return wire.ChatCompletion(
        id=f"{wire.COMPLETION}{served.trace_id}",
        created=int(time.time()),
        model=served.model,
        choices=[wire.Choice(message=wire.AnswerMessage(content=answer.text), finish_reason=_finish(answer))],
        usage=_usage(served),
        dragoman=extension,
    )


def _extension(body: wire.ChatRequest, served: ServedRequest, answer: Answer) -> wire.Extension:
    ignored = sorted(well_formed(name)[:64] for name in body.model_extra or {})[:_MOST_NAMED]
    return wire.Extension(
        trace_id=served.trace_id,
        policy=answer.policy,
        question=answer.question,
        citations=[wire.Citation(id=p.id, title=p.title) for p in answer.passages],
        stop=str(answer.stop),
        strategy=strategy_of(served.steps),
        decisions=sum(isinstance(step, Node) for step in served.steps),
        seconds={phase: round(seconds, 4) for phase, seconds in served.seconds.items()},
        degraded=wire.Degraded(system=STANDARD, reason=answer.degraded) if answer.degraded else None,
        ignored=ignored,
    )


def _finish(answer: Answer) -> FinishReason:
    return "length" if answer.is_cut else "stop"


def _usage(served: ServedRequest) -> wire.Usage:
    read = sum(step.prompt_tokens for step in served.steps)
    written = sum(step.completion_tokens for step in served.steps)
    return wire.Usage(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)


async def _events(
    service: Service, served: ServedRequest, *, trace: bool
) -> AsyncGenerator[Node | Call | Answer, None]:
    """The steps, if they are wanted, and the answer. A caller that goes away ends the work."""
    steps: asyncio.Queue[Node | Call | None] = asyncio.Queue()
    if trace:
        served.observe = steps.put_nowait
    work = asyncio.create_task(service.answer(served))
    work.add_done_callback(lambda _: steps.put_nowait(None))
    try:
        while (step := await steps.get()) is not None:
            yield step
        yield await work
    finally:
        work.cancel()


async def _stream(
    body: wire.ChatRequest,
    served: ServedRequest,
    first: Node | Call | Answer,
    events: AsyncGenerator[Node | Call | Answer, None],
    metrics: Metrics,
) -> AsyncIterator[str]:
    """Server-sent events: a chunk each for the role, the steps, the answer, its end, and the usage if it is asked for."""
    created = int(time.time())
    with_usage = body.stream_options is not None and body.stream_options.include_usage

    def chunk(delta: dict[str, Any] | None, end: str | None = None, **more: Any) -> str:
        choices = [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": end}]
        row = {
            "id": f"{wire.COMPLETION}{served.trace_id}",
            "object": "chat.completion.chunk",
            "created": created,
            "model": served.model,
            "choices": choices,
            **({"usage": None} if with_usage else {}),
            **more,
        }
        return _event(row)

    async with aclosing(events):
        yield chunk({"role": "assistant", "content": ""})
        event = first
        try:
            while not isinstance(event, Answer):
                yield chunk({}, dragoman={"step": wire.Step.of(event).model_dump(exclude_none=True)})
                event = await anext(events)
        except ApiError as e:
            metrics.errors.labels(e.code).inc()
            yield _event(e.body)
            return
        except (asyncio.CancelledError, GeneratorExit):  # its status was sent: the response counts as 200
            metrics.errors.labels("client_closed_request").inc()
            raise
        yield chunk({"content": event.text})
        extension = _extension(body, served, event).model_dump(exclude={"steps"})
        yield chunk({}, _finish(event), dragoman=extension)
        if with_usage:
            yield chunk(None, usage=_usage(served).model_dump())
        yield "data: [DONE]\n\n"


def _event(row: dict[str, Any]) -> str:
    return f"data: {json.dumps(row)}\n\n"

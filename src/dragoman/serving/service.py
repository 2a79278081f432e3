"""What happens to one question between the HTTP server and the systems: queue, deadline, and what to do when parts fail."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from dragoman.core.errors import EngineFault, PromptTooLong, Refused, UserError
from dragoman.core.types import Passage, Question
from dragoman.engines.base import Request, control_marks
from dragoman.retrieval.base import well_formed
from dragoman.retrieval.health import probe
from dragoman.rollout.feedback import Feedback
from dragoman.rollout.record import Call, Episode, Node, Trajectory
from dragoman.rollout.tree import Tree
from dragoman.serving.errors import ApiError
from dragoman.serving.feedback import FeedbackBook
from dragoman.serving.gate import Gate
from dragoman.serving.guard import FencedSystem, PlainRetriever, plain
from dragoman.serving.health import Dependency, WatchedEngine, WatchedRetriever
from dragoman.serving.metrics import Metrics, phase_of
from dragoman.serving.models import STANDARD, Model, Models, Opened
from dragoman.serving.past import PastEpisodes
from dragoman.serving.request import Answer, ServedRequest
from dragoman.serving.settings import ServeParams
from dragoman.serving.trial import CHALLENGER, CHAMPION, Trial, Watched
from dragoman.serving.wire import FeedbackRequest
from dragoman.systems.base import StopReason

log = logging.getLogger(__name__)


def _is_served(stop: StopReason) -> bool:
    """An LLM that says nothing has been asked, and that is what it says."""
    return stop.is_answered or stop is StopReason.EMPTY_ANSWER


@dataclass(frozen=True)
class _SystemResult:
    """What a system came to, answer or fault."""

    stop: StopReason
    text: str
    passages: tuple[Passage, ...]
    error: str | None
    is_cut: bool


@dataclass(frozen=True)
class _Grown:
    """What became of a question in a system."""

    episode: Episode
    end: Trajectory
    passages: tuple[Passage, ...]
    llm_failed: bool


class Service:
    """Answers questions with the models it is given, which stay the caller's to open and close.

    Args:
        keep: told of each episode, for those who want to keep them.
        feedback: takes what users say of their answers; None takes nothing.
        past: shows users what they have asked before; None shows nothing.
        trial: of a challenger, whose model is open beside the offered ones.
    """

    def __init__(
        self,
        models: Models,
        settings: ServeParams,
        metrics: Metrics,
        *,
        keep: Callable[[Episode], None] = lambda episode: None,
        feedback: FeedbackBook | None = None,
        past: PastEpisodes | None = None,
        trial: Trial | None = None,
    ) -> None:
        self.models, self.settings, self.metrics, self.keep = models, settings, metrics, keep
        self.feedback, self.past, self.trial = feedback, past, trial
        self._shadows: set[asyncio.Task[None]] = set()
        self.gate = Gate(settings.concurrency, settings.queue)
        metrics.watch("dragoman_running", "Questions under way", lambda: self.gate.running)
        metrics.watch("dragoman_waiting", "Questions in the queue", lambda: self.gate.waiting)
        backends = lambda: models.fallback.backends  # noqa: E731  # open by the time that it is asked for
        question = Request(prompt=(("user", "Say yes."),), max_tokens=1)
        self.llm = Dependency("LLM", lambda: backends().llm.generate([question]))
        self.retriever = Dependency("retriever", lambda: probe(backends().retriever))
        for dependency in (self.llm, self.retriever):
            metrics.watch(
                f"dragoman_{dependency.name.lower()}_failures",
                f"Failures since the {dependency.name} last worked",
                dependency.failures.total,
            )
        if trial is not None:
            trial.excused = lambda: bool(self.llm.failures or self.retriever.failures)
            metrics.watch(
                "dragoman_canary_share",
                "Share of the questions that a canary answers; 0 once it was taken back or promoted",
                lambda: trial.share if self._is_canary(trial) else 0.0,
            )

    def check(self, model: str) -> None:
        """
        Raises:
            ApiError: 404, no such model.
        """
        if model not in self.models.offered:
            known = ", ".join(self.models.offered)
            raise ApiError(404, "model_not_found", f"there is no such model; there are: {known}", param="model")

    async def answer(self, request: ServedRequest) -> Answer:
        """Answer within the deadline, which includes the time in the queue and ends every call that is under way.

        Raises:
            ApiError: 404 no such model; 400 the LLM's server refuses it; 429 too many wait; 503 the LLM or the retriever does not
                answer; 504 the deadline has passed; 500 a bug, of which the log has the traceback.
        """
        self.check(request.model)
        started = _now()
        try:
            async with asyncio.timeout(self.settings.deadline_s), self.gate.enter():
                request.seconds["queue"] = _now() - started
                name = self._routed(request)  # not before: while it waited, the canary may have been taken back
                with self.models.lease(name) as model, self._watched(request, model) as watched:
                    answer = await self._answer(request, model, patience=started + self._proxy_s)
                    watched.failed = answer.degraded is not None
        except TimeoutError:
            raise ApiError(504, "deadline_exceeded", f"no answer within {self.settings.deadline_s:g} s") from None
        except ApiError:
            raise
        except Exception:
            log.exception("%s: failed", request.trace_id)
            raise ApiError(500, "internal_error", f"an error in the server; its log knows {request.trace_id}") from None
        request.seconds["total"] = _now() - started
        self._count(request, answer)
        self._try_out(request, name, answer)
        return answer

    async def take_feedback(self, given: FeedbackRequest, by: str | None) -> Feedback:
        """Keep what a user says of an answer; see `FeedbackBook.take`.

        Raises:
            ApiError: 404, also where nothing is kept.
        """
        if self.feedback is None:
            raise ApiError(404, "feedback_not_taken", "this endpoint keeps no episodes, so it takes no feedback")
        feedback = await self.feedback.take(given, by, self.models.fallback.backends.retriever)
        self.metrics.feedback.labels(feedback.rating or "none").inc()
        if self.trial is not None:
            self.trial.said(feedback)
        return feedback

    async def ready(self) -> bool:
        """Whether the LLM and the retriever work. One of them is asked only where its last call has failed, or there was none."""
        return all(await asyncio.gather(self.llm.check(), self.retriever.check()))

    async def close(self) -> None:
        """End the probes and the shadows that are under way."""
        for shadow in self._shadows:
            shadow.cancel()
        await asyncio.gather(*self._shadows, return_exceptions=True)
        await asyncio.gather(self.llm.close(), self.retriever.close())
        if self.trial is not None:
            self.trial.write_down()

    def _routed(self, request: ServedRequest) -> str:
        """The model that answers: the one asked for, or the canary in its place."""
        trial = self.trial
        if trial is None or not self._is_canary(trial) or not self._on_trial(trial, request):
            return request.model
        return trial.challenger

    def _is_canary(self, trial: Trial) -> bool:
        return trial.kind == "canary" and not trial.ended and not self._promoted(trial)

    def _on_trial(self, trial: Trial, request: ServedRequest) -> bool:
        return request.model == trial.champion and trial.chooses(request.who) and not self._promoted(trial)

    def _promoted(self, trial: Trial) -> bool:
        """Its trial is over then: if it is not the champion any more, somebody has taken it back."""
        return self.models.has_been(trial.champion, trial.challenger)

    def _watched(self, request: ServedRequest, model: Model) -> AbstractContextManager[Watched]:
        """What is asked of the challenger by its own name is no part of its trial; nor, without a champion, is standard RAG.

        Nor is an answer whose time the queue has eaten, which is no fault of the model that had the bad luck.
        """
        if self.trial is None or request.model != self.trial.champion or model.opened is None:
            return nullcontext(Watched())
        if request.seconds["queue"] > self._proxy_s / 2:
            return nullcontext(Watched())
        return self.trial.watch(model.name)

    def _try_out(self, request: ServedRequest, name: str, answer: Answer) -> None:
        """What a trial makes of an answer. It takes no time of it."""
        trial = self.trial
        if trial is None or request.model != trial.champion or answer.degraded:
            return
        if trial.kind == "canary":
            trial.remember(request.trace_id, {CHALLENGER if name == trial.challenger else CHAMPION: answer.text})
        elif self._on_trial(trial, request):
            if self.gate.waiting or len(self._shadows) >= self.settings.shadows:
                trial.skip()
                return
            task = asyncio.create_task(self._shadow(trial, request, answer))
            self._shadows.add(task)
            task.add_done_callback(self._shadows.discard)

    async def _shadow(self, trial: Trial, request: ServedRequest, answer: Answer) -> None:
        """Ask the challenger what the champion has answered. Whatever happens is the trial's alone."""
        answers, started, failed = {CHAMPION: answer.text}, _now(), True
        try:
            async with asyncio.timeout(self._proxy_s):
                with self.models.lease(trial.challenger) as model:
                    assert model.opened is not None, "it is open as long as the models are"
                    grown = await self._grow(request, model.opened, answer.question, model.name)
            self._keep(request, grown.episode, f"{request.trace_id}/{model.name}")
            if grown.llm_failed or grown.end.stop is StopReason.RETRIEVER_FAULT:
                return  # not its fault
            failed = not _is_served(grown.end.stop)
            answers[CHALLENGER] = well_formed(grown.end.answer or "")
        except TimeoutError:
            log.info("%s: the shadow %s was too slow", request.trace_id, trial.challenger)
        except Exception:
            log.exception("%s: the shadow %s failed", request.trace_id, trial.challenger)
        seconds = request.rewriting + _now() - started  # the champion's hold that call, too
        trial.shadowed(request.trace_id, answers, seconds, failed=failed)

    @property
    def _proxy_s(self) -> float:
        return self.settings.deadline_s * self.settings.proxy_share

    async def _answer(self, request: ServedRequest, model: Model, *, patience: float) -> Answer:
        question = await self._stand_alone(request)
        degraded = None
        result: _SystemResult | None = None
        if model.opened is None:
            degraded = "unavailable"
        elif not model.opened.system.roles:
            result = await self._run_system(request, model.opened, question, model.name)
        else:
            try:
                async with asyncio.timeout_at(patience):
                    result = await self._run_system(request, model.opened, question, model.name)
            except TimeoutError:
                degraded = "slow"
            except UserError as e:  # its settings ask of a question what no served one has
                log.warning("%s: %s: %s", request.trace_id, model.name, e)
                degraded = str(StopReason.SYSTEM_FAULT)
            else:
                if not _is_served(result.stop):
                    log.warning("%s: %s: %s", request.trace_id, model.name, result.stop)  # its error may quote the user
                    degraded, result = str(result.stop), None
        if result is None:
            result = await self._run_system(request, self.models.fallback, question, STANDARD)
        if result.stop is StopReason.PROMPT_TOO_LONG:
            raise self._too_long
        if result.stop is StopReason.REFUSED:
            raise self._refused
        if result.stop is StopReason.ENGINE_FAULT:  # of an engine of its own
            raise self._llm_unavailable(request, result.error)
        if not _is_served(result.stop):
            raise RuntimeError(f"{request.model}: {result.stop}")
        policy = model.version if degraded is None else None
        return Answer(result.text, question, result.passages, result.stop, policy, degraded, result.is_cut)

    async def _stand_alone(self, request: ServedRequest) -> str:
        try:
            question, call = await request.conversation.stand_alone(
                WatchedEngine(self.models.fallback.backends.llm, self.llm),
                max_question_chars=self.settings.max_question_chars,
            )
        except PromptTooLong:
            raise self._too_long from None
        except Refused:
            raise self._refused from None
        except EngineFault as e:
            raise self._llm_unavailable(request, str(e)) from e
        if call is not None:
            request.rewriting = call.seconds
            self._observe(request, call)
        return question

    async def _run_system(self, request: ServedRequest, opened: Opened, question: str, name: str) -> _SystemResult:
        """Let a system answer. The episode that is the answer has the request's key; of one that is none, its name follows.

        Raises:
            ApiError: 503, when it was not the system that failed but the LLM or the retriever.
        """
        grown = await self._grow(request, opened, question, name, observe=lambda step: self._observe(request, step))
        end = grown.end
        served = _is_served(end.stop)
        self._keep(request, grown.episode, request.trace_id if served else f"{request.trace_id}/{name}")
        if served and self.feedback is not None:
            self.feedback.answered(request.trace_id, request.owner)
        if grown.llm_failed and end.stop is StopReason.ENGINE_FAULT:
            raise self._llm_unavailable(request, end.error)
        if end.stop is StopReason.RETRIEVER_FAULT:
            log.warning("%s: the retriever failed: %s", request.trace_id, _without_words(end.error or ""))
            raise ApiError(503, "retriever_unavailable", "the search engine does not answer", retry_after=5)
        cut = _is_cut(end.answer or "", grown.episode.calls)
        return _SystemResult(end.stop, well_formed(end.answer or ""), grown.passages, end.error, cut)

    async def _grow(
        self,
        request: ServedRequest,
        opened: Opened,
        question: str,
        name: str,
        *,
        observe: Callable[[Node | Call], None] = lambda step: None,
    ) -> _Grown:
        """The episode of a system for a question, whatever comes of it."""
        llm = WatchedEngine(opened.backends.llm, self.llm)
        b = opened.backends
        marks = frozenset().union(*map(control_marks, (b.llm, b.proxy, *b.engines.values())))
        backends = replace(b, llm=llm, retriever=PlainRetriever(WatchedRetriever(b.retriever, self.retriever), marks))
        system = FencedSystem(opened.system) if self.settings.fence else opened.system
        tree = Tree(Question(request.trace_id, plain(question, marks)), system, backends, observe=observe)
        config = {"policy": opened.version, "llm": b.llm.fingerprint, "retriever": b.retriever.fingerprint}
        episode = await tree.grow(key=request.trace_id, system_name=name, config=config)
        (end,), (kept,) = episode.trajectories, tree.kept.values()
        return _Grown(episode, end, kept, llm.failed)

    def _keep(self, request: ServedRequest, episode: Episode, key: str) -> None:
        self.keep(episode.model_copy(update={"key": key, "asked_by": request.owner}))

    @property
    def _too_long(self) -> ApiError:
        message = "the question, with what the system adds to it, is longer than the language model can read"
        return ApiError(400, "prompt_too_long", message)

    @property
    def _refused(self) -> ApiError:
        message = "a filter before the language model refuses the question, its passages or the answer"
        return ApiError(400, "content_filter", message)

    def _llm_unavailable(self, request: ServedRequest, why: str | None) -> ApiError:
        log.warning("%s: the LLM failed: %s", request.trace_id, _without_words(why or ""))  # for us: it may name hosts
        return ApiError(503, "llm_unavailable", "the language model does not answer", retry_after=5)

    def _observe(self, request: ServedRequest, step: Node | Call) -> None:
        request.steps.append(step)
        request.seconds[phase_of(step)] += step.seconds
        self.metrics.step(step, request.owner)
        request.observe(step)

    def _count(self, request: ServedRequest, answer: Answer) -> None:
        self.metrics.answers.labels(request.model).inc()
        if request.owner is not None:
            self.metrics.key_answers.labels(request.owner).inc()
        self.metrics.phases.labels("queue").observe(request.seconds["queue"])
        self.metrics.phases.labels("total").observe(request.seconds["total"])
        if strategy := strategy_of(request.steps):
            self.metrics.strategies.labels(request.model, strategy).inc()
        if answer.degraded:
            self.metrics.degradations.labels(request.model, answer.degraded).inc()


def _without_words(error: str) -> str:
    """An error up to its HTTP status: behind it stands what the server said, which may be what a user has asked."""
    return re.sub(r"(HTTP \d{3})\b.*", r"\1", error, flags=re.DOTALL)


def _is_cut(answer: str, calls: Sequence[Call]) -> bool:
    """Whether an answer is the end of what the LLM had no more tokens to go on with."""
    return bool(answer) and any(
        call.truncated and isinstance(call.output, str) and call.output.rstrip().endswith(answer) for call in calls
    )


def strategy_of(steps: Sequence[Node | Call]) -> str | None:
    """The kind of the proxy's first decision; None where it made none."""
    return next((step.kind or None for step in steps if isinstance(step, Node)), None)


def _now() -> float:
    return asyncio.get_running_loop().time()

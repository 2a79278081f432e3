"""What the two in-process engines share: the tokenizer's side of a model folder, and the thread that owns the model."""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import json
import logging
import math
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.core.errors import EngineFault, PromptTooLong, UserError
from dragoman.engines.base import CannotAverage, CannotScore, Constraint, Request, Result
from dragoman.engines.fetch import FETCH, context_of, loading, weights_sha256
from dragoman.engines.grammars import Grammars
from dragoman.engines.marks import encode_options

if TYPE_CHECKING:
    from xgrammar import CompiledGrammar, GrammarMatcher

logger = logging.getLogger(__name__)

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
_CONFIG = "config.json"
_NOT_COMPUTED = frozenset({"_name_or_path", "dtype", "torch_dtype", "transformers_version", "use_cache"})
"""Fields of a model's configuration that its distribution does not depend on: what it is loaded in is named besides."""


def seed_of(request: Request, index: int = 0) -> int:
    """A seed below 2**62 for the `index`-th completion. Hashed, because vLLM gives completion i the seed plus i.

    Without the hash the second completion of seed 0 would be the first one of seed 1.
    """
    digest = hashlib.blake2b(f"{request.seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 2


def fingerprint(folder: Path, dtype: str) -> str:
    """Names the distribution that a model folder stands for: weights, tokenizer with chat template, config, precision.

    Raises:
        UserError: the folder has no weights, or its config is no JSON object, or names no architectures in it.
    """
    digest = hashlib.sha256(f"{weights_sha256(folder)}/{dtype}".encode())
    for part in (*_tokenizer_files(folder), _config(folder)):
        digest.update(part)
    return f"sha256:{digest.hexdigest()[:32]}"


def _tokenizer_files(folder: Path) -> list[bytes]:
    paths = [folder / name for name in _TOKENIZER_FILES]
    return [path.read_bytes() if path.is_file() else b"\0" for path in paths]


def _config(folder: Path) -> bytes:
    """What a model computes with its weights, such as the scaling of its positions, however it is written down."""
    path = folder / _CONFIG
    if not path.is_file():
        return b""
    try:
        config = json.loads(path.read_bytes())
    except ValueError as e:  # UnicodeDecodeError, too
        raise UserError(f"{path}: not valid JSON ({e}); fetch the model again") from None
    if not isinstance(config, dict):
        raise UserError(f"{path}: not a JSON object; fetch the model again")
    named = config.get("architectures")  # transformers takes anything there, and vLLM fails over it
    if named is not None and not (isinstance(named, list) and all(isinstance(name, str) for name in named)):
        raise UserError(f"{path}: architectures is {named!r}, not a list of names; fetch the model again")
    return json.dumps(_computed(config), sort_keys=True).encode()


def _computed(value: Any) -> Any:
    """A configuration, or a part of it, without what changes nothing."""
    if isinstance(value, dict):
        return {key: _computed(inner) for key, inner in value.items() if key not in _NOT_COMPUTED}
    return [_computed(inner) for inner in value] if isinstance(value, list) else value


class Vocabulary:
    """Turns requests into token ids and token ids into text, and compiles grammars for one model folder.

    Safe to use from several threads.

    Args:
        folder: a Hugging Face folder.
        max_model_len: tokens of prompt and completion together; None for all that the model was made for.

    Raises:
        UserError: the folder is missing or cannot be loaded, or `max_model_len` exceeds what the model was made for.
    """

    def __init__(self, folder: Path, max_model_len: int | None) -> None:
        import xgrammar
        from transformers import AutoConfig, AutoTokenizer, GenerationConfig

        if not (folder / _CONFIG).is_file():
            raise UserError(f"{folder}: not a model folder (no config.json); run `dragoman model` to fetch one")
        with loading(str(folder), "its config or its tokenizer cannot be loaded", FETCH):
            config = AutoConfig.from_pretrained(folder)
            self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        context = context_of(config, str(folder))
        if max_model_len is not None and max_model_len > context:
            raise UserError(f"max_model_len is {max_model_len}, but {folder} has a context of {context}; lower it")
        self.context = max_model_len or context
        self.size = int(config.get_text_config().vocab_size)
        self._lock = threading.Lock()  # fast tokenizers fail with "Already borrowed" when two threads meet in one

        ends = {self.tokenizer.eos_token_id}
        if (folder / "generation_config.json").is_file():
            declared = GenerationConfig.from_pretrained(folder).eos_token_id
            ends.update(declared if isinstance(declared, list) else [declared])
        self.eos_ids: frozenset[int] = frozenset(ends - {None})
        if not self.eos_ids:
            raise UserError(f"{folder}: its tokenizer names no end-of-sequence token; add it to tokenizer_config.json")
        self.pad_id: int = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else min(self.eos_ids)
        # The model's vocabulary may be padded beyond the tokenizer's; masks must have the model's size.
        self.grammars = Grammars(
            xgrammar.TokenizerInfo.from_huggingface(
                self.tokenizer, vocab_size=self.size, stop_token_ids=sorted(self.eos_ids)
            )
        )

    def control_marks(self) -> frozenset[str]:
        """Texts that the tokenizer turns into tokens of their own wherever they stand, such as `<|im_end|>`."""
        added = self.tokenizer.added_tokens_decoder.values()
        return frozenset(text for token in added if len(text := token.content.strip()) > 1 and not text.isalnum())

    def encode(self, request: Request) -> tuple[int, ...]:
        """The prompt as token ids.

        Raises:
            EngineFault: the request cannot be run on this model; the message says why.
        """
        if request.max_tokens < 1 or request.n < 1 or request.temperature < 0:
            raise EngineFault(
                f"max_tokens ({request.max_tokens}) and n ({request.n}) must be at least 1 "
                f"and temperature ({request.temperature}) at least 0"
            )
        if request.messages is not None:
            try:
                with self._lock:
                    ids = self.tokenizer.apply_chat_template(
                        request.messages,
                        add_generation_prompt=not request.goes_on,
                        continue_final_message=request.goes_on,
                        return_dict=False,
                    )
            except Exception as e:  # a template is a program of its own and may raise anything
                raise EngineFault(f"the chat template refused the messages: {e}") from e
        else:
            ids = request.prompt
        if not ids:
            raise EngineFault("the prompt is empty")
        if not 0 <= min(ids) <= max(ids) < self.size:
            raise EngineFault(f"the prompt has token ids outside the vocabulary of {self.size}")
        if len(ids) + request.max_tokens > self.context:
            raise PromptTooLong(
                f"a prompt of {len(ids)} tokens and {request.max_tokens} new ones exceed the context of {self.context}"
            )
        return tuple(ids)

    def encode_options(self, request: Request) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The token ids of a request with options, and the place of each option's mark; see `marks.py`.

        Raises:
            EngineFault: they do not fit into the model's context.
        """
        prompt = "".join(content for _, content in request.prompt) if request.messages else self.decode(request.prompt)  # type: ignore[misc, arg-type]
        ids, marks = encode_options(self.tokenize, prompt, request.options)
        if len(ids) > self.context:
            longest = max(request.options, key=len)
            raise PromptTooLong(
                f"{len(request.options)} options and their prompt have {len(ids)} tokens, and the context is of "
                f"{self.context}: show fewer, or fewer words of each (the longest begins {longest[:40]!r})"
            )
        return ids, marks

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Token ids as text, with special tokens if they are wanted; the end of the sequence is none of it."""
        written = [id for id in ids if id not in self.eos_ids] if special else ids
        with self._lock:
            return self.tokenizer.decode(written, skip_special_tokens=not special)

    def reported(self, likeliest: Iterable[tuple[int, float]]) -> tuple[tuple[str, float], ...]:
        """Token ids with their log-probabilities, as a completion has its alternatives. What a grammar forbids is none."""
        return tuple((self.decode([id], special=True), min(p, 0.0)) for id, p in likeliest if p > -math.inf)

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Plain text as token ids, without special tokens."""
        with self._lock:
            return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def matcher(self, grammar: Constraint) -> GrammarMatcher:
        """A fresh matcher, at the start of the grammar. It may take seconds, so not in an event loop.

        Raises:
            EngineFault: the grammar does not compile, or is too large.
        """
        return _matcher(self.grammars.compiled(grammar))


def _matcher(compiled: CompiledGrammar) -> GrammarMatcher:
    import xgrammar

    return xgrammar.GrammarMatcher(compiled)


@dataclass(eq=False)
class Job:
    """A request on its way through an engine's thread."""

    request: Request
    prompt_ids: tuple[int, ...]
    marks: tuple[int, ...] = ()
    """Of a request with options: where in the prompt each is read."""
    beside: tuple[tuple[int, ...], ...] = ()
    """The prompts beside the first."""
    compiled: CompiledGrammar | None = None
    """Its grammar, so that the engine's thread has nothing to compile."""
    future: Future[Result] = field(default_factory=Future)
    given_up: bool = False
    """Its caller has gone, so what it would give reaches nobody. The engine's thread sees it at its next step."""

    @property
    def drawn(self) -> int:
        """How many completions to compute: greedy ones are all the same."""
        return 1 if self.request.deterministic else self.request.n

    def matcher(self) -> GrammarMatcher | None:
        """A fresh one, at the start of its grammar; None where it has none."""
        assert (self.compiled is None) == (self.request.grammar is None), "the grammar was not compiled"
        return None if self.compiled is None else _matcher(self.compiled)

    def finish(self, result: Result) -> None:
        if self.drawn < self.request.n:
            result = replace(result, completions=result.completions * self.request.n)
        self.future.set_result(result)

    def drop(self) -> None:
        """End a job that was given up."""
        if not self.future.done():
            self.fail("the caller has given up")

    def fail(self, reason: str, cause: BaseException | None = None) -> None:
        self.future.set_exception(_fault(reason, cause))


def _fault(reason: str, cause: BaseException | None) -> EngineFault:
    fault = EngineFault(reason)
    fault.__cause__ = cause
    return fault


class LocalEngine(ABC):
    """One daemon thread owns the model; callers leave jobs in its inbox and await their futures.

    A subclass loads the model in `_load` and works off jobs in `_serve`; both run in that thread and nowhere else.
    """

    fingerprint: str

    can_score = False
    """Whether requests may have options."""
    can_average = False
    """Whether requests may have several prompts."""

    def __init__(self, model_path: Path | str, *, dtype: str, max_model_len: int | None) -> None:
        self._folder = Path(model_path)
        self._vocabulary = Vocabulary(self._folder, max_model_len)
        self.fingerprint = fingerprint(self._folder, dtype)
        self.control_marks = self._vocabulary.control_marks()
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._lock = threading.Lock()  # guards the two below
        self._pending: set[Future[Any]] = set()  # accepted and not done
        self._ended = ""  # why no more jobs are accepted

    def _start(self) -> None:
        """Start the thread and wait until the model is loaded. Raises what `_load` raises."""
        ready: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._main, args=(ready,), name=f"{type(self).__name__}({self._folder.name})", daemon=True
        )
        self._thread.start()
        ready.result()
        atexit.register(self._stop)  # a thread inside torch while Python is torn down aborts the process

    @property
    def is_dead(self) -> bool:
        """Whether its thread has ended by itself."""
        return bool(self._ended) and not self._closing.is_set()

    @abstractmethod
    def _load(self) -> None: ...

    @abstractmethod
    def _serve(self) -> None:
        """Take jobs with `_take` and work them off; return within about one step of `_closing` being set."""

    @abstractmethod
    def _unload(self) -> None: ...

    def _main(self, ready: Future[None]) -> None:
        try:
            self._load()
        except BaseException as e:
            ready.set_exception(e)
            return
        ready.set_result(None)
        try:
            self._serve()
            self._end("the engine is closed")
        except Exception as e:
            logger.exception("the engine of %s stopped", self._folder)
            self._end(f"the engine of {self._folder} stopped: {e!r}", e)
        finally:
            self._unload()

    def _end(self, reason: str, cause: BaseException | None = None) -> None:
        """Refuse new jobs and fail those that are not done, so that no caller hangs."""
        with self._lock:
            self._ended = reason
            left = list(self._pending)
        for future in left:
            if future.running() or future.set_running_or_notify_cancel():
                future.set_exception(_fault(reason, cause))

    def _take(self, *, wait: bool, linger_s: float = 0.0) -> list[Job]:
        """All jobs that are waiting; those that their callers gave up are left out.

        Args:
            wait: block until there is one, or until the engine is closed.
            linger_s: after the first job, wait this long for each next one: callers that run at once arrive together.
        """
        jobs: list[Job] = []
        while True:
            try:
                job = self._inbox.get(block=wait or linger_s > 0, timeout=None if wait else linger_s)
            except queue.Empty:
                return jobs
            if job is None:  # `close` wakes us up
                return jobs
            wait = False
            if job.future.set_running_or_notify_cancel():
                jobs.append(job)

    async def generate(self, requests: Sequence[Request]) -> list[Result]:
        """Complete every request, in order; see `Engine.generate`."""
        jobs = [self._job(request) for request in requests]
        try:
            for job in jobs:
                if job.request.grammar is not None:  # a fault of it is this caller's, not of the batch it would be in
                    job.compiled = await self._vocabulary.grammars.lend(job.request.grammar, job.future)
                self._submit(job)  # at once: what holds a grammar may not wait for one that waits for memory
            return await asyncio.gather(*(asyncio.wrap_future(job.future) for job in jobs))
        finally:  # after a fault or when the caller is cancelled: what is not done has nobody to go to
            for job in jobs:
                job.given_up = True
                job.future.cancel()  # which a job that has begun does not notice

    def _submit(self, job: Job) -> None:
        with self._lock:
            if self._ended:
                raise EngineFault(self._ended)
            self._pending.add(job.future)
        job.future.add_done_callback(self._pending.discard)
        self._inbox.put(job)

    def _job(self, request: Request) -> Job:
        if request.beside and not self.can_average:
            raise CannotAverage(type(self).__name__)
        if not request.options:
            prompts = (replace(request, prompt=prompt) for prompt in (request.prompt, *request.beside))
            first, *beside = map(self._vocabulary.encode, prompts)
            return Job(request, first, beside=tuple(beside))
        if not self.can_score:
            raise CannotScore(type(self).__name__)
        return Job(request, *self._vocabulary.encode_options(request))

    async def close(self) -> None:
        """End the thread and free the model. What is not done fails."""
        await asyncio.to_thread(self._stop)
        atexit.unregister(self._stop)

    def _stop(self) -> None:
        self._closing.set()
        self._inbox.put(None)
        self._thread.join()

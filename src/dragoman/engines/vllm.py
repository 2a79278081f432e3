"""vLLM in process: continuous batching and prefix sharing on GPUs and CPUs. The only module that imports vllm.

Two things are not left to vLLM:

- **Grammars.** The trainer needs the very masks that an action was drawn under, forced end of sequence included. So those of
  `Vocabulary` sit in a logits processor here.
- **Chunked prefill on CPUs.** A seeded request whose prompt is split over two steps takes the whole engine down
  (`CPU Generator does not use offset`), so prompts are not split there.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.core.errors import UserError
from dragoman.engines.base import Completion, Request, Result
from dragoman.engines.local import Job, LocalEngine, Vocabulary, seed_of
from dragoman.engines.turns import TURNS

if TYPE_CHECKING:
    import torch
    import vllm


_ALIVE: set[VllmEngine] = set()  # loaded and not closed; changed in turn


def import_vllm() -> Any:
    """Import vllm, set up for use inside this process.

    Raises:
        ImportError: it is not installed, or its installation is broken.
    """
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # one process: imports once, and threads can share the model
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # the logits processor below is written for the first one
    # At WARNING every start reports half a dozen things that are so by intent. Failures arrive as exceptions.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    try:
        import vllm
    except ImportError:
        raise
    except Exception as e:  # a torchvision built for another torch, for one, raises RuntimeError
        raise ImportError(f"vllm is installed but cannot be imported: {e!r}") from e
    return vllm


def _grammar_processor(vocabulary: Vocabulary, running: Mapping[str, Job]) -> type:
    """A class of vLLM logits processors that holds requests with `extra_args={"job": id}` to the grammar of that job."""
    import xgrammar
    from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

    class GrammarProcessor(AdapterLogitsProcessor):
        def is_argmax_invariant(self) -> bool:
            return False

        def new_req_logits_processor(self, params: vllm.SamplingParams) -> Any:
            if not params.extra_args:
                return None
            matcher = running[params.extra_args["job"]].matcher()
            assert matcher is not None
            bitmask = xgrammar.allocate_token_bitmask(1, vocabulary.size)
            seen = 0

            def mask(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
                nonlocal seen
                for token_id in output_ids[seen:]:  # several after a preemption, which starts anew
                    matcher.accept_token(token_id)
                seen = len(output_ids)
                if not matcher.is_terminated():
                    matcher.fill_next_token_bitmask(bitmask)
                    xgrammar.apply_token_bitmask_inplace(logits[None], bitmask.to(logits.device))
                return logits

            return mask

    return GrammarProcessor


def bind_threads() -> None:
    """Keep each OpenMP thread that helps the calling thread on a core of its own; the calling thread stays free.

    vLLM does so in processes of its own alone. Left to the kernel, both threads of a machine of two cores share one of
    them for minutes whenever anything else runs, and each waits for the other. Nothing is bound where there are fewer
    threads than cores, which then may be meant for other processes. Nor is it where `VLLM_CPU_OMP_THREADS_BIND` says
    otherwise: `nobind`, or cores, which vLLM then has to bind.
    """
    import torch

    libraries = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*"))  # vLLM's kernels use torch's
    automatic = os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "auto") == "auto"
    preloaded = "libiomp" in os.environ.get("LD_PRELOAD", "")  # another OpenMP, with threads of its own
    if not automatic or preloaded or not libraries or sys.platform != "linux":
        return
    openmp = ctypes.CDLL(str(libraries[0]))
    cores = sorted(os.sched_getaffinity(0))
    if openmp.omp_get_max_threads() != len(cores):
        return

    first = os.getpid() % len(cores)  # so that two processes do not choose the same ones

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def bind(_: Any) -> None:
        if number := openmp.omp_get_thread_num():
            os.sched_setaffinity(0, {cores[(first + number) % len(cores)]})  # 0 is the thread that asks

    openmp.GOMP_parallel(bind, None, len(cores), 0)


class VllmEngine(LocalEngine):
    """Runs a Hugging Face folder with vLLM, on the device that vLLM chooses.

    Requests join and leave the running batch at every step.

    Args:
        model_path: the folder.
        dtype: "bfloat16", "float16" or "float32".
        max_model_len: tokens of prompt and completion together; None for the model's own context.
        kv_cache_gib: memory for keys and values, prefix cache included. It must hold `max_model_len` tokens.
        max_batch: completions that run at once.

    Raises:
        ImportError: vllm is not installed or cannot be imported.
        UserError: the folder or a setting is not usable.
    """

    def __init__(
        self,
        model_path: Path | str,
        *,
        dtype: str = "bfloat16",
        max_model_len: int | None = None,
        kv_cache_gib: float = 1.0,
        max_batch: int = 32,
    ) -> None:
        import_vllm()
        super().__init__(model_path, dtype=dtype, max_model_len=max_model_len)
        self._dtype = dtype
        self._kv_cache_gib = kv_cache_gib
        self._max_batch = max_batch
        self._engine: Any = None
        self._running: dict[str, Job] = {}
        self._start()

    def _load(self) -> None:
        import torch
        from vllm import EngineArgs, LLMEngine
        from vllm.platforms import current_platform

        on_cpu = current_platform.is_cpu()
        context = self._vocabulary.context
        prefill: dict[str, Any] = {"enable_chunked_prefill": False, "max_num_batched_tokens": max(context, 4096)}
        arguments = EngineArgs(
            model=str(self._folder),
            dtype=self._dtype,  # type: ignore[arg-type]  # checked by vllm
            max_model_len=context,
            max_num_seqs=self._max_batch,
            kv_cache_memory_bytes=int(self._kv_cache_gib * 2**30),
            # vLLM refuses to start where less of a GPU is free, though with the line above it counts for nothing else.
            # The default (0.92) lets nobody start beside another engine, or beside training.
            gpu_memory_utilization=0.01,
            enforce_eager=on_cpu,  # compiling SmolLM2 took 50 s of start there, and made nothing faster
            enable_prefix_caching=True,
            logprobs_mode="processed_logprobs",  # of the distribution that is sampled from
            async_scheduling=False,  # the grammar needs the last token before the next step
            generation_config="vllm",  # not the folder's, which may ask for top-k or a repetition penalty
            logits_processors=[_grammar_processor(self._vocabulary, self._running)],
            disable_log_stats=True,
            use_tqdm_on_load=False,
            **(prefill if on_cpu else {}),
        )
        # The process's own random state and thread count belong to others; vLLM sets the one and disables the other.
        set_num_threads = torch.set_num_threads
        try:
            with TURNS, torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore"):
                self._engine = LLMEngine.from_engine_args(arguments)
                _ALIVE.add(self)
            if on_cpu:
                bind_threads()
        except (ValueError, torch.OutOfMemoryError) as e:
            said = " ".join(str(e).split()).partition(" Try increasing `gpu_memory_utilization`")[0]  # no setting here
            if "memory" in said:
                said += (
                    f"; keys and values of max_model_len ({context}) tokens must fit into kv_cache_gib "
                    f"({self._kv_cache_gib:g}), and that into the memory beside the weights: change one of the two"
                )
            raise UserError(f"vllm cannot load {self._folder}: {said}") from e
        finally:
            torch.set_num_threads = set_num_threads

    async def forget(self) -> None:
        """Empty the prefix cache; only while no request is running."""
        with TURNS:
            self._engine.reset_prefix_cache()

    def _unload(self) -> None:
        from vllm.v1.engine import core

        with TURNS:
            _ALIVE.discard(self)
            clean_up = core.cleanup_dist_env_and_memory
            if _ALIVE:  # vLLM takes itself for the only engine and would destroy the process groups of the others
                core.cleanup_dist_env_and_memory = gc.collect  # type: ignore[assignment]
            try:
                self._engine.engine_core.shutdown()
            finally:
                core.cleanup_dist_env_and_memory = clean_up
            self._engine = None
        gc.collect()  # its parts refer to each other: left to chance, several sets of weights and caches pile up

    def _serve(self) -> None:
        numbers = itertools.count()
        while True:
            jobs = self._take(wait=not self._running)
            if self._closing.is_set():
                return
            for job in jobs:
                self._admit(str(next(numbers)), job)
            self._abort([id for id, job in self._running.items() if job.given_up])
            if not self._running:
                continue
            with TURNS:
                outputs = self._engine.step()
            for output in outputs:
                if output.finished:
                    self._finish(self._running.pop(output.request_id), output)

    def _admit(self, request_id: str, job: Job) -> None:
        from vllm.inputs.engine import tokens_input

        try:
            self._engine.add_request(request_id, tokens_input(list(job.prompt_ids)), self._parameters(request_id, job))
        except ValueError as e:  # what vLLM finds wrong with this one request
            job.fail(f"vllm refused a request: {e}", e)
        else:
            self._running[request_id] = job

    def _abort(self, request_ids: list[str]) -> None:
        """Take requests out of the running batch."""
        if not request_ids:
            return
        with TURNS:
            self._engine.abort_request(request_ids)
        for id in request_ids:
            self._running.pop(id).drop()

    def _parameters(self, request_id: str, job: Job) -> vllm.SamplingParams:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        request: Request = job.request
        return SamplingParams(
            n=job.drawn,
            temperature=request.temperature,
            max_tokens=request.max_tokens,
            stop=[*map(str, request.stop)],  # no class of its own, which would have to cross to another process
            stop_token_ids=sorted(self._vocabulary.eos_ids),
            seed=None if request.deterministic else seed_of(request),
            logprobs=request.alternatives,  # beside that of the sampled token
            skip_special_tokens=not request.special,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args=None if request.grammar is None else {"job": request_id},
        )

    def _finish(self, job: Job, output: Any) -> None:
        completions, most = [], job.request.alternatives
        for one in sorted(output.outputs, key=lambda one: one.index):
            if one.finish_reason not in ("stop", "length"):
                job.fail(f"vllm ended a completion with {one.finish_reason!r}")
                return
            token_ids = tuple(one.token_ids)
            logprobs = [
                min(at[token_id].logprob, 0.0) for token_id, at in zip(token_ids, one.logprobs or [], strict=True)
            ]
            likeliest = [
                self._vocabulary.reported(
                    (id, p.logprob) for id, p in sorted(at.items(), key=lambda item: item[1].rank) if p.rank <= most
                )
                for at in (one.logprobs if most else ())
            ]
            completions.append(Completion(one.text, token_ids, tuple(logprobs), one.finish_reason, tuple(likeliest)))
        job.finish(
            Result(
                prompt_ids=job.prompt_ids,
                completions=tuple(completions),
                prompt_tokens=len(job.prompt_ids),
                completion_tokens=sum(len(c.token_ids) for c in completions),
                cached_tokens=output.num_cached_tokens or 0,
                model=self._folder.name,
            )
        )

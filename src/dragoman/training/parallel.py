"""Several processes of one machine that train together, over gloo.

Each has a copy of what learns. Process 0 is the command itself: it alone rolls out, evaluates and writes. What it calls on its
copy, the others call on theirs. Each does its share of the micro-batches, and what came of them is added up before anyone
uses it. So all copies stay equal, and equal to that of a process that does all alone.

The group is not torch's default one: an engine takes that for itself, such as vLLM in process 0.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from dragoman.core.errors import Fault, UserError
from dragoman.core.memory import keep_freed

T = TypeVar("T")

PATIENCE = timedelta(hours=1)
"""How long a process waits for the others to finish their share of a step."""
GOODBYE = 5.0
"""Seconds that a process gets to end by itself."""


class Share:
    """Which part of the common work is this process's. By default it is alone, and all of it is."""

    def __init__(self, rank: int = 0, processes: int = 1, group: Any = None) -> None:
        self.rank, self.processes, self._group = rank, processes, group

    @classmethod
    def join(cls, rank: int, processes: int, meeting: Path) -> Share:
        """Wait for the others.

        Args:
            meeting: a file that all of them know, and that nobody has written yet.
        """
        from torch.distributed import FileStore, ProcessGroupGloo

        options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # not in torch's stubs
        options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]  # nobody else is to hear it
        options._timeout = PATIENCE
        store = FileStore(str(meeting), processes)
        return cls(rank, processes, ProcessGroupGloo(store, rank, processes, options))

    @property
    def part(self) -> slice:
        """Of a list that all processes have, what is for this one."""
        return slice(self.rank, None, self.processes)

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace float tensors, of equal shapes in all processes, by their sums over processes."""
        if self._group is None or not tensors:
            return
        flat = torch.cat([tensor.detach().flatten().cpu() for tensor in tensors])
        self._group.allreduce([flat]).wait()
        for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(total.view_as(tensor))

    def gather(self, thing: Any) -> list[Any]:
        """What each process has given, by rank."""
        if self._group is None:
            return [thing]
        data = torch.frombuffer(bytearray(pickle.dumps(thing)), dtype=torch.uint8)
        sizes = self._all_of(torch.tensor([len(data)]))
        longest = max(int(size) for size in sizes)
        padded = self._all_of(nn.functional.pad(data, (0, longest - len(data))))
        return [pickle.loads(x[: int(n)].numpy().tobytes()) for x, n in zip(padded, sizes, strict=True)]

    def add_up_gradients(self, weights: Sequence[nn.Parameter]) -> None:
        """Replace each weight's gradient by its sum over the processes. A weight without a gradient in all of them keeps none."""
        if self._group is None:
            return
        there = self.gather([weight.grad is not None for weight in weights])
        used = [weight for weight, *has in zip(weights, *there, strict=True) if any(has)]
        for weight in used:  # a process that had nothing to do takes part as well
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        self.add_up([weight.grad for weight in used if weight.grad is not None])

    def _all_of(self, tensor: Tensor) -> list[Tensor]:
        found = [torch.zeros_like(tensor) for _ in range(self.processes)]
        self._group.allgather([found], [tensor]).wait()
        return found


class Shared(Protocol):
    """What learns, in each process."""

    share: Share

    def trainable(self) -> Sequence[Tensor]:
        """The weights that are trained, in the order of all copies."""
        ...


class Together:
    """What learns, and its copies in other processes. Within it, `call` does on all of them what it says.

    Args:
        own: of this process, which becomes process 0.
        processes: in all; with 1 no other is started.
        copy: makes one that is equal to `own` as it is on entering. Has to be picklable.

    Raises:
        UserError: on entering, where a launcher has started this command several times.
        Fault: another process has ended, or its copy is not equal any more.
    """

    def __init__(self, own: Shared, processes: int, copy: Callable[[], Shared]) -> None:
        self.own, self.processes, self._copy = own, processes, copy
        self._others: list[tuple[BaseProcess, Connection]] = []
        self._threads = max(1, torch.get_num_threads() // processes)

    def __enter__(self) -> Together:
        _refuse_launchers()
        if self.processes == 1:
            return self
        try:
            with tempfile.TemporaryDirectory() as folder:
                meeting = Path(folder) / "meeting"
                for rank in range(1, self.processes):
                    self._start(rank, meeting)
                with self._a_death_is_told():
                    for _, pipe in self._others:
                        pipe.recv()  # has its copy
                    self.own.share = Share.join(0, self.processes, meeting)
                    for _, pipe in self._others:
                        pipe.recv()  # has joined, so that the meeting is over
        except BaseException:
            self._end(at_once=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end(at_once=error is not None)

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call that method of every copy. Returns what the one of this process returned."""
        if not self._others:
            return getattr(self.own, method)(*arguments, **named)
        with self._a_death_is_told(), _threads(self._threads):
            for _, pipe in self._others:
                pipe.send((method, arguments, named))
            result = getattr(self.own, method)(*arguments, **named)
            seen = fingerprint(self.own)
            theirs = [pipe.recv() for _, pipe in self._others]
        if any(other != seen for other in theirs):
            raise Fault(
                f"the processes that train do not agree on the weights any more ({seen}, {theirs}): this is a defect"
            )
        return result

    def _start(self, rank: int, meeting: Path) -> None:
        spawn = multiprocessing.get_context("spawn")  # a fork would share CUDA, threads and Java with the parent
        here, there = spawn.Pipe()
        process = spawn.Process(
            target=_follow, args=(there, self._copy, rank, self.processes, meeting, self._threads), daemon=True
        )
        process.start()
        there.close()
        self._others.append((process, here))

    @contextmanager
    def _a_death_is_told(self) -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError, RuntimeError) as error:
            gone = wait([process.sentinel for process, _ in self._others], timeout=GOODBYE)
            for process, _ in self._others:
                if process.sentinel in gone:
                    process.join(GOODBYE)  # a moment passes until its exit code is known
            ended = {rank: p.exitcode for rank, (p, _) in enumerate(self._others, 1) if p.exitcode is not None}
            if not ended:
                raise
            which = ", ".join(f"process {rank} ended with {code}" for rank, code in ended.items())
            raise Fault(_told(self.processes, f"{which}; what it said stands above")) from error

    def _end(self, *, at_once: bool) -> None:
        for process, pipe in self._others:
            if at_once:  # it may be in the middle of something that nobody shares any more
                process.kill()
            else:
                with suppress(OSError):  # it has ended already
                    pipe.send(None)
            process.join(GOODBYE)
            if process.is_alive():
                process.kill()
                process.join()
            pipe.close()
        self._others.clear()
        self.own.share = Share()


def fingerprint(copy: Shared) -> str:
    """Differs where the weights of two copies do."""
    return math.fsum(float(weight.detach().double().square().sum()) for weight in copy.trainable()).hex()


def in_each(processes: int, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in so many new processes at once, which divides its work itself, as trainers of Hugging Face do.

    Each process finds torch's default group, and the usual variables. Function and arguments have to be picklable. With one
    process it is this one.

    Returns:
        What it returned in process 0.

    Raises:
        UserError: there are fewer GPUs, or a launcher has started this command several times.
        Fault: a process has ended; then so have the others.
    """
    _refuse_launchers()
    if processes == 1:
        return function(*arguments)
    if 0 < (gpus := torch.cuda.device_count()) < processes:
        raise UserError(f"sft.processes is {processes}, and there are {gpus} GPUs: in text each process needs one")
    from torch.multiprocessing.spawn import ProcessException, start_processes

    threads = max(1, torch.get_num_threads() // processes)
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer"
        try:
            start_processes(
                _one_of, (processes, Path(folder) / "meeting", threads, answer, function, arguments), nprocs=processes
            )
        except ProcessException as error:
            raise Fault(_told(processes, f"process {error.error_index} ended: {error}")) from error
        result: T = pickle.loads(answer.read_bytes())
    return result


def _one_of(
    rank: int, processes: int, meeting: Path, threads: int, answer: Path, function: Callable[..., Any], arguments: Any
) -> None:
    keep_freed()
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    os.environ["OMP_NUM_THREADS"] = str(threads)  # or accelerate would choose
    torch.set_num_threads(threads)
    if rank:
        os.environ["TQDM_DISABLE"] = "1"
    store = torch.distributed.FileStore(str(meeting), processes)
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=processes, timeout=PATIENCE)
    found = function(*arguments)
    if rank == 0:
        answer.write_bytes(pickle.dumps(found))
    torch.distributed.destroy_process_group()


def _refuse_launchers() -> None:
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UserError(
            "a launcher has started this command several times (WORLD_SIZE is set). Start it once, without one: "
            "rl.processes and sft.processes say how many processes train"
        )


def _told(processes: int, what: str) -> str:
    return f"of the {processes} processes that train, {what}. What is finished is kept: run the same command to go on"


def _follow(
    pipe: Connection, make: Callable[[], Shared], rank: int, processes: int, meeting: Path, threads: int
) -> None:
    """What the other processes do: what process 0 calls, until it needs no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; process 0 decides what to do
    keep_freed()
    torch.set_num_threads(threads)
    os.environ["TQDM_DISABLE"] = "1"  # one bar is enough
    if torch.cuda.is_available():
        torch.cuda.set_device(rank % torch.cuda.device_count())
    copy = make()
    try:
        pipe.send("ready")
        copy.share = Share.join(rank, processes, meeting)
        pipe.send("joined")
        while (call := pipe.recv()) is not None:
            method, arguments, named = call
            getattr(copy, method)(*arguments, **named)
            pipe.send(fingerprint(copy))
    except (OSError, EOFError, RuntimeError):
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join(GOODBYE)
            if not parent.is_alive():
                sys.exit(f"error: process {rank} of {processes} that train: process 0 has ended, so this one ends too")
        raise


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """So many for torch; more in all than there are cores would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)

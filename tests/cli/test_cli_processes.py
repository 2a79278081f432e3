"""A command in several processes: what each computes on, that all of them come to what one comes to, and how they end."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command import dragoman, run
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import Server, completion, reply

from dragoman.cli.processes import environment, share
from dragoman.core import files
from dragoman.evaluation.predictions import read_predictions
from dragoman.rollout.shards import Shard
from dragoman.rollout.store import read_episodes

EVALUATE = ["evaluate", "--questions", "questions.jsonl", "--index", "index", "--systems", "standard", "--no-track"]

two_processors = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="each process wants a processor")


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A project with twelve indexed passages and eight questions; it wants a server as its LLM."""
    monkeypatch.chdir(tmp_path)
    Path("conf").mkdir()
    Path("conf/cpu.yaml").write_text("evaluate: {bootstrap: 100, concurrency: 1}")
    Path("params.yaml").write_text("llm: {retries: 0, structured: none}\nsystems: {standard: {k: 2}}")
    towns = range(12)
    files.write(
        "corpus.jsonl", ({"id": f"p{i}", "title": f"Town {i}", "text": f"Town {i} lies on river {i}."} for i in towns)
    )
    files.write(
        "questions.jsonl",
        [
            {"id": f"q{i}", "question": f"On which river lies town {i}?", "answers": [f"river {i}"]}
            for i in range(2, 10)
        ],
    )
    return tmp_path


@pytest.fixture
def indexed(project, capsys) -> Path:
    dragoman(capsys, "index", "--corpus", "corpus.jsonl", "--out", "index")
    return project


@given(st.integers(1, 300), st.data())
def test_the_processors_are_shared_out_evenly_and_each_has_one_shard(count, data):
    of = data.draw(st.integers(1, count))
    cores = list(range(10, 10 + count))
    shares = [share(cores, shard) for shard in Shard.all(of)]
    assert [core for own in shares for core in own] == cores
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_shard_computes_with_as_many_threads_as_it_has_processors():
    told = environment([4, 5, 6], Shard(2, 2), gpus=1)
    assert told == {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3"}


@pytest.mark.parametrize(("visible", "own"), [("", ["0", "1", "0"]), ("3,5,-1,6", ["3", "5", "3"])])
def test_of_several_gpus_each_shard_sees_one(monkeypatch, visible, own):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    told = [environment([0], shard, gpus=2)["CUDA_VISIBLE_DEVICES"] for shard in Shard.all(3)]
    assert told == own


def test_more_processes_than_processors_are_refused(project, capsys, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {7})
    code, _, err = run(capsys, *EVALUATE, "--out", "out", "--processes", "2")
    assert code == 2 and "--processes 2: each wants a processor, and there are 1" in err and not Path("out").exists()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--shard", "1/2"], "give one of --shard I/N, --merge N and --processes N"),
        (["--merge", "2"], "give one of --shard I/N, --merge N and --processes N"),
        (["--processes", "0"], "greater than or equal to 1"),
        (
            ["--until-clear", "standard,direct", "--systems", "standard,direct"],
            "leave out --shard, --merge and --processes",
        ),
    ],
)
def test_processes_and_shards_do_not_go_together(project, capsys, more, says):
    code, _, err = run(capsys, *EVALUATE, "--processes", "2", *more)
    assert code == 2 and says in err


def of_server(url: str) -> list[str]:
    return ["--llm-url", url, "--llm-model", "m"]


def set_server(url: str) -> list[str]:
    """The same for a command without these options."""
    return ["--set", "llm.engine=openai", "--set", f"llm.urls=[{url}]", "--set", "llm.model=m"]


@two_processors
@pytest.mark.process
def test_two_processes_leave_what_one_leaves(indexed, capsys):
    server = Server(completion)
    one = dragoman(capsys, *EVALUATE, *of_server(server.url), "--out", "one")
    asked = server.seen
    two = dragoman(capsys, *EVALUATE, *of_server(server.url), "--out", "two", "--processes", "2")
    server.close()
    assert asked == 8 and server.seen == 16
    columns = [line.split("|")[1:7] for line in one.splitlines() if line.startswith("| standard")]
    assert columns == [line.split("|")[1:7] for line in two.splitlines() if line.startswith("| standard")] != []
    answers = [[(p["id"], p["answer"]) for p in read_predictions(Path(out))] for out in ("one", "two")]
    assert answers[0] == answers[1] and len(answers[0]) == 8


@two_processors
@pytest.mark.process
def test_a_rollout_of_two_processes_has_the_episodes_of_one_in_the_order_of_the_questions(indexed, capsys):
    """One process writes an episode when it is done, so its file has them in the order in which they ended."""
    server = Server(completion)
    arguments = [
        "rollout",
        "--questions",
        "questions.jsonl",
        "--index",
        "index",
        "--system",
        "standard",
        "--samples",
        "1",
    ]
    for out, processes in (("one", "1"), ("two", "2")):
        dragoman(capsys, *arguments, *set_server(server.url), "--out", out, "--processes", processes)
    server.close()
    one, two = (
        [(e.question["id"], e.trajectories[0].answer) for e in read_episodes(Path(out, "episodes.jsonl"))]
        for out in ("one", "two")
    )
    assert sorted(one) == two and [question for question, _ in two] == [f"q{i}" for i in range(2, 10)]


@two_processors
@pytest.mark.process
def test_what_a_process_refuses_is_said_with_exit_code_2(indexed, capsys):
    server = Server(completion)
    code, _, err = run(capsys, *EVALUATE, *of_server(server.url), "--out", "out", "--limit", "1", "--processes", "2")
    server.close()
    assert code == 2
    assert err.splitlines()[-1] == "error: shard 2/2: 2 shards of 1 questions: take fewer shards, or more questions"


@two_processors
@pytest.mark.process
def test_questions_that_fail_in_each_process_are_merged_and_told_once_of_the_whole(indexed, capsys):
    server = Server(lambda request, number: reply(request, 400, "{}"))
    code, out, err = run(capsys, *EVALUATE, *of_server(server.url), "--out", "out", "--processes", "2")
    server.close()
    assert code == 1 and "n = 8" in out and "standard: every question failed" in err.splitlines()[-1]
    assert "shard" not in err.splitlines()[-1] and len(list(read_predictions(Path("out")))) == 8


class TestEnds:
    """How the command and its shards end, while each shard waits for an answer of the LLM's server."""

    arguments = (*EVALUATE, "--out", "out", "--processes", "2")

    @pytest.fixture
    def server(self):
        """It answers two requests, and the others when it is told to go on."""
        go_on = threading.Event()

        def after_two(request, number):
            if number >= 2:
                go_on.wait(60)
            completion(request, number)

        server = Server(after_two)
        server.go_on = go_on.set
        yield server
        go_on.set()
        server.close()

    def started(self, server: Server) -> tuple[subprocess.Popen[str], list[int]]:
        """The command and its shards, both of which wait."""
        command = subprocess.Popen(
            [sys.executable, "-m", "dragoman", *self.arguments, *of_server(server.url)],
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(
                signal.SIGINT, signal.SIG_DFL
            ),  # pytest's may be ignored, and is inherited
        )
        while server.seen < 4:
            assert command.poll() is None
            time.sleep(0.02)
        shards = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()
        return command, [int(shard) for shard in shards]

    def rest(self, server: Server, capsys) -> int:
        """How many requests the same command still makes, until it is through."""
        server.go_on()
        before = server.seen
        assert "n = 8" in dragoman(capsys, *self.arguments, *of_server(server.url))
        return server.seen - before

    @two_processors
    @pytest.mark.process
    def test_ctrl_c_ends_every_process_and_the_same_command_goes_on(self, indexed, server, capsys):
        command, shards = self.started(server)
        command.send_signal(signal.SIGINT)
        _, err = command.communicate(timeout=60)
        assert command.returncode == 130 and "run the same command to go on" in err and "Traceback" not in err
        assert len(shards) == 2 and not any(map(is_running, shards))
        assert self.rest(server, capsys) == 6

    @two_processors
    @pytest.mark.process
    def test_a_command_that_is_killed_takes_its_processes_along_and_the_same_command_goes_on(
        self, indexed, server, capsys
    ):
        command, shards = self.started(server)
        command.kill()
        command.communicate(timeout=60)
        until(lambda: not any(map(is_running, shards)))
        assert len(shards) == 2 and self.rest(server, capsys) == 6

    @two_processors
    @pytest.mark.process
    def test_a_process_that_is_killed_is_told_while_the_other_goes_on(self, indexed, server, capsys):
        command, (_, second) = self.started(server)
        os.kill(second, signal.SIGKILL)
        told = next(line for line in command.stderr if "killed" in line)
        assert "shard 2/2 was killed by signal 9; the others go on" in told and command.poll() is None
        server.go_on()
        _, err = command.communicate(timeout=60)
        assert command.returncode == 1
        assert err.splitlines()[-1] == "error: shard 2/2: it was killed by signal 9"
        assert 0 < self.rest(server, capsys) <= 4  # of eight, half are the other's


def is_running(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)

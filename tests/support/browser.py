"""A headless browser, driven as a person would use it."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium")
ENTER, TAB = "\ue007", "\ue004"


def browse(page: Path, fragment: str, *options: str) -> str:
    """Open the page in a headless browser. Returns the document as drawn, when `--dump-dom` asks for it."""
    assert CHROMIUM is not None
    profile = f"--user-data-dir={page.parent / 'profile'}"
    command = [CHROMIUM, *FLAGS, profile, *options, f"{page.as_uri()}#{fragment}"]
    return subprocess.run(command, capture_output=True, check=True, timeout=300, encoding="utf-8").stdout


class Driver:
    """A WebDriver session (W3C); called with a method, a path below the session, and a body."""

    def __init__(self, send: Callable[..., Any]) -> None:
        self._send = send

    def __call__(self, method: str, path: str, **body: Any) -> Any:
        return self._send(method, path, **body)

    def run(self, script: str, *args: Any) -> Any:
        """What the script returns in the page."""
        return self("POST", "/execute/sync", script=script, args=list(args))

    def press(self, keys: str) -> None:
        """Type on the keyboard, wherever the focus is."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self("POST", "/actions", actions=[{"type": "key", "id": "keyboard", "actions": actions}])

    def until(self, script: str, *args: Any, seconds: float = 120) -> Any:
        """Wait until what the script returns is something, and return it."""
        end = time.monotonic() + seconds
        while not (found := self.run(script, *args)):
            assert time.monotonic() < end, f"still not: {script}\n{self.run('return document.body.innerText')}"
            time.sleep(0.05)
        return found


@contextmanager
def driven(profile: Path) -> Iterator[Driver]:
    """A browser with a fresh profile in this folder. The test is skipped where there is none."""
    if CHROMIUM is None or shutil.which("chromedriver") is None:
        pytest.skip("needs a browser and its driver: apt-get install chromium chromium-driver")
    flags = [*FLAGS, "--window-size=1600,1000", f"--user-data-dir={profile}"]
    capabilities = {"alwaysMatch": {"goog:chromeOptions": {"binary": CHROMIUM, "args": flags}}}
    with (
        chromedriver() as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=300) as client,
    ):

        def send(method: str, path: str, **body: Any) -> Any:
            answer = client.request(method, path, json=body if method == "POST" else None)
            assert answer.is_success, answer.text
            return answer.json()["value"]

        session = f"/session/{send('POST', '/session', capabilities=capabilities)['sessionId']}"
        yield Driver(lambda method, path, **body: send(method, session + path, **body))
        send("DELETE", session)


@contextmanager
def chromedriver(tries: int = 5) -> Iterator[int]:
    """Starts the driver. Returns its port."""
    for _ in range(tries):
        with subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True) as process:
            try:
                said = process.stdout or ()
                port = next((m[1] for line in said if (m := re.search(r"successfully on port (\d+)", line))), None)
                if port is not None:  # it takes one port for IPv4 and IPv6, which may be taken in one of them
                    yield int(port)
                    return
            finally:
                process.terminate()
    raise AssertionError(f"chromedriver found no free port in {tries} tries")

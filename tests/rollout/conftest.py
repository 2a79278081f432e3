from __future__ import annotations

import re
import shutil
import subprocess

import httpx
import pytest
from browser import CHROMIUM, FLAGS


@pytest.fixture
def driver(tmp_path):
    """A WebDriver session (W3C) as a function: method, path below the session, and body."""
    if CHROMIUM is None or shutil.which("chromedriver") is None:
        pytest.skip("needs a browser and its driver: apt-get install chromium chromium-driver")
    with subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            port = next(m[1] for line in process.stdout if (m := re.search(r"successfully on port (\d+)", line)))
            flags = [*FLAGS, "--window-size=1600,1000", f"--user-data-dir={tmp_path / 'profile'}"]
            capabilities = {"alwaysMatch": {"goog:chromeOptions": {"binary": CHROMIUM, "args": flags}}}
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as client:

                def send(method: str, path: str, **body):
                    answer = client.request(method, path, json=body if method == "POST" else None)
                    assert answer.is_success, answer.text
                    return answer.json()["value"]

                session = f"/session/{send('POST', '/session', capabilities=capabilities)['sessionId']}"
                yield lambda method, path, **body: send(method, session + path, **body)
                send("DELETE", session)
        finally:
            process.terminate()

"""A real browser, headless."""

from __future__ import annotations

import shutil
import subprocess

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium")


def browse(page, fragment: str, *options: str) -> str:
    """Open the page in a headless browser. Returns the document as drawn, when `--dump-dom` asks for it."""
    profile = f"--user-data-dir={page.parent / 'profile'}"
    command = [CHROMIUM, *FLAGS, profile, *options, f"{page.as_uri()}#{fragment}"]
    return subprocess.run(command, capture_output=True, check=True, timeout=60, encoding="utf-8").stdout

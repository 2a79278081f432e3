"""The README says what the committed results say, and names only commands and files that exist."""

import re
from pathlib import Path

from tools.publish import embedded

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_published_results():
    assert embedded(README) == README


def test_every_make_target_and_link_exists():
    makefile = (ROOT / "Makefile").read_text()
    for text in (README, (ROOT / "CONTRIBUTING.md").read_text()):
        for target in re.findall(r"(?:`|^)make ([a-z]+)\b", text, flags=re.M):
            assert re.search(rf"^{target}:", makefile, flags=re.M), target
        for link in re.findall(r"\]\((?!http)([^)#]+)\)", text):
            assert (ROOT / link).exists(), link


def test_every_command_exists():
    from dragoman.cli import app

    names = {c.name or c.callback.__name__ for c in app.registered_commands}
    commands = re.findall(r"(?:bin/|`)dragoman ([a-z][a-z-]+)", README)
    assert len(commands) > 5
    assert set(commands) <= names

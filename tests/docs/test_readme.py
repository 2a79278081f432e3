"""The README says what the committed results say."""

from pathlib import Path

from tools.publish import embedded

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_published_results():
    assert embedded(README) == README

"""What people read is short: no sentence of README, docs, guides or docstrings has more than 30 words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = sorted((ROOT / "src").rglob("*.py"))
MOST_WORDS = 30
WORD = re.compile(r"[\w'’@/+-]*\w[\w'’@/+-]*")


def sentences(markdown: str) -> list[str]:
    """The sentences of a page: of paragraphs, items of lists and cells of tables. Code is one word, wherever it stands."""
    text = re.sub(r"^ *```.*?^ *```$", "\n\n", markdown, flags=re.M | re.S)
    text = re.sub(r"<!--.*?-->", "\n\n", text, flags=re.S)
    text = re.sub(r"`[^`]+`", "CODE", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    text = re.sub(r"^\s*(?:[-*]|\d+\.)\s+|^#+ ", "\n\n", text, flags=re.M)  # an item or a heading begins
    text = re.sub(r"^\|.*\|$", lambda row: "\n\n" + row[0].replace("|", "\n\n") + "\n\n", text, flags=re.M)
    blocks = [" ".join(block.split()) for block in re.split(r"\n\s*\n", text)]
    return [sentence for block in blocks for sentence in re.split(r"(?<=[.!?:])[\"')*_]* +", block) if sentence]


def too_long(markdown: str) -> list[str]:
    return [sentence for sentence in sentences(markdown) if len(WORD.findall(sentence)) > MOST_WORDS]


def docstrings(module: Path) -> Iterator[str]:
    """Those of a module, its classes and functions, and of the fields of its settings; each argument is a paragraph, and a
    semicolon ends a sentence."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            text = re.sub(r"^\s+", "", node.value.value.replace("; ", ". ").replace(";\n", ".\n"), flags=re.M)
            yield re.sub(r"^(?=[\w, *]+: )", "\n", text, flags=re.M)


def test_sentences_are_split_at_full_stops_items_and_cells():
    page = "# Head\n\nOne two. Three `a b`:\n- four\n  five\n- six\n\n| a. b | c |\n|---|---|\n"
    assert [s for s in sentences(page) if re.search(r"\w", s)] == [
        "Head", "One two.", "Three CODE:", "four five", "six", "a.", "b", "c"
    ]  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_sentence_of_a_page_is_longer_than_30_words(page):
    assert too_long(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(ROOT / "src").as_posix())
def test_no_sentence_of_a_docstring_is_longer_than_30_words(module):
    assert [s for text in docstrings(module) for s in too_long(text)] == []

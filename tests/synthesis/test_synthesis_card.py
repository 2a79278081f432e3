"""The card: its figures by hand, and a page that shows them and runs nothing that a question says."""

import json
import math
import re
from html.parser import HTMLParser

import pytest

from dragoman.synthesis.card import EXAMPLES, card, write_card
from dragoman.synthesis.plan import Plan
from dragoman.synthesis.synthesize import Filled

PLAN = Plan.model_validate(
    {
        "categorizations": {
            "premise": {
                "without premise": {"probability": 0.5, "description": "..."},
                "with premise": {"probability": 0.5, "description": "..."},
            },
            "number_of_documents": {
                "single-doc": {"probability": 0.5, "description": "..."},
                "multi-doc": {"probability": 0.5, "description": "..."},
                "no-doc": {"probability": 0, "description": "..."},
            },
            "mood": {"good": {"probability": 1, "description": "..."}},
        },
        "combinations": [["premise", "number_of_documents"], ["number_of_documents", "mood"]],
    }
)
SCRIPT = "<script>alert('owned')</script>"


def row(id, documents="single-doc", premise="with premise", **more):
    categories = {"number_of_documents": documents} | ({"premise": premise} if premise else {})
    return {
        "id": id,
        "question": f"Question {id}?",
        "answers": [f"answer {id}", "other name"],
        "supporting_ids": ["p1", "p2"],
        "categories": categories,
        "reference": f"Reference {id}.",
        "writer": "grounded",
    } | more


def filled(train=(), dev=(), test=(), rejected=(), open=0):
    reasons = [{"slot": "train-0001", "reason": reason} for reason in rejected]
    return Filled({"train": list(train), "dev": list(dev), "test": list(test)}, reasons, open)


def made(found, seconds=12.34):
    return card(found, PLAN, settings={"n": 20, "backend": "grounded"}, source="data/x", seconds=seconds)


def of(values, name):
    return next(entry for entry in values["categories"] if entry["name"] == name)


def premises(with_, without):
    rows = [row(f"w{i}") for i in range(with_)] + [row(f"o{i}", premise="without premise") for i in range(without)]
    return of(made(filled(train=rows)), "premise")


def test_counts():
    values = made(
        filled(
            train=[row("a"), row("b", writer="engine")],
            dev=[row("c")],
            rejected=["leaked", "length", "leaked", "leaked", "length"],
            open=2,
        )
    )
    assert values["kept"] == {"train": 2, "dev": 1, "test": 0}
    assert (values["candidates"], values["acceptance"], values["open"]) == (8, 3 / 8, 2)
    assert values["rejected"] == {"leaked": 3, "length": 2}
    assert values["writers"] == {"grounded": 2, "engine": 1}
    assert values["seconds"] == 12.3 and values["source"] == "data/x"


def test_shares_and_their_p():
    found = premises(15, 5)
    assert found["n"] == 20
    # chi-square: (15 - 10)² / 10 + (5 - 10)² / 10 = 5, of one degree of freedom
    assert found["p"] == pytest.approx(math.erfc(math.sqrt(5 / 2)))
    assert [(e["name"], e["planned"], e["found"], e["count"]) for e in found["categories"]] == [
        ("without premise", 0.5, 0.25, 5),
        ("with premise", 0.5, 0.75, 15),
    ]


@pytest.mark.parametrize(("with_", "within"), [(10, True), (14, True), (15, False), (6, True), (5, False), (20, False)])
def test_within_the_95_per_cent_interval(with_, within):
    """Of 20 at 0.5 it reaches 1.96 √(0.25 / 20) = 0.219 to either side: from 5.6 to 14.4."""
    assert {entry["within"] for entry in premises(with_, 20 - with_)["categories"]} == {within}


def test_a_category_that_was_never_wanted_and_a_categorization_that_was_not_drawn():
    rows = [row(f"s{i}", premise=None) for i in range(6)] + [row(f"m{i}", "multi-doc", None) for i in range(6)]
    values = made(filled(train=rows))
    assert [entry["name"] for entry in values["categories"]] == ["number_of_documents"]
    documents = of(values, "number_of_documents")
    assert documents["p"] == 1 and documents["n"] == 12
    assert documents["categories"][2] == {"name": "no-doc", "planned": 0, "found": 0, "count": 0, "within": True}


def test_difficulty_in_all_and_about_one_document():
    def rated(id, documents, name, direct, standard, gold):
        return row(id, documents, difficulty={"label": name, "direct": direct, "standard": standard, "gold": gold})

    values = made(
        filled(
            train=[rated("a", "single-doc", "easy", 1.0, 1.0, 1.0), rated("b", "single-doc", "hard", 0.0, 0.0, 0.5)],
            dev=[rated("c", "multi-doc", "hard", 0.0, 0.25, 0.5), rated("d", "multi-doc", "medium", 0.0, 0.75, 1.0)],
            test=[row("e")],  # was not rated
        )
    )
    assert values["difficulty"] == {
        "labels": {"easy": 1, "medium": 1, "hard": 2},
        "success": {
            "all questions": {"direct": 0.25, "standard": 0.5, "gold": 0.75, "n": 4},
            "about one document": {"direct": 0.5, "standard": 0.5, "gold": 0.75, "n": 2},
        },
    }
    assert made(filled(train=[row("a")]))["difficulty"] == {}
    many = made(filled(train=[rated("c", "multi-doc", "hard", 0.0, 0.0, 0.0)]))["difficulty"]
    assert list(many["success"]) == ["all questions"]


@pytest.mark.parametrize("count", [1, 5, 12, 13, 23, 24, 100])
def test_examples_are_spread_over_the_set(count):
    rows = [row(f"{i:03}") for i in range(count)]
    shown = [e["id"] for e in made(filled(train=rows[: count // 2], test=rows[count // 2 :]))["examples"]]
    assert len(shown) == min(count, EXAMPLES) and shown == sorted(set(shown)) and shown[0] == "000"
    assert count < 2 * EXAMPLES or int(shown[-1]) >= count * 0.8


class Page(HTMLParser):
    """The text of a page, and its elements."""

    def __init__(self, page):
        super().__init__()
        self.text, self.tags = "", []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text += data


def page(values, out):
    write_card(values, out)
    return (out / "card.html").read_text(encoding="utf-8")


def test_the_page_shows_the_figures(tmp_path):
    rated = {"label": "medium", "direct": 0.0, "standard": 0.5, "gold": 1.0}
    rows = [row(f"w{i}", difficulty=rated) for i in range(15)] + [
        row(f"o{i}", premise="without premise") for i in range(5)
    ]
    text = Page(page(made(filled(train=rows, rejected=["answer leaked"] * 5, open=3)), tmp_path)).text
    flat = " ".join(text.split())
    for said in (
        "from data/x, in 12 seconds",
        "20 train, 0 dev, 0 test: 20 of 25 candidates kept (80%), 3 wanted questions without one that passed",
        "Written by: grounded 20.",
        "answer leaked520.0%",
        "0 easy, 15 medium, 0 hard.",
        "all questions150.000.501.00",
        "premise n = 20, p = 0.025",
        "1575% of 50%",
        "Question w0?",
        "answer w0 / other name Reference w0.",
        "w0 · p1, p2 · single-doc, with premise · medium",
        "n20",
        "backendgrounded",
    ):
        assert said in flat, said


def test_the_page_marks_what_is_off(tmp_path):
    even = page(made(filled(train=[row(f"{i}", premise=None) for i in range(1)])), tmp_path / "a")
    odd = page(made(filled(train=[row(f"{i}") for i in range(20)])), tmp_path / "b")
    assert not re.search(r'class="[^"]*\boff\b', even)
    assert len(re.findall(r'class="(?:number )?off"', odd)) == 6  # both of both categorizations, and their p
    assert "Nothing." in even and "Difficulty" not in even


def test_nothing_that_a_question_says_is_run(tmp_path):
    hostile = row(
        SCRIPT,
        question=SCRIPT,
        answers=[SCRIPT],
        supporting_ids=[SCRIPT],
        reference=f"</p>{SCRIPT}",
        writer=SCRIPT,
        difficulty={"label": "hard", "direct": 0, "standard": 0, "gold": 0},
    )
    values = made(filled(train=[hostile], rejected=[SCRIPT]))
    values |= {"source": SCRIPT, "settings": {"backend": SCRIPT, SCRIPT: SCRIPT}}
    plain = Page(page(made(filled(train=[row("a", difficulty=hostile["difficulty"])], rejected=["leaked"])), tmp_path))
    shown = page(values, tmp_path)
    assert "<script" not in shown and "&lt;script&gt;" in shown
    assert Page(shown).tags.count("p") == plain.tags.count("p")
    assert Page(shown).text.count(SCRIPT) >= 9


def test_facts_that_were_not_asked_for_are_counted(tmp_path):
    found = filled(train=[row("a")])
    values = card(found, PLAN, settings={"backend": "grounded"}, source="x", seconds=1, ambiguous=54)
    assert "54 facts were not asked for" in page(values, tmp_path)
    assert json.loads((tmp_path / "metrics.json").read_text(encoding="utf-8"))["ambiguous"] == 54


def test_the_figures_to_compare(tmp_path):
    found = filled(
        train=[row(f"w{i}") for i in range(15)] + [row(f"o{i}", premise="without premise") for i in range(5)]
    )
    write_card(made(found), tmp_path)
    figures = json.loads((tmp_path / "metrics.json").read_text(encoding="utf-8"))
    assert figures == {
        "backend": "grounded",
        "kept": {"train": 20, "dev": 0, "test": 0},
        "open": 0,
        "candidates": 20,
        "acceptance": 1.0,
        "writers": {"grounded": 20},
        "rejected": {},
        "ambiguous": 0,
        "categories_p": {
            "premise": pytest.approx(0.0253, abs=1e-4),
            "number_of_documents": pytest.approx(math.erfc(math.sqrt(20 / 2))),
        },
        "difficulty": {},
    }

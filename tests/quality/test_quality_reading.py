"""What validation reads is what other commands read, and what its pages show is only shown."""

from __future__ import annotations

import json

import pytest

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.text import same_question
from dragoman.corpus.loaders import load_corpus, load_questions
from dragoman.quality import validate
from dragoman.quality.artifacts import Reader
from dragoman.quality.settings import ValidateParams
from dragoman.synthesis.plan import load_plan

LIMITS = ValidateParams()


def test_a_plan_beside_questions_goes_before_that_of_the_settings(tmp_path):
    rows = [{"id": "a", "question": "Who is it?", "answers": ["a"], "categories": {"mood": "merry"}}]
    files.write(tmp_path / "train.jsonl", rows)
    reader = Reader([], load_plan())
    assert reader.read(tmp_path / "train.jsonl").tables[1].frame.unplanned_categories.item() == "mood: merry"
    (tmp_path / "plan.yaml").write_text(
        "categorizations: {mood: {merry: {probability: 1, description: Be merry.}}}\ncombinations: [[mood]]\n"
    )
    _, questions, categories = reader.read(tmp_path / "train.jsonl").tables
    assert questions.frame.unplanned_categories.isna().all() and categories.frame.p.item() == 1


def test_a_plan_beside_questions_without_categories_is_not_read(tmp_path):
    files.write(tmp_path / "train.jsonl", [{"id": "a", "question": "Who is it?", "answers": ["a"]}])
    (tmp_path / "plan.yaml").write_text("of: something else")
    assert len(Reader([], load_plan()).read(tmp_path / "train.jsonl").tables) == 2


def test_rows_with_other_names_of_their_fields_pass_as_they_are_read_elsewhere(tmp_path):
    files.write(
        tmp_path / "corpus.jsonl", [{"_id": "a", "contents": "b c"}, {"docid": "d", "title": None, "text": "e"}]
    )
    asked = {"_id": "q", "query": "Who is it?", "answers": ["a"], "supporting_ids": ["a"]}
    files.write(tmp_path / "train.jsonl", [asked | {"categories": ["sport"]}])
    assert [p.id for p in load_corpus(tmp_path)] == ["a", "d"] and load_questions(tmp_path / "train.jsonl")[0].id == "q"
    report = validate([tmp_path], tmp_path / "out", LIMITS)
    assert report["metrics"]["failed"] == 0 and [file["rows"] for file in report["files"]] == [2, 1]


def test_a_page_shows_tags_of_the_data_as_text_and_the_report_has_them_as_they_are(tmp_path):
    asked, named = "What is <img src=x onerror=alert(1)> &amp; why?", "<script>alert(2)</script>"
    files.write(tmp_path / "train.jsonl", [{"id": f"q{i}", "question": asked, "answers": ["a"]} for i in range(2)])
    files.write(tmp_path / "corpus.jsonl", [{"id": named, "title": "", "text": "a"}] * 2)
    with pytest.raises(UserError) as refusal:
        validate([tmp_path], tmp_path / "out", LIMITS)
    pages = "".join(page.read_text(encoding="utf-8") for page in (tmp_path / "out/gx").rglob("*.html"))
    assert "<img src=x" not in pages and "<script>alert" not in pages
    assert "&lt;img src=x" in pages and "&lt;script&gt;alert(2)" in pages
    report = json.loads((tmp_path / "out/report.json").read_text(encoding="utf-8"))
    found = [bad["value"] for file in report["files"] for failed in file["failed"] for bad in failed["first"]]
    assert found == [named, named, same_question(asked), same_question(asked)]
    assert f"corpus.jsonl:1 ({named})" in str(refusal.value)

"""What a rollout leaves beside its episodes: of each tree a view in a file of its own."""

from __future__ import annotations

from pathlib import Path

from dragoman.rollout.record import Episode
from dragoman.rollout.results import write_rollout


def episode(question: str) -> Episode:
    return Episode(
        key=question, question={"id": question, "question": "?", "answers": ["a"]}, system="s", config={}, nodes=[],
        calls=[], trajectories=[], started=0, seconds=0,
    )  # fmt: skip


def views(out: Path, *questions: str) -> dict[str, str]:
    write_rollout([episode(question) for question in questions], "em", out, views=len(questions))
    return {path.name: path.read_text(encoding="utf-8") for path in (out / "trees").iterdir()}


def test_views_of_ids_that_are_no_names_are_files_of_their_own(tmp_path):
    found = views(tmp_path, "问题1", "答案1", "x" * 400)
    # printf 问题1 | sha256sum
    assert len(found) == len(set(found.values())) == 3 and "-1-c0fcd957.html" in found
    assert max(map(len, found)) == 80 + len("-01234567.html")


def test_a_view_of_an_id_that_is_a_name_has_this_name(tmp_path):
    assert sorted(views(tmp_path, "q-1.a", "a/b", "a-b")) == ["a-b-c14cddc0.html", "a-b.html", "q-1.a.html"]

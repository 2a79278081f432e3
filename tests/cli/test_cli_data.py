"""Commands that look into what is trained on: what of it reaches the terminal."""

from __future__ import annotations

from command import run

from dragoman.core.types import Passage
from dragoman.pipeline import review
from dragoman.retrieval import build_index
from dragoman.tracking.review import Pending

CLEAR = "\x1b[2J"  # empties the screen of a terminal


def project(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "cpu.yaml").write_text("{}")
    (tmp_path / "params.yaml").write_text("{}")


def test_a_question_that_waits_for_a_review_commands_no_terminal(tmp_path, monkeypatch, capsys):
    async def reviewed(*_):
        waiting = Pending(trace="t1", question=f"Who{CLEAR}?", why=f"a draw says: {CLEAR}")
        return {"added": 1, "left": 0, "pending": [waiting]}

    project(tmp_path, monkeypatch)
    monkeypatch.setattr(review, "run", reviewed)
    code, out, _ = run(capsys, "review")
    assert code == 0 and out.startswith("t1  Who\\x1b[2J?\n     a draw says: \\x1b[2J\n")


def test_a_passage_that_is_found_commands_no_terminal(tmp_path, monkeypatch, capsys):
    project(tmp_path, monkeypatch)
    build_index([Passage("p", f"Brisa{CLEAR}", f"The capital of Brisa{CLEAR}")], tmp_path / "index")
    code, out, _ = run(capsys, "search", "capital of Brisa", "--index", "index")
    assert code == 0 and "\x1b" not in out and out.count("\\x1b[2J") == 2

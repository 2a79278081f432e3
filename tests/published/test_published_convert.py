"""What a conversion writes: splits, held out questions, samples, and what it leaves out."""

import json
import shutil
from pathlib import Path

import pytest
import small_sets

from dragoman.core.errors import UserError
from dragoman.corpus import load_corpus, load_questions
from dragoman.published.convert import MANIFEST, Part, convert, written
from dragoman.published.source import Source


def hotpot(path, prefix, count, **change):
    return small_sets.array(path, *[small_sets.HOTPOT | {"_id": f"{prefix}{n}"} | change for n in range(count)])


def musique(path, count):
    """Questions of which each has a paragraph of its own and one that all share."""
    shared = small_sets.MUSIQUE["paragraphs"][1]
    own = [{"idx": 0, "title": f"T{n}", "paragraph_text": f"Text {n}.", "is_supporting": True} for n in range(count)]
    return small_sets.lines(
        path, *[small_sets.MUSIQUE | {"id": f"2hop__{n}", "paragraphs": [own[n], shared]} for n in range(count)]
    )


def test_passages_are_written_once_and_the_project_reads_what_is_written(tmp_path):
    parts = [
        Part("hotpotqa", Source(hotpot(tmp_path / "train.json", "a", 3)), "train"),
        Part("hotpotqa", Source(hotpot(tmp_path / "dev.json", "b", 2)), "test"),
    ]
    manifest = convert(parts, tmp_path / "out", made_of={"x": 1})
    assert manifest == {
        "made_of": {"x": 1}, "passages": 3, "questions": {"train": 3, "test": 2}, "left_out": {}
    }  # fmt: skip
    passages = load_corpus(tmp_path / "out" / "corpus.jsonl")
    questions = load_questions(tmp_path / "out" / "test.jsonl")
    assert [q.id for q in questions] == ["b0", "b1"]
    assert {p.id for p in passages} > set(questions[0].supporting_ids)
    assert list(json.loads((tmp_path / "out" / "test.jsonl").read_text().splitlines()[0])) == [
        "id", "question", "answers", "type", "supporting_ids", "level"
    ]  # fmt: skip


def test_a_tenth_of_train_at_most_is_held_out_as_dev_whatever_its_order(tmp_path):
    path = musique(tmp_path / "train.jsonl", 20)
    part = Part("musique", Source(path), "train")
    assert convert([part], tmp_path / "a", made_of={}, hold_out=500)["questions"] == {"train": 18, "dev": 2}
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    convert([part], tmp_path / "b", made_of={}, hold_out=500)
    held = [{q.id for q in load_questions(tmp_path / out / "dev.jsonl")} for out in "ab"]
    assert held[0] == held[1] and not held[0] & {q.id for q in load_questions(tmp_path / "a" / "train.jsonl")}


def test_a_split_that_is_published_is_not_held_out_as_well(tmp_path):
    parts = [
        Part("musique", Source(musique(tmp_path / "train.jsonl", 20)), "train"),
        Part("hotpotqa", Source(hotpot(tmp_path / "dev.json", "d", 1)), "dev"),
    ]
    assert convert(parts, tmp_path / "out", made_of={}, hold_out=5)["questions"] == {"train": 20, "dev": 1}


def test_a_sample_has_only_the_passages_of_its_questions(tmp_path):
    part = Part("musique", Source(musique(tmp_path / "dev.jsonl", 20)), "test")
    manifest = convert([part], tmp_path / "out", made_of={}, most=4)
    assert manifest["questions"] == {"test": 4} and manifest["passages"] == 5
    ids = [int(q.id.removeprefix("2hop__")) for q in load_questions(tmp_path / "out" / "test.jsonl")]
    assert ids == sorted(ids)  # in the order of the file
    fewer = convert([part], tmp_path / "fewer", made_of={}, most=2)
    assert fewer["passages"] == 3
    assert {q.id for q in load_questions(tmp_path / "fewer" / "test.jsonl")} < {f"2hop__{n}" for n in ids}


def test_gold_that_is_not_all_there_is_unknown(tmp_path):
    path = hotpot(tmp_path / "dev.json", "a", 1, supporting_facts=[["Paro", 0], ["Oslo", 0]])
    manifest = convert([Part("hotpotqa", Source(path), "test")], tmp_path / "out", made_of={})
    assert manifest["left_out"] == {"sets of gold passages that are not all there": 1}
    assert load_questions(tmp_path / "out" / "test.jsonl")[0].supporting_ids == ()


def test_passages_without_text_are_left_out(tmp_path):
    path = hotpot(tmp_path / "dev.json", "a", 1, context=[*small_sets.HOTPOT["context"], ["Oslo", [" ", ""]]])
    manifest = convert([Part("hotpotqa", Source(path), "test")], tmp_path / "out", made_of={})
    assert manifest["passages"] == 3 and manifest["left_out"] == {"passages without text": 1}


def test_open_domain_questions_have_no_corpus(tmp_path):
    path = small_sets.text(tmp_path / "b.csv", small_sets.BAMBOOGLE)
    manifest = convert([Part("bamboogle", Source(path), "test")], tmp_path / "out", made_of={})
    assert manifest["passages"] == 0 and not (tmp_path / "out" / "corpus.jsonl").exists()


def test_the_same_again_is_left_as_it_is_and_another_takes_its_place(tmp_path):
    part = Part("hotpotqa", Source(hotpot(tmp_path / "dev.json", "a", 1)), "test")
    convert([part], tmp_path / "out", made_of={"files": "one"})
    (tmp_path / "out" / "test.jsonl").write_text("changed by hand")
    convert([part], tmp_path / "out", made_of={"files": "one"})
    assert (tmp_path / "out" / "test.jsonl").read_text() == "changed by hand"
    convert([part], tmp_path / "out", made_of={"files": "two"})
    assert len(load_questions(tmp_path / "out" / "test.jsonl")) == 1
    assert written(tmp_path / "out")["made_of"] == {"files": "two"}


def test_a_set_whose_removal_is_killed_is_replaced_by_the_next_import(tmp_path, monkeypatch):
    remove = shutil.rmtree

    def die(folder, **options):
        if not Path(folder, MANIFEST).is_file():
            return remove(folder, **options)
        Path(folder, MANIFEST).unlink()
        raise KeyboardInterrupt

    part, out = Part("musique", Source(musique(tmp_path / "dev.jsonl", 3)), "test"), tmp_path / "out"
    convert([part], out, made_of={"x": 1})
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", die)
        convert([part], out, made_of={"x": 2})
    assert convert([part], out, made_of={"x": 3})["made_of"] == {"x": 3}


def test_a_fault_leaves_what_was_there(tmp_path):
    good = Part("hotpotqa", Source(hotpot(tmp_path / "dev.json", "a", 1)), "test")
    convert([good], tmp_path / "out", made_of={"files": "one"})
    bad = Part("hotpotqa", Source(hotpot(tmp_path / "bad.json", "a", 1, answer=3)), "test")
    with pytest.raises(UserError, match="'answer': Input should be a valid string"):
        convert([bad], tmp_path / "out", made_of={"files": "two"})
    assert written(tmp_path / "out")["made_of"] == {"files": "one"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.json", "dev.json", "out"]


def test_a_folder_of_something_else_is_not_touched(tmp_path):
    part = Part("hotpotqa", Source(hotpot(tmp_path / "dev.json", "a", 1)), "test")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="holds something that no import wrote"):
        convert([part], tmp_path / "mine", made_of={})
    (tmp_path / "mine" / MANIFEST).write_text("{}")
    with pytest.raises(UserError, match="holds something that no import wrote"):
        convert([part], tmp_path / "mine", made_of={})


def test_gold_that_was_cut_is_there_by_its_chunks(tmp_path):
    folder = tmp_path / "set"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text('{"_id": "p#0", "text": "one"}\n{"_id": "p#1", "text": "two"}\n')
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "What?", "metadata": {"answers": ["one"]}}\n')
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\tp\t1\n")
    convert([Part("beir", Source(folder), "test")], tmp_path / "out", made_of={})
    assert load_questions(tmp_path / "out" / "test.jsonl")[0].supporting_ids == ("p",)


def test_made_ids_go_on_over_the_files_of_a_split(tmp_path):
    row = {"question": "Who?", "answers": ["Ada"], "positive_ctxs": [], "hard_negative_ctxs": []}
    paths = [tmp_path / name for name in ("a.json", "b.json")]
    for path in paths:
        path.write_text(json.dumps([row, row]))
    convert([Part("dpr", Source(path), "test") for path in paths], tmp_path / "out", made_of={})
    assert [q.id for q in load_questions(tmp_path / "out" / "test.jsonl")] == [f"test-{n}" for n in (1, 2, 3, 4)]


def test_one_id_twice_in_a_split_is_refused(tmp_path):
    parts = [Part("hotpotqa", Source(hotpot(tmp_path / f"{n}.json", "a", 1)), "train") for n in range(2)]
    with pytest.raises(UserError, match="train: the question id 'a0' is there twice"):
        convert(parts, tmp_path / "o", made_of={})


def test_of_a_sample_no_more_is_read_than_is_given(tmp_path):
    part = Part("musique", Source(musique(tmp_path / "train.jsonl", 60)), "train")
    assert convert([part], tmp_path / "out", made_of={}, hold_out=1000, most=18)["questions"] == {"train": 18, "dev": 2}


def test_one_id_in_two_splits_is_refused(tmp_path):
    path = hotpot(tmp_path / "h.json", "a", 1)
    with pytest.raises(UserError, match="test: the question id 'a0' is in train too"):
        convert(
            [Part("hotpotqa", Source(path), "train"), Part("hotpotqa", Source(path), "test")],
            tmp_path / "o",
            made_of={},
        )


def test_questions_of_no_split_are_refused(tmp_path):
    path = hotpot(tmp_path / "h.json", "a", 1)
    with pytest.raises(UserError, match="whose questions are these"):
        convert([Part("hotpotqa", Source(path))], tmp_path / "out", made_of={})

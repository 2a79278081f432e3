"""Questions out of several files: mixed evenly, none under another's name."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.core.errors import UserError
from dragoman.pipeline.project import Project
from dragoman.pipeline.questions import load_mixed


def written(folder, name, count, *, prefix=None):
    path = folder / f"{name}.jsonl"
    rows = [{"id": f"{prefix or name}{i}", "question": f"{name} {i}?", "answers": ["yes"]} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return name, path


def ids(asked):
    return [question.id for question in asked.questions]


def test_where_questions_are():
    project = Project(Path("elsewhere"))
    assert project.question_file("gold", "dev", "mine") == Path("elsewhere/data/mine/dev.jsonl")
    assert project.question_file("synthetic", "train", "atlas") == Path("elsewhere/results/synthesize/train.jsonl")
    with pytest.raises(UserError, match="questions about atlas, not about mine"):
        project.question_file("synthetic", "test", "mine")


def test_one_file_stays_as_it_is(tmp_path):
    asked = load_mixed([written(tmp_path, "g", 3)])
    assert ids(asked) == ["g0", "g1", "g2"]
    assert asked.files == (tmp_path / "g.jsonl",)
    assert asked.sources == {"g0": "g", "g1": "g", "g2": "g"}


def test_two_alike_take_turns(tmp_path):
    asked = load_mixed([written(tmp_path, "g", 3), written(tmp_path, "s", 3)])
    assert ids(asked) == ["g0", "s0", "g1", "s1", "g2", "s2"]


def test_the_smaller_is_spread_over_the_larger(tmp_path):
    asked = load_mixed([written(tmp_path, "g", 6), written(tmp_path, "s", 2)])
    assert ids(asked) == ["g0", "g1", "s0", "g2", "g3", "g4", "s1", "g5"]
    assert asked.sources["s1"] == "s" and asked.files == (tmp_path / "g.jsonl", tmp_path / "s.jsonl")


def test_a_limit_holds_for_all_together(tmp_path):
    asked = load_mixed([written(tmp_path, "g", 30), written(tmp_path, "s", 5)], limit=4)
    assert ids(asked) == ["g0", "s0", "g1", "s1"]
    assert asked.sources == {"g0": "g", "s0": "s", "g1": "g", "s1": "s"}


@settings(deadline=None, derandomize=True, max_examples=30)
@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=3), limit=st.none() | st.integers(1, 40))
def test_every_beginning_has_each_source_in_its_share(tmp_path_factory, sizes, limit):
    folder = tmp_path_factory.mktemp("mixed")
    names = "abc"[: len(sizes)]
    asked = load_mixed([written(folder, n, size) for n, size in zip(names, sizes, strict=True)], limit=limit)
    read = {n: min(size, limit or size) for n, size in zip(names, sizes, strict=True)}
    total = sum(read.values())
    assert len(asked.questions) == min(total, limit or total) == len(asked.sources)
    for name in names:
        own = [id for id in ids(asked) if id[0] == name]
        assert own == [f"{name}{i}" for i in range(len(own))]  # in the order of their file
    for end in range(1, len(asked.questions) + 1):
        for name, count in read.items():
            found = sum(id[0] == name for id in ids(asked)[:end])
            assert abs(found - end * count / total) < len(names)


def test_an_id_twice_is_refused(tmp_path):
    files = [written(tmp_path, "g", 3), written(tmp_path, "s", 3, prefix="g")]
    with pytest.raises(UserError, match=r"s\.jsonl: the id 'g0' is also that of a question in another file$"):
        load_mixed(files)


def test_a_file_that_is_not_there_or_broken_is_named(tmp_path):
    good = written(tmp_path, "g", 1)
    with pytest.raises(UserError, match=r"none\.jsonl"):
        load_mixed([good, ("s", tmp_path / "none.jsonl")])
    (tmp_path / "bad.jsonl").write_text('{"id": "a"}\n')
    with pytest.raises(UserError, match=r"bad\.jsonl"):
        load_mixed([good, ("s", tmp_path / "bad.jsonl")])

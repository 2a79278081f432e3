"""Whose questions a stage works on, where they are files of the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.pipeline import sft
from dragoman.pipeline.evaluate import _check_oracles
from dragoman.pipeline.inputs import InputOptions, Inputs, open_dev, open_inputs
from dragoman.pipeline.project import Project
from dragoman.pipeline.questions import load_mixed


@pytest.fixture
def mine(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    files.write(Path("corpus.jsonl"), [{"id": "p", "title": "P", "text": "a passage"}])
    for name, gold in (("train", "p"), ("dev", "p"), ("astray", "elsewhere")):
        row = {"id": name, "question": "What?", "answers": ["that"], "supporting_ids": [gold]}
        files.write(Path(f"{name}.jsonl"), [row])
    files.write(Path("data/atlas/dev.jsonl"), [{"id": "atlas-dev", "question": "What?", "answers": ["that"]}])
    files.write(Path("data/atlas/train.jsonl"), [{"id": "atlas-train", "question": "What?", "answers": ["that"]}])
    return tmp_path


def dev_of(options: InputOptions, dev: Path | None) -> Inputs:
    inputs = open_inputs(Project(), options, "train", Path("out"), sources=("gold",))
    return open_dev(Project(), options, dev, inputs, Path("out"), sources=("gold",), limit=None)


def test_dev_questions_of_another_data_set_do_not_choose_the_policy(mine):
    options = InputOptions(corpus=Path("corpus.jsonl"), questions=Path("train.jsonl"), index="an-index")
    with pytest.raises(UserError, match="--dev: whose answers are to choose the policy"):
        dev_of(options, None)
    assert [q.id for q in dev_of(options, Path("dev.jsonl")).asked.questions] == ["dev"]
    with pytest.raises(UserError, match=r"astray.jsonl: question astray names passage 'elsewhere' in supporting_ids"):
        dev_of(options, Path("astray.jsonl"))


def test_a_corpus_whose_questions_are_not_named_is_refused_and_not_asked_the_data_set_s(mine):
    project, corpus = Project(), Path("corpus.jsonl")
    with pytest.raises(UserError, match=r"--corpus corpus.jsonl: what is to be asked about it\? Name a file"):
        open_inputs(project, InputOptions(corpus=corpus, index="an-index"), "dev", Path("out"), sources=("gold",))
    named = InputOptions(corpus=corpus, index="an-index", dataset="atlas")
    assert [q.id for q in open_inputs(project, named, "dev", Path("out"), sources=("gold",)).asked.questions] == [
        "atlas-dev"
    ]


def test_another_index_of_the_data_set_goes_with_its_dev_questions(mine):
    assert [q.id for q in dev_of(InputOptions(index="another"), None).asked.questions] == ["atlas-dev"]


def test_states_are_visited_only_in_questions_that_belong_to_what_is_searched(mine):
    def visited(**options) -> list[str]:
        return [question.id for question in sft._visited(Project(), sft.Options(**options))]

    assert visited(index="http://server", questions=Path("dev.jsonl")) == []
    assert visited(index="http://server", questions=Path("dev.jsonl"), visit=Path("train.jsonl")) == ["train"]
    assert visited(index="another") == visited() == ["atlas-train"]


def test_an_oracle_of_one_role_is_refused_before_others_are_paid_for(mine):
    asked = load_mixed([("file", Path("data/atlas/dev.jsonl"))])
    with pytest.raises(
        UserError, match=r"1 of 1 questions have no supporting_ids.* c3po@sft\+oracle:filter needs them"
    ):
        _check_oracles(["standard", "c3po@sft+oracle:filter"], asked)

"""What goes between a plan and a writer: chance by the brief, and drafts that survive JSON."""

import json
from dataclasses import asdict, replace

from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.files import write
from dragoman.core.journal import digest
from dragoman.core.types import Question
from dragoman.corpus.loaders import load_questions
from dragoman.synthesis.brief import Brief, Draft

BRIEF = Brief("train-0001", 0, {}, (), seed=0)
DRAFT = Draft(
    question="Tell me about Bhutan. And what is its capital?",
    answers=("Thimphu",),
    reference="It is Thimphu.",
    nuggets=("the capital of Bhutan: Thimphu",),
    supporting_ids=("bt",),
    turns=("Tell me about Bhutan.", "And what is its capital?"),
    triples=(("Bhutan", "capital", "Thimphu"),),
    writer="grounded",
)
words = st.lists(st.text(), max_size=3).map(tuple)


def test_chance_depends_on_slot_attempt_seed_and_purpose_alone():
    first = BRIEF.rng("passages").random()
    assert replace(BRIEF, categories={"premise": "with premise"}).rng("passages").random() == first
    others = [
        replace(BRIEF, slot="train-0002").rng("passages"),
        replace(BRIEF, attempt=1).rng("passages"),
        replace(BRIEF, seed=1).rng("passages"),
        BRIEF.rng("engine"),
    ]
    assert len({first, *(rng.random() for rng in others)}) == 5


@given(
    st.builds(
        Draft,
        question=st.text(),
        answers=words,
        reference=st.text(),
        nuggets=words,
        supporting_ids=words,
        turns=words,
        triples=st.lists(st.tuples(st.text(), st.text(), st.text()), max_size=3).map(tuple),
        parts=st.lists(words, max_size=2).map(tuple),
        writer=st.text(),
    )
)
def test_a_draft_survives_json(draft):
    assert Draft.from_json(json.loads(json.dumps(asdict(draft)))) == draft


def test_a_row_is_a_question_that_the_loader_reads(tmp_path):
    row = DRAFT.row("train-0001", {"number_of_documents": "single-doc", "premise": "without premise"})
    assert row == {
        "id": "train-0001",
        "question": "Tell me about Bhutan. And what is its capital?",
        "answers": ["Thimphu"],
        "type": "single-doc",
        "supporting_ids": ["bt"],
        "triples": [["Bhutan", "capital", "Thimphu"]],
        "categories": {"number_of_documents": "single-doc", "premise": "without premise"},
        "reference": "It is Thimphu.",
        "nuggets": ["the capital of Bhutan: Thimphu"],
        "turns": ["Tell me about Bhutan.", "And what is its capital?"],
        "writer": "grounded",
    }
    write(tmp_path / "train.jsonl", [row])
    assert load_questions(tmp_path / "train.jsonl") == [
        Question(
            "train-0001", DRAFT.question, ("Thimphu",), "single-doc", ("bt",), DRAFT.triples,
            nuggets=DRAFT.nuggets, reference="It is Thimphu.",
        )
    ]  # fmt: skip
    assert DRAFT.row("x", {})["type"] == "synthetic"


def test_the_parts_of_an_answer_are_read_again(tmp_path):
    parts = (("Thimphu",), ("ngultrum", "Bhutanese ngultrum"))
    draft = replace(DRAFT, answers=("Thimphu and ngultrum", "Thimphu and Bhutanese ngultrum"), parts=parts)
    write(tmp_path / "train.jsonl", [draft.row("a", {})])
    (question,) = load_questions(tmp_path / "train.jsonl")
    assert question.parts == parts
    assert Question.from_json(json.loads(json.dumps(question.to_json()))) == question


def test_a_digest_tells_values_apart():
    values = [(1, "2"), ("1", 2), ("1", "2"), ("12",), ("1", "2", ""), (("1", "2"),)]
    assert len({digest(*v) for v in values}) == len(values)
    assert digest("a", 1) == digest("a", 1)

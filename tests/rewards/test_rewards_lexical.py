"""The lexical forms of both rewards: by hand, and how often they agree with a person."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from dragoman.core.types import Passage, Question
from dragoman.rewards.claims import claims
from dragoman.rewards.lexical import lexical_faithfulness, lexical_nuggets, verdicts
from dragoman.systems.base import StopReason

LABELLED = Path(__file__).with_name("labelled.jsonl")
BHUTAN = Passage("bt", "Bhutan", "Bhutan is a kingdom. Its capital is Thimphu, its currency the ngultrum.")
NEPAL = Passage("np", "Nepal", "The capital of Nepal is Kathmandu.")
TWO = Question(
    "q",
    "What is the capital of Bhutan and the population of Nepal?",
    ("Thimphu and 29,000,000",),
    parts=(("Thimphu",), ("29,000,000", "29 million")),
)


def said(answer: str | None, stop: StopReason = StopReason.ANSWERED) -> SimpleNamespace:
    return SimpleNamespace(nodes=[], steps=[], answer=answer, passages=[], stop=stop)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Thimphu and 29 million", [2, 2]),
        ("Thimphu", [2, 0]),  # half of it, and nothing else
        ("Paro and 29 million", [-1, 2]),  # another name in the place of the first
        ("Thimphu and 3,000", [2, -1]),  # another number
        ("Thimphu, Paro and 29 million", [1, 1]),  # all of it, beside what nobody asked for
        ("It is not known", [0, 0]),
        ("", [0, 0]),
    ],
)
def test_verdicts_by_hand(answer, expected):
    assert verdicts(TWO, answer) == expected
    assert lexical_nuggets(TWO, said(answer), []) == pytest.approx(sum((v + 1) / 3 for v in expected) / 2)


@pytest.mark.parametrize(("answer", "expected"), [("", 0), ("not known", 0), ("The marker is *", 2)])
def test_a_nugget_of_marks_alone_is_said_only_where_it_stands(answer, expected):
    assert verdicts(Question("q", "Which character marks a footnote?", ("*",)), answer) == [expected]


def test_an_action_that_cannot_be_read_is_no_abstention():
    assert lexical_nuggets(TWO, said("", StopReason.TRUNCATED_ACTION), []) == 0
    assert lexical_nuggets(TWO, said("", StopReason.EMPTY_ANSWER), []) == pytest.approx(1 / 3)


def test_what_the_reference_and_the_triples_say_is_to_the_point():
    question = Question("q", "Capital of the country of Paro?", ("Thimphu",), triples=(("Paro", "country", "Bhutan"),))
    assert verdicts(question, "Paro lies in Bhutan, so Thimphu") == [2]
    assert verdicts(question, "Paro lies in Asia, so Thimphu") == [1]


def test_a_long_answer_does_not_keep_to_the_question():
    padding = "which is pretty old and stands where rivers meet below steep wooded hills with many small shrines"
    assert verdicts(Question("q", "Capital?", ("Thimphu",)), f"Thimphu, {padding}") == [1]
    assert verdicts(Question("q", "Capital?", ("Thimphu",)), f"Thimphu, {padding}", spare=20) == [2]


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("Thimphu", 1),
        ("The capital is Thimphu. Its king is Jigme.", 1 / 2),  # one sentence is supported, the other is not
        ("Thimphu or Paro", 1 / 2),  # one sentence, of which a part is
        ("Paro", 0),
        ("the ngultrum", 1),  # no name: its content word
        ("", 0),
        (None, None),
    ],
)
def test_faithfulness_by_hand(answer, value):
    question = Question("q", "What is the capital of Bhutan?", ("Thimphu",))
    assert lexical_faithfulness(question, said(answer), [BHUTAN, NEPAL]) == value


def test_a_bare_yes_claims_what_the_question_says():
    question = Question("q", "Is Kathmandu the capital of Nepal?", ("yes",))
    assert claims("Yes.", question.question) == [(["Kathmandu", "Nepal"], True)]
    assert lexical_faithfulness(question, said("yes"), [NEPAL]) == 1
    assert lexical_faithfulness(question, said("yes"), [BHUTAN]) == 0
    assert lexical_faithfulness(question, said("yes"), []) == 0


def test_nothing_to_compare_with_is_no_score():
    assert lexical_nuggets(Question("q", "Capital?"), said("Thimphu"), []) is None
    assert lexical_nuggets(TWO, said(None), []) is None
    assert lexical_faithfulness(Question("q", "What is it?"), said("It is."), [BHUTAN]) is None


def labelled() -> Iterator[tuple[Question, str, list[int]]]:
    for line in LABELLED.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        parts = tuple(map(tuple, row.get("parts", [])))
        yield Question("q", row["question"], tuple(row["answers"]), parts=parts), row["answer"], row["verdicts"]


def test_the_rules_agree_with_a_person_on_most_of_fifty_answers():
    """What they miss is paraphrase, spelling, negation, and two names that were swapped: see the file."""
    assert len(list(labelled())) == 50
    pairs = [
        pair for question, answer, right in labelled() for pair in zip(verdicts(question, answer), right, strict=True)
    ]
    same = sum(found == right for found, right in pairs) / len(pairs)
    same_side = sum((found > 0) == (right > 0) for found, right in pairs) / len(pairs)
    assert len(pairs) == 68
    assert same >= 0.85 and same_side >= 0.88, (same, same_side)

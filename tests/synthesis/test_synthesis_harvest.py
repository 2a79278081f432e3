"""Served episodes as questions: which of them, once, with which answer, and why not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.text import same_question
from dragoman.rollout.feedback import Feedback
from dragoman.rollout.record import Episode, Trajectory
from dragoman.synthesis.harvest import Harvest, harvest, split_of
from dragoman.synthesis.settings import HarvestParams
from dragoman.systems.base import StopReason

CAPITAL = "What is the capital of Brisa?"


def episode(
    key: str, question: str = CAPITAL, *answers: str, by: str | None = None, policy: str = "p1", **more: Any
) -> Episode:
    stop = StopReason.ANSWERED
    given = [Trajectory(nodes=[], steps=[], answer=answer, passages=[], stop=stop) for answer in answers]
    failed = Trajectory(nodes=[], steps=[], answer=None, passages=[], stop=StopReason.ENGINE_FAULT)
    return Episode(
        key=key,
        asked_by=by,
        question={"id": key, "question": question},
        system="c3po",
        config={"policy": policy},
        nodes=[],
        calls=[],
        trajectories=given or [failed],
        started=0,
        seconds=0,
        **more,
    )


def said(key: str, at: float = 0.0, **more: Any) -> Feedback:
    return Feedback(id=key, at=at, **more)


def made(
    episodes: list[Episode], *feedback: Feedback, known: tuple[str, ...] = (), passages: str = "ab", **settings: Any
) -> Harvest:
    return harvest(
        episodes,
        {one.id: one for one in feedback},
        HarvestParams(**settings),
        words=(2, 20),
        passages=set(passages),
        known={same_question(question) for question in known},
    )


def answers(done: Harvest) -> list[tuple[str, ...]]:
    return [question.answers for question in done.questions]


def test_a_thumb_up_confirms_the_answer_and_a_correction_takes_its_place():
    episodes = [episode("1", CAPITAL, "Port Salt."), episode("2", "Where is Woolton, then?", "In Brisa")]
    done = made(episodes, said("1", rating="up"), said("2", rating="down", answer="Jorvik", passages=["b", "gone"]))
    by_question = {question.question: question for question in done.questions}
    assert by_question[CAPITAL].answers == ("Port Salt.",)
    woolton = by_question["Where is Woolton, then?"]
    assert (woolton.answers, woolton.supporting_ids, woolton.type) == (("Jorvik",), ("b",), "served")
    assert done.labels == {"confirmed": 1, "corrected": 1} and not done.dropped and done.passages_gone == 1


@pytest.mark.parametrize(
    ("feedback", "reason"),
    [
        ((), "without a label"),
        ((said("1", comment="hm"), said("2", passages=["a"])), "without a label"),
        ((said("1", rating="down"),), "rejected"),
        ((said("1", rating="up"), said("2", rating="down")), "contradicted"),
        ((said("1", answer="x " * 13),), "answer too long"),
        ((said("1", answer="ask jane@x.org"),), "personal data in the answer"),
        ((said("1", answer="?!"),), "without a label"),
    ],
)
def test_what_nobody_stands_for_is_dropped_with_its_reason(feedback, reason):
    done = made([episode("1", CAPITAL, "Port Salt"), episode("2", CAPITAL, "port salt.")], *feedback)
    assert not done.questions and done.dropped == {reason: 1, "repeated": 1}


def test_the_latest_correction_counts_and_the_latest_passages():
    episodes = [episode(key, CAPITAL, "Woolton") for key in "123"]
    feedback = (said("3", 1.0, answer="Jorvik"), said("2", 2.0, answer="Port Salt"), said("1", 3.0, passages=["a"]))
    done = made(episodes, *feedback)
    assert answers(done) == [("Port Salt",)] and done.questions[0].supporting_ids == ("a",)


def test_two_confirmed_answers_are_both_right_unless_one_was_rejected_elsewhere():
    episodes = [
        episode("1", CAPITAL, "Port Salt"),
        episode("2", CAPITAL, "Salt Harbour"),
        episode("3", CAPITAL, "Salt harbour."),
    ]
    assert set(answers(made(episodes, said("1", rating="up"), said("2", rating="up")))[0]) == {
        "Port Salt",
        "Salt Harbour",
    }
    done = made(episodes, said("1", rating="up"), said("2", rating="up"), said("3", rating="down"))
    assert answers(done) == [("Port Salt",)]


def test_draws_label_what_has_no_feedback_where_enough_of_them_agree():
    same = [episode("1", CAPITAL, "Port Salt", policy="p1"), episode("2", CAPITAL, "port salt.", policy="p2")]
    assert made(same).dropped["without a label"] == 1
    done = made(same, draws=2)
    assert answers(done) == [("Port Salt",)] and done.labels == {"agreed": 1}
    assert made(same, draws=3).dropped["without a label"] == 1
    assert made([*same, episode("3", CAPITAL, "Woolton", policy="p3")], draws=2).dropped["draws disagree"] == 1
    assert made(same, said("2", rating="down"), draws=2).dropped["rejected"] == 1


def test_the_same_means_asked_again_are_no_second_draw_and_trajectories_of_a_rollout_are():
    again = [episode("1", CAPITAL, "Port Salt"), episode("2", CAPITAL, "Port Salt")]
    assert made(again, draws=2).dropped["without a label"] == 1
    assert answers(made([episode("1", CAPITAL, "Port Salt", "Port Salt")], draws=2)) == [("Port Salt",)]
    unsteady = [episode("1", CAPITAL, "Port Salt"), episode("2", CAPITAL, "Woolton")]
    assert made(unsteady, draws=2).dropped["draws disagree"] == 1


def test_questions_of_forbidden_keys_stay_out_and_are_no_draws_for_others():
    episodes = [
        episode("1", CAPITAL, "Port Salt", by="alice"),
        episode("2", CAPITAL, "Port Salt", by="bob", policy="p2"),
    ]
    done = made(episodes, said("1", rating="up"), forbidden=("alice",), draws=2)
    assert not done.questions and done.dropped == {"forbidden by their key": 1, "without a label": 1}
    assert done.askers == {"alice", "bob"}


def test_personal_data_is_masked_and_what_then_means_nothing_is_dropped():
    questions = [
        "Which river flows past the house of jane@x.org?",
        "Who is jane@x.org?",
        "Who called +41 44 668 18 00?",
    ]
    done = made(
        [episode(str(n), question, "Merin") for n, question in enumerate(questions)],
        *(said(str(n), rating="up") for n in range(3)),
    )
    assert [question.question for question in done.questions] == ["Which river flows past the house of [email]?"]
    assert done.dropped == {"without sense once masked": 2}


def test_what_differs_in_personal_data_alone_is_one_question():
    episodes = [episode(key, f"Which river flows past the house of {key}@x.org?", "Merin") for key in ("a", "b")]
    assert len(made(episodes, said("a", rating="up")).questions) == 1
    episodes = [episodes[0], episode("c", "Which river flows past the house of c@x.org?", "Salt Brook")]
    both = (said("a", rating="up"), said("c", rating="up"))
    assert made(episodes, *both).dropped == {"contradicted": 1, "repeated": 1}, "each may be right of another house"


def test_questions_of_the_data_set_and_of_no_length_are_dropped():
    episodes = [
        episode("1", CAPITAL, "x"),
        episode("2", "Why?", "x"),
        episode("3", "why " * 21, "x"),
        episode("4", "? !", "x"),
    ]
    done = made(episodes, *(said(str(n), rating="up") for n in range(1, 5)), known=("what is the capital of BRISA",))
    assert done.dropped == {"in the data set already": 1, "too short or too long": 3}


def test_questions_that_differ_in_the_marks_of_a_name_have_each_their_own_answer():
    who = {"Who created C?": "Ritchie", "Who created C++?": "Stroustrup", "who created “C#”": "Hejlsberg"}
    episodes = [episode(str(n), question, answer) for n, (question, answer) in enumerate(who.items())]
    done = made(episodes, *(said(str(n), rating="up") for n in range(3)), known=("Who created C--?",))
    assert {question.question: question.answers for question in done.questions} == {q: (a,) for q, a in who.items()}
    assert not done.dropped


@pytest.mark.parametrize(
    ("question", "answer", "reason"),
    [
        ("不丹的首都是什么？", "廷布", None),
        ("谁？", "廷布", "too short or too long"),
        ("不丹的首都" * 9, "廷布", "too short or too long"),
        ("[email] 的房子在哪条河边？", "廷布", None),
        ("不丹的首都是什么？", "廷布" * 13, "answer too long"),
    ],
)
def test_a_question_without_blanks_is_measured_by_its_characters(question, answer, reason):
    asked = question.replace("[email]", "jane@x.org")
    done = made([episode("1", asked, answer)], said("1", rating="up"))
    assert done.dropped == ({reason: 1} if reason else {})


def test_of_a_degraded_answer_the_episode_counts_that_has_an_answer():
    failed, answered = episode("1", CAPITAL), episode("1", CAPITAL, "Port Salt", policy="none")
    for order in ([failed, answered], [answered, failed]):
        done = made(order, said("1", rating="up"))
        assert answers(done) == [("Port Salt",)] and done.episodes == 1


def test_feedback_whose_episode_is_gone_is_counted():
    assert made([episode("1")], said("2", rating="up")).feedback_alone == 1


WORDS = st.sampled_from(["what", "is", "the", "capital", "river", "of", "Brisa", "jane@x.org", "+41446681800", "?"])
ASKED = st.lists(
    st.tuples(
        st.lists(WORDS, min_size=1, max_size=5).map(" ".join),
        st.sampled_from(["Port Salt", "Woolton", "", "call 0446681800"]),
        st.sampled_from([None, "alice", "bob"]),
        st.sampled_from([None, "up", "down"]),
        st.sampled_from(["p1", "p2"]),
    ),
    max_size=12,
)


@given(ASKED, st.integers(0, 2))
def test_each_question_is_there_once_and_each_episode_is_accounted_for(asked, draws):
    episodes = [episode(str(n), q, *([a] if a else []), by=by, policy=p) for n, (q, a, by, _, p) in enumerate(asked)]
    feedback = [said(str(n), rating=rating) for n, (*_, rating, _) in enumerate(asked) if rating]
    done = made(episodes, *feedback, forbidden=("bob",), draws=draws)
    compared = [same_question(question.question) for question in done.questions]
    assert len(set(compared)) == len(compared) == done.labels.total()
    assert done.episodes == len(episodes) == len(done.questions) + done.dropped.total()
    assert all(question.answers and "@" not in question.question for question in done.questions)
    again = made(episodes[::-1], *feedback, forbidden=("bob",), draws=draws)
    assert [question.id for question in again.questions] == [question.id for question in done.questions]


def test_a_question_stays_in_its_split_whatever_else_there_is():
    shares = {"train": 0.8, "dev": 0.1, "test": 0.1}
    episodes = [episode(str(n), f"What is the number after {n}?", "x") for n in range(300)]
    feedback = [said(str(n), rating="up") for n in range(300)]
    all_of_them = {q.id: split_of(q, shares) for q in made(episodes, *feedback).questions}
    few = {q.id: split_of(q, shares) for q in made(episodes[:50], *feedback).questions}
    assert few.items() <= all_of_them.items()
    counts = [list(all_of_them.values()).count(split) for split in shares]
    assert sum(counts) == 300 and 200 < counts[0] < 270 and min(counts) > 10
    assert {split_of(q, {"train": 1.0}) for q in made(episodes, *feedback).questions} == {"train"}

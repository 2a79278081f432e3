"""Drift: what an answer gives to the measures, the tests of two samples, and which window gives an alarm."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.errors import UserError
from dragoman.core.stats import detectable_distance, smallest_window
from dragoman.evaluation.drift import (
    KEPT,
    Drift,
    Monitor,
    compare,
    kind_of,
    markdown,
    psi,
    values_of,
    values_said,
    words_of,
)
from dragoman.evaluation.settings import DriftParams
from dragoman.rollout.feedback import Feedback
from dragoman.rollout.record import Episode, Node, Trajectory
from dragoman.systems.base import StopReason

SMALL = DriftParams(reference=60, difference=0.6)


def episode(question: str, answer: str | None, passages: list[str], strategy: str) -> Episode:
    node = Node(
        id="n", parent=None, point="n", role="router", depth=1, prompt=[], prompt_ids=[], completion_ids=[], logprobs=[],
        text="", action={"type": strategy}, temperature=0, started=0, seconds=0.1, prompt_tokens=0, completion_tokens=0,
    )  # fmt: skip
    stop = StopReason.ANSWERED if answer else StopReason.ENGINE_FAULT
    end = Trajectory(nodes=["n"], steps=["n"], answer=answer, passages=passages, stop=stop)
    return Episode(
        key="k", question={"id": "k", "question": question}, system="c3po@champion", config={"policy": "p"},
        nodes=[node], calls=[], trajectories=[end], started=5.0, seconds=1.5,
    )  # fmt: skip


def test_an_answer_gives_a_value_to_each_measure():
    known = words_of(["What is the capital of Brisa?"])
    found = values_of(episode("Which river flows past Brisa?", "the Merin", ["a", "b"], "Search"), known)
    assert found == {
        "kind": "which", "words": 5.0, "unseen": 0.75, "strategy": "Search", "answer_words": 2.0, "passages": 2.0, "seconds": 1.5
    }  # fmt: skip


def test_a_failure_counts_for_its_question_and_unknown_training_questions_for_nothing():
    assert values_of(episode("Who?", None, [], "Plan"), None) == {"kind": "who", "words": 1.0, "strategy": "Plan"}


def test_feedback_gives_its_rating_and_the_recall_of_the_passages_it_names():
    said = Feedback(id="k", rating="down", passages=["a", "c"], at=0)
    assert values_said(said, ["a", "b"]) == {"rating": "down", "recall": 0.5}
    assert values_said(Feedback(id="k", comment="?", at=0), ["a"]) == {}


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("In which country is Brisa?", "which"),
        ("Whose river is it, and what is its name?", "who"),
        ("Is Brisa larger than Jorvik?", "whether"),
        ("Name the capital of Brisa.", "other"),
        ("Somewhat odd", "other"),
    ],
)
def test_the_kind_of_a_question(question, kind):
    assert kind_of(question) == kind


def test_psi_by_hand():
    p, q = (20.5 / 31, 10.5 / 31), (10.5 / 31, 20.5 / 31)
    expected = sum((b - a) * math.log(b / a) for a, b in zip(p, q, strict=True))
    assert psi([20, 10], [10, 20]) == pytest.approx(expected)
    assert psi([5, 0], [0, 5]) < math.inf


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=6))
def test_psi_is_symmetric_and_never_negative(counts):
    was, is_now = zip(*counts, strict=True)
    assert psi(was, is_now) == pytest.approx(psi(is_now, was)) and psi(was, is_now) >= -1e-12


def test_the_smallest_window_by_hand_and_back():
    # (sqrt(-ln(0.005) / 2) + 0.8416 / 2) ** 2 = 4.196; 1/n = 0.09 / 4.196 - 1/300 = 1/55.2
    assert smallest_window(300, 0.3, 0.01) == 56
    assert detectable_distance(300, 56, 0.01) <= 0.3 < detectable_distance(300, 55, 0.01)
    assert smallest_window(10, 0.3, 0.01) is None


def test_equal_samples_give_no_alarm_and_others_do():
    same = [float(n % 7) for n in range(100)]
    found = compare(same, same, categories=False, level=0.01)
    assert (found.ks, found.psi, found.alarm) == (0.0, 0.0, False)
    assert compare(same, [value + 3 for value in same], categories=False, level=0.01).alarm
    assert compare(["a", "b"] * 50, ["a"] * 40, categories=True, level=0.01).alarm
    only = compare(["a"] * 50, ["a"] * 40, categories=True, level=0.01)
    assert (only.p, only.ks, only.alarm) == (1.0, None, False)


def test_the_p_value_of_psi_is_that_of_permutations():
    """Of 8 values, 4 of which are a: that a window of 4 holds all of one kind has the chance 2 / 70."""
    found = compare(list("bbbb"), list("aaaa"), categories=True, level=0.01)
    assert found.p == pytest.approx(2 / 70, abs=0.006)


def feed(monitor: Monitor, rng: random.Random, count: int, kinds: str, policy: str = "p") -> int | None:
    """Ask so many questions of these kinds. Returns after how many there was an alarm."""
    for asked in range(1, count + 1):
        found = monitor.answered(policy, {"kind": rng.choice(kinds), "words": rng.gauss(9, 2)}, float(asked))
        if any(one.alarm for one in found.values()):
            return asked
    return None


def test_another_kind_of_questions_is_found_within_200_and_the_same_kind_is_not():
    rng, monitor = random.Random(1), Monitor(DriftParams())
    assert feed(monitor, rng, 500 + 20 * DriftParams().window, "aabc") is None
    found = feed(monitor, rng, 200, "bccd")
    assert found is not None
    (traffic,) = monitor.state.traffic
    assert (traffic.alarmed_at, traffic.alarmed_by) == (float(found), "kind")
    shown = markdown(traffic, DriftParams())
    assert "**Drift**, first in kind." in shown
    assert "| measure | reference | windows | PSI | KS | p | |\n|---|---|---|---|---|---|---|\n" in shown
    assert any(line.startswith("| kind | 500 of 500 |") and "**alarm** |" in line for line in shown.splitlines())


def test_the_first_values_are_the_reference_and_windows_do_not_overlap():
    rng, monitor = random.Random(2), Monitor(SMALL)
    feed(monitor, rng, 60 + 2 * SMALL.window + 3, "ab")
    series = monitor.state.traffic[0].series["kind"]
    assert (len(series.reference), series.windows, len(series.window)) == (60, 2, 3)


def test_feedback_fills_windows_of_its_own():
    monitor = Monitor(SMALL)
    monitor.answered("p", {}, 0.0)
    for _ in range(60):
        assert monitor.said("p", {"rating": "up"}, 0.0) == {}
    found = [monitor.said("p", {"rating": "down"}, 1.0) for _ in range(SMALL.window)]
    assert found[-1]["rating"].alarm and not any(found[:-1])
    assert monitor.state.traffic[0].answers == 1


def test_feedback_on_an_answer_of_an_earlier_policy_leaves_the_one_that_is_served_last():
    monitor = Monitor(SMALL)
    monitor.answered("p1", {"kind": "who"}, 0.0)
    monitor.answered("p2", {"kind": "who"}, 1.0)
    monitor.said("p1", {"rating": "down"}, 2.0)
    monitor.said("forgotten", {"rating": "down"}, 3.0)
    assert [one.policy for one in monitor.state.traffic] == ["p1", "p2"]
    assert monitor.state.traffic[0].series["rating"].reference == ["down"]


def test_each_policy_has_a_reference_of_its_own_and_few_are_remembered():
    rng, monitor = random.Random(3), Monitor(SMALL)
    for policy in ("p1", "p2", "p1"):
        feed(monitor, rng, 30, "ab", policy)
    assert [(one.policy, one.answers) for one in monitor.state.traffic] == [("p2", 30), ("p1", 60)]
    for number in range(5):
        feed(monitor, rng, 1, "ab", f"q{number}")
    assert len(monitor.state.traffic) == KEPT and monitor.state.traffic[-1].policy == "q4"


def test_measures_that_are_not_named_are_left_out():
    rng, monitor = random.Random(4), Monitor(DriftParams(measures=("kind",)))
    feed(monitor, rng, 5, "ab")
    assert set(monitor.state.traffic[0].series) == {"kind"}


def test_the_state_goes_on_after_a_restart_but_for_unseen_words_when_those_are_others(tmp_path):
    monitor = Monitor(SMALL, known={"brisa"})
    monitor.answered("p", {"kind": "who", "unseen": 0.5}, 1.0)
    (tmp_path / "drift.json").write_text(monitor.state.model_dump_json())
    for known, kept in (({"brisa"}, {"kind", "unseen"}), ({"jorvik"}, {"kind"})):
        again = Monitor(SMALL, known, Drift.read(tmp_path / "drift.json"))
        again.answered("p", {"kind": "who"}, 2.0)
        (traffic,) = again.state.traffic
        assert set(traffic.series) == kept and traffic.series["kind"].reference == ["who", "who"]


def test_a_state_that_is_none_is_named(tmp_path):
    with pytest.raises(UserError, match=r"drift\.json: no such file"):
        Drift.read(tmp_path / "drift.json")
    (tmp_path / "drift.json").write_text('{"traffic": 1}')
    with pytest.raises(UserError, match=r"drift\.json: not the state of a drift monitor"):
        Drift.read(tmp_path / "drift.json")


def test_settings_with_which_nothing_can_be_told_are_refused():
    with pytest.raises(ValueError, match="no window shows a difference"):
        DriftParams(difference=0.05)
    with pytest.raises(ValueError, match="name at least one"):
        DriftParams(measures=())
    with pytest.raises(ValueError, match=r"give more than 0\.0009, or name fewer measures"):
        DriftParams(false_alarms=0.0005)
    assert DriftParams(false_alarms=0.0005, measures=("kind",)).level == 0.0005

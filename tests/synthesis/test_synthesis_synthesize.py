"""The stage's loop: equal seeds give equal files however often a run is stopped, and no two splits share a passage."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from lands import CHECKS, Watched, files, grounded, journalled, lands, run

from dragoman.core.errors import EngineFault, Fault, PromptTooLong, Refused, RetrieverFault, UserError
from dragoman.core.text import same_question
from dragoman.synthesis.brief import Draft, Rejected
from dragoman.synthesis.plan import Plan, load_plan
from dragoman.synthesis.synthesize import JOURNAL, KNOWN, REJECTED, SPLITS, sizes

NAMES = [*sorted(f"{split}.jsonl" for split in (*SPLITS, "rejected"))]


def rows(out, name):
    return [json.loads(line) for line in (out / name).read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """The files of a run that nothing has stopped, and the calls it made."""
    out = tmp_path_factory.mktemp("unbroken")
    writer = Watched(grounded(40))
    run(out, writer)
    assert len(writer.called) > 33 and max(attempt for _, attempt in writer.called) > 1  # the tests below stop it there
    return files(out), set(writer.called)


# --- what is written --------------------------------------------------------------------------------------------------


def test_what_a_run_leaves(tmp_path):
    filled = run(tmp_path)
    assert sorted(files(tmp_path)) == NAMES
    for split in SPLITS:
        kept = rows(tmp_path, f"{split}.jsonl")
        assert kept == filled.questions[split]
        assert [row["id"] for row in kept] == sorted(row["id"] for row in kept)
        assert all(row["id"].startswith(f"{split}-") for row in kept)
    wanted = sizes(30, {"train": 0.7, "dev": 0.08, "test": 0.22})
    assert {split: len(found) for split, found in filled.questions.items()} == wanted
    assert (filled.kept, filled.open) == (30, 0)


def test_every_rejected_candidate_has_its_reason(tmp_path):
    filled = run(tmp_path, duplicate=0.3)
    rejected = rows(tmp_path, REJECTED)
    assert rejected == filled.rejected and rejected
    for row in rejected:
        assert row["reason"] and row["slot"].split("-")[0] in SPLITS and row["attempt"] >= 0
        # a candidate that was written down has what it takes to look at it; others have no question
        if row["reason"] in {*CHECKS, "near-duplicate"}:
            assert row["question"] and row["answers"] and row["supporting_ids"] and row["detail"]
    assert sum(filled.reasons.values()) == len(rejected)
    assert list(filled.reasons.values()) == sorted(filled.reasons.values(), reverse=True)
    assert filled.reasons["near-duplicate"] > 0
    kept = {row["id"]: row["question"] for found in filled.questions.values() for row in found}
    for row in rejected:
        if row["reason"] == "near-duplicate":
            assert row["detail"] in kept and row["detail"] != row["slot"]


def test_a_gold_question_of_any_split_is_left_out_and_counted(tmp_path):
    before = run(tmp_path / "before")
    asked = [row["question"] for found in before.questions.values() for row in found]
    gold = {same_question(question) for question in asked[::5]}
    after = run(tmp_path / "after", known=gold)
    kept = {same_question(row["question"]) for found in after.questions.values() for row in found}
    assert len(gold) > 3 and not kept & gold and after.kept == before.kept
    assert after.reasons[KNOWN] >= len(gold) and KNOWN not in before.reasons
    assert {row["question"] for row in after.rejected if row["reason"] == KNOWN} >= {*asked[::5]}


def test_what_a_filter_of_the_writers_server_refuses_is_a_rejected_candidate_and_no_fault(tmp_path):
    def refuse(brief, calls):
        if brief.attempt == 0:
            raise Refused("content_filter")

    filled = run(tmp_path, Watched(grounded(40), refuse))
    assert filled.reasons["refused by a filter"] == 30 and filled.kept == 30


@pytest.mark.parametrize(
    ("fault", "reason"), [(Refused("content_filter"), "refused by a filter"), (PromptTooLong("2"), "too long to check")]
)
def test_a_draft_that_the_reader_is_refused_is_a_rejected_candidate_and_no_fault(tmp_path, fault, reason):
    async def refuses_the_first(draft, passages):
        if len(refused) < 3:
            refused.append(draft)
            raise fault
        return ""

    refused: list[Draft] = []
    filled = run(tmp_path, checks={"not answerable": refuses_the_first})
    assert filled.reasons[reason] == 3 and filled.kept == 30


# --- seeds ------------------------------------------------------------------------------------------------------------


def test_equal_seeds_give_equal_files_and_others_do_not(tmp_path, unbroken):
    for name, seed in (("a", 0), ("b", 1), ("c", 1)):
        run(tmp_path / name, seed=seed)
    a, b, c = (files(tmp_path / name) for name in "abc")
    assert a == unbroken[0] and b == c
    assert all(a[name] != b[name] for name in ("train.jsonl", "dev.jsonl", "test.jsonl"))


@pytest.mark.parametrize("concurrency", [1, 3, 100])
def test_how_many_calls_are_under_way_changes_nothing(tmp_path, unbroken, concurrency):
    run(tmp_path, Watched(grounded(40)), concurrency=concurrency)
    assert files(tmp_path) == unbroken[0]


def test_no_more_calls_are_under_way_than_allowed(tmp_path):
    class Counting(Watched):
        now = most = 0

        async def write(self, brief, candidates):
            self.now += 1
            self.most = max(self.most, self.now)
            try:
                return await super().write(brief, candidates)
            finally:
                self.now -= 1

    writer = Counting(grounded(40))
    run(tmp_path, writer, concurrency=3)
    assert writer.most == 3


# --- stopped and started again ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt, asyncio.CancelledError, RuntimeError])
@pytest.mark.parametrize("calls", [0, 7, 33])
def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path, unbroken, error, calls):
    def stop(brief, done):
        if done >= calls:
            raise error

    expected, all_calls = unbroken
    stopped = Watched(grounded(40), stop)
    with pytest.raises(error):
        run(tmp_path, stopped, concurrency=4)
    assert len(stopped.done) == journalled(tmp_path) == calls
    assert not {"train.jsonl", "dev.jsonl", "test.jsonl"} & files(tmp_path).keys()  # no half of a set
    resumed = Watched(grounded(40))
    run(tmp_path, resumed)
    assert files(tmp_path) == expected
    assert set(resumed.called) == all_calls - set(stopped.done)


def test_a_run_that_a_person_has_stopped_goes_on_where_it_was(tmp_path, unbroken):
    def interrupt(brief, done):
        if done == 7:
            signal.raise_signal(signal.SIGINT)

    stopped = Watched(grounded(40), interrupt)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a worker of xdist ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, stopped, concurrency=4)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert 7 < len(stopped.done) == journalled(tmp_path) < len(unbroken[1])
    resumed = Watched(grounded(40))
    run(tmp_path, resumed)
    assert files(tmp_path) == unbroken[0]
    assert set(resumed.called) == unbroken[1] - set(stopped.done)


def test_a_run_that_is_stopped_again_and_again(tmp_path, unbroken):
    done = []
    for _ in range(100):

        def stop(brief, calls):
            if calls >= 5:
                raise KeyboardInterrupt

        writer = Watched(grounded(40), stop)
        try:
            run(tmp_path, writer)
            break
        except KeyboardInterrupt:
            done += writer.done
    done += writer.done
    assert files(tmp_path) == unbroken[0]
    assert len(done) == len(set(done)) and set(done) == unbroken[1]


def test_a_process_that_was_killed_goes_on_where_it_was(tmp_path, unbroken):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "123"}
    script = Path(__file__).parents[1] / "support" / "lands.py"
    process = subprocess.Popen([sys.executable, str(script), str(tmp_path)], env=environment)
    try:
        journal, deadline = tmp_path / JOURNAL, time.monotonic() + 600
        while not journal.is_file() or journal.read_bytes().count(b"\n") < 6:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] == [JOURNAL]
    known = journalled(tmp_path)
    assert 6 <= known < len(unbroken[1])
    resumed = Watched(grounded(40))
    run(tmp_path, resumed)
    assert files(tmp_path) == unbroken[0]
    assert len(resumed.called) == len(unbroken[1]) - known


def test_a_torn_line_costs_one_call(tmp_path, unbroken):
    run(tmp_path)
    journal = tmp_path / JOURNAL
    journal.write_bytes(journal.read_bytes()[:-40])
    resumed = Watched(grounded(40))
    run(tmp_path, resumed)
    assert len(resumed.called) == 1 and files(tmp_path) == unbroken[0]


def test_what_is_finished_costs_nothing_and_more_attempts_or_questions_cost_the_rest(tmp_path):
    counts = []
    for changes in ({}, {}, {"attempts": 41}, {"duplicate": 0.5}, {"concurrency": 2}):
        writer = Watched(grounded(40))
        run(tmp_path, writer, **changes)
        counts.append(len(writer.called))
    assert counts[0] > 0 and counts[1] == counts[2] == counts[4] == 0 and counts[3] < counts[0]


@pytest.mark.parametrize("change", [{"seed": 1}, {"origin": "other lands"}, {"candidates": 2}, {"fingerprint": "new"}])
def test_what_other_settings_have_made_is_not_taken_for_this(tmp_path, change):
    change = dict(change)
    run(tmp_path / "a")
    writer = Watched(grounded(40))
    writer.fingerprint = change.pop("fingerprint", writer.fingerprint)
    run(tmp_path / "a", writer, **change)
    fresh = Watched(grounded(40))
    fresh.fingerprint = writer.fingerprint
    run(tmp_path / "b", fresh, **change)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert sorted(writer.called) == sorted(fresh.called)


# --- faults -----------------------------------------------------------------------------------------------------------


def flaky(brief, done):
    if brief.slot.startswith("train-000") and brief.attempt == 0:
        raise EngineFault("timed out")


def test_after_a_fault_nothing_is_finished_and_the_next_run_goes_on(tmp_path, unbroken):
    with pytest.raises(
        Fault, match=r"9 of 20 questions met a fault \(timed out\); what was written is kept in .*run the same"
    ):
        run(tmp_path, Watched(grounded(40), flaky))
    assert not (tmp_path / "train.jsonl").exists() and journalled(tmp_path) == 11
    again = Watched(grounded(40))
    run(tmp_path, again)
    asked = {slot for slot, attempt in again.called if attempt == 0}
    assert {f"train-000{i}" for i in range(1, 10)} <= asked and not asked & {f"train-00{i}" for i in range(10, 21)}
    assert files(tmp_path) == unbroken[0]


def test_a_server_that_is_down_is_not_asked_for_ever(tmp_path):
    def down(brief, done):
        raise EngineFault("connection refused")

    writer = Watched(grounded(40), down)
    with pytest.raises(Fault, match="20 of 20 questions met a fault"):
        run(tmp_path, writer)
    assert {attempt for _, attempt in writer.called} == {0}


def test_a_retriever_s_fault_is_one_too(tmp_path, unbroken):
    faults = iter(range(3))

    async def sometimes(draft, passages):
        if next(faults, None) is not None:
            raise RetrieverFault("index is gone")
        return ""

    checks = {"not retrievable": sometimes}
    with pytest.raises(Fault, match=r"3 of 20 questions met a fault \(index is gone\)"):
        run(tmp_path, checks=checks)
    assert run(tmp_path, checks=checks).kept == 30


# --- candidates and filters -------------------------------------------------------------------------------------------


class Says:
    """Writes what it is told, for each slot and attempt."""

    fingerprint = "says"

    def __init__(self, say):
        self.say = say

    async def write(self, brief, candidates):
        return self.say(brief)


def draft(brief, question):
    answer = brief.passages[0].text.split()[-1].rstrip(".")
    return Draft(question, (answer,), answer, (answer,), tuple(p.id for p in brief.passages), writer="says")


def unique(slot, attempt):
    """No word of it stands in any other."""
    return " ".join(f"{slot}-{attempt}-{word}".replace("-", "x") for word in "abcdef")


SIMPLE = Plan.model_validate(
    {
        "categorizations": {"number_of_documents": {"single-doc": {"probability": 1, "description": "One document."}}},
        "combinations": [["number_of_documents"]],
    }
)


def test_the_first_candidate_that_passes_is_kept_and_the_next_are_not_looked_at(tmp_path):
    seen = []

    async def short(draft, passages):
        seen.append(draft.question)
        return "too long" if "long" in draft.question else ""

    async def second(draft, passages):
        assert "long" not in draft.question  # what one filter refuses, the next does not see
        return ""

    def four(brief):
        return [
            Rejected("not parsed", "garbage"),
            draft(brief, f"{unique(brief.slot, brief.attempt)} long"),
            draft(brief, unique(brief.slot, brief.attempt)),
            draft(brief, f"{unique(brief.slot, brief.attempt)} later"),
        ]

    filled = run(tmp_path, Says(four), n=6, plan=SIMPLE, checks={"short": short, "second": second})
    assert filled.kept == 6
    assert not any("later" in question for question in seen)
    for found in filled.questions.values():
        assert all(row["question"] == unique(row["id"], 0) for row in found)
    first = [row for row in filled.rejected if row["slot"] == "train-0001"]
    assert [(row["reason"], row["detail"], row.get("question", "").split()[-1:]) for row in first] == [
        ("not parsed", "garbage", []),
        ("short", "too long", ["long"]),
    ]


def test_one_question_is_kept_once(tmp_path):
    filled = run(
        tmp_path, Says(lambda brief: [draft(brief, "How far is it?")]), n=6, plan=SIMPLE, attempts=3, checks={}
    )
    assert [row["id"] for row in filled.questions["train"]] == ["train-0001"]
    assert (filled.kept, filled.open) == (1, 5)
    assert filled.reasons == {"near-duplicate": 15}
    assert {row["detail"] for row in filled.rejected} == {"train-0001"}


def test_each_attempt_draws_other_passages_until_the_slot_is_given_up(tmp_path):
    drawn = {}

    def never(brief):
        drawn.setdefault(brief.slot, []).append(brief.passages[0].id)
        return (
            [Rejected("no")]
            if brief.slot == "train-0001" or brief.attempt < 2
            else [draft(brief, unique(brief.slot, brief.attempt))]
        )

    filled = run(tmp_path, Says(never), n=6, plan=SIMPLE, attempts=7, checks={})
    assert [len(ids) for ids in drawn.values()] == [7, *[3] * 5]
    assert len(set(drawn["train-0001"])) > 3
    assert filled.open == 1 and "train-0001" not in {row["id"] for row in filled.questions["train"]}


def test_nothing_kept_is_refused_with_the_reasons(tmp_path):
    async def never(draft, passages):
        return "I do not like it"

    def say(brief):
        return (
            [Rejected("not parsed")]
            if brief.slot.startswith("dev")
            else [draft(brief, unique(brief.slot, brief.attempt))]
        )

    # 7, 1 and 2 questions, of 3 attempts each
    with pytest.raises(
        UserError,
        match=r"^synthesize: none of 30 candidates was kept \(27 taste, 3 not parsed\); see .*/rejected\.jsonl$",
    ):
        run(tmp_path, Says(say), n=10, plan=SIMPLE, attempts=3, checks={"taste": never})
    assert len(rows(tmp_path, REJECTED)) == 30
    assert list(files(tmp_path)) == [REJECTED]


def test_a_corpus_that_is_too_small_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"^2 passages cannot be shared out"):
        run(tmp_path, count=2)


def test_two_documents_that_have_nothing_to_do_with_each_other(tmp_path):
    """Of three lands each split has one: no question is about two."""
    filled = run(tmp_path, count=3, n=12, attempts=2)
    assert {row["categories"]["number_of_documents"] for found in filled.questions.values() for row in found} == {
        "single-doc"
    }
    lonely = [row for row in filled.rejected if row["reason"] == "no related passages"]
    assert lonely and all(row["detail"] == row["slot"].split("-")[0] for row in lonely)


# --- splits, sizes, shares --------------------------------------------------------------------------------------------

shares = st.tuples(*[st.integers(1, 20)] * 3).map(
    lambda w: {split: weight / sum(w) for split, weight in zip(SPLITS, w, strict=True)}
)


@examples(10, 20)
@given(seed=st.integers(0, 10_000), count=st.integers(3, 60), n=st.integers(1, 25), shares=shares)
def test_no_two_splits_ask_about_one_passage(tmp_path_factory, seed, count, n, shares):
    out = tmp_path_factory.mktemp("run")
    try:
        filled = run(out, seed=seed, count=count, n=n, shares=shares, attempts=5)
    except UserError as e:
        assert "none of" in str(e)
        return
    support = [{id for row in filled.questions[split] for id in row["supporting_ids"]} for split in SPLITS]
    assert sum(map(len, support)) == len(set.union(*support))
    assert set.union(*support) <= {p.id for p in lands(count)[0]}
    questions = [row["question"].lower() for found in filled.questions.values() for row in found]
    assert len(questions) == len(set(questions))


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (200, (140, 16, 44)),
        (100, (70, 8, 22)),
        (4500, (3150, 360, 990)),
        (10, (7, 1, 2)),
        (1, (1, 0, 0)),
        (5, (3, 1, 1)),
    ],
)
def test_sizes_by_hand(n, expected):
    assert tuple(sizes(n, {"train": 0.7, "dev": 0.08, "test": 0.22}).values()) == expected


@given(n=st.integers(1, 20_000), shares=shares)
def test_sizes_add_up_and_keep_to_their_shares(n, shares):
    counts = sizes(n, shares)
    assert sum(counts.values()) == n
    lifted = sum(n * share < 1 for share in shares.values())  # to their one question, at the cost of the largest
    assert all(abs(counts[split] - n * share) <= 1 + lifted + 1e-9 for split, share in shares.items())


@pytest.mark.parametrize("n", range(3, 41))
def test_sizes_of_few_questions_leave_no_split_empty(n):
    counts = sizes(n, {"train": 0.7, "dev": 0.08, "test": 0.22})
    assert sum(counts.values()) == n and min(counts.values()) >= 1
    assert counts["train"] == max(counts.values())


def test_sizes_give_nothing_to_a_split_without_a_share():
    assert sizes(3, {"train": 0.99, "dev": 0.0, "test": 0.01}) == {"train": 2, "dev": 0, "test": 1}


@examples()
@given(
    weights=st.lists(st.integers(0, 100), min_size=1, max_size=7).filter(any),
    optional=st.lists(st.integers(1, 100), min_size=2, max_size=3),
    count=st.integers(0, 300),
    rng=st.randoms(use_true_random=False),
)
def test_every_category_is_dealt_within_one_question_of_its_share(weights, optional, count, rng):
    plan = Plan.model_validate(
        {
            "categorizations": {"always": categories(weights), "at times": categories(optional)},
            "core": ["always"],
            "combinations": [[], ["at times"], []],
        }
    )
    dealt = plan.deal(count, rng)
    assert len(dealt) == count
    asked = [hand for hand in dealt if "at times" in hand]
    assert abs(len(asked) - count / 3) < 1
    for name, hands in (("always", dealt), ("at times", asked)):
        for category, c in plan.categorizations[name].items():
            found = sum(hand[name] == category for hand in hands)
            assert abs(found - c.probability * len(hands)) < 1
            assert c.probability or not found


@pytest.mark.parametrize(
    ("weights", "count", "expected"),
    [
        ([5, 3, 2, 0], 7, [4, 2, 1, 0]),  # of 3.5, 2.1, 1.4 and 0: the largest remainder is the first's
        ([50, 27, 23], 10, [5, 3, 2]),  # of 5, 2.7 and 2.3
        ([1, 1, 1], 2, [1, 1, 0]),  # of equal remainders the first
        ([1, 0], 3, [3, 0]),
        ([1, 1], 0, [0, 0]),
    ],
)
def test_shares_dealt_by_hand(weights, count, expected):
    plan = Plan.model_validate({"categorizations": {"x": categories(weights)}, "combinations": [["x"]]})
    dealt = [hand["x"] for hand in plan.deal(count, random.Random(0))]
    assert [dealt.count(f"c{i}") for i in range(len(weights))] == expected


def categories(weights):
    return {f"c{i}": {"probability": w / sum(weights), "description": "..."} for i, w in enumerate(weights)}


def test_the_built_in_plan_is_dealt_evenly_and_by_its_seed():
    plan = load_plan()
    dealt = plan.deal(500, random.Random(0))
    assert dealt == plan.deal(500, random.Random(0)) != plan.deal(500, random.Random(1))
    for name, planned in plan.categorizations.items():
        hands = [hand[name] for hand in dealt if name in hand]
        for category, c in planned.items():
            assert abs(hands.count(category) - c.probability * len(hands)) < 1
    # categorizations are dealt one by one: no category drags another along
    both = sum(h["user_expertise"] == "expert" and h["number_of_documents"] == "multi-doc" for h in dealt)
    assert abs(both - 125) < 4 * (500 * 0.25 * 0.75) ** 0.5


def test_passages_that_few_have_heard_of_are_drawn_where_the_plan_says_so(tmp_path):
    """`unpopular entities` is the shelf's to keep: those questions are about fewer passages than the others."""
    about = {}

    def say(brief):
        about.setdefault(brief.categories.get("lexical_similarity"), set()).add(brief.passages[0].id)
        return [draft(brief, unique(brief.slot, brief.attempt))]

    kind = {
        "lexical_similarity": {
            "unpopular entities": {"probability": 0.5, "description": "Few have heard of it."},
            "similar to document": {"probability": 0.5, "description": "In its words."},
        }
    }
    plan = Plan.model_validate({"categorizations": kind, "combinations": [["lexical_similarity"]]})
    run(tmp_path, Says(say), plan=plan, n=200, checks={}, shares={"train": 0.98, "dev": 0.01, "test": 0.01})
    assert len(about["unpopular entities"]) <= 15 < 30 < len(about["similar to document"])

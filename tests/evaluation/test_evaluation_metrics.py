import pytest

from dragoman.core.stats import bootstrap_interval, smallest_detectable
from dragoman.evaluation.metrics import retrieval_scores, summarize
from dragoman.evaluation.report import markdown, write_report


def row(id, system, cover, *, started=0.0, seconds=1.0, strategy=None, judge=...):
    scored = {"cover_em": cover, "em": cover, "f1": cover, "precision": cover, "recall": None, "all_gold_recall": None}
    if judge is not ...:
        scored["judge"] = judge
    return {
        "id": id, "system": system, "scores": scored, "calls": 2, "searches": 1, "tokens": 100, "started": started,
        "seconds": seconds, "stop": "answered" if cover is not None else "engine_fault", "strategy": strategy,
        "depth": 1 if strategy else 0,
    }  # fmt: skip


def test_the_mean_lies_in_its_interval_and_a_constant_has_none():
    value = bootstrap_interval([0, 1] * 50, resamples=1000, seed=0)
    assert value["low"] < value["mean"] == 0.5 < value["high"]
    # the standard error of a fair coin over 100 throws is 0.05, so the 95% interval is about 0.4 to 0.6
    assert value["low"] == pytest.approx(0.4, abs=0.02) and value["high"] == pytest.approx(0.6, abs=0.02)
    assert bootstrap_interval([1.0] * 9, resamples=100, seed=0) == {"mean": 1.0, "low": 1.0, "high": 1.0}


def test_four_times_the_questions_show_half_the_difference():
    # of 20 differences half are +1 and half -1: their deviation is sqrt(20/19), and 2.8016 standard errors of it are 0.6427
    assert smallest_detectable([1.0, -1.0] * 10) == pytest.approx(0.6427, abs=1e-4)
    assert smallest_detectable([1.0, -1.0] * 40) == pytest.approx(0.6427 / 2, abs=0.01)


def test_where_all_differ_alike_nothing_says_what_would_have_been_seen():
    assert smallest_detectable([-1.0] * 9) is None and smallest_detectable([1.0]) is None
    assert smallest_detectable([2 / 3 - 1 / 3, 1 - 2 / 3] * 4) is None  # alike but for rounding
    rows = [row(f"q{i}", s, float(s == "c3po")) for s in ("direct", "c3po") for i in range(4)]
    metrics = summarize(rows, dataset="d", seed=0, resamples=100)
    assert metrics["paired"]["c3po - direct"]["cover_em"] == {"mean": 1.0, "low": 1.0, "high": 1.0}
    alike = "+1.00 [+1.00, +1.00]"
    assert f"| c3po - direct | {alike} | – | {alike} | {alike} |" in markdown(metrics)


def test_a_table_names_the_systems_whose_answers_are_not_the_llms():
    rows = [
        row(f"q{i}", s, 1.0) | {"answer": "x", "llm_calls": int(s == "c3po")}
        for s in ("c3po", "maps")
        for i in range(2)
    ]
    metrics = summarize(rows, dataset="d", seed=0, resamples=100)
    assert metrics["systems"]["maps"]["answered_by"] == "proxy" and "answered_by" not in metrics["systems"]["c3po"]
    assert "The LLM was not asked: the proxy, or the oracle in its place, answers in maps." in markdown(metrics)
    silent = [each | {"answer": "", "llm_calls": 0} for each in rows]
    assert "LLM was not asked" not in markdown(summarize(silent, dataset="d", seed=0, resamples=100))


def test_a_table_names_the_systems_of_fewer_questions_and_those_that_went_on_without_their_own_step():
    rows = [row(f"q{i}", s, 1.0) for s, count in (("sure", 3), ("text", 2)) for i in range(count)]
    rows[1]["stop"] = rows[2]["stop"] = "unreadable_reply"
    metrics = summarize(rows, dataset="d", seed=0, resamples=100)
    assert metrics["n"] == 3 and [s.get("n") for s in metrics["systems"].values()] == [None, 2]
    assert "\nOf fewer questions: text (2).\n" in markdown(metrics)
    assert "so that it went on without: sure (2).\n" in markdown(metrics)
    same = markdown(summarize(rows[:1], dataset="d", seed=0, resamples=100))
    assert "fewer" not in same and "went on" not in same


def test_equal_seeds_give_equal_intervals_and_others_do_not():
    values = [number**0.5 for number in range(30)]  # whose resampled means are hardly ever the same
    found, again, other = (bootstrap_interval(values, resamples=200, seed=seed) for seed in (3, 3, 4))
    assert found == again and found["low"] != other["low"]


def test_pairs_compare_the_same_questions_and_leave_out_the_unscored():
    rows = [row(f"q{i}", "standard", float(i % 2)) for i in range(10)]
    rows += [row(f"q{i}", "c3po", 1.0 if i else None, strategy="Plan") for i in range(10)]
    metrics = summarize(rows, dataset="d", seed=0, resamples=500)
    assert metrics["n"] == 10
    assert metrics["systems"]["c3po"]["failed"] == 1
    assert metrics["systems"]["c3po"]["cover_em"]["mean"] == 1.0  # over nine
    paired = metrics["paired"]["c3po - standard"]["cover_em"]
    assert paired["mean"] == pytest.approx(4 / 9, abs=1e-4)  # q1..q9: five were right before, four are gained
    assert "recall" not in metrics["systems"]["standard"]
    assert metrics["systems"]["c3po"]["strategies"] == {"Plan": 10}


def test_questions_that_share_a_number_and_no_words_are_no_pair():
    """Questions that are made have numbers for ids, and another seed makes others under the same ones."""
    before, after = row("q1", "sft", 1.0), row("q1", "ablated", 0.0)
    same = summarize([before | {"question": "Who?"}, after | {"question": "Who?"}], dataset="d", seed=0, resamples=9)
    other = summarize([before | {"question": "Who?"}, after | {"question": "Where?"}], dataset="d", seed=0, resamples=9)
    assert same["paired"]["ablated - sft"]["cover_em"]["mean"] == -1.0 and other["paired"]["ablated - sft"] == {}


def test_seconds_are_the_wall_clock_without_pauses():
    # two overlapping questions, a pause of 100 s in which the run was down, then a third
    rows = [
        row("a", "s", 1.0, started=0, seconds=4),
        row("b", "s", 1.0, started=2, seconds=4),
        row("c", "s", 1.0, started=106, seconds=3),
    ]
    summary = summarize(rows, dataset="d", seed=0, resamples=100)["systems"]["s"]
    assert summary["seconds"] == pytest.approx((6 + 3) / 3)
    assert summary["latency"] == 4


def test_recall_counts_chunks_for_their_passage():
    assert retrieval_scores(["a#2", "b"], ["a", "c"]) == {"recall": 0.5, "all_gold_recall": 0.0}
    assert retrieval_scores(["a#2", "b"], ["a", "b"]) == {"recall": 1.0, "all_gold_recall": 1.0}
    assert retrieval_scores(["a"], []) == {"recall": None, "all_gold_recall": None}
    assert retrieval_scores([], ["a"], failed=True) == {"recall": None, "all_gold_recall": None}


def test_a_judge_that_failed_is_counted_apart():
    rows = [row("a", "s", 1.0, judge=1.0), row("b", "s", 1.0, judge=None)]
    summary = summarize(rows, dataset="d", seed=0, resamples=100)["systems"]["s"]
    assert summary["judge"]["mean"] == 1.0 and summary["unjudged"] == 1


def test_a_table_counts_the_answers_that_nobody_judged():
    rows = [row(f"q{i}", "s", 1.0, judge=1.0 if i < 40 else None) for i in range(100)]
    assert "\nAnswers without a score, which no mean counts: s (judge 60).\n" in markdown(
        summarize(rows, dataset="d", seed=0, resamples=100)
    )
    failed = [row(f"q{i}", "s", None, judge=None) for i in range(9)]
    judged = [row("q9", "s", 1.0, judge=1.0)]
    for told in (failed + judged, [row("q0", "s", 1.0)]):  # what failed is a column, and here nobody was to judge
        assert "without a score" not in markdown(summarize(told, dataset="d", seed=0, resamples=100))


def test_a_table_counts_the_answers_without_a_score_where_none_has_one():
    rows = [row(f"q{i}", "s", 1.0) | {"answer": "x"} for i in range(3)]
    for each in rows:
        each["scores"]["nuggets"] = None
    table = markdown(summarize(rows, dataset="d", seed=0, resamples=100))
    assert "no mean counts: s (nuggets 3)." in table and "| nuggets |" not in table


def test_where_answers_were_judged_the_judge_stands_first_in_the_differences():
    """Of sentences cover-EM may be 0 throughout, and says nothing."""
    rows = [row(f"q{i}", s, 0.0, judge=float(s == "b" or i % 2)) for s in ("a", "b") for i in range(40)]
    table = markdown(summarize(rows, dataset="d", seed=0, resamples=100))
    assert "| difference, same questions | judge | detectable | cover-EM | detectable | EM | F1 |" in table
    (pair,) = (line for line in table.splitlines() if line.startswith("| b - a |"))
    assert pair.startswith("| b - a | +0.50 [") and "| 0.22 | +0.00 [+0.00, +0.00] | – |" in pair
    assert "difference of judge and cover-EM that" in table


def test_seconds_that_hold_answers_of_the_cache_are_marked():
    rows = [row(f"q{i}", s, 1.0) | {"llm_hits": int(s == "b")} for s in ("a", "b") for i in range(2)]
    table = markdown(summarize(rows, dataset="d", seed=0, resamples=100))
    marked = [line.count(" * |") for line in table.splitlines() if line.startswith(("| a |", "| b |"))]
    assert marked == [0, 1] and "came from its cache" in table


def test_the_report_is_written(tmp_path, pictures):
    rows = [
        row(f"q{i}", s, float(i % 2), strategy="Plan" if s == "c3po" else None)
        for s in ("direct", "c3po")
        for i in range(4)
    ]
    metrics = summarize(rows, dataset="d", seed=0, resamples=100)
    write_report(metrics, tmp_path)
    assert {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()} == {
        "metrics.json",
        "table.md",
        "plots/strategies.csv",
        "plots/depths.csv",
        "plots/strategies.png",
        "plots/depths.png",
        "plots/accuracy_against_seconds.png",
    }
    del metrics["paired"]["c3po - direct"]["f1"]
    table = markdown(metrics)
    assert "| difference, same questions | cover-EM | detectable | EM | F1 |" in table
    assert "| c3po - direct | +0.00 [+0.00, +0.00] | – | +0.00 [+0.00, +0.00] | – |" in table
    assert "| c3po | 0.50 [" in table and "c3po - direct" in table and "n = 4" in table
    assert "d,c3po,Plan,1.0" in (tmp_path / "plots/strategies.csv").read_text()


def test_a_second_run_of_the_same_questions_makes_no_interval_narrower():
    """Two runs of the same four questions with the same scores are as good as one of them."""
    once = [row(f"q{i}", s, float(i % 2 if s == "c3po" else i == 0)) for s in ("direct", "c3po") for i in range(4)]
    one = [each | {"pooled": each["id"]} for each in once]
    again = [each | {"id": f"{each['id']} of run 1", "pooled": each["id"]} for each in once]
    single, both = (summarize(rows, dataset="d", seed=0, resamples=500) for rows in (once, [*one, *again]))
    assert both["n"] == single["n"] == 4
    assert both["systems"]["c3po"]["cover_em"] == single["systems"]["c3po"]["cover_em"]
    assert both["paired"] == single["paired"]


def test_runs_that_two_machines_made_at_the_same_time_do_not_halve_the_seconds():
    once = [row(f"q{i}", "direct", 1.0) | {"started": float(i), "seconds": 1.0} for i in range(4)]
    again = [each | {"id": f"{each['id']} of run 1", "run": 1} for each in once]
    metrics = summarize([*once, *again], dataset="d", seed=0, resamples=50)
    assert metrics["systems"]["direct"]["seconds"] == 1

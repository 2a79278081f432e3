import csv

from hypothesis import given
from hypothesis import strategies as st
from test_evaluation_metrics import row

from dragoman.evaluation.matrix import Cell, Table, _plotted, pareto, tables, write_matrix
from dragoman.evaluation.metrics import summarize
from dragoman.evaluation.suite import Suite


def test_the_front_has_who_scores_more_than_all_that_cost_no_more():
    points = {"slow": (9.0, 0.5), "cheap": (1.0, 0.2), "worse": (2.0, 0.1), "best": (3.0, 0.5), "same": (3.0, 0.4)}
    assert pareto(points) == ["cheap", "best"]
    assert pareto({}) == []


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_who_is_off_the_front_is_beaten_or_equalled_and_who_is_on_it_is_not_beaten(drawn):
    points = {str(i): (float(cost), float(score)) for i, (cost, score) in enumerate(drawn)}
    front = pareto(points)

    def beaten(name):
        cost, score = points[name]
        return any(c <= cost and s >= score and (c, s) != (cost, score) for c, s in points.values())

    assert not any(map(beaten, front))
    assert all(beaten(name) or points[name] in [points[other] for other in front] for name in points)


def test_differences_are_those_to_one_system_wherever_it_stands():
    rows = [row(f"q{i}", s, float(i < right)) for s, right in (("a", 2), ("b", 1), ("c", 4)) for i in range(4)]
    metrics = {"d": summarize(rows, dataset="d", seed=0, resamples=200)}
    cells = [*(Cell("d", name, "finished") for name in "abc"), Cell("d", "x", "not run", "no weights")]
    suite = Suite(systems=("a", "b", "c", "x"), datasets={"d": {}}, against="b", columns=("em", "tokens"))
    table, missing = tables(suite, metrics, cells)
    assert table.head == ["system", "EM", "tokens", "EM minus b", "detectable"]
    found = {name: cells for name, *cells in table.rows}
    # a is right on one question more of four; sd 0.5, so 2.80 * 0.5 / 2 could be seen
    assert found["a"][2].startswith("+0.25 [+0.00,") and found["a"][3] == "0.70"
    assert found["b"][2:] == ["–", "–"]
    assert found["c"][2].startswith("+0.75 [")
    assert found["x"] == ["not run", "–", "–", "–"]
    assert missing.rows == [["x", "d", "not run", "no weights"]]


def test_seconds_that_the_cache_has_saved_are_marked_and_not_plotted(tmp_path):
    rows = [row(f"q{i}", s, float(i < 2)) | {"llm_hits": int(s == "b")} for s in "ab" for i in range(4)]
    metrics = {"d": summarize(rows, dataset="d", seed=0, resamples=100)}
    suite = Suite(systems=("a", "b"), datasets={"d": {}}, against="a", columns=("em", "tokens", "seconds"))
    cells = [Cell("d", name, "finished") for name in "ab"]
    (table,) = tables(suite, metrics, cells)
    assert [cells[3] for cells in table.rows] == ["0.25", "0.25 *"] and "*: some answers of the LLM came" in table.note
    write_matrix(suite, metrics, cells, tmp_path)
    rows = csv.DictReader((tmp_path / "plots/costs.csv").open())
    assert [(r["best_for_seconds"], r["best_for_tokens"]) for r in rows] == [("", "True"), ("", "False")]
    assert _plotted(metrics["d"]) == ["tokens"]
    metrics["d"]["systems"]["b"]["llm_hits"] = 0
    assert _plotted(metrics["d"]) == ["seconds", "tokens"] and "*" not in next(tables(suite, metrics, cells)).note


def test_answers_that_nobody_judged_are_counted_beside_the_score_and_below_the_table():
    rows = [row(f"q{i}", "a", 1.0 if i else None, judge=1.0 if i > 6 else None) for i in range(10)]
    metrics = {name: summarize(rows, dataset=name, seed=0, resamples=100) for name in "de"}
    suite = Suite(systems=("a",), datasets={"d": {}, "e": {}}, against="a", columns=("judge", "em"))
    whole, table, _ = tables(suite, metrics, [Cell(name, "a", "finished") for name in "de"])
    assert whole.rows[0][1] == table.rows[0][1] == "1.00 [1.00, 1.00] (1 failed, 6 unscored)"
    assert table.rows[0][2] == "1.00 [1.00, 1.00]" and "no mean counts: a (judge 6)." in table.note


def test_a_table_names_what_its_systems_ran_on_and_those_that_give_one_answer():
    metrics = summarize([row("q", "a", 1.0)], dataset="d", seed=0, resamples=100) | {
        "backends": {"llm": "m", "index": "bm25"},
        "alike": {"a": {"answer": "yes", "count": 9, "of": 10}},
    }
    suite = Suite(systems=("a",), datasets={"d": {}}, against="a", columns=("em",))
    (table,) = tables(suite, {"d": metrics}, [Cell("d", "a", "finished")])
    assert "over the same questions; LLM m, index bm25. " in table.note
    assert "a: of 10 answers 9 read alike: `yes`." in table.note


def test_what_a_reason_says_cannot_break_a_table():
    assert "| a\\|b c |" in Table("t", ["why"], [["a|b\nc"]]).markdown()

"""What `make publish` copies for git to keep."""

import json

from tools.publish import embedded, publish, small_table


def test_publish_copies_the_report_and_the_hashes_and_leaves_out_what_was_not_run(tmp_path):
    report = tmp_path / "results" / "report"
    report.mkdir(parents=True)
    (report / "table.md").write_text("| a |\n")
    (report / "metrics.json").write_text("{}")
    bench = tmp_path / "results" / "bench" / "quick"
    bench.mkdir(parents=True)
    (bench / "table.md").write_text("| b |\n")
    lock = {"stages": {"rl": {"outs": [{"path": "results/rl", "md5": "abc.dir"}]}, "report": {"outs": [{"path": "x"}]}}}
    (tmp_path / "dvc.lock").write_text(json.dumps(lock))
    written = publish(tmp_path)
    assert written == [
        *(f"docs/results/report/{name}" for name in ("metrics.json", "table.md")),
        "docs/results/bench/table.md",
        "docs/results/report/hashes.json",
    ]
    assert (tmp_path / "docs/results/report/table.md").read_text() == "| a |\n"
    hashes = json.loads((tmp_path / "docs/results/report/hashes.json").read_text())
    assert hashes == {"rl": {"results/rl": "abc.dir"}, "report": {}}


def test_embedding_puts_a_small_table_of_the_published_figures_between_the_markers(tmp_path):
    report = tmp_path / "docs" / "results" / "report"
    report.mkdir(parents=True)
    system = {
        "cover_em": {"mean": 0.5, "low": 0.25, "high": 0.75},
        "recall": {"mean": 0.625, "low": 0.5, "high": 0.75},
        "calls": 2.0,
        "tokens": 583.4,
    }
    metrics = {"atlas": {"dataset": "atlas", "n": 8, "systems": {"standard": system}}}
    (report / "metrics.json").write_text(json.dumps(metrics))
    readme = embedded("a\n<!-- table -->\nold\n<!-- /table -->\nb\n", tmp_path)
    assert "| standard | 0.50 [0.25, 0.75] | 0.62 | 2.0 | 583 |" in readme and "old" not in readme
    assert embedded(readme, tmp_path) == readme


def test_a_system_without_known_passages_is_embedded_without_recall():
    system = {"cover_em": {"mean": 0.5, "low": 0.25, "high": 0.75}, "calls": 2.0, "tokens": 583.4}
    failed = {"calls": 0.0, "tokens": 0.0}
    table = small_table({"dataset": "ours", "n": 8, "systems": {"standard": system, "direct": failed}})
    assert "| standard | 0.50 [0.25, 0.75] | – | 2.0 | 583 |" in table and "| direct | – | – | 0.0 | 0 |" in table

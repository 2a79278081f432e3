"""What `make publish` copies for git to keep."""

import json

from tools.publish import embedded, publish


def test_publish_copies_the_report_and_the_hashes_and_leaves_out_what_was_not_run(tmp_path):
    report = tmp_path / "results" / "report"
    report.mkdir(parents=True)
    (report / "table.md").write_text("| a |\n")
    (report / "metrics.json").write_text("{}")
    lock = {"stages": {"rl": {"outs": [{"path": "results/rl", "md5": "abc.dir"}]}, "report": {"outs": [{"path": "x"}]}}}
    (tmp_path / "dvc.lock").write_text(json.dumps(lock))
    written = publish(tmp_path)
    assert written == [f"docs/results/report/{name}" for name in ("metrics.json", "table.md", "hashes.json")]
    assert (tmp_path / "docs/results/report/table.md").read_text() == "| a |\n"
    hashes = json.loads((tmp_path / "docs/results/report/hashes.json").read_text())
    assert hashes == {"rl": {"results/rl": "abc.dir"}, "report": {}}


def test_embedding_replaces_what_stands_between_the_markers(tmp_path):
    results = tmp_path / "docs" / "results"
    (results / "report").mkdir(parents=True)
    (results / "report" / "table.md").write_text("| new |\n")
    (results / "bench.txt").write_text("fast\n")
    readme = "a\n<!-- table -->\nold\n<!-- /table -->\nb\n<!-- bench -->\n<!-- /bench -->\n"
    expected = "a\n<!-- table -->\n| new |\n<!-- /table -->\nb\n<!-- bench -->\n```\nfast\n```\n<!-- /bench -->\n"
    assert embedded(readme, tmp_path) == expected == embedded(expected, tmp_path)

"""`make publish`: copy the results of your last run to docs/results/, and a small table into the README, for git to keep.

    python tools/publish.py

Published are the report, the table of `dragoman bench`, the benchmarks, how long each stage took, and the hashes of all that DVC keeps of the run.
"""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
FILES = {
    "results/report/metrics.json": "docs/results/report/metrics.json",
    "results/report/table.md": "docs/results/report/table.md",
    "results/seconds.json": "docs/results/report/seconds.json",
    "results/sft/dev.csv": "docs/results/report/sft-dev.csv",
    "results/rl/dev.csv": "docs/results/report/dev.csv",
    "results/rl/history.csv": "docs/results/report/history.csv",
    "results/bench/quick/metrics.json": "docs/results/bench/metrics.json",
    "results/bench/quick/table.md": "docs/results/bench/table.md",
    "results/bench.txt": "docs/results/bench.txt",
}
HASHES = "docs/results/report/hashes.json"
SHOWN = ("system", "cover-EM", "recall", "calls", "tokens")
"""The columns of the README's table."""


def publish(project: Path) -> list[str]:
    """Copy what there is of `FILES`, and write the hashes. Returns the paths that were written."""
    written = []
    for source, target in FILES.items():
        if (project / source).is_file():
            (project / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(project / source, project / target)
            written.append(target)
    if (lock := project / "dvc.lock").is_file():
        stages = yaml.safe_load(lock.read_text(encoding="utf-8"))["stages"]
        hashes = {
            name: {out["path"]: out["md5"] for out in stage.get("outs", ()) if "md5" in out}
            for name, stage in stages.items()
        }
        (project / HASHES).write_text(json.dumps(hashes, indent=2) + "\n", encoding="utf-8")
        written.append(HASHES)
    return written


def embedded(readme: str, project: Path = ROOT) -> str:
    """The README with a small table of the published report between its markers."""
    metrics = json.loads((project / FILES["results/report/metrics.json"]).read_text(encoding="utf-8"))
    table = "\n\n".join(small_table(figures) for figures in metrics.values())
    pattern = r"(<!-- table -->\n).*?(<!-- /table -->)"
    return re.sub(pattern, lambda match: f"{match[1]}{table}\n{match[2]}", readme, flags=re.DOTALL)


def small_table(figures: dict[str, Any]) -> str:
    """The systems of one dataset with what matters most, as Markdown."""
    rows = [f"| {' | '.join(SHOWN)} |", f"|{'---|' * len(SHOWN)}"]
    for system, values in figures["systems"].items():
        cover, recall = values.get("cover_em"), values.get("recall")  # no recall where no gold passages are known
        answered = f"{cover['mean']:.2f} [{cover['low']:.2f}, {cover['high']:.2f}]" if cover else "–"
        found = f"{recall['mean']:.2f}" if recall else "–"
        rows.append(f"| {system} | {answered} | {found} | {values['calls']:.1f} | {values['tokens']:.0f} |")
    return "\n".join((*rows, "", f"{figures['dataset']}, {figures['n']} test questions; calls and tokens a question."))


if __name__ == "__main__":
    if not (ROOT / "results/report/table.md").is_file():
        sys.exit("results/report/table.md: no such file; run `make pipeline` first")
    readme = ROOT / "README.md"
    paths = publish(ROOT)
    readme.write_text(embedded(readme.read_text(encoding="utf-8")), encoding="utf-8")
    print("\n".join((*paths, "README.md")), "\nlook at them with `git diff`, and commit what you want to keep")

"""`make publish`: copy the results of your last run to docs/results/, and its tables into the README, for git to keep.

    python tools/publish.py

Published are the report, the benchmarks, how long each stage took, and the hashes of all that DVC keeps of the run.
"""

import json
import re
import shutil
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
FILES = {
    "results/report/metrics.json": "docs/results/report/metrics.json",
    "results/report/table.md": "docs/results/report/table.md",
    "results/seconds.json": "docs/results/report/seconds.json",
    "results/bench.txt": "docs/results/bench.txt",
}
HASHES = "docs/results/report/hashes.json"
EMBEDDED = {"table": FILES["results/report/table.md"], "bench": FILES["results/bench.txt"]}
"""By the name of its marker in the README."""


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
    """The README with the published tables between its markers."""
    for marker, source in EMBEDDED.items():
        text = (project / source).read_text(encoding="utf-8").strip()
        body = text if source.endswith(".md") else f"```\n{text}\n```"
        pattern = rf"(<!-- {marker} -->\n).*?(<!-- /{marker} -->)"
        readme = re.sub(pattern, lambda m, body=body: f"{m[1]}{body}\n{m[2]}", readme, flags=re.DOTALL)
    return readme


if __name__ == "__main__":
    if not (ROOT / "results/report/table.md").is_file():
        sys.exit("results/report/table.md: no such file; run `make pipeline` first")
    readme = ROOT / "README.md"
    paths = publish(ROOT)
    readme.write_text(embedded(readme.read_text(encoding="utf-8")), encoding="utf-8")
    print("\n".join((*paths, "README.md")), "\nlook at them with `git diff`, and commit what you want to keep")

"""Copy the committed results into the README: `<!-- table -->` from the last run's report, `<!-- bench -->` from the benchmarks."""

import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = {"table": "results/report/table.md", "bench": "results/bench.txt"}


def in_working_tree(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def embedded(readme: str, read: Callable[[str], str] = in_working_tree) -> str:
    for marker, source in SOURCES.items():
        text = read(source).strip()
        body = text if source.endswith(".md") else f"```\n{text}\n```"
        pattern = rf"(<!-- {marker} -->\n).*?(<!-- /{marker} -->)"
        readme = re.sub(pattern, lambda m, body=body: f"{m[1]}{body}\n{m[2]}", readme, flags=re.DOTALL)
    return readme


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(embedded(path.read_text(encoding="utf-8")), encoding="utf-8")

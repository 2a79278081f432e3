"""Write the code that each stage depends on into dvc.yaml: the import closure of the stage's module.

    python tools/dvc_deps.py

A list stands in dvc.yaml between `# imports of MODULE` and `# end of imports`; nothing else of the file is touched. Left out
are systems, since a stage names the folder of its own system by a template, and settings, since DVC tracks their values. So
is what records a run, finds its paths, or finds a policy whose folder the stage depends on anyway.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache
from pathlib import Path

import dragoman
from dragoman.core.identity import SETTINGS, import_closure
from dragoman.systems import baseline_names, system_names
from dragoman.systems.discovery import BASELINES

ROOT = Path(__file__).parents[1]
PIPELINE = ROOT / "dvc.yaml"
SOURCE = ROOT / "src" / "dragoman"
LIST = re.compile(r"^( *)# imports of ([\w.]+)\n.*?^ *# end of imports\n", re.MULTILINE | re.DOTALL)
FOLDERS = (*(name for name in system_names() if name not in baseline_names()), BASELINES)
SYSTEMS = tuple(f"dragoman.systems.{name}" for name in FOLDERS)
LEFT_OUT = (*SYSTEMS, "dragoman.config", "dragoman.pipeline.project", "dragoman.registry", "dragoman.tracking")
COMMON = frozenset({"core", "corpus", "engines", "retrieval", "rewards", "rollout"})
"""Packages that are named whole where half of their files are needed, which keeps the lists short.

A stage that runs in vain because of it takes seconds: it finds its episodes done.
"""


def rewritten(pipeline: str) -> str:
    """The text of dvc.yaml with every list of imports as the code has it now."""

    def written(match: re.Match[str]) -> str:
        indent, module = match.groups()
        lines = [f"# imports of {module}", *(f"- {path}" for path in dependencies(module)), "# end of imports"]
        return "".join(f"{indent}{line}\n" for line in lines)

    return LIST.sub(written, pipeline)


@cache
def dependencies(module: str) -> list[str]:
    """The files behind a stage's module, as paths from the root of the project; a folder where all of it is needed.

    A stage that opens systems also depends on what any system shares, since which one it opens is a parameter. It opens
    them through `Project`, which is left out.
    """
    if not (files := set(import_closure(module, LEFT_OUT))):
        raise SystemExit(f"{PIPELINE}: no module {module}")
    stage_code = "".join(path.read_text(encoding="utf-8") for path in files if path.parent == SOURCE / "pipeline")
    if ".runtime(" in stage_code:
        files.update(import_closure("dragoman.runtime", LEFT_OUT))
    if SOURCE / "systems" / "__init__.py" in files:
        for system in SYSTEMS:
            others = tuple(name for name in LEFT_OUT if name != system)
            own = SOURCE / "systems" / system.rpartition(".")[2]
            for module in {system, *(f"{system}.{file.stem}" for file in own.glob("[!_]*.py"))}:
                files |= {path for path in import_closure(module, others) if not path.is_relative_to(own)}
    return [path.relative_to(ROOT).as_posix() for path in compact(SOURCE, files)]


def compact(folder: Path, files: Collection[Path]) -> list[Path]:
    """The folder itself if everything in it that can matter is among the files, else what of it is."""
    inside = {path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    relevant = {path for path in inside if path.name not in SETTINGS and path.stat().st_size}
    needed = relevant & set(files)
    if needed and len(needed) >= len(relevant) * (0.5 if folder.name in COMMON else 1):
        return [folder]
    parts = []
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            parts += compact(path, files)
        elif path in files:
            parts.append(path)
    return parts


if __name__ == "__main__":
    if Path(dragoman.__file__).parent != SOURCE:  # its files would be in no list, and every list empty
        raise SystemExit(f"{dragoman.__file__}: another checkout than {ROOT}; say PYTHONPATH={ROOT / 'src'}")
    before = PIPELINE.read_text(encoding="utf-8")
    after = rewritten(before)
    PIPELINE.write_text(after, encoding="utf-8")
    print(f"{PIPELINE.name}: {'written' if after != before else 'as it was'}")

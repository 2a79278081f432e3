"""A copy of the project in a git repository of its own, for tests of what DVC does with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PARTS = ("params.yaml", "dvc.yaml", ".dvc", ".dvcignore", ".gitignore", "conf", "src")


def copied(folder: Path) -> Path:
    """The project in `folder`, on the smoke profile, without what runs have made. Nothing is committed yet."""
    for name in PARTS:
        if (ROOT / name).is_dir():
            made_by_runs = shutil.ignore_patterns("cache", "tmp", "__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=made_by_runs)
        else:
            shutil.copy(ROOT / name, folder / name)
    params = folder / "params.yaml"
    params.write_text(params.read_text().replace("profile: cpu", "profile: smoke"))
    return folder


def commit(folder: Path) -> None:
    """All that git does not ignore, in a first commit or a further one."""
    own = (["config", "user.name", "t"], ["config", "user.email", "t@t"])
    for command in (["init", "-q"], *own, ["add", "-A"], ["commit", "-qm", "a test"]):
        subprocess.run(["git", *command], cwd=folder, check=True)


def environment(folder: Path) -> dict[str, str]:
    """That of a shell in which the project's commands and its copy of the code are found."""
    return os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(folder / "src")}


def dvc(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BIN / "dvc", *arguments], cwd=folder, env=environment(folder), capture_output=True, text=True, check=False
    )

"""The settings that the comparison of Mujica's trainings runs under."""

import shutil
from pathlib import Path

import yaml

from benchmarks.mujica import RL, write_params

ROOT = Path(__file__).parents[2]


def test_what_params_yaml_says_of_a_section_stands_where_the_comparison_says_nothing_of_it(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    params = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    params |= {"rl": {"epochs": 7, "mygo": {"attempts": 99, "patience": 5}}, "seeds": None}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    written = yaml.safe_load(write_params(tmp_path / "out", "text").read_text(encoding="utf-8"))
    assert written["rl"] == {**RL["text"], "mygo": {"attempts": 8, "patience": 5}}
    assert written["seeds"]["exploration"] == {"oracle": True}

"""The settings that the comparison of Mujica's trainings runs under."""

import shutil
from pathlib import Path

import pytest
import yaml

from benchmarks import mujica
from benchmarks.mujica import RL, write_params
from dragoman.config import load_params
from dragoman.systems import build

ROOT = Path(__file__).parents[2]


def test_what_params_yaml_says_of_a_section_stands_where_the_comparison_says_nothing_of_it(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    params = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    params |= {"rl": {"epochs": 7, "price": 0.1, "mygo": {"patience": 5}}, "seeds": None}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    path = write_params(tmp_path / "out", "text", "text", "atlas", 0)
    written = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert written["rl"] == {**RL, "epochs": 7, "mygo": {"patience": 5}}
    assert written["seeds"]["exploration"] == {"oracle": True}


@pytest.mark.parametrize(
    ("decide", "environment", "answers", "reward"),
    [
        ("text", "text", "planner", "f1"),
        ("text", "graph", "planner", "f1"),
        ("marks", "graph", "planner", "f1"),
        ("marks", "text", "llm", "cover_em"),  # an LLM's sentence has an F1 that no threshold lets pass
    ],
)
def test_who_answers_decides_by_what_all_rows_learn_alike(decide, environment, answers, reward, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    params = load_params(write_params(tmp_path / "out", decide, environment, "atlas", 3))
    assert (build("mujica", params.system_settings("mujica")).answers, params.train.reward) == (answers, reward)
    assert (params.rl.shaping, params.rl.price, params.seed) == (None, 0, 3)


def test_a_graph_that_is_not_there_is_named_and_ends_with_code_2(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        mujica.main(["--environments", "graph", "--dataset", "kings"])
    assert ended.value.code == 2
    assert "data/kings/triples.tsv: no such file; --triples names the graph of kings" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [("--environments", "grahp", "no 'grahp': choose from text, graph"), ("--parts", "plan", "no 'plan': choose from")],
)
def test_a_part_or_environment_that_there_is_not_is_refused(option, value, message, capsys):
    with pytest.raises(SystemExit):
        mujica.main([option, value])
    assert message in capsys.readouterr().err

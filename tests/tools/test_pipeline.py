"""What `make pipeline` runs, in which order, and what it says; `dvc` and `dragoman` are scripts."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dragoman.config import Params
from tools import pipeline

ROOT = Path(__file__).parents[2]
STAGES = "sources\nseeds\nevaluate@atlas-direct\nevaluate@atlas-standard\nevaluate@atlas-c3po\nevaluate@my-docs-standard\nreport"
STALE = {"sources": ["always changed"], "seeds": [{"changed deps": {}}, "always changed"], "report": []}
SCRIPT = f"""#!{sys.executable}
import json, sys, time
command = " ".join([sys.argv[0].rpartition("/")[2], *sys.argv[1:]])
open("commands", "a").write(command + "\\n")
if "stage list" in command:
    print('''{STAGES}''')
elif "status" in command:
    print(json.dumps(json.load(open("stale"))))
elif "repro" in command:
    print("Running stage 'seeds':\\n> dragoman seeds\\n\\nStage 'evaluate@atlas-direct' didn't change, skipping")
    print("Running stage 'report':")
    sys.exit(json.load(open("code")))
"""


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """The commands that were run, in a project where the stages `stale` names are stale and `dvc repro` ends in `code`."""
    for name in ("dvc", "dragoman"):
        (tmp_path / name).write_text(SCRIPT)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "stale").write_text(json.dumps(STALE))
    (tmp_path / "code").write_text("0")
    (tmp_path / "params.yaml").write_text("{}")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/cpu.yaml").write_text("{}")
    monkeypatch.setattr(pipeline, "BIN", tmp_path)
    monkeypatch.chdir(tmp_path)
    return lambda: (tmp_path / "commands").read_text().splitlines()


BASELINES = "dvc repro sources evaluate@atlas-direct evaluate@atlas-standard evaluate@my-docs-standard"


def test_on_a_terminal_the_baselines_are_shown_before_the_rest_runs(commands, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    pipeline.main()
    ran = [command for command in commands() if "list" not in command]
    assert ran == [BASELINES, "dvc status --json", "dragoman report --so-far", "dvc repro", "dragoman report"]
    said = capsys.readouterr().out
    assert "Still to come: seeds, report. About 2 minutes." in said and "results/report/table.md" in said


def test_settings_that_are_refused_end_the_run_before_dvc_has_removed_anything(commands, tmp_path, capsys):
    (tmp_path / "params.yaml").write_text("corpus: {atlas: {source: data/atlas/corpus.jsonl}}")
    with pytest.raises(SystemExit, match="2"):
        pipeline.main()
    assert not (tmp_path / "commands").exists()
    assert "corpus.atlas.source: lies in data/atlas/" in capsys.readouterr().err


def test_elsewhere_the_rest_runs_without_a_word(commands, capsys):
    pipeline.main()
    assert [command for command in commands() if "list" not in command] == [BASELINES, "dvc repro", "dragoman report"]
    assert "Still to come" not in capsys.readouterr().out


def test_without_a_baseline_edits_of_code_are_seen_before_it_says_what_is_to_come(commands, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    (tmp_path / "dvc").write_text(SCRIPT.replace(STAGES, "sources\nseeds\nreport"))
    pipeline.main()
    ran = [command for command in commands() if "list" not in command]
    assert ran[:2] == ["dvc repro sources", "dvc status --json"]


def test_a_stage_that_fails_ends_the_run_with_its_exit_code(commands, tmp_path):
    (tmp_path / "code").write_text("7")
    with pytest.raises(SystemExit) as error:
        pipeline.main()
    assert error.value.code == 7 and commands()[-1] == BASELINES


def test_the_seconds_of_the_stages_that_ran_are_written_down(commands, tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "seconds.json").write_text('{"sft": 720.0}')
    pipeline.main()
    seconds = json.loads((tmp_path / "results" / "seconds.json").read_text())
    assert set(seconds) == {"sft", "seeds", "report"} and seconds["sft"] == 720


def test_seconds_that_a_full_disk_has_cut_short_are_none_and_are_written_again(commands):
    pipeline.SECONDS.parent.mkdir(exist_ok=True)
    pipeline.SECONDS.write_text("")
    assert pipeline.known_seconds(Params()) is not None
    pipeline.main()
    assert "seeds" in json.loads(pipeline.SECONDS.read_text())


def test_the_seconds_of_a_stage_that_failed_are_not_written_down(commands, tmp_path):
    (tmp_path / "code").write_text("7")
    with pytest.raises(SystemExit):
        pipeline.main()
    assert set(json.loads((tmp_path / "results" / "seconds.json").read_text())) == {"seeds"}


# A `dvc` that takes its time to end.
SLOW = f"""#!{sys.executable}
import signal, sys, time
def end(*_):
    time.sleep(0.5)
    print("the lock is written")
    open("ended", "w").close()
    sys.exit(255)
signal.signal(signal.SIGINT, end)
open("started", "w").close()
time.sleep(60)
"""


def test_an_interruption_ends_the_run_after_dvc_and_without_a_traceback(tmp_path):
    (tmp_path / "dvc").write_text(SLOW)
    (tmp_path / "dvc").chmod(0o755)
    program = f"import pathlib, tools.pipeline as p; p.BIN = pathlib.Path({str(tmp_path)!r}); p.reproduce()"
    path = os.pathsep.join(map(str, (ROOT, ROOT / "src")))
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as run:  # fmt: skip
        deadline = time.monotonic() + 60
        while not (tmp_path / "started").exists():
            assert run.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        for _ in range(2):  # twice, for who is impatient
            os.killpg(run.pid, signal.SIGINT)  # as a terminal does
        said, wrong = run.communicate(timeout=60)
    assert run.returncode == 130 and (tmp_path / "ended").exists()
    assert "the lock is written" in said and wrong == ""


def test_a_stage_that_has_not_run_is_expected_at_the_pace_of_those_that_have(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path, seconds in ((pipeline.PUBLISHED, {"model": 20.0, "index": 5.0, "rl": 100.0}), (pipeline.SECONDS, {})):
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(seconds))
    assert pipeline.known_seconds(Params()) == {"model": 20.0, "index": 5.0, "rl": 100.0}
    pipeline.SECONDS.write_text(json.dumps({"model": 40.0, "index": 35.0, "mine": 7.0}))  # 75 s where 25 were taken
    assert pipeline.known_seconds(Params()) == {"model": 40.0, "index": 35.0, "mine": 7.0, "rl": 300.0}


@pytest.mark.parametrize(
    "changes",
    [
        {"llm": {"engine": "openai", "model": "m", "urls": ["http://localhost:1/v1"]}},
        {"llm.model": "models/large"},
        {"model.source": "org/larger"},
        {"corpus.atlas.source": "mine.jsonl"},
    ],
    ids=str,
)
def test_a_stage_of_another_model_or_of_other_data_is_expected_to_take_what_it_took_here(
    tmp_path, monkeypatch, changes
):
    monkeypatch.chdir(tmp_path)
    for path, seconds in ((pipeline.PUBLISHED, {"index": 5.0, "rl": 100.0}), (pipeline.SECONDS, {"index": 35.0})):
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(seconds))
    assert pipeline.known_seconds(Params().changed(changes, origin="test")) == {"index": 35.0}


def test_what_to_try_next_asks_about_the_built_in_corpus_where_a_system_is_trained_on_it():
    assert 'Thimphu?" --system c3po@rl --trace' in pipeline.next_steps(Params(policies=("sft", "rl")))
    mine = {"corpus": {"mine": {"source": "mine.jsonl"}}, "datasets": ["mine"], "train": {"dataset": "mine"}}
    said = pipeline.next_steps(Params.model_validate(mine | {"evaluated": ["direct", "standard"]}))
    assert 'ask "your question" --system standard --trace' in said and "Thimphu" not in said


def test_what_is_still_to_come_says_for_how_many_stages_the_time_is_known():
    said = pipeline.still_to_come(["sft", "rl"], {"sft": 720.0})
    assert said.startswith("Still to come: sft, rl. About 12 minutes for the 1 of 2 that were timed.")
    assert "minutes" not in pipeline.still_to_come(["rl"], {})

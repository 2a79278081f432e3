"""The benchmarks of algorithms: tables 1 and 7 by hand-made records, and that every command they give is one."""

import json
import shutil
from pathlib import Path

import pytest
from command import run

from benchmarks import algorithms, mujica
from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.evaluation.evaluate import merge
from dragoman.evaluation.report import markdown

ROOT = Path(__file__).parents[2]


def iterations(*rows: tuple[float, float, float]) -> list[dict[str, float]]:
    """Trajectories and seconds of each iteration: to roll out, to learn."""
    return [{"trajectories": n, "rollout_seconds": a, "learn_seconds": b} for n, a, b in rows]


def scores(*rewards: float) -> list[dict[str, float]]:
    return [{"iteration": i, "dev_reward": reward} for i, reward in enumerate(rewards)]


HISTORY = {
    "mygo": [row | {"passed": 8} for row in iterations((10, 30, 30), (12, 30, 30), (14, 30, 30))],
    "grpo": iterations((100, 120, 60), (100, 120, 60)),
}


def test_the_price_of_a_score_is_that_of_the_iterations_before_it_was_first_reached():
    lines = algorithms.to_the_same_score({"mygo": scores(0.4, 0.5, 0.6, 0.6), "grpo": scores(0.4, 0.4, 0.55)}, HISTORY)
    assert lines[0] == "Up to a dev reward of 0.550, from one of 0.400:"
    assert lines[-2:] == ["| mygo | 2 | 22 | 16 | 2.0 |", "| grpo | 2 | 200 | - | 6.0 |"]


def test_what_a_dropped_group_drew_is_not_learnt_from():
    history = [row | {"groups": 10, "dropped_groups": 3} for row in iterations((80, 60, 60), (80, 60, 60))]
    lines = algorithms.to_the_same_score({"trajectory-grpo": scores(0.4, 0.5, 0.6)}, {"trajectory-grpo": history})
    assert lines[-1] == "| trajectory-grpo | 2 | 160 | 112 | 4.0 |"  # 2 * 80 * 7 / 10


def test_where_one_never_rose_the_whole_runs_are_compared():
    lines = algorithms.to_the_same_score({"mygo": scores(0.4, 0.5, 0.6, 0.6), "grpo": scores(0.4, 0.3, 0.2)}, HISTORY)
    assert lines[0].startswith("Whole runs") and lines[-2:] == [
        "| mygo | 3 | 36 | 24 | 3.0 |",
        "| grpo | 2 | 200 | - | 6.0 |",
    ]


def test_at_the_same_price_only_what_was_reached_within_it_counts():
    lines = algorithms.at_the_same_price({"mygo": scores(0.4, 0.5, 0.6, 0.55), "grpo": scores(0.4, 0.7, 0.8)}, HISTORY)
    assert lines[0] == "| row | best dev reward within 36 trajectories | within 3.0 minutes |"
    assert lines[2:] == [
        "| mygo | 0.600 | 0.600 |",
        "| grpo | 0.400 | 0.700 |",
    ]  # grpo's first iteration takes 3 minutes


def test_the_course_of_a_threshold_is_told_with_how_many_passed_it():
    history = {
        "mygo": [{"threshold": 0.5, "passed": 8.0}, {"threshold": 0.612, "passed": 11.0}],
        "grpo": iterations((1, 1, 1)),
    }
    assert algorithms.thresholds(history) == [
        "- mygo: threshold, and how many passed, by iteration: 0.500 (8), 0.612 (11)"
    ]


def evaluation(folder: Path, **scores: float) -> None:
    """What `evaluate` leaves of one question, by systems whose policies lie beside it."""
    rows = []
    for policy, score in scores.items():
        values = dict.fromkeys(("em", "cover_em", "f1", "recall"), score)
        row = {
            "id": "q1",
            "question": "Who?",
            "system": f"mujica@{folder.parent / policy}" if policy in ("sft", "mygo") else policy,
        }
        row |= {"scores": values, "stop": "answered", "calls": 1, "searches": 0, "tokens": 9, "seconds": 0.1}
        rows.append(row | {"started": 0.0, "depth": 0, "strategy": None, "error": ""})
    folder.mkdir(parents=True)
    files.write(folder / "predictions.jsonl", rows)


def test_rows_are_called_by_their_stage_so_that_another_seed_can_be_pooled(tmp_path, monkeypatch):
    monkeypatch.setattr(algorithms, "dragoman", lambda *command: None)
    for seed, score in (("one", 1.0), ("two", 0.0)):
        evaluation(tmp_path / seed / "evaluate-beside", standard=0.0)
        evaluation(tmp_path / seed / "evaluate-untrained", mujica=0.0)
        evaluation(tmp_path / seed / "evaluate", sft=0.0, mygo=score)
        for stage in ("sft", "mygo"):
            files.write_json(tmp_path / seed / stage / "policy.json", {"version": stage})
    algorithms.Comparison(
        title="kings",
        system="mujica",
        rows=["mygo"],
        out=tmp_path / "one",
        common=[],
        limit=None,
        seed=0,
        pool=tmp_path / "two",
        beside="standard",
        few_shot=["x"],
    ).compare_policies()
    metrics = json.loads((tmp_path / "one/metrics.json").read_text())
    assert list(metrics["systems"]) == ["standard", "few-shot", "warm-up", "mygo"] and metrics["runs"] == 2
    assert metrics["paired"]["mygo - warm-up"]["f1"]["mean"] == 0.5 and metrics["of_fewer"] == {}


def test_a_system_that_only_some_of_the_pooled_runs_have_is_named(tmp_path):
    evaluation(tmp_path / "one" / "evaluate", standard=0.0, ircot=1.0)
    evaluation(tmp_path / "two" / "evaluate", standard=0.0)
    metrics = merge([[tmp_path / run / "evaluate"] for run in ("one", "two")], dataset="d", seed=0, resamples=50)
    assert metrics["of_fewer"] == {"ircot": 1} and "Not in all runs: ircot (1)." in markdown(metrics)


def test_a_row_that_there_is_not_is_refused(capsys):
    with pytest.raises(SystemExit):
        algorithms.main(["--rows", "ppo,dpo"])
    assert "no 'dpo': choose from ppo, grpo" in capsys.readouterr().err


class Recorder:
    """Takes commands, and leaves what a stage would, as far as the benchmarks read it."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []

    def __call__(self, *arguments: str | Path) -> None:
        stage, *rest = command = [str(argument) for argument in arguments]
        self.commands.append(command)
        out = Path(rest[rest.index("--out") + 1])
        if stage in ("sft", "rl"):
            files.write_json(out / "policy.json", {"version": out.name})
        if stage == "rl":
            kept = {"passed": 4} if "mygo" in out.name else {"groups": 2, "dropped_groups": 1}
            files.write_csv(out / "history.csv", [row | kept for row in iterations((10, 30, 30))])
            files.write_csv(out / "dev.csv", scores(0.4, 0.5))
        if stage == "evaluate":
            score = {"mean": 0.5, "low": 0.4, "high": 0.6}
            systems = {name: {"em": score, "f1": score, "calls": 2, "seconds": 0.5} for name in rest if "@" in name}
            out.mkdir(parents=True, exist_ok=True)
            (out / "metrics.json").write_text(json.dumps({"systems": systems}))


@pytest.fixture
def recorder(tmp_path, monkeypatch) -> Recorder:
    recorder = Recorder()
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    shutil.copy(ROOT / "params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    for module in (algorithms, mujica):
        monkeypatch.setattr(module, "dragoman", recorder)
        monkeypatch.setattr(module, "merge", lambda runs, **more: {})
        monkeypatch.setattr(module, "markdown", lambda metrics: "| a table |")
    return recorder


def check_commands(commands: list[list[str]], capsys, monkeypatch) -> None:
    """Each kind is understood, with its settings: it ends where the stage itself would begin."""
    kinds = {(command[0], *(word for word in command if word.startswith("rl."))): command for command in commands}
    for stage in ("index", "seeds", "sft", "rl", "evaluate"):

        async def reached(project, options, stage=stage):
            raise UserError(f"reached {stage}")

        monkeypatch.setattr(f"dragoman.pipeline.{stage}.run", reached)
    for command in kinds.values():
        _, _, err = run(capsys, *command)
        assert f"reached {command[0]}" in err, f"{command}: {err}"


def test_c3po_by_three_algorithms_is_one_command(recorder, capsys, monkeypatch):
    algorithms.main(["--limit", "5", "--set", "train.reward=f1", "--out", "out"])
    assert [command[0] for command in recorder.commands] == ["seeds", "sft", *["rl"] * 3, *["evaluate"] * 3]
    untrained, trained = recorder.commands[-2:]
    assert "c3po" in untrained and "c3po@out/sft,c3po@out/ppo,c3po@out/grpo,c3po@out/mygo" in trained
    warm_ups = {command[command.index("--policy") + 1] for command in recorder.commands if command[0] == "rl"}
    assert warm_ups == {"out/sft"} and "| mygo | 1 | 10 | 4 | 1.0 |" in Path("out/training.md").read_text()
    check_commands(recorder.commands, capsys, monkeypatch)


def test_without_rows_the_warm_up_alone_is_compared(recorder):
    algorithms.main(["--rows", "", "--out", "out"])
    assert [command[0] for command in recorder.commands] == ["seeds", "sft", *["evaluate"] * 3]
    assert Path("out/table.md").is_file() and not Path("out/training.md").exists()


@pytest.mark.parametrize(("rows", "cached"), [("mygo", True), ("ppo,mygo", False)])
def test_answers_are_cached_where_no_other_row_could_find_them(rows, cached, recorder):
    algorithms.main(["--rows", rows, "--out", "out"])
    trained = [command for command in recorder.commands if command[0] == "rl"]
    assert len(trained) == len(rows.split(",")) and all(
        ("llm_cache.enabled=false" not in command) == cached for command in trained
    )


@pytest.mark.parametrize(
    ("environment", "decide"),
    [
        ("graph", "marks"),
        ("text", "text"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("graph", "text"), ("text", "marks"), ("ideal", "text"), ("ideal", "marks"))
        ),
    ],
)
def test_mujica_s_tables_are_one_command(environment, decide, recorder, capsys, monkeypatch):
    (Path("data/atlas")).mkdir(parents=True)
    Path("data/atlas/triples.tsv").touch()
    mujica.main(["--out", "out", "--environments", environment, "--decide", decide, "--limit", "5", "--repeats", "2"])
    stages = [command[0] for command in recorder.commands]
    indexed = ["index"] if environment != "text" else []
    plans = ["seeds", "sft"] * 2 + ["evaluate"] * 4
    assert stages == [*indexed, "seeds", "sft", *["rl"] * 5, *["evaluate"] * 3, *plans]
    assert "The graph takes 1.00 [1.00, 1.00] of the chain's" in Path(f"out/{environment}/plans.md").read_text()
    chains = [command for command in recorder.commands if "mujica.max_questions=1" in command]
    assert len(chains) == 4 and all("mujica.max_iterations=6" in command for command in chains)
    check_commands(recorder.commands, capsys, monkeypatch)

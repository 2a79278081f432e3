"""The bench with a real index, a real MLflow store and an LLM that answers with the river in its prompt."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import mlflow
import pytest
import yaml
from command import run
from towns import make_towns, river_llm

from dragoman.core import files
from dragoman.core.errors import EngineFault, Refused
from dragoman.engines.settings import EngineParams
from dragoman.evaluation.suite import Suite, read_suite
from dragoman.pipeline import bench
from dragoman.pipeline.index import Options as IndexOptions
from dragoman.pipeline.index import run as build_index
from dragoman.pipeline.project import Project
from dragoman.systems.direct import SYSTEM as DIRECT

ROOT = Path(__file__).parents[2]
SUITE = {
    "systems": ["direct", "standard", "skr", "search-r1", "c3po@nowhere"],
    "datasets": {"towns": {"limit": 3}, "brooks": {"questions": "brooks.jsonl", "corpus": "data/towns/corpus.jsonl"}},
    "served": {"search-r1": {"model": "its-own"}},
}
BENCH = ["bench", "--suite", "suite.yaml"]
OUT = Path("results/bench/suite")


@pytest.fixture(scope="module")
def llm():
    asked: list[dict] = []
    with river_llm(asked) as url:
        yield url, asked


@pytest.fixture(scope="module")
def towns(tmp_path_factory, llm, tiny_model) -> Path:
    """A project about towns with its index, to copy."""
    folder = tmp_path_factory.mktemp("towns") / "project"
    folder.mkdir()
    make_towns(folder, llm[0], tiny_model)
    brooks = [
        {"id": f"b{i}", "question": f"Where does {name} flow?", "answers": [f"River {i + 70}"]}
        for i, name in enumerate(("Alder", "Birk"))
    ]
    files.write(folder / "brooks.jsonl", brooks)
    corpus = folder / "data/towns/corpus.jsonl"
    asyncio.run(build_index(Project(), IndexOptions(corpus=corpus, out=folder / "data/index/towns")))
    return folder


@pytest.fixture
def project(towns, tmp_path, monkeypatch) -> Path:
    folder = shutil.copytree(towns, tmp_path / "project")
    monkeypatch.chdir(folder)
    write_suite()
    return folder


def write_suite(**changes) -> None:
    Path("suite.yaml").write_text(yaml.safe_dump(SUITE | changes, sort_keys=False))


def failing_once(error: Exception):
    """The run of `direct`, in which one of the two questions about brooks fails."""
    answers = DIRECT.run

    async def run(self, question, ctx):
        if question.id == "b1":
            raise error
        return await answers(self, question, ctx)

    return run


def cells() -> dict[tuple[str, str], dict]:
    found = json.loads((OUT / "metrics.json").read_text())["cells"]
    return {(cell["dataset"], cell["system"]): cell for cell in found}


def test_all_cells_stand_in_one_table_and_what_cannot_run_says_why(project, capsys, pictures):
    code, out, err = run(capsys, *BENCH, "--no-track")
    assert code == 0, err
    metrics = json.loads((OUT / "metrics.json").read_text())["datasets"]
    # a search for the town finds its brook, not the river; one for the brook finds the river. No passage, no river
    assert metrics["brooks"]["systems"]["standard"]["cover_em"]["mean"] == 1
    assert metrics["brooks"]["systems"]["direct"]["cover_em"]["mean"] == 0
    assert (metrics["towns"]["n"], metrics["brooks"]["n"]) == (3, 2)
    assert out.startswith("## cover-EM on all data sets") and (OUT / "table.md").read_text() in out
    assert "| direct | 0.00 [0.00, 0.00] | 0.00 [0.00, 0.00] | – | 1.0 |" in out
    assert "-1.00 [-1.00, -1.00] | – |" in out  # direct minus standard on brooks, where all questions differ alike
    assert {key: cell["status"] for key, cell in cells().items() if key[0] == "towns"} == {
        ("towns", "direct"): "finished",
        ("towns", "standard"): "finished",
        ("towns", "skr"): "not run",
        ("towns", "search-r1"): "not run",
        ("towns", "c3po@nowhere"): "not run",
    }
    assert "| skr | brooks | not run | setting `training` of skr is not set;" in out
    assert "| search-r1 | towns | not run | its own weights are not served: name a URL of its-own" in out
    assert "policy 'nowhere'" in out
    page = (OUT / "table.html").read_text()
    assert "<td>standard</td>" in page and "plots/brooks.png" in page
    assert (OUT / "plots/towns.png").stat().st_size and "direct - standard" not in page
    header, *rows = (OUT / "plots/costs.csv").read_text().splitlines()
    assert header.startswith("dataset,system,score,mean,low,high,seconds,best_for_seconds,tokens") and len(rows) == 4
    assert "standard - direct" in (OUT / "brooks/table.md").read_text()  # the report of an evaluation
    each = [(OUT / "brooks" / system / "predictions.jsonl").read_text() for system in ("direct", "standard")]
    assert (OUT / "brooks/predictions.jsonl").read_text() == "".join(each)  # for `report --joined`


@pytest.mark.slow
def test_a_finished_cell_is_not_run_again_and_has_one_run_in_mlflow(project, capsys, llm, empty_store):
    shutil.copytree(empty_store, project / "mlruns")
    assert run(capsys, *BENCH, "--datasets", "towns")[0] == 0
    asked, written = len(llm[1]), {path: path.stat().st_mtime_ns for path in (OUT / "towns").glob("*/*.json*")}
    code, out, _ = run(capsys, *BENCH, "--datasets", "towns")
    assert code == 0 and "| standard |" in out
    assert len(llm[1]) == asked
    assert written == {path: path.stat().st_mtime_ns for path in (OUT / "towns").glob("*/*.json*")}
    runs = mlflow.MlflowClient(f"sqlite:///{project}/mlruns/mlflow.db")
    found = runs.search_runs([runs.get_experiment_by_name("dragoman").experiment_id])
    (parent,) = (r for r in found if r.data.tags["stage"] == "bench")
    children = {r.info.run_name for r in found if r.data.tags.get("mlflow.parentRunId") == parent.info.run_id}
    assert children == {"evaluate towns direct", "evaluate towns standard"} and len(found) == 3
    assert parent.info.status == "FINISHED"
    assert all("cover_em/mean" in r.data.metrics for r in found if r is not parent)  # of the answers' traces
    sets = mlflow.genai.datasets.search_datasets(filter_string="tags.dataset = 'towns'")
    assert [len(questions.to_df()) for questions in sets] == [3]


def test_more_questions_ask_only_those_that_are_new(project, capsys, llm):
    chosen = [*BENCH, "--no-track", "--datasets", "towns", "--systems", "direct,standard"]
    asked = len(llm[1])
    run(capsys, *chosen, "--limit", "1")
    assert len(llm[1]) - asked == 2
    code, _, _ = run(capsys, *chosen)
    assert code == 0 and len(llm[1]) - asked == 6
    assert json.loads((OUT / "metrics.json").read_text())["datasets"]["towns"]["n"] == 3


def test_another_judge_judges_the_answers_of_a_finished_cell_anew(project, capsys, llm):
    judged = [*BENCH, "--no-track", "--datasets", "towns", "--systems", "direct", "--set", "evaluate.judge=true"]
    other = ["--set", f"judge={{engine: openai, model: m, revision: '2', urls: ['{llm[0]}'], structured: none}}"]
    asked = []
    for judge in ([], [], other):
        before = len(llm[1])
        code, _, err = run(capsys, *judged, *judge)
        assert code == 0, err
        asked.append(len(llm[1]) - before)
    answers, verdicts = 3, 3
    assert asked == [answers + verdicts, 0, verdicts]


def test_a_cell_whose_judge_was_away_says_so_until_it_is_judged(project, capsys, monkeypatch, llm):
    async def away(*_):
        raise EngineFault("the judge is away")

    judged = [*BENCH, "--no-track", "--datasets", "towns", "--systems", "direct", "--set", "evaluate.judge=true"]
    with monkeypatch.context() as patch:
        patch.setattr("dragoman.rewards.judge.verdict", away)
        code, out, _ = run(capsys, *judged)
    assert code == 0
    assert "| direct | towns | finished | 3 of 3 answers were not judged, and the next run has them judged |" in out
    asked = len(llm[1])
    code, out, _ = run(capsys, *judged)
    assert code == 0 and "What is missing" not in out and len(llm[1]) - asked == 3
    found = json.loads((OUT / "metrics.json").read_text())["datasets"]["towns"]["systems"]["direct"]
    assert found["judge"]["mean"] == 0 and found["unjudged"] == 0


def test_a_cell_that_fails_is_named_and_the_others_go_on(project, capsys, monkeypatch, llm):
    async def broken(*_):
        raise RuntimeError("out of ink")

    chosen = [*BENCH, "--no-track", "--datasets", "brooks", "--systems", "direct,standard"]
    with monkeypatch.context() as patch:
        patch.setattr(DIRECT, "run", broken)
        code, out, err = run(capsys, *chosen)
    assert code == 1
    assert "error: direct on brooks: every question failed, the first with: RuntimeError: out of ink" in err
    assert "| direct | failed | –" in out and "| standard | 1.00 [1.00, 1.00]" in out
    asked = len(llm[1])
    code, out, _ = run(capsys, *chosen)
    assert code == 0 and "What is missing" not in out
    assert len(llm[1]) - asked == 2  # the two questions of the one that failed


def test_a_cell_with_a_question_that_failed_says_so_until_it_is_answered(project, capsys, monkeypatch, llm):
    chosen = [*BENCH, "--no-track", "--datasets", "brooks", "--systems", "direct,standard"]
    with monkeypatch.context() as patch:
        patch.setattr(DIRECT, "run", failing_once(RuntimeError("out of ink")))
        code, out, _ = run(capsys, *chosen)
    assert code == 0 and cells()["brooks", "direct"]["status"] == "finished"
    assert "| direct | 0.00 [0.00, 0.00] (1 failed) |" in out and "| standard | 1.00 [1.00, 1.00] |" in out
    assert "| direct | brooks | finished | 1 of 2 questions failed, and the next run asks them again |" in out
    asked = len(llm[1])
    code, out, _ = run(capsys, *chosen)
    assert code == 0 and "failed)" not in out and "What is missing" not in out
    assert len(llm[1]) - asked == 1


def test_a_question_that_no_run_will_answer_does_not_keep_a_cell_from_being_finished(project, capsys, monkeypatch, llm):
    chosen = [*BENCH, "--no-track", "--datasets", "brooks", "--systems", "direct"]
    with monkeypatch.context() as patch:
        patch.setattr(DIRECT, "run", failing_once(Refused("a filter")))
        code, out, _ = run(capsys, *chosen)
    assert code == 0 and "1 of 2 questions have no answer, nor would they in another run" in out
    assert (OUT / "brooks/direct" / bench.DONE).is_file()
    asked = len(llm[1])
    assert run(capsys, *chosen)[0] == 0 and len(llm[1]) == asked


def test_a_data_set_that_cannot_be_searched_fails_alone(project, capsys):
    Path("bad.jsonl").write_text('{"id": "p", "title": "Town"}\n')
    data = {"odd": {"questions": "brooks.jsonl", "corpus": "bad.jsonl"}, "brooks": SUITE["datasets"]["brooks"]}
    write_suite(datasets=data)
    code, _, err = run(capsys, *BENCH, "--no-track", "--systems", "direct,standard")
    assert code == 1 and "error: standard on odd: bad.jsonl:1" in err
    assert cells()["brooks", "standard"]["status"] == "finished"


def test_an_oracle_over_an_index_with_other_ids_fails_alone(project, capsys):
    asked = {"id": "m0", "question": "Where does Alder flow?", "answers": ["River 70"], "supporting_ids": ["os-1"]}
    files.write(Path("mine.jsonl"), [asked])
    data = {"mine": {"questions": "mine.jsonl", "index": "data/index/towns"}}
    write_suite(systems=["standard", "c3po@oracle"], datasets=data, served={})
    code, _, err = run(capsys, *BENCH, "--no-track")
    assert code == 1 and "error: c3po@oracle on mine: mine.jsonl: question m0 names passage 'os-1'" in err
    assert cells()["mine", "standard"]["status"] == "finished"


def test_a_published_data_set_that_is_not_at_hand_is_not_run_and_the_others_go_on(project, capsys):
    data = {"2wiki": {"limit": 3}, "large": {"catalogue": "hotpotqa"}, "brooks": SUITE["datasets"]["brooks"]}
    write_suite(datasets=data)
    code, out, err = run(capsys, *BENCH, "--no-track", "--systems", "direct,standard")
    assert code == 0, err
    of_sets = {name: [c["status"] for (dataset, _), c in cells().items() if dataset == name] for name in data}
    assert of_sets == {"2wiki": ["not run"] * 2, "large": ["not run"] * 2, "brooks": ["finished"] * 2}
    assert (
        "| all | 2wiki | not run | data/2wiki/corpus.jsonl: not there. "
        "`dragoman data get 2wiki --questions 1000` fetches it" in out
    )
    assert "`dragoman data get hotpotqa --questions 1000`" in cells()["large", "direct"]["reason"]
    assert "`dragoman index --dataset large`" in cells()["large", "direct"]["reason"]
    whole = matrix()
    for part in (["--shard", "1/2"], ["--shard", "2/2"], ["--merge", "2"]):
        assert run(capsys, *BENCH, "--no-track", "--systems", "direct,standard", *part)[0] == 0
    assert matrix() == whole


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        ("data/towns/corpus.jsonl", "data/towns/corpus.jsonl: not there. `dragoman corpus --dataset towns` makes it;"),
        ("data/towns/test.jsonl", "data/towns/test.jsonl: not there. `dragoman corpus --dataset towns` makes it;"),
        ("data/index/towns/manifest.json", "data/index/towns: not an index (it has no manifest.json): build one"),
    ],
)
def test_a_data_set_that_no_stage_has_made_is_not_run_and_the_others_go_on(project, capsys, missing, reason):
    Path("corpus.jsonl").write_bytes(Path("data/towns/corpus.jsonl").read_bytes())
    write_suite(datasets=SUITE["datasets"] | {"brooks": {"questions": "brooks.jsonl", "corpus": "corpus.jsonl"}})
    Path(missing).unlink()
    code, out, err = run(capsys, *BENCH, "--no-track", "--systems", "direct,standard")
    assert code == 0 and "| standard | not run | 1.00 [1.00, 1.00] |" in out, err
    assert f"| all | towns | not run | {reason}" in out and "`dragoman index --dataset towns`" in out


def test_settings_of_a_system_on_one_data_set_hold_on_no_other(project, capsys):
    write_suite(datasets=SUITE["datasets"] | {"towns": {"limit": 1, "systems": {"standard": {"k": 2}}}})
    code, _, err = run(capsys, *BENCH, "--no-track", "--systems", "standard")
    assert code == 0, err

    def kept(dataset: str) -> int:
        _, first = next(iter(files.read(OUT / dataset / "standard/predictions.jsonl")))
        return len(first["passages"])

    assert (kept("towns"), kept("brooks")) == (2, 5)


def test_a_data_set_in_its_folder_needs_no_entry_in_params(project, capsys):
    shutil.copytree("data/towns", "data/2wiki")
    write_suite(datasets={"2wiki": {"limit": 2}})
    code, out, err = run(capsys, *BENCH, "--no-track", "--systems", "direct,standard")
    assert code == 0 and "What is missing" not in out, err
    assert json.loads((OUT / "metrics.json").read_text())["datasets"]["2wiki"]["n"] == 2


class Killed(BaseException):
    pass


def test_what_a_kill_leaves_unfinished_is_all_that_is_done_again(project, capsys, monkeypatch, llm):
    evaluate, begun = bench.evaluate, []

    async def killed(systems, *arguments, **options):
        begun.append(systems[0])
        if systems == ("standard",):
            raise Killed
        return await evaluate(systems, *arguments, **options)

    chosen = [*BENCH, "--no-track", "--datasets", "towns"]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(bench, "evaluate", killed)
        run(capsys, *chosen)
    assert begun == ["direct", "standard"] and (OUT / "towns/direct/cell.json").is_file()
    asked = len(llm[1])
    code, _, err = run(capsys, *chosen)
    assert code == 0, err
    assert len(llm[1]) - asked == 3  # those of standard


def matrix() -> dict:
    """The figures of the bench, as if nothing took any time."""
    found = json.loads((OUT / "metrics.json").read_text())
    for of_dataset in found["datasets"].values():
        for summary in of_dataset["systems"].values():
            summary |= {"seconds": 0, "latency": 0}
    return found


def test_shards_give_the_cells_and_figures_of_the_whole(project, capsys, llm, monkeypatch):
    run(capsys, *BENCH, "--no-track")
    whole = matrix()
    assert len(whole["cells"]) == 10
    shutil.rmtree(OUT)
    for shard in ("1", "2", "3"):
        code, out, err = run(capsys, *BENCH, "--no-track", "--shard", f"{shard}/3")
        assert code == 0 and out.endswith(f"{OUT}/shards/{shard}-of-3\n"), err
    asked = len(llm[1])
    code, out, err = run(capsys, *BENCH, "--no-track", "--merge", "3")
    assert code == 0 and (OUT / "table.md").read_text() in out, err
    assert matrix() == whole
    assert run(capsys, *BENCH, "--no-track")[0] == 0 and matrix() == whole
    assert len(llm[1]) == asked


def test_a_shard_of_a_bench_that_is_missing_or_made_otherwise_is_named(project, capsys):
    chosen = [*BENCH, "--no-track", "--datasets", "brooks", "--systems", "direct,standard"]
    run(capsys, *chosen, "--shard", "1/2")
    code, _, err = run(capsys, *chosen, "--merge", "2")
    assert code == 2 and f"{OUT}/shards/2-of-2: not finished" in err
    run(capsys, *chosen, "--shard", "2/2", "--set", "evaluate.bootstrap=200")
    code, _, err = run(capsys, *chosen, "--merge", "2")
    assert code == 2 and "2-of-2: its evaluate differ" in err
    code, _, err = run(capsys, *chosen, "--shard", "3/3")
    assert code == 2 and "3 shards of 2 cells" in err
    assert not (OUT / "metrics.json").exists() and not (OUT / "brooks").exists()


def test_a_cell_that_fails_in_a_shard_is_named_by_the_merge_and_done_again_by_its_shard(project, capsys, monkeypatch):
    async def broken(*_):
        raise RuntimeError("out of ink")

    chosen = [*BENCH, "--no-track", "--datasets", "brooks", "--systems", "direct,standard"]
    with monkeypatch.context() as patch:
        patch.setattr(DIRECT, "run", broken)
        code, out, _ = run(capsys, *chosen, "--shard", "1/2")
    assert code == 0 and "direct on brooks: failed" in out
    run(capsys, *chosen, "--shard", "2/2")
    code, out, err = run(capsys, *chosen, "--merge", "2")
    assert code == 1 and "RuntimeError: out of ink" in err and "| direct | failed | –" in out
    run(capsys, *chosen, "--shard", "1/2")
    code, out, _ = run(capsys, *chosen, "--merge", "2")
    assert code == 0 and "What is missing" not in out


INTERRUPTED = """
import asyncio
from dragoman.cli import main
from dragoman.systems.standard import SYSTEM

async def run(*_):
    await asyncio.sleep(60)

SYSTEM.run = run
main()
"""
"""The command with a `standard` that is under way when it is interrupted, however late that is."""


@pytest.mark.process
def test_ctrl_c_keeps_what_is_finished_and_the_same_command_goes_on(project, capsys, llm):
    arguments = [*BENCH, "--no-track", "--systems", "direct,standard"]
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    first = OUT / "towns/direct/cell.json"
    while not first.is_file():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "run the same command to go on" in err and "Traceback" not in err
    made = first.stat().st_mtime_ns
    assert run(capsys, *arguments)[0] == 0
    assert first.stat().st_mtime_ns == made and (OUT / "table.html").is_file()


@pytest.mark.parametrize(
    ("changes", "more", "sentence"),
    [
        ({}, ["--suite", "slow"], "--suite slow: no such file conf/bench/slow.yaml; in conf/bench there are: none"),
        ({"systems": []}, [], "suite.yaml: systems: Tuple should have at least 1 item"),
        ({"datasets": {}}, [], "suite.yaml: datasets: Dictionary should have at least 1 item"),
        ({"sistems": ["direct"]}, [], "suite.yaml: sistems: unknown key (near: systems)"),
        ({"systems": ["standard", "magic"], "served": {}}, [], "unknown system 'magic'"),
        ({}, ["--systems", "standrd"], "suite.yaml: system 'standrd' is unknown (near: standard)"),
        ({}, ["--datasets", "town"], "suite.yaml: data set 'town' is unknown (near: towns)"),
        ({"columns": ["cover_me"]}, [], "suite.yaml: column 'cover_me' is unknown (near: cover_em)"),
        ({"columns": ["judge"]}, [], "column 'judge' is unknown; there are: cover_em, em,"),
        ({"columns": ["tokens"]}, [], "suite.yaml: columns: the first must be a score, of cover_em"),
        ({"against": "maps"}, [], "suite.yaml: against: system 'maps' is unknown"),
        ({"datasets": {"moon": {}}}, [], "data set 'moon' has no entry under corpus in params.yaml, which has towns"),
        ({"datasets": {"moon": {"catalogue": "mooon"}}}, [], "data set 'moon': catalogue: no data set 'mooon'"),
        (
            {"datasets": {"towns": {"systems": {"skr": {"trainin": "x"}}}}},
            [],
            "data set 'towns': systems.skr.trainin: no such setting",
        ),
        ({"datasets": {"x": {"questions": "mute.jsonl", "corpus": "c"}}}, [], "mute.jsonl:1"),
        ({"datasets": {"x": {"questions": "brooks.jsonl", "corpus": "c"}}}, [], "data set 'x': c: no such corpus"),
        ({}, ["--set", "llm={engine: transformers, model: nowhere}"], "nowhere: no model there"),
    ],
)
def test_bad_input_is_said_before_anything_runs(project, capsys, changes, more, sentence):
    Path("mute.jsonl").write_text('{"id": "q", "question": "Who?", "answers": []}\n')
    write_suite(**changes)
    code, _, err = run(capsys, *BENCH, "--no-track", *more)
    assert code == 2 and sentence in err and "Traceback" not in err
    assert not list(Path("results").rglob("*.json*"))


def test_weights_in_the_place_of_the_llm_do_not_judge(tmp_path):
    home = Project(tmp_path)
    served = {"search-r1": {"model": "its-own", "urls": ["http://localhost:1/v1"]}}
    suite = Suite(systems=("search-r1",), datasets={"d": {}}, served=served)

    def judge(project: Project) -> EngineParams | None:
        params = bench._DataSet(project, suite, "d", suite.systems, tmp_path, print)._params("search-r1")
        assert params.llm.model == "its-own"
        return params.judge

    assert judge(home) == home.params.llm
    judged = home.changed({"judge": {"model": "judge"}})
    assert judge(judged) == judged.params.judge


@pytest.mark.parametrize("name", ["quick", "papers"])
def test_the_suites_of_the_project_can_be_read_and_name_systems_that_exist(name):
    from dragoman.config import load_params
    from dragoman.published.catalogue import catalogue
    from dragoman.systems import baseline_names, system_class
    from dragoman.systems.system_name import SystemName

    suite, path = read_suite(name, ROOT / "conf/bench")
    params = load_params(ROOT / "params.yaml")
    suite.check(params.evaluate, origin=str(path))
    assert {data.catalogue or name for name, data in suite.datasets.items()} <= {*params.corpus, *catalogue()}
    assert not any(
        data.questions or data.corpus for data in suite.datasets.values()
    )  # so one that lacks says how to get it
    assert "c3po@gepa" in suite.systems
    systems = {name: system_class(name) for name in (SystemName.parse(system).system for system in suite.systems)}
    assert set(baseline_names()) - set(systems) <= {"search-r1", "r1-searcher", "self-rag", "auto-rag"}
    assert {"direct", "standard", "c3po", "maps", "mrag", "mujica"} <= set(systems)


def test_the_quick_suite_asks_150_questions_of_three_data_sets():
    suite, _ = read_suite("quick", ROOT / "conf/bench")
    assert {name: data.limit for name, data in suite.datasets.items()} == {
        "atlas": 150,
        "hotpotqa-large": 150,
        "2wiki": 150,
    }

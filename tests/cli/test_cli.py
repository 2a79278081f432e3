"""The commands as a user meets them: exit codes, sentences, and what a server's faults leave behind."""

import asyncio
import errno
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from command import run
from scripted_server import Handler, Server, completion, reply

from dragoman.cli.command import PrintableFormatter, parse_change
from dragoman.cli.training import _visible
from dragoman.core import files
from dragoman.core.settings import read_yaml
from dragoman.pipeline import pair, warm_up
from dragoman.pipeline.doctor import fault_table
from dragoman.pipeline.project import Project

ROOT = Path(__file__).parents[2]
COMMANDS = ["doctor", "model", "corpus", "index", "search", "evaluate", "bench", "report", "ask", "serve-retriever"]
COMMANDS += ["rollout", "seeds", "sft", "rl", "synthesize", "validate", "serve"]
COMMANDS += ["register", "promote", "rollback", "lineage", "compare"]
COMMANDS += ["sparql", "warm-up", "pair", "gepa"]


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """An empty project with fast settings: one more try."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "cpu.yaml").write_text("evaluate: {bootstrap: 100, traces: 1}")
    (tmp_path / "params.yaml").write_text(
        "llm: {retries: 1, connect_timeout_s: 10, read_timeout_s: 10, structured: none}\n"
        "systems: {standard: {k: 2}, direct: {}}"
    )
    files.write(
        tmp_path / "corpus.jsonl",
        [{"id": f"p{i}", "title": f"Town {i}", "text": f"Town {i} lies on river {i * 7}."} for i in range(12)],
    )
    files.write(
        tmp_path / "questions.jsonl",
        [
            {"id": f"q{i}", "question": f"On which river lies town {i}?", "answers": [f"river {i * 7}"], "type": "x"}
            | {"supporting_ids": [f"p{i}"]}
            for i in range(4)
        ],
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples_each_on_its_line(capsys, command):
    code, out, _ = run(capsys, command, "--help")
    examples = [line.split("Example:") for line in out.splitlines() if "Example:" in line]
    assert code == 0 and examples
    assert all(not before.strip() and text.startswith(f" dragoman {command}") for before, text in examples)


EVALUATE = ["evaluate", "--corpus", "corpus.jsonl", "--questions", "questions.jsonl", "--out", "out", "--no-track"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([*EVALUATE, "--systems", "magic"], "unknown system 'magic': choose from auto-rag, c3po, direct"),
        ([*EVALUATE, "--systems", "c3po@nowhere"], "policy 'nowhere'"),
        ([*EVALUATE, "--limit", "0"], "'--limit': Input should be greater than or equal to 1"),
        ([*EVALUATE, "--until-clear", "direct,standard"], "4 questions are too few to tell; give it at least 30"),
        ([*EVALUATE, "--until-clear", "direct"], "--until-clear direct: name two of the systems: direct"),
        (
            [*EVALUATE, "--systems", "direct", "--until-clear", "direct,standard"],
            "--until-clear direct,standard: name two of the systems: direct",
        ),
        ([*EVALUATE, "--corpus", "missing.jsonl"], "missing.jsonl"),
        ([*EVALUATE, "--questions", "missing.jsonl"], "missing.jsonl"),
        ([*EVALUATE, "--questions", "empty.jsonl"], "empty.jsonl"),
        ([*EVALUATE, "--questions", "unanswered.jsonl"], "unanswered.jsonl:1"),
        ([*EVALUATE, "--systems", "direct"], "data/model: no model there; run `dragoman model"),
        (
            [*EVALUATE, "--systems", "direct", "--set", "llm.model=ORG/NAME"],
            "ORG/NAME: no model there; `dragoman model --source ORG/NAME --out FOLDER` makes a folder",
        ),
        (
            [*EVALUATE, "--systems", "standard@oracle"],
            "standard@oracle: standard has no proxy, so there is nothing that",
        ),
        (["search", "town", "--set", "profile=nope"], "profile 'nope' has no file conf/nope.yaml"),
        (["serve-retriever", "--set", "profile=nope"], "profile 'nope' has no file conf/nope.yaml"),
        (["seeds", "--set", "ablations=[no-sense]"], "unknown ablation 'no-sense' of c3po"),
        (["seeds", "--set", "transfers=[llm]"], "transfer llm: set transfer.llm in params.yaml"),
        (["ask", "Who?", "--system", "c4po"], "unknown system 'c4po'"),
        (["ask", "  "], "the question is empty"),
        (["search", "town", "--index", "nowhere"], "nowhere"),
        (
            ["index", "--corpus", "corpus.jsonl", "--method", "magic"],
            "--method magic: 'magic' is not a retrieval method: choose one of bm25, dense, graph, hybrid, ideal",
        ),
        (["sparql", "ASK { ?s ?p ?o }"], "data/atlas/triples.tsv: no such file"),
        (["sparql", "SELECT", "--graph", "triples.tsv"], "SPARQL: Expected"),
        (["sparql", "SELECT", "--graph", "conf"], "conf: a folder; name a file in it"),
        (
            ["search", "town", "--set", "llm.revision=2026-11-01"],
            "llm.revision: expected a text; a number or a date is one",
        ),
        (["search", "town", "--set", "llm.revision=1"], "quotes, as in \"'1'\""),
        (["search", "town", "--params", "conf"], "conf: a folder; name a file in it"),
        (["search", "town", "--index", "a" * 300], "...: the name of a file or folder is too long; give a shorter one"),
        (["rollout", "--tree", "--views", "-5"], "'--views': Input should be greater than or equal to 0"),
        (["synthesize", "--dataset", "nope", "--out", "new"], "params.yaml has no dataset 'nope'; it has atlas"),
        (["seeds", "--system", "standard"], "standard has no proxy to train; choose from c3po, maps, mrag, mujica"),
        (["warm-up", "standard"], "standard has no proxy to train; choose from c3po, maps, mrag, mujica"),
        (["warm-up", "c4po"], "unknown system 'c4po'"),
        (
            ["pair", "mujica", "magic"],
            "train.algorithm: unknown algorithm 'magic': choose from grpo, mygo, ppo, selftrain, trajectory_grpo",
        ),
        (["pair", "mujica", "mygo"], "results/pairs/mujica-warm-up/sft"),
        (["rl", "--set", "mujica.split"], "--set mujica.split: expected KEY=VALUE"),
        (["rl", "--set", "rl.iterations=[1"], "--set rl.iterations=[1: the value is not valid YAML"),
        (["rl", "--set", "llm.revision=2024-02-30"], "--set llm.revision=2024-02-30: day is out of range for month"),
        (["search", " "], "the query is empty"),
        (["corpus", "--source", "a.jsonl", "--dataset", "atlas"], "give one of the two"),
        (["corpus", "--source", "/"], "--source / has no name to call the dataset by"),
        (["rl", "--set", "rl.iteratons=2"], "--set rl.iteratons=2: rl.iteratons: unknown key (near: rl.iterations"),
        (["rl", "--set", "c4po.max_depth=2"], "--set c4po.max_depth=2: c4po.max_depth: unknown key"),
        (["rl", "--set", "c3po.max_dept=2"], "systems.c3po.max_dept: no such setting; c3po has"),
        (["rl", "--iterations", "0"], "--iterations 0: rl.iterations: Input should be greater than or equal to 1"),
        (["rl", "--seed", "2", "--set", "rl=3"], "--seed 2, --set rl=3: rl: Input should be"),
        (["seeds", "--set", "mujica.environment=web"], "environment 'web': choose from text, graph"),
        (["corpus", "--dataset", "mine"], "no dataset 'mine'"),
        (["rollout", "--system", "c3po"], "give either --tree or --samples N"),
        (["rollout", "--tree", "--questions", "missing.jsonl"], "missing.jsonl"),
        (["seeds", "--system", "c4po"], "unknown system 'c4po'"),
        (
            ["sft", "--samples", "missing.parquet"],
            "missing.parquet: no such file; `dragoman rollout` and `dragoman seeds`",
        ),
        (
            ["sft", "--set", "sft.roles=[judge]"],
            "sft.roles: c3po has no role 'judge'; choose from router, filter, decide",
        ),
        (["rl", "--set", "rl.roles=[judge]"], "rl.roles: c3po has no role 'judge'; choose from router, filter, decide"),
        (["sft", "--samples", "corpus.jsonl"], "corpus.jsonl: not a file of samples"),
        (["rl", "--policy", "nowhere"], "policy 'nowhere': neither a model folder nor a finished stage"),
        (["rl", "--algorithm", "magic"], "--algorithm magic: train.algorithm: unknown algorithm 'magic'"),
        (
            ["report"],
            "results/evaluate/atlas-direct/predictions.jsonl: no such file (3 of 3 systems have none on atlas); `make",
        ),
        (["index"], "data/atlas/corpus.jsonl: no such file; `dragoman corpus --dataset atlas` makes it"),
        (
            ["ask", "Who?", "--system", "direct"],
            "data/atlas/corpus.jsonl: no such file; `dragoman corpus --dataset atlas`",
        ),
        (["model", "--source", "nobody/nothing", "--out", "m"], "nobody/nothing"),
        (["ask", "Who?", "--params", "other.yaml"], "other.yaml: no such file"),
        (["ask", "Who?", "--params", "latin.yaml"], "latin.yaml:2: not UTF-8; save the file in that encoding"),
        (
            [*EVALUATE, "--questions", "astray.jsonl"],
            "astray.jsonl: question q1 names passage 'doc-X' in supporting_ids, which corpus.jsonl lacks (1 of 2 questions",
        ),
        (
            [*EVALUATE, "--questions", "astray.jsonl", "--corpus", "whole.jsonl", "--systems", "standard,c3po@oracle"],
            "astray.jsonl: 1 of 2 questions have no supporting_ids, such as q2, and c3po@oracle needs them: leave it out",
        ),
        (
            [*EVALUATE, "--set", "standard.k=many"],
            "systems.standard.k: 'many' will not do: Input should be a valid integer",
        ),
        (["evaluate", "--dataset", "nope"], "no such file, and params.yaml has no dataset 'nope'; it has atlas"),
        (["evaluate", "--dataset", "atlas"], "test.jsonl: no such file; `dragoman corpus --dataset atlas` makes it"),
        (["serve", "--port", "99999"], "'--port': Input should be less than or equal to 65535"),
        (
            ["serve", "--host", "192.0.2.1", "--insecure"],
            "--host 192.0.2.1 --port 8200: Cannot assign requested address",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(project, capsys, monkeypatch, arguments, sentence):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # a network that is down would only be slower
    (project / "empty.jsonl").write_text("")
    (project / "triples.tsv").write_text("Chad\tcapital\tN'Djamena\n")
    (project / "latin.yaml").write_bytes(b'seed: 0\nllm: {model: "\xff"}\n')
    asked = [{"id": "q1", "question": "Who?", "answers": ["A"], "supporting_ids": ["doc-X"]}]
    asked += [{"id": "q2", "question": "Who else?", "answers": ["B"]}]
    (project / "astray.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    (project / "whole.jsonl").write_text('{"id": "doc-X#0", "title": "A chunk of doc-X", "text": "It is there."}\n')
    (project / "unanswered.jsonl").write_text('{"id": "q", "question": "Who?", "answers": []}\n')
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert sentence in err and "Traceback" not in err


def test_what_an_error_quotes_is_shown_and_not_obeyed_by_the_terminal(project, capsys):
    code, _, err = run(capsys, "validate", "no\x1b[2Jthing\udcff.jsonl")
    assert code == 2 and r"error: no\x1b[2Jthing\udcff.jsonl: " in err and "\x1b" not in err


def test_what_the_log_quotes_is_shown_and_not_obeyed_by_the_terminal():
    line = logging.LogRecord("dragoman", logging.WARNING, "", 0, "question %s\nfailed", ("q\x1b[2J",), None)
    assert PrintableFormatter("%(message)s").format(line) == "question q\\x1b[2J\nfailed"


def test_a_promotion_is_shown_with_its_reasons_and_a_refusal_has_an_exit_code_of_its_own(project, capsys, monkeypatch):
    async def decided(_, options):
        return decision

    monkeypatch.setattr("dragoman.pipeline.promote.run", decided)
    (project / "out").mkdir()
    (project / "out" / "table.md").write_text("| a table |\n")
    said = {}
    for decision in (
        {"promoted": True, "reasons": []},
        {"promoted": False, "reasons": ["too slow", "no better"]},
        {"unchanged": "v1 is the champion"},
    ):
        said[next(iter(decision)), len(decision.get("reasons", ()))] = run(capsys, "promote", "--out", "out")
    assert said["promoted", 0][0] == 0 and "| a table |" in said["promoted", 0][1]
    assert said["promoted", 2][0] == 3 and "refused: too slow; no better" in said["promoted", 2][2]
    assert said["unchanged", 0] == (0, "v1 is the champion\n", "")


def test_seeds_print_the_shares_that_are_known_of_what_the_proxy_sees():
    assert _visible({"words": 16, "answer": 0.584, "bridge": None}) == "the answer in 58% of those that hold it"


@pytest.mark.parametrize(
    "command", ["corpus", "index", "evaluate", "rollout", "seeds", "sft", "rl", "synthesize", "validate", "report"]
)
def test_a_file_where_results_go_is_refused_and_kept(project, capsys, command):
    Path("notes.txt").write_text("mine")
    code, _, err = run(capsys, command, "--out", "notes.txt")
    assert code == 2 and "notes.txt" in err and "is a file" in err
    assert Path("notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "command",
    [
        ["evaluate", "--questions", "questions.jsonl", "--index", "index", "--systems", "direct", "--no-track"],
        ["rollout", "--questions", "questions.jsonl", "--index", "index", "--samples", "1"],
        ["seeds", "--questions", "questions.jsonl", "--index", "index", "--no-track"],
        ["rl", "--no-track"],
        ["sft", "--no-track"],
        ["bench", "--no-track"],
    ],
    ids=lambda command: command[0],
)
@pytest.mark.parametrize("kind", ["corpus.jsonl", "manifest.json"])
def test_results_in_the_folder_of_a_dataset_or_an_index_are_refused(project, capsys, command, kind):
    Path("data").mkdir()
    Path("data", kind).write_text("{}")
    code, _, err = run(capsys, *command, "--out", "data")
    assert code == 2 and "data: is the folder of a" in err and f"({kind})" in err
    assert [path.name for path in Path("data").iterdir()] == [kind]


def test_a_file_on_the_way_to_where_results_go_is_named(project, capsys):
    Path("notes.txt").write_text("mine")
    code, _, err = run(capsys, *EVALUATE, "--out", "notes.txt/results")
    assert code == 2 and "notes.txt" in err and "a file lies where a folder is needed" in err


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_place_that_cannot_be_written_is_named(project, capsys, monkeypatch, number):
    def refused(*args, **kwargs):
        raise OSError(number, os.strerror(number), "out")

    monkeypatch.setattr("dragoman.core.files.write_text", refused)
    code, _, err = run(capsys, *EVALUATE, "--systems", "direct", "--out", "out")
    assert code == 2 and err.splitlines()[-1] == f"error: out: {os.strerror(number)}; what is finished is kept"


@pytest.mark.parametrize("seed", ["-1", "4294967296"])
def test_a_seed_that_no_generator_takes_is_refused_before_anything_is_asked(project, capsys, seed):
    code, _, err = run(capsys, *EVALUATE, "--systems", "direct", f"--seed={seed}", "--out", "out")
    assert code == 2 and "seed" in err and not Path("out").exists()


def test_a_score_to_clear_without_a_difference_is_refused(project, capsys):
    code, _, err = run(capsys, *EVALUATE, "--systems", "direct", "--clear-by", "f1")
    assert code == 2 and "--clear-by f1: of the difference that --until-clear names" in err


def test_a_graph_is_queried(project, capsys):
    (project / "triples.tsv").write_text("Chad\tcapital\tN'Djamena\n")
    code, out, _ = run(capsys, "sparql", "SELECT ?city { :Chad :capital ?city }", "--graph", "triples.tsv")
    assert (code, out) == (0, 'city\n"N\'Djamena"\n')


def test_all_algorithms_of_a_system_start_from_one_warm_up(project, capsys, monkeypatch):
    called = []
    for stage in ("seeds", "sft", "rl", "evaluate"):

        async def run_stage(own, options, stage=stage):
            called.append((stage, own, options))
            return {}

        monkeypatch.setattr(f"dragoman.pipeline.{stage}.run", run_stage)
    asyncio.run(warm_up.run(Project(), warm_up.Options(system="mujica")))
    asyncio.run(pair.run(Project(track=False), pair.Options(system="mujica", algorithm="mygo")))
    (_, _, made), (_, warming, warmed), (_, training, trained), (_, _, compared) = called
    assert [stage for stage, _, _ in called] == ["seeds", "sft", "rl", "evaluate"]
    assert {own.params.train.system for _, own, _ in called} == {"mujica"}
    assert warmed.samples == made.out / "samples.parquet" and trained.policy == str(warmed.out)
    assert (training.params.train.algorithm, training.track, warming.track) == ("mygo", False, True)
    assert compared.systems == (f"mujica@{warmed.out}", f"mujica@{trained.out}")
    assert {options.out.parts[2] for _, _, options in called} == {"mujica-warm-up", "mujica-mygo"}


def test_k_of_zero_is_refused(project, capsys):
    run(capsys, "index", "--corpus", "corpus.jsonl", "--out", "index")
    code, _, err = run(capsys, "search", "town", "--index", "index", "-k", "0")
    assert code == 2 and "k" in err


def test_an_unknown_setting_is_named(project, capsys):
    (project / "params.yaml").write_text("evaluate: {lmit: 3}")
    code, _, err = run(capsys, "ask", "Who?")
    assert code == 2 and "evaluate.lmit: unknown key" in err


def after_a_429(request: BaseHTTPRequestHandler, n: int) -> None:
    if n == 0:
        reply(request, 429, "{}", Retry_After="0")
    else:
        completion(request, n)


FAULTY: dict[str, tuple[Handler, str]] = {
    "html": (lambda r, n: reply(r, 200, "<html>login</html>", "text/html"), "<html>login"),
    "500": (lambda r, n: reply(r, 500, '{"error": "broken"}'), "500"),
    "429": (lambda r, n: reply(r, 429, "{}", Retry_After="0"), "429"),
    "slow": (lambda r, n: time.sleep(20), "Timeout"),
}


def evaluate(capsys, url: str, *more: str) -> tuple[int, str, str]:
    return run(capsys, *EVALUATE, "--systems", "standard", "--llm-url", url, "--llm-model", "m", *more)


@pytest.mark.parametrize("name", FAULTY)
def test_a_servers_fault_is_recorded_for_each_question_and_tried_again(project, capsys, name):
    handle, reason = FAULTY[name]
    server = Server(handle)
    code, _, err = evaluate(capsys, server.url, *(["--set", "llm.read_timeout_s=0.5"] if name == "slow" else []))
    server.close()
    assert code == 1 and "error: standard: every question failed, the first with: " in err and server.url in err
    assert 4 <= server.seen <= 4 * 2  # retried within bounds
    for _, row in files.read("out/predictions.jsonl"):
        assert row["stop"] == "engine_fault" and row["scores"]["cover_em"] is None
        assert server.url in row["error"] and reason in row["error"]
    metrics = json.loads(Path("out/metrics.json").read_text())
    assert metrics["systems"]["standard"]["failed"] == 4


def test_a_server_that_is_not_there(project, capsys):
    code, _, err = evaluate(capsys, "http://127.0.0.1:9/v1")
    assert code == 1 and err.startswith("error: http://127.0.0.1:9/v1/models: ConnectError")


def test_a_tracking_server_that_is_not_there_is_named(project, capsys, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    code, _, err = run(capsys, "lineage", "v1")
    assert code == 1 and err.startswith("error: MLflow at http://127.0.0.1:9: ") and "start the server" in err
    assert "Traceback" not in err


def test_a_registry_without_versions_says_what_makes_some(project, capsys):
    code, out, _ = run(capsys, "lineage")
    assert code == 0 and out.startswith("no versions yet: `dragoman register` makes versions")


def test_a_429_that_passes_costs_nothing(project, capsys):
    server = Server(after_a_429)
    code, out, _ = evaluate(capsys, server.url)
    server.close()
    assert code == 0 and "| standard | 0.25" in out
    assert "; LLM m, index bm25\n" in out and "standard: of 4 answers 4 read alike: `river 7`." in out
    metrics = json.loads(Path("out/metrics.json").read_text())
    assert metrics["systems"]["standard"]["recall"]["mean"] == 1.0
    assert metrics["systems"]["standard"]["calls"] == 1


def test_what_failed_is_all_that_is_done_again(project, capsys):
    server = Server(lambda request, n: reply(request, 400, "{}") if n == 1 else completion(request, n))
    code, _, _ = evaluate(capsys, server.url)
    assert code == 0 and server.seen == 4
    assert json.loads(Path("out/metrics.json").read_text())["systems"]["standard"]["failed"] == 1
    code, _, _ = evaluate(capsys, server.url)
    server.close()
    assert server.seen == 5  # only the one that failed
    assert json.loads(Path("out/metrics.json").read_text())["systems"]["standard"]["failed"] == 0


@pytest.mark.slow
def test_questions_are_asked_until_the_difference_is_clear_or_none_is_left(project, capsys):
    asked = [{"id": f"q{i}", "question": f"Which river, town {i}?", "answers": ["river 7"]} for i in range(60)]
    files.write(project / "questions.jsonl", asked)
    server = Server(completion)
    arguments = ["--until-clear", "direct,standard", "--llm-url", server.url, "--llm-model", "m"]
    code, out, err = run(capsys, *EVALUATE, *arguments)
    server.close()
    assert code == 0, err
    assert server.seen == 2 * 60
    nothing = "+0.00 [+0.00, +0.00] at 97.5%, not clear of zero (look 2 of 2, 60 of 60 questions)."
    assert f"standard - direct in cover_em: {nothing}" in out


@pytest.mark.process
def test_ctrl_c_keeps_what_is_finished_and_the_same_command_goes_on(project, capsys):
    go_on = threading.Event()

    def at_first(request: BaseHTTPRequestHandler, n: int) -> None:
        if n >= 2:
            go_on.wait(60)
        completion(request, n)

    server = Server(at_first)
    (project / "params.yaml").write_text(
        "llm: {structured: none}\nevaluate: {concurrency: 1}\nsystems: {standard: {k: 2}}"
    )
    arguments = [*EVALUATE, "--systems", "standard", "--llm-url", server.url, "--llm-model", "m"]
    command = [sys.executable, "-m", "dragoman", *arguments]
    # a job in the background of a shell inherits that Ctrl-C is ignored; this process is in the foreground
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    )
    episodes = Path("out/episodes/standard/episodes.jsonl")
    while not (episodes.exists() and episodes.read_bytes().count(b"\n") >= 2):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; what is finished is kept, run the same command to go on" in err and "Traceback" not in err
    go_on.set()
    code, out, _ = run(capsys, *arguments)
    server.close()
    assert code == 0 and "n = 4" in out
    assert server.seen <= 5  # the one under way was asked again, and no other


def test_the_run_is_in_mlflow_with_a_trace(project, capsys, empty_store):
    import mlflow

    shutil.copytree(empty_store, "mlruns")
    server = Server(completion)
    evaluate(capsys, server.url, "--track")
    server.close()
    (finished,) = mlflow.search_runs(experiment_names=["dragoman"], output_format="list")
    assert finished.data.metrics["cover_em.mean"] == 0.25
    assert finished.data.tags["system"] == "standard"
    assert finished.data.params["config.settings.k"] == "2"
    (trace,) = mlflow.search_traces(locations=[finished.info.experiment_id], return_type="list")
    assert [s.name for s in trace.data.spans] == ["standard", "search", "answer"]
    assert (project / "mlruns" / "mlflow.db").is_file()


def test_ask_shows_its_steps(project, capsys):
    server = Server(completion)
    run(capsys, "index", "--corpus", "corpus.jsonl", "--out", "index")
    arguments = ["--system", "standard", "--trace", "--index", "index", "--llm-url", server.url, "--llm-model", "m"]
    code, out, _ = run(capsys, "ask", "On which river lies town 1?", *arguments)
    server.close()
    assert code == 0
    assert "search (" in out and "LLM writes the answer" in out and "answer: river 7" in out and "kept p1" in out


def test_ask_says_why_there_is_no_answer(project, capsys):
    server = Server(lambda request, n: reply(request, 400, "{}"))
    run(capsys, "index", "--corpus", "corpus.jsonl", "--out", "index")
    arguments = ["--system", "standard", "--index", "index", "--llm-url", server.url]
    code, _, err = run(capsys, "ask", "Where?", *arguments)
    server.close()
    assert code == 1 and "no answer (engine_fault)" in err and server.url in err


@pytest.mark.parametrize(
    ("card", "line"), [({"root": "/m"}, "WARN form: judge: "), ({}, "FAIL server: judge: engine openai: ")]
)
def test_the_doctor_finds_what_the_engine_would_refuse(project, capsys, card, line):
    """A server that does not say which weights it runs; or that says it, and ignores the form of an answer."""
    server = Server(completion, card)
    with (project / "params.yaml").open("a") as params:
        params.write(f'\njudge: {{engine: openai, urls: ["{server.url}"], model: m}}\n')
    _, out, _ = run(capsys, "doctor")
    server.close()
    assert line in out


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (
            "smollm2",
            "WARN model: data/model holds smollm2, and model.source is org/larger by now\n     Run `dragoman model`",
        ),
        ("org/larger", "ok   model: llm: data/model"),
    ],
)
def test_the_doctor_notices_a_model_that_is_not_the_one_of_the_settings(project, capsys, source, line):
    files.write_json(Path("data/model/manifest.json"), {"source": source})
    files.write_json(Path("data/model/config.json"), {})
    _, out, _ = run(capsys, "doctor", "--set", "model.source=org/larger")
    assert line in out and out.count("by now") == (source == "smollm2")


def test_the_troubleshooting_page_is_the_doctors_knowledge():
    assert (ROOT / "docs" / "troubleshooting.md").read_text() == fault_table()


@pytest.mark.parametrize(
    ("gib", "limit", "line"),
    [
        (7, "max", "WARN memory: only 7.0 GB"),
        (8, None, "ok   memory: 8 GB"),
        (64, "max", "ok   memory: 64 GB"),
        (64, str(4 * 2**30), "WARN memory: only 4.0 GB"),
    ],
)
def test_the_doctor_warns_below_8_gb_of_memory_in_a_container_too(project, capsys, monkeypatch, gib, limit, line):
    sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": gib * 2**18}
    monkeypatch.setattr("os.sysconf", sizes.__getitem__)
    monkeypatch.setattr("dragoman.pipeline.doctor.MEMORY_LIMIT", Path("memory.max"))
    if limit is not None:
        Path("memory.max").write_text(f"{limit}\n")
    assert line in run(capsys, "doctor")[1]


@pytest.mark.parametrize("name", ["proxy", "judge"])
def test_the_doctor_reports_a_server_that_is_not_there(project, capsys, name):
    with (project / "params.yaml").open("a") as params:
        params.write(f'\n{name}: {{engine: openai, urls: ["http://127.0.0.1:9/v1"], connect_timeout_s: 0.5}}\n')
    code, out, _ = run(capsys, "doctor")
    assert code == 1 and f"FAIL server: {name}: http://127.0.0.1:9/v1/models: ConnectError" in out
    assert "WARN index" in out and "ok   java: " in out and "JavaRuntime(" not in out


@pytest.mark.parametrize(
    "value", ["010", "0x10", "12:30", "no", "on", "[a, no]", "1e-4", "2026-11-01", "{a: 1}", "null", "~", "", "'010'"]
)
def test_a_change_has_the_value_that_the_same_text_has_in_the_settings_file(tmp_path, value):
    (tmp_path / "params.yaml").write_text(f"key: {value}\n")
    assert parse_change(f"key={value}") == ("key", read_yaml(tmp_path / "params.yaml")["key"])


def test_a_url_within_brackets_needs_no_quotes_in_a_change():
    assert parse_change("llm.urls=[http://localhost:8000/v1]") == ("llm.urls", ["http://localhost:8000/v1"])

"""Two commands at once in one folder: the second ends, and names the process of the first, until all of it is written."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command import run
from gate import ScriptedRuntime, gate, prepare
from lands import lands
from writers import another_writer

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.journal import Journal
from dragoman.pipeline import evaluate, synthesize

EVALUATE = ["evaluate", "--corpus", "corpus.jsonl", "--questions", "questions.jsonl", "--systems", "direct"]
SYNTHESIZE = ["synthesize", "--corpus", "corpus.jsonl"]
COMMANDS = {
    "evaluate": [*EVALUATE, "--out", "out", "--no-track"],
    "shard": [*EVALUATE, "--out", "out", "--index", "out-index", "--shard", "1/2", "--no-track"],
    "synthesize": [*SYNTHESIZE, "--out", "out", "--no-track"],
}


@pytest.fixture
def project(tmp_path, monkeypatch, tiny_model) -> Path:
    """A project with a corpus of lands, two questions about it, and a model that knows nothing."""
    monkeypatch.chdir(tmp_path)
    Path("conf").mkdir()
    Path("conf/cpu.yaml").write_text("evaluate: {bootstrap: 100}")
    Path("params.yaml").write_text(
        "{llm: {engine: transformers, max_model_len: 2048}, systems: {direct: {answer_tokens: 2}}, "
        "synthesize: {n: 30, retrievable: 0}}"
    )
    shutil.copytree(tiny_model, "data/model")
    passages, triples = lands(40)
    files.write("corpus.jsonl", ({"id": p.id, "title": p.title, "text": p.text} for p in passages))
    Path("triples.tsv").write_text("".join("\t".join(triple) + "\n" for triple in triples))
    files.write(
        "questions.jsonl", [{"id": f"q{i}", "question": f"Which land is {i}?", "answers": ["a"]} for i in (1, 2)]
    )
    return tmp_path


def in_another_process(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dragoman", *arguments]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_in_the_folder_of_another_ends_with_its_process(project, capsys, name):
    folder = "out/shards/1-of-2" if name == "shard" else "out"
    with another_writer(project / folder) as other:
        code, _, err = run(capsys, *COMMANDS[name])
    assert code == 2 and f"{folder}: process {other.pid} is writing there" in err
    assert not Path("out/metrics.json").exists() and not Path("out-index").exists()


@pytest.mark.parametrize("source", [["--corpus", "corpus.jsonl"], ["--dataset", "mine"]])
def test_questions_that_are_not_about_the_trained_data_set_need_a_folder_of_their_own(project, capsys, source):
    mine = ["--set", "corpus={atlas: {}, mine: {source: corpus.jsonl}}"]
    code, _, err = run(capsys, "synthesize", *source, *mine, "--no-track")
    assert code == 2 and f"{source[0]}" in err and "say with --out where its questions go" in err
    assert not Path("results").exists()


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "stage", "step"),
    [("evaluate", evaluate, "report"), ("synthesize", synthesize, "card"), ("synthesize", synthesize, "write_card")],
)
def test_a_folder_is_its_command_s_until_the_last_file_is_written(project, capsys, monkeypatch, name, stage, step):
    late, finish = [], getattr(stage, step)

    def finish_while_another_comes(*arguments, **named):
        late.append(in_another_process(COMMANDS[name]))
        return finish(*arguments, **named)

    monkeypatch.setattr(stage, step, finish_while_another_comes)
    code, _, err = run(capsys, *COMMANDS[name])
    assert code == 0, err
    (other,) = late
    assert other.returncode == 2 and f"out: process {os.getpid()} is writing there" in other.stderr
    assert Path("out/metrics.json").is_file() and not Path(".out.lock").exists()


async def test_a_gate_in_a_folder_that_another_writes_to_ends_with_its_process(tmp_path, monkeypatch, empty_store):
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path, empty_store)
    with (
        another_writer(tmp_path / "results" / "promote") as other,
        pytest.raises(UserError, match=r"promote: process \d+ is writing there") as ended,
    ):
        await gate(1, ScriptedRuntime({}))
    assert f"process {other.pid} " in str(ended.value)


def test_a_folder_beside_which_nothing_can_be_written_is_named(tmp_path, monkeypatch):
    def refuse(lock) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), lock.lock_file)

    monkeypatch.setattr(files.FileLock, "acquire", refuse)
    with (
        pytest.raises(
            UserError, match=r"\.kept\.lock: cannot write \(Read-only file system\); name a folder whose parent"
        ),
        files.only_writer(tmp_path / "kept"),
    ):
        pass


async def test_a_journal_in_a_folder_that_its_caller_has_locked_is_opened(tmp_path):
    with files.only_writer(tmp_path):
        with pytest.raises(UserError, match="is writing there"), Journal(tmp_path / "j"):
            pass
        with Journal(tmp_path / "j", locked=True):
            pass
        with pytest.raises(UserError, match="is writing there"), Journal(tmp_path / "j"):
            pass  # the caller's lock outlives the journal

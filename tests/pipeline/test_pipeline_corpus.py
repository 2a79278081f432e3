"""A knowledge graph that params.yaml names by its path: the corpus, its questions, and a walk through it."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from fakes import ScriptedEngine

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.corpus import load_questions
from dragoman.pipeline import corpus, index
from dragoman.pipeline.project import Project
from dragoman.retrieval import open_retriever
from dragoman.rollout.backends import Backends
from dragoman.rollout.tree import Tree
from dragoman.systems import build

# in the format of PathQuestion (Zhou et al. 2018)
TRIPLES = """Adolf Frederick of Sweden\tchildren\tGustav Iii of Sweden
Adolf Frederick of Sweden\tgender\tMale
Gustav Iii of Sweden\tcause of death\tFirearm
Gustav Iii of Sweden\tgender\tMale
Arcadius\tparents\tTheodosius i
"""
QUESTION = {
    "id": "pq2-0002",
    "question": "How Adolf Frederick of Sweden's child died?",
    "answers": ["Firearm"],
    "type": "2hop",
    "topic": "Adolf Frederick of Sweden",
    "triples": [
        ["Adolf Frederick of Sweden", "children", "Gustav Iii of Sweden"],
        ["Gustav Iii of Sweden", "cause of death", "Firearm"],
    ],
}
PATH = ["Adolf Frederick of Sweden\tchildren\tGustav Iii of Sweden", "Gustav Iii of Sweden\tcause of death\tFirearm"]
PARAMS = """
corpus:
  kings: {{source: {0}/triples.tsv, dev: {0}/dev.jsonl}}
train: {{system: mujica, dataset: kings}}
datasets: [kings]
index: {{method: graph}}
systems:
  mujica: {{environment: graph, candidates: gold, queries: span, decide: marks, k: 8}}
"""


def make(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: object) -> Project:
    (folder / "triples.tsv").write_text(TRIPLES)
    (folder / "dev.jsonl").write_text(json.dumps(QUESTION | changes) + "\n")
    (folder / "conf").mkdir()
    (folder / "conf/cpu.yaml").write_text("{}")
    (folder / "params.yaml").write_text(PARAMS.format(folder))
    monkeypatch.chdir(folder)
    return Project.load(track=False)


async def test_a_graph_and_its_questions_are_a_dataset_that_the_oracle_walks_through(tmp_path, monkeypatch):
    project = make(tmp_path, monkeypatch)
    assert await corpus.run(project, corpus.Options()) == {"passages": 5, "dev": 1}
    await index.run(project, index.Options())
    (question,) = load_questions("data/kings/dev.jsonl")
    assert question.topics == ("Adolf Frederick of Sweden",) and list(question.supporting_ids) == PATH
    nobody = ScriptedEngine(lambda prompt, rng: AssertionError("the oracle was to decide"))
    llm = ScriptedEngine(lambda prompt, rng: "Firearm")
    retriever = open_retriever("data/index/kings")
    backends = Backends(llm=llm, proxy=nobody, retriever=retriever, oracle_roles={"planner", "worker"})
    episode = await Tree(question, build("mujica", project.params.system_settings("mujica")), backends).grow()
    await retriever.close()
    (trajectory,) = episode.trajectories
    assert (trajectory.passages, trajectory.answer) == (PATH, "Firearm")
    assert "Gustav Iii of Sweden: cause of death: Firearm" in llm.requests[0].messages[-1]["content"]
    first = episode.nodes[0].marked
    assert [first.options[place] for place in first.taken] == ["Adolf Frederick of Sweden"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topic": 3}, r"dev.jsonl:1: 'topic' must be the name of an entity, or a list of names"),
        ({"topic": ["Arcadius", ""]}, r"dev.jsonl:1: 'topic' must be"),
        (
            {"triples": [["Nobody", "parents", "Arcadius"]]},
            r"pq2-0002 names passage 'Nobody\\tparents\\tArcadius', which",
        ),
    ],
)
def test_a_question_that_does_not_fit_its_graph_is_refused(tmp_path, monkeypatch, changes, message):
    project = make(tmp_path, monkeypatch, **changes)
    with pytest.raises(UserError, match=message):
        asyncio.run(corpus.run(project, corpus.Options()))


def test_several_topics_are_kept_and_written_again(tmp_path, monkeypatch):
    project = make(tmp_path, monkeypatch, topic=["Arcadius", "Male"])
    asyncio.run(corpus.run(project, corpus.Options()))
    (question,) = load_questions("data/kings/dev.jsonl")
    assert question.topics == ("Arcadius", "Male")


def joined(folder: Path, monkeypatch: pytest.MonkeyPatch, *, passages: list[list[dict]], questions: list[list[dict]]):
    """A project whose one data set `both` is made of several corpora and several files of questions."""
    named: dict[str, list[str]] = {"source": [], "test": []}
    for key, parts in (("source", passages), ("test", questions)):
        for number, lines in enumerate(parts):
            path = folder / f"{key}-{number}.jsonl"
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
            named[key].append(path.name)
    (folder / "conf").mkdir()
    (folder / "conf/cpu.yaml").write_text("{}")
    named = {key: paths for key, paths in named.items() if paths}
    (folder / "params.yaml").write_text(
        json.dumps({"datasets": ["both"], "train": {"dataset": "both"}, "corpus": {"both": named}})
    )
    monkeypatch.chdir(folder)
    return Project.load(track=False)


def a_passage(id: str, text: str = "") -> dict:
    return {"id": id, "title": id.upper(), "text": text or f"What {id} is."}


def a_question(id: str, gold: str) -> dict:
    return {"id": id, "question": f"What is {gold}?", "answers": [gold], "supporting_ids": [gold]}


async def test_texts_are_cut_by_the_tokens_of_the_proxy(tmp_path, monkeypatch, tiny_model):
    project = joined(tmp_path, monkeypatch, passages=[[a_passage("a", "many words " * 60)]], questions=[])
    cut = {"corpus.both.chunk": {"by": "tokens", "size": 50, "overlap": 10}}
    with pytest.raises(UserError, match=r"chunk: data/model has no tokenizer to count by; `dragoman model` makes it"):
        await corpus.run(project.changed(cut), corpus.Options())
    counts = await corpus.run(project.changed(cut | {"proxy.model": str(tiny_model)}), corpus.Options())
    assert counts["passages"] > 2


async def test_a_tokenizer_beside_a_config_with_a_value_of_another_type_is_the_users(tmp_path, monkeypatch, tiny_model):
    project = joined(tmp_path, monkeypatch, passages=[[a_passage("a")]], questions=[])
    config = shutil.copytree(tiny_model, tmp_path / "model") / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"vocab_size": "many"}))
    cut = {"corpus.both.chunk": {"by": "tokens"}, "proxy.model": str(config.parent)}
    with pytest.raises(UserError, match=r"chunk: .*its config\.json has a value that cannot be \(.*'vocab_size'"):
        await corpus.run(project.changed(cut), corpus.Options())


@pytest.mark.parametrize("kept", ["test.jsonl", "triples.tsv"])
async def test_a_file_that_the_dataset_would_not_have_is_refused_and_kept(tmp_path, monkeypatch, kept):
    """It may be of an earlier run, of `synthesize`, or written by hand."""
    project = joined(tmp_path, monkeypatch, passages=[[a_passage("a")]], questions=[[a_question("q", "a")]])
    await corpus.run(project, corpus.Options())
    files.write("other.jsonl", [a_passage("b")])
    before = Path("data/both/corpus.jsonl").read_text()
    Path("data/both", kept).write_text("by hand")
    other = project.changed({"corpus.both": {"source": "other.jsonl", "train": None, "dev": None, "test": None}})
    for split in {"train.jsonl", "dev.jsonl", "test.jsonl"} - {kept}:
        Path("data/both", split).unlink(missing_ok=True)
    with pytest.raises(UserError, match=rf"corpus: data/both/{kept} is there, and the dataset would have none"):
        await corpus.run(other, corpus.Options())
    assert Path("data/both", kept).read_text() == "by hand" and Path("data/both/corpus.jsonl").read_text() == before


async def test_a_source_in_the_folder_that_is_written_is_refused_and_kept(tmp_path, monkeypatch):
    project = joined(tmp_path, monkeypatch, passages=[[a_passage("a")]], questions=[[a_question("q", "a")]])
    with pytest.raises(UserError, match=r"corpus: source-0\.jsonl lies in \., which is written anew"):
        await corpus.run(project, corpus.Options(out=Path()))
    assert Path("test-0.jsonl").is_file()
    with pytest.raises(UserError, match=r"corpus: hf:saved lies in saved, which is written anew"):
        await corpus.run(project.changed({"corpus.both.source": "hf:saved"}), corpus.Options(out=Path("saved")))


async def test_several_corpora_are_one_with_questions_of_each_in_their_share(tmp_path, monkeypatch):
    project = joined(
        tmp_path,
        monkeypatch,
        passages=[[a_passage("a"), a_passage("b")], [a_passage("b"), a_passage("c")]],
        questions=[[a_question(f"q{i}", "a") for i in range(4)], [a_question("r0", "c"), a_question("r1", "b")]],
    )
    assert await corpus.run(project, corpus.Options()) == {"passages": 3, "test": 6}
    lines = Path("data/both/corpus.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["a", "b", "c"]
    assert [q.id for q in load_questions("data/both/test.jsonl")] == ["q0", "r0", "q1", "q2", "r1", "q3"]


@pytest.mark.parametrize(
    ("passages", "questions", "message"),
    [
        ([[a_passage("a")], [a_passage("a", "Another.")]], [], r"source-1.jsonl: the id 'a' .* in source-0.jsonl"),
        (
            [[a_passage("a")]],
            [[a_question("q", "a")], [a_question("q", "a")]],
            "test-1.jsonl: the id 'q' is also that of a question in another file",
        ),
        (
            [[a_passage("a")], [a_passage("b")]],
            [[a_question("q", "b")], [a_question("r", "c")]],
            "test-1.jsonl: question r names passage 'c', which the corpus lacks",
        ),
    ],
)
async def test_corpora_that_do_not_fit_together_are_refused_by_file(
    tmp_path, monkeypatch, passages, questions, message
):
    project = joined(tmp_path, monkeypatch, passages=passages, questions=questions)
    with pytest.raises(UserError, match=message):
        await corpus.run(project, corpus.Options())
    assert not Path("data/both/test.jsonl").exists()


def test_the_built_in_corpus_in_a_list_is_refused(tmp_path, monkeypatch):
    project = joined(tmp_path, monkeypatch, passages=[[a_passage("a")]], questions=[])
    with pytest.raises(UserError, match=r"corpus.both.*source: atlas is built, not read"):
        project.changed({"corpus.both.source": ["atlas", "source-0.jsonl"]})


async def test_a_source_that_is_the_folder_one_is_in_is_called_by_its_name(tmp_path, monkeypatch):
    project = make(tmp_path, monkeypatch)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/one.txt").write_text("Gustav III was King of Sweden.")
    monkeypatch.chdir(tmp_path / "notes")
    assert await corpus.run(project, corpus.Options(source=".")) == {"passages": 1}
    assert corpus.Options(source=".").folder(project) == project.dataset("notes")


async def test_a_source_that_an_entry_of_its_name_has_is_made_by_that_entry(tmp_path, monkeypatch):
    project = make(tmp_path, monkeypatch).changed({"corpus.triples": {"source": "triples.tsv", "dev": "dev.jsonl"}})
    made = await corpus.run(project, corpus.Options(source="triples.tsv"))
    assert made == {"passages": 5, "dev": 1}

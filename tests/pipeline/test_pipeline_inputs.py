"""Whose questions a stage works on, where they are files of the user's."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes import ListRetriever

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.types import Passage, Question
from dragoman.corpus.triple_passages import triple_passages
from dragoman.pipeline import evaluate, rollout, seeds, sft
from dragoman.pipeline.evaluate import _check_oracles
from dragoman.pipeline.inputs import InputOptions, Inputs, check_gold_in_index, open_dev, open_inputs
from dragoman.pipeline.project import Project
from dragoman.pipeline.questions import QuestionSet, load_mixed
from dragoman.retrieval import IndexParams, build_index
from dragoman.retrieval.base import Hit
from dragoman.retrieval.cache import CachedRetriever


@pytest.fixture
def mine(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    files.write(Path("corpus.jsonl"), [{"id": "p", "title": "P", "text": "a passage"}])
    for name, gold in (("train", "p"), ("dev", "p"), ("astray", "elsewhere")):
        row = {"id": name, "question": "What?", "answers": ["that"], "supporting_ids": [gold]}
        files.write(Path(f"{name}.jsonl"), [row])
    files.write(Path("data/atlas/dev.jsonl"), [{"id": "atlas-dev", "question": "What?", "answers": ["that"]}])
    files.write(Path("data/atlas/train.jsonl"), [{"id": "atlas-train", "question": "What?", "answers": ["that"]}])
    return tmp_path


def dev_of(options: InputOptions, dev: Path | None) -> Inputs:
    inputs = open_inputs(Project(), options, "train", Path("out"), sources=("gold",))
    return open_dev(Project(), options, dev, inputs, Path("out"), sources=("gold",), limit=None)


def test_dev_questions_of_another_data_set_do_not_choose_the_policy(mine):
    options = InputOptions(corpus=Path("corpus.jsonl"), questions=Path("train.jsonl"), index="an-index")
    with pytest.raises(UserError, match="--dev: whose answers are to choose the policy"):
        dev_of(options, None)
    assert [q.id for q in dev_of(options, Path("dev.jsonl")).asked.questions] == ["dev"]
    with pytest.raises(UserError, match=r"astray.jsonl: question astray names passage 'elsewhere' in supporting_ids"):
        dev_of(options, Path("astray.jsonl"))


def test_a_corpus_whose_questions_are_not_named_is_refused_and_not_asked_the_data_set_s(mine):
    project, corpus = Project(), Path("corpus.jsonl")
    with pytest.raises(UserError, match=r"--corpus corpus.jsonl: what is to be asked about it\? Name a file"):
        open_inputs(project, InputOptions(corpus=corpus, index="an-index"), "dev", Path("out"), sources=("gold",))
    named = InputOptions(corpus=corpus, index="an-index", dataset="atlas")
    assert [q.id for q in open_inputs(project, named, "dev", Path("out"), sources=("gold",)).asked.questions] == [
        "atlas-dev"
    ]


def test_another_index_of_the_data_set_goes_with_its_dev_questions(mine):
    assert [q.id for q in dev_of(InputOptions(index="another"), None).asked.questions] == ["atlas-dev"]


def test_an_index_of_triples_is_asked_for_the_triples_behind_an_answer(mine):
    triple = ["Brisa", "capital", "Port Salt"]
    asked = {"question": "What?", "answers": ["Port Salt"], "supporting_ids": ["p"]}
    files.write(Path("of-facts.jsonl"), [asked | {"id": "known", "triples": [triple]}, asked | {"id": "unknown"}])
    for name, passage in (("graph", *triple_passages([(*triple,)])), ("text", Passage("p", "P", "a passage"))):
        build_index([passage], Path(name), IndexParams(method="graph"))

    def gold(**options) -> dict[str, tuple[str, ...]]:
        options = InputOptions(questions=Path("of-facts.jsonl"), **options)
        found = open_inputs(Project(), options, "test", Path("out"), sources=("gold",))
        return {question.id: question.supporting_ids for question in found.asked.questions}

    by_triples = {"known": ("Brisa\tcapital\tPort Salt",), "unknown": ("p",)}
    assert gold(index="graph") == gold(index="graph", corpus=Path("corpus.jsonl")) == by_triples
    assert gold(index="text") == gold(index="http://server") == {"known": ("p",), "unknown": ("p",)}


def test_questions_about_text_can_be_asked_of_a_file_of_triples(mine, monkeypatch):
    monkeypatch.setattr("dragoman.pipeline.inputs.build", lambda *_: None)
    triple = ["Brisa", "capital", "Port Salt"]
    Path("triples.tsv").write_text("\t".join(triple))
    row = {"id": "q", "question": "What?", "answers": ["Port Salt"], "supporting_ids": ["p"]}
    files.write(Path("of-facts.jsonl"), [row | {"triples": [triple]}])
    options = InputOptions(corpus=Path("triples.tsv"), questions=Path("of-facts.jsonl"))
    found = open_inputs(Project(), options, "test", Path("out"), sources=("gold",))
    assert found.asked.questions[0].supporting_ids == ("\t".join(triple),)
    files.write(Path("of-facts.jsonl"), [row | {"triples": [["Brisa", "capital", "Elsewhere"]]}])
    with pytest.raises(UserError, match=r"question q names passage .*Elsewhere.* triples.tsv lacks"):
        open_inputs(Project(), options, "test", Path("out"), sources=("gold",))


def test_states_are_visited_only_in_questions_that_belong_to_what_is_searched(mine):
    def visited(**options) -> list[str]:
        return [question.id for question in sft._visited(Project(), sft.Options(**options)).questions]

    assert visited(index="http://server", questions=Path("dev.jsonl")) == []
    assert visited(index="http://server", questions=Path("dev.jsonl"), visit=Path("train.jsonl")) == ["train"]
    assert visited(index="another") == visited() == ["atlas-train"]


def test_an_oracle_of_one_role_is_refused_before_others_are_paid_for(mine):
    asked = load_mixed([("file", Path("data/atlas/dev.jsonl"))])
    with pytest.raises(
        UserError, match=r"1 of 1 questions have no supporting_ids.* c3po@sft\+oracle:filter needs them"
    ):
        _check_oracles(["standard", "c3po@sft+oracle:filter"], asked)


class OwnSearch:
    """A search server that cannot say which passages it has, with ids of its own."""

    fingerprint = "own"

    def __init__(self, passages: Sequence[Passage]) -> None:
        self.inner = ListRetriever(passages)

    def __repr__(self) -> str:
        return "own search"

    async def search(self, queries: Sequence[str], k: int, page: int = 0) -> list[list[Hit]]:
        return await self.inner.search(queries, k, page)

    async def close(self) -> None:
        pass


def passages(name: str, count: int = 40) -> list[Passage]:
    return [Passage(name.format(i), f"Town {i}", f"town {i} lies on river {7 * i}") for i in range(count)]


def asked(name: str, count: int = 40) -> QuestionSet:
    """Questions about towns whose gold passages have ids of this form."""
    rows = [Question(f"q{i}", f"Where is town {i} ?", (f"river {7 * i}",), "", (name.format(i),)) for i in range(count)]
    return QuestionSet(rows, (Path("mine.jsonl"),), {})


async def test_gold_ids_of_another_index_are_refused_after_a_sample_was_searched():
    own = OwnSearch(passages("os-{}"))
    with pytest.raises(UserError) as refused:
        await check_gold_in_index(CachedRetriever(own), asked("a.txt#{}"))
    assert len(own.inner.queries) == 20
    for said in (
        "mine.jsonl: question q0 names passage 'a.txt#0'",
        "finds others, such as 'os-",
        "own ids",
        "--corpus",
    ):
        assert said in str(refused.value)


async def test_gold_ids_of_another_index_are_refused_although_its_texts_are_those_of_the_corpus():
    with pytest.raises(UserError, match="finds others, such as 'os-"):
        await check_gold_in_index(OwnSearch(passages("os-{}")), asked("a.txt#{}"), passages("a.txt#{}"))


async def test_a_hard_set_is_asked_where_one_search_finds_a_gold_passage_of_any_question():
    hidden = [Passage(f"os-{i}", "Town", f"hidden {i}") for i in range(40)]
    await check_gold_in_index(OwnSearch([*hidden, *passages("p{}", 1)]), asked("p{}"))


async def test_a_hard_set_is_asked_where_what_is_found_is_of_its_corpus():
    corpus = [Passage(f"p{i}", f"Town {i}", f"town {i}") for i in range(900)]
    await check_gold_in_index(OwnSearch(corpus[:40]), asked("p9{}", 10), corpus)


async def test_gold_passages_that_few_questions_do_not_find_are_a_warning_that_leaves_it_open_why(caplog):
    index = OwnSearch(passages("os-{}"))
    await check_gold_in_index(index, asked("a.txt#{}", 4))
    (warning,) = caplog.messages
    assert (
        "none of the gold passages was found: for 4 of the questions own search finds others, such as 'os-" in warning
    )
    assert "if its ids are not those of the questions, export" in warning
    with pytest.raises(UserError, match="none of the gold passages was found: for 5 of the questions"):
        await check_gold_in_index(index, asked("a.txt#{}", 5))


async def test_chunks_that_are_found_are_gold_where_questions_name_the_whole():
    for index in (OwnSearch(passages("p{}#1")), ListRetriever(passages("p{}#0"))):
        await check_gold_in_index(index, asked("p{}"))


async def test_an_index_that_can_say_what_it_lacks_is_not_searched():
    index = ListRetriever(passages("p{}", 39))
    with pytest.raises(
        UserError, match=r"question q39 names passage 'p39' .* lacks \(1 of 40 questions name such\); export"
    ):
        await check_gold_in_index(CachedRetriever(index), asked("p{}"))
    await check_gold_in_index(CachedRetriever(index), asked("p{}", 39))
    assert not index.queries


async def test_more_gold_ids_than_a_server_takes_at_once_are_looked_up_in_parts(monkeypatch):
    index, parts = ListRetriever(passages("p{}", 700)), []
    look_up = index.missing

    async def missing(ids: Sequence[str]) -> list[str]:
        parts.append(len(ids))
        return await look_up(ids)

    monkeypatch.setattr(index, "missing", missing)
    await check_gold_in_index(index, asked("p{}", 700))
    assert len(parts) > 1 and max(parts) <= 1000


async def test_in_a_graph_the_triples_behind_an_answer_are_its_gold_passages():
    triple = ("Brisa", "capital", "Port Salt")
    of_text = Question("q", "What is the capital of Brisa?", ("Port Salt",), "", ("brisa",), (triple,))
    known = QuestionSet([of_text], (), {})
    graph = [Passage("\t".join(triple), "Brisa", "capital: Port Salt")]
    for index in (OwnSearch(graph), ListRetriever(graph)):
        await check_gold_in_index(index, known)
    with pytest.raises(UserError, match="names passage 'brisa'"):
        await check_gold_in_index(ListRetriever(passages("p{}")), known)


@pytest.fixture
def own_search(mine, monkeypatch) -> Path:
    """A runtime over a search with ids of its own, for which no model must be asked."""

    @asynccontextmanager
    async def opened(*_: object, **__: object) -> AsyncIterator[SimpleNamespace]:
        own = OwnSearch(passages("os-{}"))
        yield SimpleNamespace(retriever=own, open=lambda name: ((), ()), open_sampler=lambda *_, shots: ((), ()))

    async def too_late(*_: object, **__: object) -> None:
        raise AssertionError("the oracle would play")

    monkeypatch.setattr("dragoman.pipeline.project.open_runtime", opened)
    monkeypatch.setattr(evaluate, "ask", too_late)
    monkeypatch.setattr(rollout, "roll_out_questions", too_late)
    row = {"question": "What?", "answers": ["that"], "supporting_ids": ["p"]}
    files.write(
        Path("train.jsonl"), [row | {"id": name} for name in ("train", "b", "c", "d", "e")]
    )  # not too few to refuse
    return mine


async def test_states_of_text_questions_are_visited_in_a_file_of_triples(own_search, monkeypatch):
    triple = ["Brisa", "capital", "Port Salt"]
    Path("triples.tsv").write_text("\t".join(triple))
    row = {"id": "q", "question": "What?", "answers": ["Port Salt"], "supporting_ids": ["p"], "triples": [triple]}
    files.write(Path("of-facts.jsonl"), [row])
    build_index(triple_passages([(*triple,)]), Path("results/sft-index"), IndexParams(method="graph"))
    visited: list[Question] = []

    async def imitate(training: object, batch: object, questions: Sequence[Question], settings: object) -> None:
        visited.extend(questions)
        raise AssertionError("the oracle would play")

    monkeypatch.setattr("dragoman.training.imitation.train", imitate)
    monkeypatch.setattr(sft, "read_samples", lambda path: [SimpleNamespace(marks=True)])
    monkeypatch.setattr(sft, "find_policy", lambda path: None)
    monkeypatch.setattr(sft, "sha256_of", lambda paths: "0" * 64)
    monkeypatch.setattr("dragoman.pipeline.inputs.build", lambda *_: None)
    asked = {"corpus": Path("triples.tsv"), "questions": Path("of-facts.jsonl"), "visit": Path("of-facts.jsonl")}
    with pytest.raises(AssertionError, match="the oracle would play"):
        await sft.run(Project(track=False).changed({"sft.rounds": 1}), sft.Options(**asked, out=Path("results/sft")))
    assert [question.supporting_ids for question in visited] == [("\t".join(triple),)]


OWN = {"index": "http://own-search", "questions": Path("train.jsonl")}


@pytest.mark.parametrize("system", ["c3po@oracle", "c3po@+oracle:filter"])
async def test_an_evaluation_of_an_oracle_over_an_index_with_other_ids_is_refused_before_anybody_is_asked(
    own_search, system
):
    options = evaluate.Options(**OWN, systems=("direct", system), out=Path("out"))
    with pytest.raises(UserError, match=r"train.jsonl: question train names passage 'p' .*own search finds others"):
        await evaluate.run(Project(track=False), options)


async def test_an_evaluation_without_an_oracle_asks_about_an_index_with_other_ids(own_search):
    with pytest.raises(AssertionError, match="the oracle would play"):
        await evaluate.run(Project(track=False), evaluate.Options(**OWN, systems=("standard",), out=Path("out")))


async def test_seeds_of_an_oracle_over_an_index_with_other_ids_are_refused_before_one_is_made(own_search):
    project = Project(track=False)
    with pytest.raises(UserError, match="own search finds others"):
        await seeds.run(project.changed({"seeds.exploration.oracle": True}), seeds.Options(**OWN, out=Path("out")))
    with pytest.raises(AssertionError, match="the oracle would play"):
        await seeds.run(project, seeds.Options(**OWN, out=Path("out")))


async def test_a_rollout_of_an_oracle_over_an_index_with_other_ids_is_refused_before_anybody_is_asked(own_search):
    options = rollout.Options(**OWN, samples=1, system="c3po@oracle", out=Path("out"))
    with pytest.raises(UserError, match="own search finds others"):
        await rollout.run(Project(track=False), options)


async def test_a_rollout_without_an_oracle_asks_about_an_index_with_other_ids(own_search):
    with pytest.raises(AssertionError, match="the oracle would play"):
        options = rollout.Options(**OWN, samples=1, system="c3po", out=Path("out"))
        await rollout.run(Project(track=False), options)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "atlas"),
        ({"questions": Path("a.jsonl")}, "atlas-a"),
        ({"corpus": Path("mine/corpus.jsonl"), "dataset": "atlas"}, "mine"),
        ({"corpus": Path("mine/corpus.jsonl"), "questions": Path("a.jsonl")}, "mine-a"),
        ({"corpus": Path("texts.jsonl"), "questions": Path("b.jsonl")}, "texts-b"),
    ],
)
def test_results_are_called_by_what_is_searched_and_by_the_file_of_questions(options, name):
    project, asked = Project(), evaluate.Options(**options)
    assert (asked.name(project), asked.folder(project)) == (name, Path("results/evaluate") / name)


async def test_two_files_of_questions_about_a_corpus_share_its_index_and_no_results(own_search, monkeypatch):
    built: list[Path] = []
    monkeypatch.setattr("dragoman.pipeline.inputs.build", lambda _, folder, __: built.append(folder))
    for questions in ("train.jsonl", "dev.jsonl"):
        options = evaluate.Options(corpus=Path("corpus.jsonl"), questions=Path(questions), systems=("standard",))
        with pytest.raises(AssertionError, match="the oracle would play"):
            await evaluate.run(Project(track=False), options)
    assert len(built) == 2 and {path.name for path in built} == {f"{own_search.name}-index"}


@pytest.mark.parametrize("name", ["index.jsonl", "old-index.jsonl"])
async def test_results_that_would_lie_where_an_index_does_are_refused_before_anything_is_written(own_search, name):
    shutil.copy("train.jsonl", name)
    options = {"corpus": Path("corpus.jsonl"), "questions": Path(name), "systems": ("standard",)}
    with pytest.raises(UserError, match=rf"--questions {name}: results/evaluate/.*-index is where .* --out"):
        await evaluate.run(Project(track=False), evaluate.Options(**options))
    assert not Path("results").exists()
    with pytest.raises(AssertionError, match="the oracle would play"):
        await evaluate.run(Project(track=False), evaluate.Options(**options, index="an-index", out=Path("out")))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({**OWN, "visit": Path("train.jsonl")}, "question train names passage 'p' .*own search finds others"),
        (
            {"corpus": Path("corpus.jsonl"), "questions": Path("dev.jsonl"), "visit": Path("astray.jsonl")},
            "astray.jsonl: question astray names passage 'elsewhere' in supporting_ids, which corpus.jsonl lacks",
        ),
    ],
)
async def test_states_in_which_an_oracle_would_label_nothing_are_not_visited(
    own_search, monkeypatch, options, sentence
):
    monkeypatch.setattr(sft, "read_samples", lambda path: [SimpleNamespace(marks=True)])
    monkeypatch.setattr(sft, "find_policy", lambda path: None)
    monkeypatch.setattr(sft, "sha256_of", lambda paths: "0" * 64)
    monkeypatch.setattr("dragoman.pipeline.inputs.build", lambda *_: None)
    with pytest.raises(UserError, match=sentence):
        await sft.run(Project(track=False).changed({"sft.rounds": 1}), sft.Options(**options, out=Path("out")))

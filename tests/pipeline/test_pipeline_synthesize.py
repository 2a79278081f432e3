"""From settings to a folder: what a whole run without a model leaves, and what it refuses."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from fakes import ListRetriever, ScriptedEngine
from lands import lands
from listening import listening

from dragoman.config import Params, parse_params
from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.types import Passage
from dragoman.corpus.loaders import is_texts, load_corpus, load_questions
from dragoman.pipeline import synthesize
from dragoman.pipeline.project import Project
from dragoman.pipeline.synthesize import Options, make_questions, run
from dragoman.quality import validate
from dragoman.quality.settings import ValidateParams
from dragoman.retrieval.http.server import create_app
from dragoman.synthesis.plan import BUILT_IN

MARKDOWN = [
    Passage(
        f"{name}.md",
        name,
        f"{name} is a tool that joins two pipes of {metal} together. It was first made by Anna {family} in the year "
        f"{1850 + i}. Today most of them come from {family}town and are sold in boxes of {12 + i} pieces.",
    )
    for i, (name, metal, family) in enumerate(
        [
            ("Ablock", "copper", "Ashby"),
            ("Bwrench", "steel", "Bolton"),
            ("Clamp", "brass", "Carter"),
            ("Drill", "lead", "Dalton"),
            ("Etcher", "iron", "Easton"),
            ("Filer", "zinc", "Fenton"),
        ]
    )
]


async def ran(out, passages=None, triples=None, *, seed=0, index="none", **values):
    if passages is None:
        passages, triples = lands(40)
    params = Params.model_validate({"synthesize": {"retrievable": 0, "n": 30} | values})
    return await make_questions(
        params, passages, triples or [], index=index, out=out, source="lands", seed=seed, track=None
    )


async def test_what_a_run_leaves(tmp_path):
    values = await ran(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        *("train.jsonl", "dev.jsonl", "test.jsonl", "corpus.jsonl", "plan.yaml", "rejected.jsonl"),
        *("card.html", "metrics.json", "written.jsonl"),
    }
    assert load_corpus(tmp_path) == lands(40)[0]
    kept = {split: len(load_questions(tmp_path / f"{split}.jsonl")) for split in ("train", "dev", "test")}
    assert kept == values["kept"] == json.loads((tmp_path / "metrics.json").read_text(encoding="utf-8"))["kept"]
    assert sum(kept.values()) == 30 and values["source"] == "lands" and values["settings"]["seed"] == 0


async def test_without_a_backend_there_are_no_questions_and_nothing_to_find_fault_with(tmp_path):
    triples = [Passage("t1", "Arno", "Arno | mouth | Sea"), Passage("t2", "Po", "Po | mouth | Adriatic Sea")]
    with pytest.raises(UserError, match="nothing was found in it to ask for without a model"):
        await ran(tmp_path / "grounded", triples)
    params = Params.model_validate({"synthesize": {"backend": "none"}})
    out = tmp_path / "none"
    values = await make_questions(params, triples, [], index="none", out=out, source="s", seed=0, track=None)
    assert values["kept"] == {"train": 0, "dev": 0, "test": 0}
    assert [(out / f"{split}.jsonl").read_text() for split in values["kept"]] == [""] * 3
    assert load_corpus(out) == triples and (out / "card.html").is_file()
    report = validate([out], tmp_path / "validate", Params().validation, track=None)
    assert report["metrics"]["failed"] == 0
    (out / "metrics.json").write_text("{}")
    with pytest.raises(UserError, match="the file is not empty"):
        validate([out], tmp_path / "validate", Params().validation, track=None)


@pytest.mark.parametrize("key", ["train.questions", "evaluate.questions", "promote.questions"])
def test_questions_that_nothing_makes_are_not_asked_for(key):
    section, name = key.split(".")
    asked = {section: {name: ["synthetic"] if section == "train" else "synthetic"}, "synthesize": {"backend": "none"}}
    with pytest.raises(UserError, match=rf"{key}: synthetic needs questions, and synthesize\.backend: none makes none"):
        parse_params(asked, origin="params.yaml")


@pytest.mark.parametrize("name", ["test.jsonl", "corpus.jsonl", "plan.yaml"])
async def test_a_file_that_no_run_has_written_is_refused_and_kept(tmp_path, name):
    passages, _ = lands(40)
    files.write(tmp_path / "lands.jsonl", ({"id": p.id, "title": p.title, "text": p.text} for p in passages))
    own = tmp_path / "mine"
    own.mkdir()
    (own / name).write_text("by hand")
    with pytest.raises(UserError, match=rf"mine/{name} would be written anew, and is not of an earlier run"):
        await run(Project(tmp_path, track=False), Options(corpus=tmp_path / "lands.jsonl", out=own))
    assert [path.name for path in own.iterdir()] == [name] and (own / name).read_text() == "by hand"


async def test_a_run_again_gives_the_same_and_costs_nothing(tmp_path):
    first = await ran(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != "card.html"}
    again = await ran(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != "card.html"} == before
    assert first | {"seconds": 0} == again | {"seconds": 0}


@pytest.mark.parametrize("split", ["train", "dev", "test"])
async def test_a_question_that_the_data_set_has_in_any_split_is_not_made_again(tmp_path, split):
    passages, triples = lands(40)
    data = tmp_path / "data" / "atlas"
    files.write(data / "corpus.jsonl", ({"id": p.id, "title": p.title, "text": p.text} for p in passages))
    (data / "triples.tsv").write_text("".join("\t".join(triple) + "\n" for triple in triples))
    params = Params.model_validate({"synthesize": {"retrievable": 0, "n": 30}})
    project, options = Project(tmp_path, params, track=False), Options()
    assert "in the data set already" not in (await run(project, options))["rejected"]
    (gold, *_) = load_questions(tmp_path / "results/synthesize/train.jsonl")
    files.write(data / f"{split}.jsonl", [gold.to_json() | {"question": gold.question.upper()}])
    assert (await run(project, options))["rejected"]["in the data set already"] == 1
    asked = {question.question for question in load_questions(tmp_path / "results/synthesize/train.jsonl")}
    assert gold.question not in asked


async def test_facts_with_two_answers_are_counted(tmp_path):
    twins = [Passage(f"{name}.md", name, f"{name} is a tool that is made of soft copper.") for name in ("Awl", "Adze")]
    values = await ran(tmp_path, [*MARKDOWN, *twins], n=12)
    assert values["ambiguous"] == json.loads((tmp_path / "metrics.json").read_text(encoding="utf-8"))["ambiguous"] == 2


async def test_triples_of_one_s_own_that_cannot_be_used_are_counted(tmp_path, caplog):
    passages, triples = lands(40)
    files.write(tmp_path / "corpus.jsonl", ({"id": p.id, "title": p.title, "text": p.text} for p in passages))
    rows = [*triples, ("Nowhere", "capital", "Noville")]
    (tmp_path / "triples.tsv").write_text("".join("\t".join(triple) + "\n" for triple in rows))
    project = Project(tmp_path, Params.model_validate({"synthesize": {"retrievable": 0, "n": 30}}), track=False)
    await run(project, Options(corpus=tmp_path / "corpus.jsonl", out=tmp_path / "out"))
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        f"{tmp_path}/triples.tsv: 41 of 161 triples are not asked for: 40 of relations that relations.yaml leaves out, "
        "1 about what no passage has as its title"
    ]


@pytest.mark.parametrize(
    ("source", "llm", "told"),
    [
        ("smollm2", {}, True),
        ("ORG/NAME", {}, False),
        ("smollm2", {"engine": "openai", "urls": ["http://localhost:8000/v1"]}, False),
    ],
)
async def test_the_built_in_model_is_said_to_be_too_small_to_write(tmp_path, monkeypatch, caplog, source, llm, told):
    (tmp_path / "manifest.json").write_text(json.dumps({"source": source}))
    monkeypatch.setattr(synthesize, "open_checked", lambda model: ScriptedEngine(lambda prompt, rng: "no JSON"))
    params = Params.model_validate(
        {
            "synthesize": {"retrievable": 0, "n": 3, "attempts": 1, "backend": "engine"},
            "llm": {"model": str(tmp_path)} | llm,
        }
    )
    with pytest.raises(UserError, match="none of"):
        await make_questions(
            params, lands(9)[0], [], index="none", out=tmp_path / "out", source="lands", seed=0, track=None
        )
    assert ("135M parameters is too small" in caplog.text) == told


@pytest.mark.parametrize(
    ("change", "rewritten"),
    [
        ({}, False),
        ({"duplicate": 0.9}, False),  # is looked at afterwards
        ({"attempts": 41}, False),
        ({"concurrency": 3}, False),
        ({"seed": 1}, True),
        ({"max_words": 50}, True),
        ({"shares": {"train": 0.5, "dev": 0.25, "test": 0.25}}, True),
        ({"passages": lands(39)[0], "triples": lands(39)[1]}, True),
    ],
)
async def test_which_settings_write_anew(tmp_path, change, rewritten):
    await ran(tmp_path)
    known = (tmp_path / "written.jsonl").read_text(encoding="utf-8").count("\n")
    await ran(tmp_path, **change)
    assert ((tmp_path / "written.jsonl").read_text(encoding="utf-8").count("\n") > known) == rewritten


async def test_a_folder_of_text_that_nobody_prepared(tmp_path):
    values = await ran(tmp_path, MARKDOWN, n=12)
    assert sum(values["kept"].values()) > 6
    texts = {p.id: p.text for p in MARKDOWN}
    for question in load_questions(tmp_path / "train.jsonl"):
        assert set(question.supporting_ids) <= texts.keys()


@pytest.mark.parametrize(
    ("backend", "out", "message"),
    [("none", "made", "which makes no questions"), ("grounded", "docs", "the texts are there")],
)
async def test_what_would_replace_texts_or_questions_is_refused(tmp_path, backend, out, message):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/one.txt").write_text("Brisa is a country.")
    project = Project(params=parse_params({"synthesize": {"backend": backend}}, origin="test"), track=False)
    with pytest.raises(UserError, match=message):
        await run(project, Options(corpus=tmp_path / "docs", out=tmp_path / out))
    assert [path.name for path in (tmp_path / "docs").iterdir()] == ["one.txt"] and not (tmp_path / "made").exists()


def test_only_a_folder_of_text_files_is_cut_unasked(tmp_path):
    for name in ("texts/a.txt", "beir/corpus.jsonl", "saved/dataset_info.json"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("{}")
    assert [is_texts(tmp_path / name) for name in ("texts", "beir", "saved", "beir/corpus.jsonl")] == [
        True,
        False,
        False,
        False,
    ]
    assert not is_texts("hf:org/towns")


@pytest.mark.parametrize(
    ("passages", "message"),
    [
        (
            [Passage("a", "A", "too short to ask")] * 5,
            "^lands: nothing was found in it to ask for without a model; choose ",
        ),
        (MARKDOWN[:2], "^2 passages cannot be shared out to train, dev, test"),
    ],
)
async def test_a_corpus_that_cannot_be_asked_about(tmp_path, passages, message):
    with pytest.raises(UserError, match=message):
        await ran(tmp_path, passages)


async def test_a_plan_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"mine\.yaml: no such file$"):
        await ran(tmp_path, plan=str(tmp_path / "mine.yaml"))


def planned(tmp_path, change):
    values = yaml.safe_load(BUILT_IN.read_text(encoding="utf-8"))
    change(values)
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return str(path)


async def test_a_plan_of_one_s_own(tmp_path):
    def shift(values):
        values["categorizations"]["user_expertise"]["novice"]["probability"] = 0.0
        values["categorizations"]["user_expertise"]["expert"]["probability"] = 1.0

    values = await ran(tmp_path / "out", plan=planned(tmp_path, shift))
    expertise = next(c for c in values["categories"] if c["name"] == "user_expertise")
    assert [(e["name"], e["found"]) for e in expertise["categories"]] == [("novice", 0.0), ("expert", 1.0)]


async def test_questions_by_a_plan_of_one_s_own_are_checked_by_it(tmp_path):
    def shift(values):
        values["categorizations"]["mood"] = {"merry": {"probability": 1, "description": "Be merry."}}
        values["core"].append("mood")

    path = planned(tmp_path, shift)
    await ran(tmp_path / "out", plan=path)
    assert (tmp_path / "out/plan.yaml").read_text(encoding="utf-8") == Path(path).read_text(encoding="utf-8")
    report = validate([tmp_path / "out/train.jsonl"], tmp_path / "report", ValidateParams())
    assert report["metrics"]["failed"] == 0


async def test_a_plan_in_the_folder_of_its_questions_is_kept_as_it_is(tmp_path):
    passages, _ = lands(40)
    files.write(tmp_path / "lands.jsonl", ({"id": p.id, "title": p.title, "text": p.text} for p in passages))
    own = tmp_path / "mine" / "plan.yaml"
    own.parent.mkdir()
    own.write_text("# by hand\n" + BUILT_IN.read_text(encoding="utf-8"), encoding="utf-8")
    params = Params.model_validate({"synthesize": {"retrievable": 0, "n": 10, "plan": str(own)}})
    await run(Project(tmp_path, params, track=False), Options(corpus=tmp_path / "lands.jsonl", out=own.parent))
    assert own.read_text(encoding="utf-8").startswith("# by hand") and (own.parent / "train.jsonl").exists()
    missing = Params.model_validate({"synthesize": {"plan": str(tmp_path / "none.yaml")}})
    with pytest.raises(UserError, match=r"none\.yaml: no such file"):
        await run(Project(tmp_path, missing, track=False), Options(corpus=tmp_path / "lands.jsonl", out=own.parent))


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v["categorizations"].update(question_phrasing={"shouted": {"probability": 1, "description": "LOUD"}}),
        lambda v: v.update(core=["user_expertise"]),
    ],
    ids=["a new category", "no phrasing at all"],
)
async def test_a_plan_without_words_for_it_is_refused(tmp_path, change):
    with pytest.raises(UserError, match="question_phrasing"):
        await ran(tmp_path / "out", plan=planned(tmp_path, change))


@pytest.mark.parametrize(
    ("name", "old"),
    [("number_of_documents", "multi-doc"), ("interaction_type", "two-turn"), ("premise", "with premise")],
)
async def test_a_category_that_code_acts_on_cannot_be_renamed(tmp_path, name, old):
    def rename(values):
        values["categorizations"][name]["mine"] = values["categorizations"][name].pop(old)

    with pytest.raises(UserError, match=f"categorizations.{name}: no category 'mine' is known; there are .*{old}"):
        await ran(tmp_path / "out", plan=planned(tmp_path, rename))


async def test_a_server_that_goes_by_other_ids_is_refused_before_anything_is_written(tmp_path):
    passages, triples = lands(40)
    renumbered = [replace(passage, id=f"row-{i}") for i, passage in enumerate(passages)]
    with (
        listening(create_app(ListRetriever(renumbered))) as url,
        pytest.raises(UserError, match=r"does not know passage .* by its id: its text came back as 'row-"),
    ):
        await ran(tmp_path, passages, triples, index=url, retrievable=10)
    assert not (tmp_path / "written.jsonl").exists()


async def test_a_server_that_goes_by_the_ids_of_the_corpus_is_searched(tmp_path):
    passages, triples = lands(40)
    with listening(create_app(ListRetriever(passages))) as url:
        values = await ran(tmp_path, passages, triples, index=url, retrievable=40)
    assert sum(values["kept"].values()) == 30

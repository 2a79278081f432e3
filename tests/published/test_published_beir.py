"""BEIR folders: read with their answers; what is exported is read again as it was."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import small_sets
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.corpus import load_questions
from dragoman.published import beir
from dragoman.published.beir import entries, export
from dragoman.published.convert import Part, convert
from dragoman.published.source import Source


def rows(path: Path) -> list[dict]:
    return [row for _, row in files.read(path)] if path.is_file() else []


def imported(folder: Path, out: Path) -> Path:
    convert([Part(beir.NAME, Source(folder))], out, made_of={})
    return out


@pytest.mark.parametrize("packed", [False, True])
def test_hotpotqa_as_beir_publishes_it(tmp_path, packed):
    folder = small_sets.beir(tmp_path / "hotpotqa")
    source = small_sets.zipped(folder, tmp_path / "hotpotqa.zip") if packed else folder
    first, second, train, test, other = entries(Source(source))
    assert other.left_out == "queries that the qrels of no split name"
    assert [p.id for p in (*first.passages, *second.passages)] == ["12", "13"]
    assert (train.split, test.split) == ("train", "test")
    assert train.question == {
        "id": "h1", "question": "Where is Paro?", "answers": ["Bhutan"], "supporting_ids": ["12"]
    }  # fmt: skip
    assert test.question["supporting_ids"] == ["13"]


@pytest.mark.parametrize("name", ["valid", "validation", "dev"])
def test_what_others_call_dev_is_dev_and_what_no_qrels_name_is_counted(tmp_path, name):
    folder = small_sets.beir(tmp_path / "hotpotqa")
    (folder / "qrels" / "test.tsv").rename(folder / "qrels" / f"{name}.tsv")
    made = convert([Part(beir.NAME, Source(folder))], tmp_path / "out", made_of={})
    assert made["questions"] == {"train": 1, "dev": 1}
    assert made["left_out"] == {"queries that the qrels of no split name": 1}


def test_a_set_without_answers_is_refused_with_its_count(tmp_path):
    folder = small_sets.beir(tmp_path / "scifact")
    small_sets.lines(folder / "queries.jsonl", *[{"_id": f"h{n}", "text": "Is it so?", "metadata": {}} for n in (1, 2)])
    with pytest.raises(UserError, match=r"scifact: no question with an answer \(2 questions without an answer\)"):
        imported(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_faults_are_named_by_file_and_line(tmp_path):
    folder = small_sets.beir(tmp_path / "set")
    small_sets.text(folder / "qrels" / "dev.tsv", "query-id\tcorpus-id\tscore\nh1 12 1\n")
    with pytest.raises(UserError, match=r"qrels/dev\.tsv:2: expected query-id, corpus-id"):
        list(entries(Source(folder)))
    small_sets.text(folder / "qrels" / "dev.tsv", "")
    small_sets.lines(folder / "queries.jsonl", {"_id": "h1", "text": "Where?", "metadata": "none"})
    with pytest.raises(UserError, match=r"queries\.jsonl:1: 'metadata' must be an object, found str"):
        list(entries(Source(folder)))
    (folder / "queries.jsonl").unlink()
    with pytest.raises(UserError, match=r"expected a BEIR folder, with corpus\.jsonl"):
        list(entries(Source(folder)))


def test_something_else_than_a_folder_or_a_zip_is_refused(tmp_path):
    with pytest.raises(UserError, match="no such file or folder"):
        list(entries(Source(tmp_path / "none")))
    with pytest.raises(UserError, match="neither a folder nor a zip"):
        list(entries(Source(small_sets.text(tmp_path / "x.json", "[]"))))


# --- export ----------------------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(str.strip)
ID = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\t\r\n"), min_size=1, max_size=6).filter(
    str.strip
)
EXTRA = {
    "level": TEXT,
    "answer": TEXT,
    "decomposition": st.lists(st.fixed_dictionaries({"question": TEXT, "answer": TEXT}), max_size=2),
    "metadata": st.dictionaries(TEXT, st.integers(), max_size=2),
    "triples": st.lists(st.lists(TEXT, min_size=3, max_size=3), max_size=2),
    "parts": st.lists(st.lists(TEXT, min_size=1, max_size=2), max_size=2),
    "topic": TEXT,
    "type": TEXT,
    "reference": TEXT,
}


@st.composite
def folders(draw) -> dict[str, list[dict]]:
    passages = draw(st.lists(ID, min_size=1, max_size=5, unique=True))
    content: dict[str, list[dict]] = {
        "corpus": [
            {"id": p, "title": draw(st.text(max_size=5).filter(str.isprintable)), "text": draw(TEXT)} for p in passages
        ]
    }
    for identity in draw(st.lists(ID, min_size=1, max_size=6, unique=True)):
        question = {"id": identity, "question": draw(TEXT), "answers": draw(st.lists(TEXT, min_size=1, max_size=3))}
        gold = {"supporting_ids": st.lists(st.sampled_from(passages), max_size=3, unique=True)}
        question |= draw(st.fixed_dictionaries({}, optional=gold | EXTRA))
        content.setdefault(draw(st.sampled_from(["train", "dev", "test"])), []).append(question)
    return content


@examples()
@given(folders())
def test_import_of_an_export_gives_the_same(content):
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "data"
        for name, lines in content.items():
            files.write(folder / f"{name}.jsonl", lines)
        export(folder, Path(scratch) / "beir")
        again = imported(Path(scratch) / "beir", Path(scratch) / "again")
        for name in ("corpus", "train", "dev", "test"):
            assert rows(again / f"{name}.jsonl") == content.get(name, []), name


@pytest.fixture
def small(tmp_path) -> Path:
    folder = tmp_path / "small"
    files.write(folder / "corpus.jsonl", [{"id": "p", "title": "Paro", "text": "A town."}])
    files.write(
        folder / "test.jsonl", [{"id": "q", "question": "Where?", "answers": ["here"], "supporting_ids": ["p"]}]
    )
    return folder


def test_others_read_an_export_as_beir(small, tmp_path):
    assert export(small, tmp_path / "beir") == {"passages": 1, "test": 1}
    assert rows(tmp_path / "beir" / "corpus.jsonl") == [
        {"_id": "p", "title": "Paro", "text": "A town.", "metadata": {}}
    ]
    assert (tmp_path / "beir" / "qrels" / "test.tsv").read_text() == "query-id\tcorpus-id\tscore\nq\tp\t1\n"
    (question,) = load_questions(tmp_path / "beir", require_answers=False)
    assert (question.id, question.question, question.supporting_ids) == ("q", "Where?", ("p",))


def test_triples_go_along(small, tmp_path):
    (small / "triples.tsv").write_text("Paro\tin\tBhutan\n")
    (small / "corpus.jsonl").unlink()
    export(small, tmp_path / "beir")
    again = imported(tmp_path / "beir", tmp_path / "again")
    assert (again / "triples.tsv").read_text() == "Paro\tin\tBhutan\n" and not (again / "corpus.jsonl").exists()
    assert rows(again / "test.jsonl") == rows(small / "test.jsonl")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"id": "a\tb"}, r"test\.jsonl:1: the id 'a\\tb' has a tab or a line break"),
        ({"split": "test"}, r"test\.jsonl:1: the key 'split' is what an export tells the split by"),
        ({"answers": []}, r"test\.jsonl:1: 'answers' is missing or empty"),
    ],
)
def test_what_could_not_be_read_again_is_not_written(small, tmp_path, change, complaint):
    files.write(small / "test.jsonl", [rows(small / "test.jsonl")[0] | change])
    with pytest.raises(UserError, match=complaint):
        export(small, tmp_path / "beir")
    assert not (tmp_path / "beir").exists()


def test_one_id_in_two_splits_is_not_exported(small, tmp_path):
    files.write(small / "dev.jsonl", rows(small / "test.jsonl"))
    with pytest.raises(UserError, match=r"test\.jsonl:1: the id 'q' is in dev too"):
        export(small, tmp_path / "beir")


def test_an_export_overwrites_nothing_and_wants_something(small, tmp_path):
    export(small, tmp_path / "beir")
    with pytest.raises(UserError, match="is there already"):
        export(small, tmp_path / "beir")
    with pytest.raises(UserError, match=r"expected corpus\.jsonl and one of train\.jsonl"):
        export(tmp_path, tmp_path / "other")

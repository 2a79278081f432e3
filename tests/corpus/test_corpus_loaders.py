import json
import os
import re
from pathlib import Path

import pytest

from dragoman.core.errors import UserError
from dragoman.core.types import Passage, Question
from dragoman.corpus.loaders import files_of, load_corpus, load_questions


def write(path: Path, *rows: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows), encoding="utf-8")
    return path


GOOD = {"id": "a", "title": "Paro", "text": "A town."}


# --- corpora ---------------------------------------------------------------------------------------------------------


def test_jsonl(tmp_path):
    path = write(tmp_path / "c.jsonl", GOOD, "", {"_id": "b", "contents": "No title.", "extra": [1]})
    assert load_corpus(path) == [Passage("a", "Paro", "A town."), Passage("b", "", "No title.")]


def test_a_byte_order_mark_is_no_fault(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode())
    assert load_corpus(path)[0].id == "a"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{broken", "not valid JSON"),
        ("[1]", "expected a JSON object, found list"),
        ({"title": "x", "text": "y"}, "the key 'id' is missing"),
        ({"id": "b", "title": "x"}, "the key 'text' is missing"),
        ({"id": "b", "text": " \t"}, "'text' is empty"),
        ({"id": 7, "text": "y"}, "'id' must be a string, found int"),
        ({"id": "b", "title": 3, "text": "y"}, "'title' must be a string, found int"),
        ({"id": "b", "text": ["y"]}, "'text' must be a string, found list"),
        ({"id": "a", "text": "y"}, "the id 'a' was used before, at 1"),
        ('{"id": "b", "text": "\\ud800"}', "half of a surrogate pair"),
    ],
)
def test_one_fault_is_named_by_file_and_line(tmp_path, line, complaint):
    path = write(tmp_path / "c.jsonl", GOOD, "", line)
    with pytest.raises(UserError) as error:
        load_corpus(path)
    assert str(error.value).startswith(f"{path}:3: ") and complaint in str(error.value)


def test_bad_utf8(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_bytes(json.dumps(GOOD).encode() + b'\n{"id": "b", "text": "caf\xe9"}\n')
    with pytest.raises(UserError, match=r"c\.jsonl:2: not valid UTF-8"):
        load_corpus(path)


def test_many_faults_are_counted_and_the_first_five_shown(tmp_path):
    path = write(tmp_path / "c.jsonl", GOOD, *[{"id": f"x{n}", "text": ""} for n in range(12)], "{")
    with pytest.raises(UserError) as error:
        load_corpus(path)
    message = str(error.value)
    assert "13 faults" in message and f"{path}:2: " in message and f"{path}:6: " in message
    assert f"{path}:7: " not in message


def test_sources_that_are_no_corpus(tmp_path):
    (tmp_path / "empty").mkdir()
    write(tmp_path / "void.jsonl")
    write(tmp_path / "c.json", GOOD)
    for source, complaint in [
        (tmp_path / "absent", "no such corpus"),
        (tmp_path / "empty", "no corpus here"),
        (tmp_path / "void.jsonl", "holds no passage"),
        (tmp_path / "c.json", "must be JSON lines"),
        ("hf:", "expected hf:NAME"),
        ("hf:a:b:c:d", "expected hf:NAME"),
    ]:
        with pytest.raises(UserError, match=complaint):
            load_corpus(source)


def test_text_folder(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "note.txt").write_text("hidden")
    (tmp_path / "b.txt").write_text("  # not a heading in plain text\n")
    (tmp_path / "sub" / "a.md").write_text("intro\n\n## Dzongs of Paro ##\n\nText.\n")
    (tmp_path / "sub" / "bare.md").write_text("no heading")
    (tmp_path / "sub" / "c.md").write_text("# C#\n\nA language.\n")
    (tmp_path / "sub" / "d.md").write_text("# Setup of {name} {#title-text .page}\n\nHow to.\n")
    (tmp_path / "image.png").write_bytes(b"\x89")
    assert [(p.id, p.title) for p in load_corpus(tmp_path)] == [
        ("b.txt", "b"),
        ("sub/a.md", "Dzongs of Paro"),
        ("sub/bare.md", "bare"),
        ("sub/c.md", "C#"),
        ("sub/d.md", "Setup of {name}"),
    ]


def test_text_folder_faults_are_collected(tmp_path):
    (tmp_path / "a.txt").write_text(" \n")
    (tmp_path / "b.md").write_bytes(b"fine\nfine\n\xff\n")
    with pytest.raises(UserError) as error:
        load_corpus(tmp_path)
    assert "2 faults" in str(error.value)
    assert f"{tmp_path / 'a.txt'}:1: the file is empty" in str(error.value)
    assert f"{tmp_path / 'b.md'}:3: not valid UTF-8" in str(error.value)


def test_saved_datasets(tmp_path):
    datasets = pytest.importorskip("datasets")
    plain = datasets.Dataset.from_dict({"docid": [4, 9], "title": ["P", None], "contents": ["one", "two"]})
    plain.save_to_disk(str(tmp_path / "plain"))
    expected = [Passage("4", "P", "one"), Passage("9", "", "two")]
    assert load_corpus(tmp_path / "plain") == expected
    assert load_corpus(f"hf:{tmp_path / 'plain'}") == expected

    numbered = datasets.Dataset.from_dict({"passage": ["x", "y"]})
    splits = datasets.DatasetDict({"train": plain, "other": numbered})
    splits.save_to_disk(str(tmp_path / "splits"))
    assert load_corpus(tmp_path / "splits") == expected
    assert load_corpus(f"hf:{tmp_path / 'splits'}::other") == [Passage("0", "", "x"), Passage("1", "", "y")]
    with pytest.raises(UserError, match="no split 'dev'"):
        load_corpus(f"hf:{tmp_path / 'splits'}::dev")

    datasets.Dataset.from_dict({"label": [1]}).save_to_disk(str(tmp_path / "labels"))
    with pytest.raises(UserError, match="no text column"):
        load_corpus(tmp_path / "labels")


def test_a_data_set_whose_other_columns_cannot_be_read_is_read_without_them(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "text": datasets.Value("string")})
    rows = {"image": [{"bytes": b"no image", "path": None}], "text": ["one"]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / "saved"))
    assert load_corpus(tmp_path / "saved") == [Passage("0", "", "one")]


def test_a_data_set_of_the_hub_is_asked_for_at_its_revision(monkeypatch):
    datasets = pytest.importorskip("datasets")
    asked = []

    def load(name, config, revision):
        asked.append((name, config, revision))
        return datasets.DatasetDict({"test": datasets.Dataset.from_dict({"text": ["x"]})})

    monkeypatch.setattr(datasets, "load_dataset", load)
    for address in ("hf:org/towns@0a1b2c3:small:test", "hf:org/towns"):
        assert load_corpus(address) == [Passage("0", "", "x")]
    assert asked == [("org/towns", "small", "0a1b2c3"), ("org/towns", None, None)]


# --- questions -------------------------------------------------------------------------------------------------------


def test_questions(tmp_path):
    row = {
        "id": "q",
        "question": "Where is Paro?",
        "answers": ["Bhutan"],
        "type": "single_hop",
        "supporting_ids": ["a"],
        "triples": [["Paro", "country", "Bhutan"]],
        "level": "hard",
    }
    path = write(tmp_path / "q.jsonl", row, {"id": "r", "question": "Who?", "answers": ["x", "y"]})
    first, second = load_questions(path)
    assert first == Question("q", "Where is Paro?", ("Bhutan",), "single_hop", ("a",), (("Paro", "country", "Bhutan"),))
    assert second == Question("r", "Who?", ("x", "y"))
    assert load_questions(write(tmp_path / "again.jsonl", first.to_json())) == [first]


def test_faults_behind_the_limit_of_questions_are_not_looked_for(tmp_path):
    path = write(tmp_path / "q.jsonl", {"id": "q", "question": "Who?", "answers": ["x"]}, "{broken")
    assert [question.id for question in load_questions(path, limit=1)] == ["q"]
    with pytest.raises(UserError, match="limit must be at least 1"):
        load_questions(path, limit=0)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"answers": []}, "'answers' is missing or empty"),
        ({"answers": None}, "'answers' is missing or empty"),
        ({"answers": "Bhutan"}, "'answers' must be a list of strings"),
        ({"answers": ["Bhutan", 4]}, "'answers' must be a list of strings"),
        ({"answers": ["Bhutan", " "]}, "'answers' holds an empty string"),
        ({"question": ""}, "'question' is empty"),
        ({"question": None}, "the key 'question' is missing"),
        ({"id": None}, "the key 'id' is missing"),
        ({"id": "first"}, "was used before, at 1"),
        ({"type": 3}, "'type' must be a string"),
        ({"supporting_ids": "a"}, "'supporting_ids' must be a list of strings"),
        ({"triples": [["a", "b"]]}, "'triples' must be a list of"),
        ({"parts": [["a"], []]}, "'parts' must be a list of lists"),
        ({"parts": [["a"], "b"]}, "'parts' must be a list of lists"),
        ({"parts": [["a"], [" "]]}, "'parts' holds an empty string"),
        ({"nuggets": "one"}, "'nuggets' must be a list of strings"),
        ({"reference": ["one"]}, "'reference' must be a string"),
    ],
)
def test_question_faults(tmp_path, change, complaint):
    good = {"id": "first", "question": "Where?", "answers": ["here"]}
    path = write(tmp_path / "q.jsonl", good, {**good, "id": "second", **change})
    with pytest.raises(UserError) as error:
        load_questions(path)
    assert str(error.value).startswith(f"{path}:2: ") and complaint in str(error.value)


def test_questions_without_answers_where_none_are_required(tmp_path):
    path = write(tmp_path / "q.jsonl", {"id": "q", "question": "Where?"})
    assert load_questions(path, require_answers=False) == [Question("q", "Where?")]


def test_no_questions(tmp_path):
    with pytest.raises(UserError, match="holds no question"):
        load_questions(write(tmp_path / "q.jsonl"))
    with pytest.raises(UserError, match="no such file"):
        load_questions(tmp_path / "absent.jsonl")
    with pytest.raises(UserError, match="no questions here"):
        load_questions(tmp_path)


@pytest.fixture
def beir(tmp_path):
    write(
        tmp_path / "corpus.jsonl", {"_id": "d1", "title": "", "text": "one"}, {"_id": "d2", "title": "", "text": "two"}
    )
    write(tmp_path / "queries.jsonl", *[{"_id": f"q{n}", "text": f"query {n}", "metadata": {}} for n in (1, 2, 3)])
    write(tmp_path / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore", "q1\td1\t1", "q1\td2\t2", "q1\td1\t1")
    write(tmp_path / "qrels" / "train.tsv", "query-id\tcorpus-id\tscore", "q2\td2\t1", "q3\td1\t0")
    return tmp_path


def test_beir(beir):
    assert [p.id for p in load_corpus(beir)] == ["d1", "d2"]
    questions = load_questions(beir, require_answers=False)
    assert [(q.id, q.question, q.supporting_ids) for q in questions] == [
        ("q1", "query 1", ("d1", "d2")),
        ("q2", "query 2", ("d2",)),
    ]
    assert [q.id for q in load_questions(beir / "qrels" / "test.tsv", require_answers=False)] == ["q1"]
    with pytest.raises(UserError, match="'answers' is missing"):
        load_questions(beir)


def test_beir_without_labels_asks_every_query(beir):
    for file in (beir / "qrels").iterdir():
        file.unlink()
    assert [q.id for q in load_questions(beir, require_answers=False)] == ["q1", "q2", "q3"]


@pytest.mark.parametrize("line", ["q1 d1 1", "q1\td1\tyes", "q1\td1"])
def test_beir_bad_labels(beir, line):
    path = write(beir / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore", line)
    with pytest.raises(UserError, match=r"test\.tsv:2: expected query-id"):
        load_questions(path, require_answers=False)


@pytest.mark.parametrize("header", ["query-id\tcorpus-id\tscore\n", ""])
def test_beir_labels_with_a_byte_order_mark_are_read(beir, header):
    path = beir / "qrels" / "test.tsv"
    path.write_text(f"\ufeff{header}q1\td1\t1\n", encoding="utf-8")
    assert [(q.id, q.supporting_ids) for q in load_questions(path, require_answers=False)] == [("q1", ("d1",))]


def test_beir_labels_of_unknown_queries(beir):
    write(beir / "qrels" / "test.tsv", "nobody\td1\t1")
    with pytest.raises(UserError, match="has no query 'nobody'"):
        load_questions(beir, require_answers=False)


@pytest.mark.parametrize(
    ("content", "title", "text"),
    [
        ("Addis Ababa\n\nIt is a city.\nIt is high.", "Addis Ababa", "It is a city.\nIt is high."),
        ("Addis Ababa\r\n \r\nIt is a city.", "Addis Ababa", "It is a city."),
        ("It is a city.\nIt is high.", "a", "It is a city.\nIt is high."),
        ("one two three four five six seven eight nine ten eleven twelve thirteen\n\nText.", "a", None),
        ("Alone", "a", "Alone"),
        ("北京市\n\n北京是中国的首都。", "北京市", "北京是中国的首都。"),
        ("北京是中国的首都，也是一座古老的城市，人口超过两千万。\n\n它在北方。", "a", None),
    ],
)
def test_a_short_first_line_of_a_text_that_stands_alone_is_its_title(tmp_path, content, title, text):
    (tmp_path / "a.txt").write_bytes(content.encode())
    (passage,) = load_corpus(tmp_path)
    assert (passage.title, passage.text) == (title, text or content)


@pytest.mark.parametrize(
    ("content", "title"),
    [
        ("```sh\n# a comment\n```\n\n# Title\n\nText.", "Title"),
        ("Words.\r\n  ~~~~\r\n# a comment\r\n~~~\r\n# another\r\n~~~~\r\n# Title\r\nText.", "Title"),
        ("# Title\n```\n# a comment\n```", "Title"),
        ("Words.\n```\n# in a block without an end", "a"),
        ("```code in a line```\n# Title", "Title"),
    ],
)
def test_the_title_of_a_markdown_file_is_no_comment_in_a_block_of_code(tmp_path, content, title):
    (tmp_path / "a.md").write_bytes(content.encode())
    (passage,) = load_corpus(tmp_path)
    assert (passage.title, passage.text) == (title, content)


def test_a_folder_of_texts_counts_the_files_that_are_left_out_in_one_warning(tmp_path, caplog):
    for name in ("NOTES.TXT", "Read.Me.MD", "a.html", "b.HTML", "c.markdown", "LICENSE", ".hidden.html"):
        (tmp_path / name).write_text("# Heading\n\nWords.")
    assert [(p.id, p.title) for p in load_corpus(tmp_path)] == [("NOTES.TXT", "# Heading"), ("Read.Me.MD", "Heading")]
    (warning,) = caplog.messages
    assert str(tmp_path) in warning and warning.endswith("2 with .html, 1 with .markdown, 1 with no suffix")


def test_a_folder_of_texts_with_triples_does_not_count_them_as_left_out(tmp_path, caplog):
    (tmp_path / "a.txt").write_text("Some text.")
    (tmp_path / "triples.tsv").write_text("a\tb\tc\n")
    assert len(load_corpus(tmp_path)) == 1
    assert "left out" not in caplog.text


def test_a_folder_of_nothing_but_texts_warns_of_nothing(tmp_path, caplog):
    (tmp_path / "a.txt").write_text("Words.")
    load_corpus(tmp_path)
    assert not caplog.messages


def test_a_link_out_of_a_folder_of_texts_is_refused(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "own.txt").write_text("Brisa is a city.")
    (folder / "same.txt").symlink_to(folder / "own.txt")
    assert len(load_corpus(folder)) == 2
    (tmp_path / "secret.txt").write_text("A key.")
    (folder / "other.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(UserError, match=r"other\.txt: a link out of"):
        load_corpus(folder)


@pytest.mark.parametrize("name", [b"caf\xe9.md", b"caf\xe9/menu.pdf"])
def test_a_file_in_a_folder_whose_name_is_not_utf_8_is_refused_by_its_bytes(tmp_path, name):
    (tmp_path / "fine.txt").write_text("Fine.")
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    path.parent.mkdir(exist_ok=True)
    path.write_text("Coffee.")
    for read in (load_corpus, files_of):
        with pytest.raises(UserError, match=re.escape(f"{tmp_path}: the name of the file {name!r} is not UTF-8")):
            read(str(tmp_path))

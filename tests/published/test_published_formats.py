"""Published formats: what each record becomes, and what is said of a file that is of another."""

import json

import pytest
import small_sets

from dragoman.core.errors import UserError
from dragoman.published.formats import NAMES, entries
from dragoman.published.records import HARD_NEGATIVES, passage
from dragoman.published.source import _BLOCK, Source

PARO = passage("Paro", "Paro is a town. It lies in Bhutan.")
LIMA = passage("Lima", "Lima is in Peru.")
RIVER = passage("Paro Chhu", "The Paro Chhu flows by Paro.")
IN_BHUTAN = passage("Paro", "Paro lies in Bhutan.")


def read(name, path, split="train", member=""):
    return list(entries(name, Source(path, member), split))


def complaint(name, path, split="train"):
    with pytest.raises(UserError) as error:
        read(name, path, split)
    return str(error.value)


def test_a_passage_without_an_id_is_known_by_its_content():
    # printf 'Lima\nLima is in Peru.' | sha1sum
    assert LIMA.id == "941754bcfbf3" and passage("Lima", "Lima.").id != LIMA.id


def test_hotpotqa_gold_is_the_paragraphs_of_supporting_facts_in_their_order(tmp_path):
    (entry,) = read("hotpotqa", small_sets.array(tmp_path / "h.json", small_sets.HOTPOT))
    assert entry.passages == (PARO, LIMA, RIVER)
    assert entry.question == {
        "id": "h1", "question": small_sets.HOTPOT["question"], "answers": ["Bhutan"], "type": "bridge", "level": "hard",
        "supporting_ids": [RIVER.id, PARO.id],
    }  # fmt: skip


def test_2wiki_has_the_triples_behind_the_answer(tmp_path):
    (entry,) = read("2wiki", small_sets.array(tmp_path / "w.json", small_sets.TWO_WIKI))
    assert entry.question["triples"] == [["Paro Chhu", "flows by", "Paro"], ["Paro", "country", "Bhutan"]]
    assert entry.question["supporting_ids"] == [RIVER.id, PARO.id] and "level" not in entry.question


def test_musique_answers_have_their_aliases_once(tmp_path):
    (entry,) = read("musique", small_sets.lines(tmp_path / "m.jsonl", small_sets.MUSIQUE))
    assert entry.passages == (IN_BHUTAN, LIMA)
    assert entry.question == {
        "id": "2hop__1_2", "question": "Where is Paro?", "answers": ["Bhutan", "Kingdom of Bhutan"], "type": "2hop",
        "supporting_ids": [IN_BHUTAN.id], "decomposition": [{"question": "Paro >> country", "answer": "Bhutan"}],
    }  # fmt: skip


def test_questions_that_their_paragraphs_do_not_answer_are_left_out(tmp_path):
    path = small_sets.lines(tmp_path / "m.jsonl", small_sets.MUSIQUE | {"answerable": False})
    (entry,) = read("musique", path)
    assert entry.question is None and entry.left_out == "questions that their passages do not answer"
    first, second = read("squad", small_sets.text(tmp_path / "s.json", json.dumps(small_sets.SQUAD)))
    assert second.question is None and second.left_out == entry.left_out and first.question is not None


def test_squad_has_its_paragraph_as_gold(tmp_path):
    first, _ = read("squad", small_sets.text(tmp_path / "s.json", json.dumps(small_sets.SQUAD)))
    gold = passage("Paro Dzong", "The dzong was built in 1646.")
    assert first.passages == (gold,)
    assert first.question == {
        "id": "s1", "question": "When was it built?", "answers": ["1646"], "type": "single_hop", "supporting_ids": [gold.id]
    }  # fmt: skip


def squad(tmp_path, *paragraphs):
    articles = {"data": [{"title": "Paro_Dzong", "paragraphs": paragraphs}]}
    return small_sets.text(tmp_path / "s.json", json.dumps(articles))


def test_a_squad_paragraph_without_a_question_is_a_passage(tmp_path):
    (asked,) = small_sets.SQUAD["data"][0]["paragraphs"]
    alone, first, _ = read("squad", squad(tmp_path, {"context": "It has a museum.", "qas": []}, asked))
    assert alone.passages == (passage("Paro Dzong", "It has a museum."),)
    assert alone.question is None and not alone.left_out and first.question["id"] == "s1"


@pytest.mark.parametrize(
    ("paragraph", "message"),
    [
        ("It has a museum.", "expected an object as paragraph, found str"),
        ({"context": "It has a museum.", "qas": ["Has it?"]}, "expected an object as question, found str"),
        ({"context": "It has a museum."}, "record 1: 'id' is missing, which the format squad has"),
        ({"context": "It has a museum.", "qas": {"id": "s1"}}, "record 1: 'id' is missing, which the format squad has"),
    ],
)
def test_a_squad_paragraph_of_another_form_is_refused(tmp_path, paragraph, message):
    path = squad(tmp_path, paragraph)
    assert f"{path}:1: {message}" in complaint("squad", path)


def test_dpr_keeps_ids_positives_and_ten_hard_negatives(tmp_path):
    (entry,) = read("dpr", small_sets.array(tmp_path / "nq.json.gz", small_sets.DPR), "dev")
    assert [p.id for p in entry.passages] == ["17", "18", *(str(100 + n) for n in range(HARD_NEGATIVES))]
    assert entry.question["id"] == "dev-1" and entry.question["supporting_ids"] == ["17"]


def test_dpr_tables(tmp_path):
    (answers,) = read("dpr-answers", small_sets.text(tmp_path / "nq.csv", small_sets.DPR_ANSWERS), "test")
    assert answers.question == {
        "id": "test-1", "question": "who wrote it", "answers": ["Ann", "Ann O'Hara"], "type": "single_hop"
    }  # fmt: skip
    (wikipedia,) = read("dpr-passages", small_sets.text(tmp_path / "psgs.tsv.gz", small_sets.DPR_PASSAGES))
    assert wikipedia.passages[0].id == "17" and wikipedia.passages[0].text == 'Paro, a "town", lies in Bhutan.'


def test_popqa_and_bamboogle(tmp_path):
    (pop,) = read("popqa", small_sets.text(tmp_path / "p.tsv", small_sets.POPQA))
    assert pop.question["answers"] == ["politician", "pol"] and pop.question["type"] == "occupation"
    first, second = read("bamboogle", small_sets.text(tmp_path / "b.csv", small_sets.BAMBOOGLE), "test")
    assert first.question["question"] == "Who, of both, was first?" and second.question["id"] == "test-2"


def test_freshqa_passes_over_the_remark_and_says_the_split(tmp_path):
    test, dev = read("freshqa", small_sets.text(tmp_path / "f.csv", small_sets.FRESHQA), None)
    assert (test.split, dev.split) == ("test", "dev")
    assert test.question == {
        "id": "0", "question": "Who is the mayor?", "answers": ["Alice", "A. Smith"], "type": "fast-changing",
        "num_hops": "one-hop", "false_premise": False,
    }  # fmt: skip
    assert dev.question["false_premise"] is True


def test_multihop_rag_evidence_is_found_by_url(tmp_path):
    (article,) = read("multihop-rag-corpus", small_sets.array(tmp_path / "c.json", small_sets.ARTICLE, indent=2))
    (asked,) = read("multihop-rag", small_sets.array(tmp_path / "q.json", small_sets.MULTIHOP, indent=2), "test")
    assert asked.question["supporting_ids"] == [article.passages[0].id]
    assert article.passages[0].text == "Paro has grown."


def test_qald_answers_are_wikidata_ids_or_yes_and_no(tmp_path):
    entity, boolean, none = read("qald", small_sets.text(tmp_path / "q.json", json.dumps(small_sets.QALD)), "test")
    assert entity.question["answers"] == ["Q917"] and entity.question["question"] == "Where is Paro?"
    assert boolean.question["answers"] == ["yes"] and boolean.question["sparql"].startswith("ASK")
    assert none.left_out == "questions without an answer"


def test_a_file_of_another_format_is_named_by_record_and_its_own_format(tmp_path):
    path = small_sets.array(tmp_path / "w.json", small_sets.HOTPOT)
    assert complaint("multihop-rag", path) == (
        f"{path}:1: record 1: 'query' is missing, which the format multihop-rag has; it looks like --format hotpotqa"
    )
    richer = small_sets.array(tmp_path / "r.json", small_sets.TWO_WIKI)
    assert "'evidences' does not belong to the format hotpotqa; it looks like --format 2wiki" in complaint(
        "hotpotqa", richer
    )
    lines = small_sets.lines(tmp_path / "m.jsonl", small_sets.MUSIQUE)
    assert f"{lines}:1: expected one JSON array of objects, found" in complaint("hotpotqa", lines)
    assert f"{path}:1: expected a JSON object, found list; the format musique is" in complaint("musique", path)


def test_a_bad_record_is_named_by_its_line(tmp_path):
    bad = small_sets.HOTPOT | {"_id": "h2", "context": [["Paro", "one string"]]}
    path = small_sets.array(tmp_path / "h.json", small_sets.HOTPOT, bad, indent=1)
    line = path.read_text().splitlines().index(" },") + 2  # where the second record begins
    assert f"{path}:{line}: record 2: 'context.0.1': Input should be a valid list" in complaint("hotpotqa", path)
    twice = small_sets.lines(tmp_path / "m.jsonl", small_sets.MUSIQUE, small_sets.MUSIQUE)
    assert f"{twice}:2: the id '2hop__1_2' was used before, at 1" in complaint("musique", twice)


def test_a_test_set_without_answers_is_said_to_be_of_no_use(tmp_path):
    path = small_sets.array(tmp_path / "t.json", {k: v for k, v in small_sets.HOTPOT.items() if k != "answer"})
    assert "'answer' is missing: a test set whose answers are not published" in complaint("hotpotqa", path)


def test_an_empty_answer_is_no_answer(tmp_path):
    (entry,) = read("hotpotqa", small_sets.array(tmp_path / "h.json", small_sets.HOTPOT | {"answer": " "}))
    assert entry.question is None and entry.left_out == "questions without an answer" and len(entry.passages) == 3


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"beir"}))
def test_a_file_of_anything_else_is_refused_by_every_format(tmp_path, name):
    path = tmp_path / "page.html"
    path.write_text("<!doctype html>\n<p>Sign in</p>\n")
    assert str(path) in complaint(name, path)
    path.write_bytes(b"")
    assert str(path) in complaint(name, path)
    path.write_bytes(b"\xff\xfe\x00")
    assert str(path) in complaint(name, path)


def test_no_more_than_five_faults_are_looked_for(tmp_path):
    path = small_sets.lines(tmp_path / "m.jsonl", *[{"id": str(n)} for n in range(9)])
    message = complaint("musique", path)
    assert "5 faults (the rest was not read)" in message and f"{path}:5: " in message


def test_files_that_are_cut_off(tmp_path):
    whole = small_sets.array(tmp_path / "h.json", small_sets.HOTPOT).read_text()
    cut = small_sets.text(tmp_path / "cut.json", whole[:-1])
    assert f"{cut}:1: the array does not end" in complaint("hotpotqa", cut)
    within = small_sets.text(tmp_path / "within.json", whole[:-40])
    assert f"{within}:1: a record that is not valid JSON" in complaint("hotpotqa", within)
    packed = small_sets.array(tmp_path / "nq.json.gz", small_sets.DPR)
    packed.write_bytes(packed.read_bytes()[:-20])
    assert f"{packed}: broken or cut off" in complaint("dpr", packed)


def test_an_array_longer_than_a_block_is_read_record_by_record(tmp_path):
    records = [small_sets.HOTPOT | {"_id": f"h{n}", "level": "x" * (_BLOCK // 3)} for n in range(5)]
    found = read("hotpotqa", small_sets.array(tmp_path / "h.json", *records))
    assert [entry.question["id"] for entry in found] == ["h0", "h1", "h2", "h3", "h4"]


def test_a_member_of_a_zip_is_found_by_its_name(tmp_path):
    folder = tmp_path / "data"
    small_sets.lines(folder / "m.jsonl", small_sets.MUSIQUE)
    archive = small_sets.zipped(folder, tmp_path / "musique.zip")
    assert read("musique", archive, member="data/m.jsonl") == read("musique", archive, member="m.jsonl")
    with pytest.raises(UserError, match=r"musique\.zip: holds no x\.jsonl; found data/m\.jsonl"):
        read("musique", archive, member="x.jsonl")
    archive.write_bytes(b"PK no more")
    with pytest.raises(UserError, match="broken or cut off"):
        read("musique", archive, member="m.jsonl")


def test_unknown_formats_are_refused_with_those_there_are(tmp_path):
    assert complaint("hotpot", tmp_path / "x").startswith(
        "no format 'hotpot' (near: hotpotqa); there are: hotpotqa, 2wiki"
    )

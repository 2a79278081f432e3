"""Small files in the formats that data sets are published in, written by hand after their publishers' descriptions."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

HOTPOT = {
    "_id": "h1",
    "question": "In which country is the town by the Paro Chhu?",
    "answer": "Bhutan",
    "type": "bridge",
    "level": "hard",
    "supporting_facts": [["Paro Chhu", 0], ["Paro", 0], ["Paro", 1]],
    "context": [
        ["Paro", ["Paro is a town.", " It lies in Bhutan."]],
        ["Lima", ["Lima is in Peru."]],
        ["Paro Chhu", ["The Paro Chhu flows by Paro."]],
    ],
}
TWO_WIKI = {
    **{key: value for key, value in HOTPOT.items() if key != "level"},
    "_id": "w1",
    "type": "compositional",
    "evidences": [["Paro Chhu", "flows by", "Paro"], ["Paro", "country", "Bhutan"]],
    "entity_ids": "Q1_Q2",
}
MUSIQUE = {
    "id": "2hop__1_2",
    "paragraphs": [
        {"idx": 0, "title": "Paro", "paragraph_text": "Paro lies in Bhutan.", "is_supporting": True},
        {"idx": 1, "title": "Lima", "paragraph_text": "Lima is in Peru.", "is_supporting": False},
    ],
    "question": "Where is Paro?",
    "question_decomposition": [
        {"id": 1, "question": "Paro >> country", "answer": "Bhutan", "paragraph_support_idx": 0}
    ],
    "answer": "Bhutan",
    "answer_aliases": ["Kingdom of Bhutan", "Bhutan", ""],
    "answerable": True,
}
SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "Paro_Dzong",
            "paragraphs": [
                {
                    "context": "The dzong was built in 1646.",
                    "qas": [
                        {
                            "id": "s1",
                            "question": "When was it built?",
                            "answers": [{"text": "1646", "answer_start": 23}, {"text": "1646", "answer_start": 23}],
                            "is_impossible": False,
                        },
                        {"id": "s2", "question": "By whom?", "answers": [], "is_impossible": True},
                    ],
                }
            ],
        }
    ],
}
DPR = {
    "dataset": "nq_train_psgs_w100",
    "question": "where is paro",
    "answers": ["Bhutan"],
    "positive_ctxs": [
        {"title": "Paro", "text": "Paro lies in Bhutan.", "score": 1000, "title_score": 1, "passage_id": "17"},
        {"title": "Bhutan", "text": "Bhutan has Paro.", "score": 9, "title_score": 0, "passage_id": "18"},
    ],
    "negative_ctxs": [{"title": "Oslo", "text": "Oslo.", "score": 0, "title_score": 0, "passage_id": "99"}],
    "hard_negative_ctxs": [
        {"title": f"Paro {n}", "text": f"Another Paro, {n}.", "score": 5, "title_score": 0, "passage_id": str(100 + n)}
        for n in range(12)
    ],
}
ARTICLE = {"title": "Paro grows", "author": "A", "source": "S", "url": "https://news.test/1", "body": "Paro has grown."}
MULTIHOP = {
    "query": "Did both say that Paro has grown?",
    "answer": "Yes",
    "question_type": "comparison_query",
    "evidence_list": [{"title": "Paro grows", "url": "https://news.test/1", "fact": "Paro has grown."}],
}
QALD = {
    "questions": [
        {
            "id": "0",
            "question": [{"language": "de", "string": "Wo?"}, {"language": "en", "string": "Where is Paro?"}],
            "query": {"sparql": "SELECT ?x WHERE { wd:Q1 wdt:P17 ?x }"},
            "answers": [
                {
                    "head": {"vars": ["x"]},
                    "results": {"bindings": [{"x": {"type": "uri", "value": "http://www.wikidata.org/entity/Q917"}}]},
                }
            ],
        },
        {
            "id": "1",
            "question": [{"language": "en", "string": "Is Paro in Bhutan?"}],
            "query": {"sparql": "ASK { wd:Q1 wdt:P17 wd:Q917 }"},
            "answers": [{"head": {}, "boolean": True}],
        },
        {
            "id": "2",
            "question": [{"language": "en", "string": "Who lives there?"}],
            "query": {"sparql": "SELECT ?x WHERE {}"},
            "answers": [{"head": {"vars": ["x"]}, "results": {"bindings": []}}],
        },
    ]
}
POPQA = (
    "id\tsubj\tprop\tobj\tquestion\tpossible_answers\n"
    '4222362\tGeorge Rankin\toccupation\tpolitician\tWhat is George Rankin\'s occupation?\t"[""politician"", ""pol""]"\n'
)
BAMBOOGLE = 'Question,Answer\n"Who, of both, was first?",James Madison\nWhat is it?,A dog\n'
FRESHQA = (
    '"Warning: Please do not click",,,,,,,,,,\n,,,,,,,,,,\n'
    "id,split,question,effective_year,next_review,false_premise,num_hops,fact_type,source,answer_0,answer_1\n"
    '0,TEST,Who is the mayor?,2026,weekly,FALSE,one-hop,fast-changing,"https://a.test\nhttps://b.test",Alice,A. Smith\n'
    "1,DEV,When did the first human land on Mars?,before 2022,occasionally,TRUE,one-hop,never-changing,x,Nobody has.,\n"
)
DPR_ANSWERS = "who wrote it\t['Ann', \"Ann O'Hara\"]\n"
DPR_PASSAGES = 'id\ttext\ttitle\n17\t"Paro, a ""town"", lies in Bhutan."\tParo\n'


def array(path: Path, *records: Any, indent: int | None = None) -> Path:
    return text(path, json.dumps(list(records), indent=indent))


def lines(path: Path, *records: Any) -> Path:
    return text(path, "".join(json.dumps(record) + "\n" for record in records))


def text(path: Path, content: str) -> Path:
    """A file, gzipped if its name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = content.encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def beir(folder: Path) -> Path:
    """BEIR's HotpotQA in small: answers in the metadata of queries, one query that no qrels name."""
    lines(
        folder / "corpus.jsonl",
        {"_id": "12", "title": "Paro", "text": "Paro lies in Bhutan.", "metadata": {"url": "u"}},
        {"_id": "13", "title": "Lima", "text": "Lima is in Peru.", "metadata": {}},
    )
    lines(
        folder / "queries.jsonl",
        {"_id": "h1", "text": "Where is Paro?", "metadata": {"answer": "Bhutan", "supporting_facts": [["Paro", 0]]}},
        {"_id": "h2", "text": "Where is Lima?", "metadata": {"answer": "Peru", "supporting_facts": [["Lima", 0]]}},
        {"_id": "h3", "text": "Where is Oslo?", "metadata": {"answer": "Norway"}},
    )
    text(folder / "qrels" / "train.tsv", "query-id\tcorpus-id\tscore\nh1\t12\t1\n")
    text(folder / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore\nh2\t13\t1\nh2\t12\t0\n")
    return folder


def zipped(folder: Path, path: Path) -> Path:
    """A zip that holds the folder under its name."""
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, f"{folder.name}/{file.relative_to(folder).as_posix()}")
    return path

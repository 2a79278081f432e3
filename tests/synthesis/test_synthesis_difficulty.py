"""How hard questions are: labels by hand, judged once, and the order of a curriculum."""

import json
from collections import Counter

import pytest
from fakes import ListRetriever, ScriptedEngine
from lands import BHUTAN, NEPAL, THIMPHU, THREE

from dragoman.core.errors import EngineFault, Fault, Refused, UserError
from dragoman.core.files import write
from dragoman.synthesis.difficulty import JOURNAL, curriculum, label, rate
from dragoman.synthesis.reader import Reader

PASSAGES = {p.id: p for p in THREE}
ROWS = [
    {"id": "known", "question": "Which continent is Bhutan in?", "answers": ["Asia"], "supporting_ids": ["bt"]},
    {"id": "found", "question": "What is the capital of Nepal?", "answers": ["Kathmandu"], "supporting_ids": ["np"]},
    {"id": "hidden", "question": "Its people pay with what?", "answers": ["ngultrum"], "supporting_ids": ["bt"]},
    {"id": "never", "question": "Thimphu is a town in which land?", "answers": ["nowhere"], "supporting_ids": ["th"]},
]


def reads(prompt, rng):
    """Knows one continent; else says all that it reads."""
    return "Asia" if "continent" in prompt else prompt.partition("Question:")[0].replace("\n", " ")


class NepalFirst(ListRetriever):
    """Whatever is asked, it finds Nepal."""

    def _one(self, query, k, page):
        return [hit for hit in super()._one(query, 10, 0) if hit.passage is NEPAL][:k]


async def rated(out, engine=None, retriever=None, rows=ROWS, **values):
    engine = engine or ScriptedEngine(reads)
    reader = Reader(engine, **{name: values.pop(name) for name in ("draws", "seed") if name in values})
    retriever = retriever or NepalFirst(THREE)
    return await rate(rows, PASSAGES, reader, retriever, **({"k": 1, "concurrency": 4, "out": out} | values))


@pytest.mark.parametrize(
    ("direct", "standard", "gold", "name"),
    [
        (1.0, 1.0, 1.0, "easy"),
        (1.0, 0.0, 0.0, "easy"),
        (0.5, 0.0, 0.0, "easy"),
        (0.25, 1.0, 1.0, "medium"),
        (0.25, 0.5, 0.0, "medium"),
        (0.25, 0.25, 1.0, "hard"),
        (0.0, 0.0, 0.0, "hard"),
    ],
)
def test_labels(direct, standard, gold, name):
    assert label({"direct": direct, "standard": standard, "gold": gold}) == name


async def test_each_way_of_answering_is_tried(tmp_path):
    found = await rated(tmp_path)
    assert [row["difficulty"] for row in found] == [
        {"label": "easy", "direct": 1.0, "standard": 1.0, "gold": 1.0},
        {"label": "medium", "direct": 0.0, "standard": 1.0, "gold": 1.0},
        {"label": "hard", "direct": 0.0, "standard": 0.0, "gold": 1.0},
        {"label": "hard", "direct": 0.0, "standard": 0.0, "gold": 0.0},
    ]
    assert [{name: row[name] for name in row if name != "difficulty"} for row in found] == ROWS


async def test_shares_of_several_draws(tmp_path):
    script = lambda prompt, rng: "Asia" if rng.random() < 0.5 else "Africa"  # noqa: E731
    engine = ScriptedEngine(script)
    (row,) = await rated(tmp_path, engine, rows=ROWS[:1], draws=8, seed=1)
    shares = [row["difficulty"][way] for way in ("direct", "standard", "gold")]
    assert all((share * 8).is_integer() for share in shares) and any(0 < share < 1 for share in shares)
    assert [(request.n, request.temperature) for request in engine.requests] == [(8, 1.0)] * 3


async def test_what_is_read(tmp_path):
    engine, retriever = ScriptedEngine(reads), ListRetriever(THREE)
    await rated(tmp_path, engine, retriever, rows=ROWS[1:2], k=2)
    direct, standard, gold = (request.messages[-1]["content"] for request in engine.requests)
    assert retriever.queries == ["What is the capital of Nepal?"]
    found = [hit.passage for hit in retriever._one("What is the capital of Nepal?", 2, 0)]
    assert "[1]" not in direct
    assert [p for p in THREE if p.text in standard] == sorted(found, key=THREE.index) and "[3]" not in standard
    assert NEPAL.text in gold and BHUTAN.text not in gold and THIMPHU.text not in gold


async def test_judged_once(tmp_path):
    first = await rated(tmp_path)
    engine, retriever = ScriptedEngine(reads), NepalFirst(THREE)
    assert await rated(tmp_path, engine, retriever) == first
    assert not engine.requests and not retriever.queries
    changed = [ROWS[0] | {"answers": ["Europe"]}, *ROWS[1:]]
    await rated(tmp_path, engine, rows=changed)
    assert len(engine.requests) == 3  # of the changed one alone


@pytest.mark.parametrize("change", [{"k": 2}, {"draws": 2}, {"seed": 5}, {"retriever": "other"}, {"engine": "other"}])
async def test_judged_again_under_other_settings(tmp_path, change):
    await rated(tmp_path)
    engine, retriever = ScriptedEngine(reads), NepalFirst(THREE)
    for name, part in (("engine", engine), ("retriever", retriever)):
        if name in change:
            part.fingerprint = "other"
    await rated(tmp_path, engine, retriever, **{k: v for k, v in change.items() if k not in ("engine", "retriever")})
    assert len(engine.requests) == 3 * len(ROWS)


@pytest.mark.parametrize("calls", [0, 4, 10])
async def test_judging_that_was_stopped_goes_on_where_it_was(tmp_path, calls):
    class Stopped(ScriptedEngine):
        async def _one(self, request):
            if len(self.requests) >= calls:
                raise RuntimeError("the lights went out")
            return await super()._one(request)

    whole = await rated(tmp_path / "whole")
    with pytest.raises(RuntimeError, match="the lights"):
        await rated(tmp_path, Stopped(reads), concurrency=1)
    known = (tmp_path / JOURNAL).read_text(encoding="utf-8").count("\n")
    assert known == calls // 3
    engine = ScriptedEngine(reads)
    assert await rated(tmp_path, engine) == whole
    assert len(engine.requests) == 3 * (len(ROWS) - known)


async def test_a_fault_is_said_and_the_others_are_kept(tmp_path):
    def faulty(prompt, rng):
        return EngineFault("timed out") if "capital" in prompt.partition("Question:")[2] else reads(prompt, rng)

    with pytest.raises(Fault, match=rf"1 of {len(ROWS)} questions met a fault \(timed out\); the others are kept"):
        await rated(tmp_path, ScriptedEngine(faulty))
    engine = ScriptedEngine(reads)
    assert all("difficulty" in row for row in await rated(tmp_path, engine))
    assert len(engine.requests) == 3


async def test_a_question_that_the_llm_refuses_to_read_has_no_label_and_holds_up_no_other(tmp_path):
    def filtered(prompt, rng):
        return Refused("a filter") if "capital" in prompt.partition("Question:")[2] else reads(prompt, rng)

    rows = await rated(tmp_path, ScriptedEngine(filtered))
    assert sum("difficulty" not in row for row in rows) == 1 < len(rows)


def test_the_easiest_first(tmp_path):
    path = tmp_path / "train.jsonl"
    write(
        path,
        [
            {"id": "a", "difficulty": {"label": "hard", "direct": 0.0}},
            {"id": "b", "difficulty": {"label": "easy"}},
            {"id": "c"},
            {"id": "d", "difficulty": None},
            {"id": "e", "difficulty": {"label": "medium"}},
            {"id": 6, "difficulty": {"label": "easy"}},
        ],
    )
    ranks = curriculum([path], 6, seed=0)
    assert ranks == {"a": 2, "b": 0, "c": 1, "d": 1, "e": 1, "6": 0}
    assert sorted("abcde", key=lambda id: ranks[id]) == ["b", "c", "d", "e", "a"]


def test_a_run_that_is_shorter_than_a_pass_meets_questions_of_every_label(tmp_path):
    counts = {"easy": 60, "medium": 30, "hard": 10}
    labels = [name for name, count in counts.items() for _ in range(count)]
    for part, own in enumerate((labels[::2], labels[1::2])):
        rows = [{"id": f"{part}-{i}", "difficulty": {"label": name}} for i, name in enumerate(own)]
        write(tmp_path / f"{part}.jsonl", rows)
    paths = [tmp_path / "0.jsonl", tmp_path / "1.jsonl"]
    whole = curriculum(paths, 100, seed=0)
    assert Counter(whole.values()) == {0: 60, 1: 30, 2: 10}
    ranks = curriculum(paths, 40, seed=0)
    assert len(ranks) == 40 and ranks.items() < whole.items()
    shares = Counter(ranks.values())
    assert 18 <= shares[0] <= 30 and 6 <= shares[1] <= 18 and shares[2] >= 1
    assert curriculum(paths, 40, seed=0) == ranks != curriculum(paths, 40, seed=1)


def test_a_curriculum_of_no_file(tmp_path):
    with pytest.raises(UserError, match=r"none\.jsonl: no such file$"):
        curriculum([tmp_path / "none.jsonl"], 1, seed=0)


def test_a_label_that_is_none(tmp_path):
    (tmp_path / "train.jsonl").write_text(json.dumps({"id": "a", "difficulty": {"label": "simple"}}) + "\n")
    with pytest.raises(UserError, match=r"train\.jsonl:1: .*simple"):
        curriculum([tmp_path / "train.jsonl"], 1, seed=0)

"""The plan for size: formulas by values worked out by hand, what grows with what, and what is measured on real parts."""

import json
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import capacity, constants
from benchmarks.constants import Asked, Constants, Line, fit, grown
from benchmarks.sizing import GIB, Limits, Prices, hosted, kinds, loads, plan, servers, shard_size
from dragoman.core.types import Passage

ROOT = Path(__file__).parents[2]
ASKED = Asked(
    system="c3po", searches=2, calls=6, llm_tokens=280, llm_seconds=0.14, proxy_tokens=600, proxy_seconds=0.42
)
C = Constants(
    cores=2,
    lucene_bytes=Line(at_zero=0, each=256),
    store_bytes=Line(at_zero=0, each=768),
    build_bytes=Line(at_zero=0, each=0),
    build_seconds=Line(at_zero=0, each=2**-10),
    open_bytes=Line(at_zero=0, each=0),
    search_seconds=Line(at_zero=0, each=2**-20),
    search_p50=Line(at_zero=0, each=2**-20),
    vector_seconds=2**-24,
    code_seconds=2**-27,
    embed_seconds=2**-6,
    query_seconds=2**-7,
    asked=ASKED,
    episode_bytes=2**14,
)
WIDE = Limits(cores=1, ram_gib=2.0**20, disk_gib=2.0**20, search_ms=1e9)
LLM = (0.14, 100.0)


def test_a_line_through_points_on_a_line_is_found():
    line = fit([10, 20, 40], [105, 205, 405])
    assert line.at_zero == pytest.approx(5) and line.each == pytest.approx(10)


def test_a_line_that_would_begin_below_zero_begins_at_zero():
    line = fit([10, 20], [5, 20])
    assert line.at_zero == 0 and line.each == pytest.approx(0.9)  # (10 * 5 + 20 * 20) / (100 + 400)


def test_a_corpus_grows_by_halves_of_its_own_passages():
    own = [Passage("a", "A", "one two three"), Passage("b", "B", "four five six seven")]
    made = list(grown(own, 20))
    assert made[:2] == own and len({passage.id for passage in made}) == 20
    assert {passage.text for passage in made[2:]} <= {
        "one two two three", "one two six seven", "four five two three", "four five six seven"
    }  # fmt: skip
    assert list(grown(own, 1)) == own[:1]


@pytest.mark.parametrize(
    ("rate", "seconds", "needed"), [(100, 0.14, 20), (100, 0.141, 21), (1, 0.14, 1), (10_000, 0.42, 6000)]
)
def test_servers_are_those_of_littles_law_at_seven_tenths(rate, seconds, needed):
    assert servers(rate, seconds, 0.7) == needed


@pytest.mark.parametrize(
    ("limits", "size"),
    [
        (replace(WIDE, search_ms=250), 2**18),  # a quarter of a second at 2^-20 seconds a passage
        (replace(WIDE, search_ms=250, cores=4), 2**20),  # four cores side by side
        (replace(WIDE, disk_gib=1), 2**20),  # 2^30 bytes at 256 + 768 a passage
        (replace(WIDE, ram_gib=1), 2**30 // 264),  # 256 of the index, 8 of the store's offsets
        (WIDE, 2**31 - 129),  # Lucene's own limit
    ],
)
def test_a_shard_is_as_large_as_the_scarcest_thing_allows(limits, size):
    assert shard_size(kinds(C)["bm25"], 10**11, limits) == size


def test_memory_to_build_an_index_limits_it_too():
    built = kinds(C.model_copy(update={"build_bytes": Line(at_zero=0, each=2**12)}))["bm25"]
    assert shard_size(built, 10**11, replace(WIDE, ram_gib=1)) == 2**18
    assert loads(built, 2**19, replace(WIDE, ram_gib=1))["memory to build it"] == 2


@pytest.mark.parametrize(
    ("kind", "ram", "disk", "seconds"),
    [
        ("bm25", 264, 1024, 2**20 * 2**-20),
        ("flat", 1536 + 8, 1536 + 768, 2**20 * 2**-24),
        # 16 * 2^10 lists with a centroid of 1,536 bytes each; 64 of them hold 2^12 of the passages
        ("ivf-pq", 48 + 8 + 8 + 24, 48 + 8 + 24 + 768, 2**14 * 2**-24 + 2**12 * 2**-27),
        # 1,536 bytes and 65 numbers: two in a read of 4,096 bytes
        ("diskann", 64 + 8, 2048 + 768, 16 / 5000),
    ],
)
def test_what_a_million_passages_need_in_each_index(kind, ram, disk, seconds):
    index = kinds(C)[kind]
    assert index.ram(2**20) == ram * 2**20 and index.disk(2**20) == disk * 2**20
    assert index.search(2**20) == pytest.approx(seconds)


def test_a_compressed_vector_takes_what_faiss_writes_for_it():
    import faiss
    import numpy as np

    index = faiss.IndexIVFPQ(faiss.IndexFlatL2(48), 48, 4, constants.CODE, 8)
    index.cp.niter = index.pq.cp.niter = 1
    vectors = np.random.default_rng(0).standard_normal((400, 48), dtype=np.float32)
    index.train(vectors)
    sizes = []
    for _ in range(2):
        index.add(vectors)
        sizes.append(faiss.serialize_index(index).size)
    assert sizes[1] - sizes[0] == 400 * (constants.CODE + 8)


def test_a_plan_by_hand():
    limits, prices = replace(WIDE, search_ms=250), Prices(core=10.0, ram_gib=0.0, disk_gib=0.0)
    made = plan(kinds(C)["bm25"], 2**20, 10, C, limits, prices, LLM)
    # Four shards; 20 searches a second of a quarter of a second each keep 5 / 0.7 machines of one core busy.
    assert (made.shards, made.replicas, made.proxies, made.llms) == (4, 8, 6, 2)
    assert made.ram_gib == 8 * 264 * 2**20 / GIB and made.disk_gib == 8
    assert made.index_month == 320 and made.month == 320 + 6 * 2 * 10 + 2 * 100
    assert made.build_core_days == 2**10 / 86_400
    assert made.breaks_first == "searches (29 x)"  # 20 a second of one second each, at 0.7


def test_a_plan_names_what_breaks_first():
    small = replace(WIDE, search_ms=1e9)
    cheap = C.model_copy(update={"search_seconds": Line(at_zero=0, each=0)})
    assert plan(kinds(cheap)["bm25"], 1000, 100, cheap, small, Prices(), LLM).breaks_first == "proxy (60 x)"
    assert plan(kinds(cheap)["bm25"], 1000, 100, cheap, small, Prices(), (1.4, 1.0)).breaks_first == "LLM (200 x)"
    assert (
        plan(kinds(cheap)["bm25"], 2**32, 1e-9, cheap, small, Prices(), LLM).breaks_first == "size of one index (2 x)"
    )


def test_a_hosted_index_is_paid_by_size_and_by_what_a_search_reads():
    free = Prices(core=0.0, hosted_gib=2.0, hosted_read=5.0)
    made = hosted(2**20, 0.5, C, Limits(), free, (0.14, 0.0))
    assert made.disk_gib == (1536 + 768) * 2**20 / GIB
    assert made.index_month == made.month == pytest.approx(made.disk_gib * 2 + made.disk_gib * 30 * 86_400 / 1e6 * 5)
    tiny = hosted(1, 0.5, C, Limits(), free, (0.14, 0.0))
    assert tiny.month == pytest.approx(0.25 * 30 * 86_400 / 1e6 * 5, rel=1e-4)


AMOUNTS = st.tuples(st.integers(1, 10**12), st.integers(1, 10**12)).map(sorted)
RATES = st.tuples(st.floats(0.01, 1e5), st.floats(0.01, 1e5)).map(sorted)
NAMES = st.sampled_from(["bm25", "flat", "ivf-pq", "diskann", "hosted"])
REAL = C.model_copy(update={
    "build_bytes": Line(at_zero=2**28, each=2000), "open_bytes": Line(at_zero=2**28, each=10),
    "search_seconds": Line(at_zero=0.001, each=1e-9),
})  # fmt: skip


def planned(name, passages, rps):
    if name == "hosted":
        return hosted(passages, rps, REAL, Limits(), Prices(), LLM)
    return plan(kinds(REAL)[name], passages, rps, REAL, Limits(), Prices(), LLM)


@given(NAMES, AMOUNTS, RATES)
def test_more_passages_never_cost_less(name, passages, rates):
    few, many = (planned(name, n, rates[0]) for n in passages)
    assert few.shards <= many.shards and few.month <= many.month and few.build_core_days <= many.build_core_days


@given(NAMES, AMOUNTS, RATES)
def test_more_requests_never_cost_less(name, passages, rates):
    few, many = (planned(name, passages[0], rps) for rps in rates)
    assert few.replicas <= many.replicas and few.llms <= many.llms and few.month <= many.month


@given(st.sampled_from(["bm25", "flat", "ivf-pq", "diskann"]), st.integers(1, 10**12))
def test_all_passages_have_a_place_and_no_machine_holds_too_much(name, passages):
    kind = kinds(REAL)[name]
    size = shard_size(kind, passages, Limits())
    assert math.ceil(passages / size) * size >= passages
    assert max(loads(kind, size, Limits()).values()) <= 1


def test_what_a_question_costs_is_divided_by_what_free_decisions_leave():
    metrics = {
        "systems": {
            "c3po@sft": {"searches": 1.8, "calls": 6.2, "tokens": 900, "seconds": 0.5},
            "c3po@oracle": {"searches": 1.8, "calls": 5.9, "tokens": 280, "seconds": 0.125},
        }
    }
    found = constants.asked(metrics, "c3po@sft", "c3po@oracle")
    assert (found.llm_tokens, found.llm_seconds, found.proxy_tokens, found.proxy_seconds) == (280, 0.125, 620, 0.375)


@pytest.fixture
def written(tmp_path) -> Path:
    path = tmp_path / "capacity.json"
    path.write_text(json.dumps({"constants": C.model_dump()}))
    return path


def test_the_plan_has_a_row_for_each_size_rate_and_index(written, capsys):
    capacity.main(["plan", "--passages", "1e6,1e9", "--rps", "1,100", "--constants", str(written)])
    *rows, slow, fast = capsys.readouterr().out.splitlines()
    assert len(rows) == 2 + 2 * 2 * 5
    assert rows[2].startswith("| 1e06 | 1 | bm25 | 1 x 1 |") and rows[6].startswith("| 1e06 | 1 | hosted | - |")
    assert slow == "1 requests/s: 1.3 GiB of episodes a day" and fast.startswith("100 requests/s: 131.8 GiB")


def test_prices_and_limits_are_options(written, capsys):
    given_ = ["plan", "--passages", "1e6", "--rps", "1", "--constants", str(written), "--index", "bm25"]
    capacity.main([*given_, "--price-core", "0", "--price-ram-gib", "0", "--price-disk-gib", "0"])
    free = capsys.readouterr().out.splitlines()[2].split(" | ")
    capacity.main([*given_, "--disk-gib", "0.25"])
    sharded = capsys.readouterr().out.splitlines()[2].split(" | ")
    assert free[8:10] == ["0", "0"] and sharded[3] == "4 x 1"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--passages", "0", "--rps", "1"], "--passages"),
        (["--passages", "many", "--rps", "1"], "--passages"),
        (["--passages", "1", "--rps", "1", "--constants", "nowhere.json"], "nowhere.json"),
    ],
)
def test_input_that_makes_no_plan_is_refused(arguments, said, capsys):
    with pytest.raises(SystemExit) as error:
        capacity.main(["plan", *arguments])
    assert error.value.code == 2 and said in capsys.readouterr().err


def test_the_tables_of_the_page_are_what_its_commands_print(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs/scale.md").read_text(encoding="utf-8")
    commands = re.findall(r"^\.venv/bin/python -m benchmarks\.capacity (plan (?!.*--constants).*)$", page, re.M)
    assert commands
    for command in commands:
        capacity.main(shlex.split(command))
        rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
        assert "\n".join(rows) in page, command


def test_one_size_makes_no_line(capsys):
    with pytest.raises(SystemExit):
        capacity.main(["measure", "--sizes", "2000"])
    assert "two at least" in capsys.readouterr().err


def test_what_was_measured_is_not_measured_again(tmp_path):
    out = tmp_path / "capacity.json"
    constants.Kept(out, "these").part("one", lambda: {"seconds": 1.0})
    again = constants.Kept(out, "these")
    assert again.part("one", lambda: {"seconds": 2.0}) == {"seconds": 1.0}
    assert constants.Kept(out, "others").part("one", lambda: {"seconds": 3.0}) == {"seconds": 3.0}


def test_a_measurement_that_was_cut_short_makes_no_plan(tmp_path, capsys):
    out = tmp_path / "capacity.json"
    constants.Kept(out, "these").write()
    with pytest.raises(SystemExit):
        capacity.main(["plan", "--passages", "1", "--rps", "1", "--constants", str(out)])
    assert "give the command `measure` again" in capsys.readouterr().err


@pytest.mark.slow
def test_what_is_measured_here_makes_a_plan(tmp_path, capsys):
    corpus, questions, out = tmp_path / "corpus.jsonl", tmp_path / "questions.jsonl", tmp_path / "capacity.json"
    rows = [{"id": str(i), "title": f"Town {i}", "text": f"Town {i} lies in land {i % 7}."} for i in range(60)]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    questions.write_text(json.dumps({"id": "q", "question": "Where does town 3 lie?", "answers": ["land 3"]}) + "\n")
    told = ["--corpus", str(corpus), "--questions", str(questions), "--episodes", str(corpus), "--out", str(out)]
    capacity.main(["measure", "--sizes", "50,500", *told])
    made = json.loads(out.read_text())
    assert list(made["measured"]) == ["index of 50", "index of 500", "vectors", "encoder"]
    found = Constants.model_validate(made["constants"])
    assert 20 < found.store_bytes.each < 200 and 0 < found.lucene_bytes.each < 1000
    assert found.open_bytes.at(50) > 50e6 and found.query_seconds > 0 and found.asked.proxy_seconds > 0
    capacity.main(["plan", "--passages", "1e9", "--rps", "1", "--constants", str(out)])
    assert "| 1e09 | 1 | bm25 |" in capsys.readouterr().out

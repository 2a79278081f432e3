"""Validation: sound files pass, and one bad row in any of them is named by file, line and expectation."""

import dataclasses
import hashlib
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import run
from fakes import drawn
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman import quality
from dragoman.config import parse_params
from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.hashing import sha256_of
from dragoman.core.stats import chi_square
from dragoman.core.types import Passage
from dragoman.corpus.chunking import with_wholes
from dragoman.quality import validate
from dragoman.quality.artifacts import Reader, find, read_corpus
from dragoman.quality.checkpoint import Checkpoints
from dragoman.quality.lines import PassageRow, read_lines
from dragoman.quality.settings import ValidateParams
from dragoman.retrieval.manifest import Manifest
from dragoman.retrieval.store import write_passages
from dragoman.rollout.record import Episode, Node, Trajectory
from dragoman.rollout.samples import samples, write_samples
from dragoman.synthesis.plan import load_plan

LIMITS = ValidateParams(max_sample_tokens=100, max_credit=1)
SIZES = {"train": 150, "dev": 20, "test": 20}

CORPUS, TRAIN, DEV = "data/mine/corpus.jsonl", "data/mine/train.jsonl", "data/mine/dev.jsonl"
INDEX, EPISODES, SAMPLES = (
    "data/index/mine/manifest.json",
    "results/seeds/episodes.jsonl",
    "results/seeds/samples.parquet",
)


def node(id: str, parent: str | None = None) -> Node:
    return Node(
        id=id, parent=parent, point=f"after {parent}", role="router", depth=1, prompt=[("user", "?")], prompt_ids=[5, 6],
        completion_ids=[7, 8], logprobs=[-0.5, -0.1], text=id, action="x", temperature=1.0, started=0, seconds=0,
        prompt_tokens=2, completion_tokens=2,
    )  # fmt: skip


def episode(key: str, stop: str = "answered") -> Episode:
    return Episode(
        key=key, question={"id": key}, system="s", config={}, nodes=[node("a"), node("b", "a"), node("c", "a")], calls=[],
        started=0, seconds=0,
        trajectories=[
            Trajectory(nodes=["a", n], steps=["a", n], answer="", passages=[], stop=stop, rewards={"em": r, "judge": None})
            for n, r in (("b", 1.0), ("c", 0.0))
        ],
    )  # fmt: skip


def make_sound(root: Path) -> Path:
    """A project with a file of each kind, all of it in order."""
    plan, rng = load_plan(), random.Random(0)
    passages = [Passage(f"p{i}", f"Town {i}", f"Town {i} lies on a river.") for i in range(sum(SIZES.values()))]
    files.write(root / CORPUS, map(dataclasses.asdict, passages))
    first = 0
    for split, size in SIZES.items():
        rows = [
            {"id": f"q{i}", "question": f"Where does town {i} lie?", "answers": [f"river {i}"], "type": "x"}
            | {"supporting_ids": [f"p{i}"], "categories": drawn(plan, rng), "difficulty": None}
            for i in range(first, first + size)
        ]
        files.write(root / "data/mine" / f"{split}.jsonl", rows)
        first += size
    index = (root / INDEX).parent
    index.mkdir(parents=True)
    Manifest("bm25", write_passages(passages, index), len(passages), {}).write(index)
    # the first was tried again, and its last line counts
    episodes = [episode("k0", "engine_fault"), *(episode(f"k{i}") for i in range(4))]
    files.write(root / EPISODES, (e.model_dump(mode="json") for e in episodes))
    write_samples(root / SAMPLES, [s for e in episodes[1:] for s in samples(e, "em")])
    files.write_json(root / "data/model/manifest.json", {"source": "smollm2", "sha256": "0"})  # not of an index
    return root


def hashes(root: Path) -> dict[Path, str]:
    return {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in root.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    return make_sound(tmp_path_factory.mktemp("sound"))


def test_sound_files_of_each_kind_pass_twice_and_are_only_read(sound, tmp_path, capfd):
    before, out = hashes(sound), tmp_path / "out"
    for _ in range(2):
        report = validate([sound / "data", sound / "results"], out, LIMITS)
    assert hashes(sound) == before
    assert {f["kind"]: f["rows"] for f in report["files"]} == {
        "corpus": 190, "questions": 150, "index": 1, "episodes": 5, "samples": 12,
    }  # fmt: skip
    assert [f["file"] for f in report["files"]] == sorted(str(sound / f) for f in (
        CORPUS, TRAIN, DEV, "data/mine/test.jsonl", INDEX, EPISODES, SAMPLES
    ))  # fmt: skip
    assert not any(f["failed"] or f["unchecked"] for f in report["files"])
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics.pop("sha256") == {f["file"]: sha256_of([Path(f["file"])]) for f in report["files"]}
    assert metrics == report["metrics"] and metrics["failed"] == 0 and metrics["expectations"] > 60
    assert json.loads((out / "report.json").read_text()) == report
    assert "data.mine.train.jsonl" in Path(report["docs"]).read_text()
    assert sorted(p.name for p in out.iterdir()) == ["gx", "metrics.json", "report.json"]
    assert capfd.readouterr() == ("", "")  # no progress bars, warnings or logs of others


# --- one bad row of each kind, all in one run ------------------------------------------------------------------------

Spoil = Callable[[Path], Any]


def rows_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def lines(edit: Callable[[list[Any]], Any]) -> Spoil:
    """Edit the rows of a JSONL file; one that is made a text is written as it is."""

    def spoil(path: Path) -> None:
        edit(rows := rows_of(path))
        path.write_text("".join((r if isinstance(r, str) else files.dumps(r)) + "\n" for r in rows))

    return spoil


def row(number: int, **changes: Any) -> Spoil:
    return lines(lambda rows: rows[number - 1].update(changes))


def table(edit: Callable[[pa.Table], pa.Table]) -> Spoil:
    return lambda path: pq.write_table(edit(pq.read_table(path)), path)


def sample(number: int, **changes: Any) -> Spoil:
    def edit(columns: pa.Table) -> pa.Table:
        rows = columns.to_pylist()
        rows[number - 1].update(changes)
        return pa.Table.from_pylist(rows, schema=columns.schema)

    return table(edit)


def manifest(**changes: Any) -> Spoil:
    return lambda path: files.write_json(path, json.loads(path.read_text()) | changes)


def raw(content: bytes) -> Spoil:
    return lambda path: path.write_bytes(content)


def invalid(rows: list[Any]) -> None:
    for i in (1, 2):
        for n in rows[i]["nodes"]:
            n.update(action=None, stop="truncated_action")
    rows[3]["nodes"][0].update(action=None, stop="invalid_action")


def leave_out(key: str) -> Spoil:
    return lines(lambda rows: [r.pop(key) for r in rows])


def one_category(rows: list[Any]) -> None:
    for r in rows:
        r["categories"]["question_phrasing"] = "concise and fancy"


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    file: str
    spoil: Spoil
    expectation: str
    lines: tuple[int, ...] | None
    value: str = ""


UNREADABLE = "every line can be read and has its fields"
CASES = [
    Case("null id", CORPUS, row(3, id=None), "id is never null", (3,)),
    Case("duplicate id", CORPUS, row(4, id="p0"), "no two passages have one id", (1, 4), "p0"),
    Case("null text", CORPUS, row(5, text=None), "text is never null", (5,)),
    Case("empty text", CORPUS, row(6, text="  \n"), "a text has 1 to 2000 words", (6,), "0"),
    Case("long text", CORPUS, row(6, text="word " * 2001), "a text has 1 to 2000 words", (6,), "2001"),
    Case("broken line", CORPUS, lines(lambda r: r.__setitem__(6, '{"id": ')), UNREADABLE, (7,), "not valid JSON"),
    Case("a list", CORPUS, lines(lambda r: r.__setitem__(6, "[]")), UNREADABLE, (7,), "expected a JSON object"),
    Case("blank id", CORPUS, row(8, id=" "), UNREADABLE, (8,), "id: "),
    Case("surrogate", CORPUS, lines(lambda r: r.__setitem__(1, '{"id":"p1","title":"","text":"\\ud800"}')), UNREADABLE, (2,)),
    Case("a number", CORPUS, row(8, text=8), UNREADABLE, (8,), "text: Input should be a valid string"),
    Case("missing column", CORPUS, leave_out("text"), UNREADABLE, tuple(range(1, 11)), "text: Field required"),
    Case("not utf-8", CORPUS, raw(b'{"id":"a","title":"","text":"x"}\n{"id":"\xff"}\n'), UNREADABLE, (2,), "not valid UTF-8"),
    Case("empty", CORPUS, raw(b""), "the file is not empty", None),
    Case("question without id", TRAIN, row(2, id=None), "id is never null", (2,)),
    Case("question id twice", TRAIN, row(2, id="q4"), "no two questions have one id", (2, 5), "q4"),
    Case("question null", TRAIN, row(2, question=None), "question is never null", (2,)),
    Case("question twice", TRAIN, row(2, question="where does  TOWN 4 lie"), "no question is asked twice", (2, 5)),
    Case("short question", TRAIN, row(2, question="Where?"), "a question has 2 to 200 words", (2,)),
    Case("no answer", TRAIN, row(3, answers=[]), "a question has an answer", (3,)),
    Case("null answers", TRAIN, row(3, answers=None), "a question has an answer", (3,)),
    Case("empty answer", TRAIN, row(3, answers=["x", ""]), "no answer is empty", (3,)),
    Case("answers no list", TRAIN, row(3, answers="x"), UNREADABLE, (3,), "answers: Input should be a valid list"),
    Case("unknown passage", TRAIN, row(4, supporting_ids=["p3", "px"]), "supporting passages are in the corpus", (4,), "px"),
    Case("leaked question", DEV, row(5, question="Where does town 7 lie"), "no question is in two splits", (5,), "train.jsonl:8"),
    Case("leaked passage", DEV, row(6, supporting_ids=["p9"]), "no two splits of synthetic questions share a supporting passage",
         (6,), "p9 in train.jsonl:10"),
    Case("unplanned", DEV, row(7, categories={"premise": "with promise"}), "categories are those of the plan", (7,)),
    Case("skewed", TRAIN, lines(one_category), "categories are spread as planned (p >= 0.0001)", None,
         "question_phrasing: 150 of 150 are 'concise and fancy', planned 7.5"),
    Case("empty split", TRAIN, raw(b"\n"), "the file is not empty", None),
    Case("other count", INDEX, manifest(passages=189), "the index has as many passages as the corpus", None, "189, 190"),
    Case("other corpus", INDEX, manifest(corpus_sha256="0"), "the index was built from the corpus as it is now", None),
    Case("no manifest", INDEX, raw(b"{"), UNREADABLE, None, "build the index again"),
    Case("reward", EPISODES, lines(lambda r: r[2]["trajectories"][0]["rewards"].update(em=1.5)),
         "a reward is within its bounds, or null", (3,), "em 1.5"),
    Case("reward nan", EPISODES, lines(lambda r: r[2]["trajectories"][0]["rewards"].update(em=float("nan"))),
         "a reward is within its bounds, or null", (3,), "em nan"),
    Case("no such node", EPISODES, lines(lambda r: r[3]["trajectories"][1]["nodes"].append("z")),
         "the nodes and steps of a trajectory exist", (4,), "z"),
    Case("no such step", EPISODES, lines(lambda r: r[3]["trajectories"][1]["steps"].append("z")),
         "the nodes and steps of a trajectory exist", (4,), "z"),
    Case("no such parent", EPISODES, lines(lambda r: r[3]["nodes"][1].update(parent="z")), "the parents of a node exist", (4,), "z"),
    Case("key twice", EPISODES, row(3, key="k2"), "no two episodes have one key", (3, 4), "k2"),
    Case("no trajectory", EPISODES, row(5, trajectories=[]), "an episode has a trajectory", (5,)),
    Case("field", EPISODES, row(5, sytsem="s"), UNREADABLE, (5,), "sytsem: Extra inputs are not permitted"),
    Case("schema", EPISODES, row(5, schema_version=9), UNREADABLE, (5,), "schema_version is 9"),
    Case("torn", EPISODES, lambda path: path.write_bytes(path.read_bytes()[:-9]), UNREADABLE, (5,), "not valid JSON"),
    Case("failed", EPISODES, lines(lambda r: r[4]["trajectories"][0].update(stop="engine_fault")),
         "at most 10% of the trajectories failed", (5,), "12.5% are"),
    Case("invalid actions", EPISODES, lines(invalid), "at most 50% of the actions are invalid", (2, 3, 4), "58.3% are"),
    Case("over-long", SAMPLES, sample(3, prompt_ids=[1] * 99), "prompt and completion have at most 100 tokens", (3,), "101"),
    Case("credit", SAMPLES, sample(4, credit=1.5), "credit is at least -1 and at most 1", (4,), "1.5"),
    Case("null credit", SAMPLES, sample(4, credit=None), "credit is never null", (4,)),
    Case("nan credit", SAMPLES, sample(4, credit=float("nan")), "credit is never null", (4,)),
    Case("no completion", SAMPLES, sample(5, completion_ids=[], logprobs=[]), "an action has tokens, or marks", (5,), "0"),
    Case("logprobs", SAMPLES, sample(6, logprobs=[-1.0]),
         "there is a log-probability for each token or mark of an action, or none at all", (6,), "1 for 2"),
    Case("temperature", SAMPLES, sample(7, temperature=-1.0), "a temperature is not negative", (7,)),
    Case("node twice", SAMPLES, sample(2, node="a"), "no node of an episode is there twice", (1, 2)),
    Case("null role", SAMPLES, sample(8, role=None), "role is never null", (8,)),
    Case("no column", SAMPLES, table(lambda t: t.drop_columns(["credit"])), UNREADABLE, None, "no column credit"),
    Case("type", SAMPLES, table(lambda t: t.set_column(t.schema.names.index("credit"), "credit", pa.array(["1"] * 12))),
         UNREADABLE, None, "column credit is of type string"),
    Case("no parquet", SAMPLES, raw(b"text"), UNREADABLE, None, "Parquet"),
    Case("no sample", SAMPLES, table(lambda t: t[:0]), "the file is not empty", None),
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Refused:
    root: Path
    out: Path
    message: str
    before: dict[Path, str]
    report: dict[str, Any]


@pytest.fixture(scope="module")
def refused(tmp_path_factory) -> Refused:
    """Every case in a project of its own, and one validation of all the bad files."""
    root = tmp_path_factory.mktemp("refused")
    for case in CASES:
        project = make_sound(root / case.name)
        case.spoil(project / case.file)
    before, out = hashes(root), root.with_name("out")
    with pytest.raises(UserError) as e:
        validate([root / case.name / case.file for case in CASES], out, LIMITS)
    return Refused(root, out, str(e.value), before, json.loads((out / "report.json").read_text()))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_bad_row_is_named_by_file_line_and_expectation(refused, case):
    path = str(refused.root / case.name / case.file)
    (file,) = [f for f in refused.report["files"] if f["file"] == path]
    failed = {f["expectation"]: f for f in file["failed"]}
    assert case.expectation in failed, failed
    found = failed[case.expectation]
    if case.lines is not None:
        assert tuple(bad["line"] for bad in found["first"]) == case.lines
        assert found["rows"] >= len(case.lines)
    assert all(case.value in str(bad) for bad in found["first"])
    (told,) = [
        line for line in refused.message.splitlines() if line.startswith(f"  {path} ") and case.expectation in line
    ]
    for line in (case.lines or ())[:3]:
        assert f"{path}:{line}" in told
    assert case.value in told


def test_nothing_but_what_was_spoilt_is_refused(refused):
    assert [len(file["failed"]) for file in refused.report["files"]] == [1] * len(CASES)


def test_a_refusal_comes_after_everything_is_written_and_changes_no_file(refused):
    assert hashes(refused.root) == refused.before
    metrics = json.loads((refused.out / "metrics.json").read_text())
    assert metrics["files"] == len(CASES) and metrics["failed"] == sum(
        len(f["failed"]) for f in refused.report["files"]
    )
    head, *_, foot = refused.message.splitlines()
    assert (
        head
        == f"{metrics['failed']} of {metrics['expectations']} expectations are not met, in {len(CASES)} of {len(CASES)} files"
    )
    assert (
        f"{refused.out}/report.json" in foot
        and refused.report["docs"] in foot
        and Path(refused.report["docs"]).is_file()
    )


# --- what cannot be checked at all -----------------------------------------------------------------------------------


def test_an_empty_suite_is_refused(sound, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="suite corpus: has no expectation"):
        Checkpoints(tmp_path, {"corpus": []})
    monkeypatch.setattr(quality, "suites", lambda limits: {"file": [], "corpus": []})
    with pytest.raises(UserError, match="suite file: has no expectation"):
        validate([sound / CORPUS], tmp_path / "out", LIMITS)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("data/model", r"data/model: nothing to validate; expected corpus\.jsonl, train\.jsonl"),
        ("nowhere", "nowhere: no such file or folder"),
        (
            "data/index/mine/passages.jsonl",
            r"passages\.jsonl: not a file that can be validated; there are corpus\.jsonl",
        ),
    ],
)
def test_nothing_to_check_is_an_error(sound, tmp_path, path, message):
    with pytest.raises(UserError, match=message):
        validate([sound / path], tmp_path / "out", LIMITS)
    assert not (tmp_path / "out").exists()


def test_a_project_of_great_expectations_that_is_not_ours_is_left_alone(sound, tmp_path):
    (tmp_path / "gx").mkdir()
    (tmp_path / "gx" / "great_expectations.yml").write_text("mine")
    with pytest.raises(UserError, match="gx: made by something else; give another folder"):
        validate([sound / CORPUS], tmp_path, LIMITS)
    assert (tmp_path / "gx" / "great_expectations.yml").read_text() == "mine"


def test_what_lacks_its_corpus_is_said_to_be_unchecked(sound, tmp_path, caplog):
    for name in ("dev.jsonl", "manifest.json"):
        source = sound / (DEV if name == "dev.jsonl" else INDEX)
        (tmp_path / name).write_bytes(source.read_bytes())
    report = validate([tmp_path], tmp_path / "out", LIMITS)
    assert [f["unchecked"] for f in report["files"]] == [
        [f"that supporting passages exist: there is no {tmp_path / 'corpus.jsonl'}"],
        ["that it is an index of the corpus: which corpus is not known"],
    ]
    assert caplog.text.count("not checked that") == 2


def test_an_index_of_no_name_s_corpus_is_compared_with_the_corpus_of_its_hash_alone(sound, tmp_path):
    data = shutil.copytree(sound / "data", tmp_path / "data")
    shutil.copytree(data / "index/mine", data / "index/copy")
    shutil.copytree(data / "index/mine", data / "index/mine-graph")
    Manifest("graph", "the hash of its triples", 3, {}).write(data / "index/mine-graph")
    reader = Reader(find([data]), load_plan())
    assert {
        name: reader.read(data / "index" / name / "manifest.json").unchecked for name in ("copy", "mine-graph")
    } == {
        "copy": (),
        "mine-graph": ("that it is an index of the corpus: which corpus is not known",),
    }


def test_questions_that_differ_in_the_marks_of_a_name_are_not_asked_twice(tmp_path):
    for split, names in (("train", ("C", "C++")), ("test", ("C#",))):
        files.write(
            tmp_path / f"{split}.jsonl", ({"id": n, "question": f"Who made {n}?", "answers": ["a"]} for n in names)
        )
    questions = Reader([], load_plan()).read(tmp_path / "train.jsonl").tables[1].frame
    assert questions.normalised.is_unique and questions.also_asked_in.isna().all()


def test_a_text_without_blanks_is_measured_by_its_characters(tmp_path):
    files.write(tmp_path / "train.jsonl", [{"id": "a", "question": "不丹的首都是什么？", "answers": ["a"]}])
    files.write(tmp_path / "corpus.jsonl", [{"id": "a", "title": "", "text": "不丹的首都"}])
    reader = Reader([], load_plan())
    counts = [reader.read(tmp_path / name).tables[1].frame.words.item() for name in ("train.jsonl", "corpus.jsonl")]
    assert counts == [4, 3]


def test_questions_of_people_may_share_passages_and_name_what_chunks_were_cut_from(sound, tmp_path):
    files.write(
        tmp_path / "corpus.jsonl", [{"id": "p#0", "title": "", "text": "a b"}, {"id": "p#1", "title": "", "text": "c"}]
    )
    assert read_corpus(tmp_path / "corpus.jsonl").ids == with_wholes(["p#0", "p#1"]) == {"p", "p#0", "p#1"}
    for split in ("train", "test"):
        row = {"id": "q", "question": f"Which {split}?", "answers": ["a"], "supporting_ids": ["p"]}
        files.write(tmp_path / f"{split}.jsonl", [row])
    assert validate([tmp_path], tmp_path / "out", LIMITS)["metrics"]["failed"] == 0


# --- the parts -------------------------------------------------------------------------------------------------------

contents = st.lists(
    st.sampled_from([b'{"id":"a","title":"","text":"x"}', b'{"id":1}', b"{", b"[]", b"", b" ", b"\xff", b'"\\ud800"'])
    | st.binary()
).map(b"\n".join)


@given(contents)
def test_every_line_is_a_row_or_a_fault(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(content)
    read = read_lines(path, PassageRow)
    body = content.removeprefix(b"\xef\xbb\xbf")
    assert sorted([*read.rows, *read.faults]) == [n for n, raw in enumerate(body.split(b"\n"), start=1) if raw.strip()]


shares = st.lists(st.integers(1, 50), min_size=1, max_size=8)


@given(shares, st.lists(st.integers(0, 200), min_size=8, max_size=8))
@example([1, 1, 1, 1, 1], [12, 0, 0, 0, 0, 0, 0, 0])
def test_a_probability_whatever_the_counts(weights, numbers):
    probabilities = {str(i): w / sum(weights) for i, w in enumerate(weights)}
    counts = dict(zip(probabilities, numbers, strict=False))
    assert 0 <= chi_square(counts, probabilities) <= 1
    assert chi_square({c: w * 50 for c, w in zip(probabilities, weights, strict=True)}, probabilities) > 0.999


def test_chi_square_by_hand():
    # (60 - 50)^2 / 50 twice is 4, with one degree of freedom
    assert chi_square({"a": 60, "b": 40}, {"a": 0.5, "b": 0.5}) == pytest.approx(0.0455, abs=1e-4)
    # of a and b 2 and 4 are expected, so they count as one: 6 and 34 expected, 10 and 30 found
    assert chi_square({"a": 9, "b": 1, "c": 30}, {"a": 0.05, "b": 0.1, "c": 0.85}) == pytest.approx(
        chi_square({"ab": 10, "c": 30}, {"ab": 0.15, "c": 0.85})
    )
    assert chi_square({"a": 4}, {"a": 0.5, "b": 0.5}) == 1.0  # too few to say


def test_what_is_drawn_from_the_plan_is_seldom_improbable():
    plan, rng = load_plan(), random.Random(1)
    probabilities = {c: s.probability for c, s in plan.categorizations["question_phrasing"].items()}
    p = []
    for n in (10, 40, 150):
        for _ in range(200):
            p.append(chi_square(Counter(drawn(plan, rng)["question_phrasing"] for _ in range(n)), probabilities))
    assert min(p) > 1e-4 and sum(v < 0.05 for v in p) / len(p) < 0.08


def test_its_section_is_named_as_the_command_is():
    params = parse_params({"validate": {"max_question_words": 9}}, origin="params.yaml")
    assert params.validation.max_question_words == 9
    with pytest.raises(UserError, match=r"validate\.max_question_words: Input should be greater"):
        parse_params({"validate": {"max_question_words": 0}}, origin="params.yaml")
    with pytest.raises(UserError, match="validation: unknown key"):
        parse_params({"validation": {}}, origin="params.yaml")


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    make_sound(tmp_path)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "cpu.yaml").write_text("{}")
    (tmp_path / "params.yaml").write_text("datasets: [mine]\ncorpus: {mine: {}}\ntrain: {dataset: mine}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_by_default_datasets_and_seeds_are_checked_and_recorded(project, capsys, empty_store):
    import mlflow

    shutil.copytree(empty_store, "mlruns")
    code, out, err = run(capsys, "validate")
    assert code == 0 and "error" not in err
    assert out.startswith("6 files, 397 rows: all ") and len(out.splitlines()) == 1
    assert "results/validate/report.json, results/validate/gx/" in out
    (recorded,) = mlflow.search_runs(experiment_names=["dragoman"], output_format="list")
    assert recorded.data.tags["stage"] == "validate" and recorded.data.metrics["files"] == 6
    assert recorded.data.params["max_sample_tokens"] == "4096"  # of proxy.max_model_len
    assert recorded.data.params["max_credit"] == "1.0"  # of train.reward


def test_a_shaped_reward_gives_more_credit(project, capsys):
    sample(3, credit=1.9)(project / SAMPLES)
    assert run(capsys, "validate", "results/seeds", "--no-track")[0] == 2
    with (project / "params.yaml").open("a") as params:
        params.write("rl: {shaping: 0.7 * gold_recall + 0.3 * gold_precision}\n")
    assert run(capsys, "validate", "results/seeds", "--no-track")[0] == 0


def test_a_refusal_is_a_table_and_exit_code_2(project, capsys):
    sample(3, prompt_ids=[1] * 300)(project / SAMPLES)
    (project / "params.yaml").write_text("proxy: {max_model_len: 256}\n")
    code, out, err = run(capsys, "validate", "data/mine", "results/seeds", "--no-track", "--out", "o")
    assert (code, out) == (2, "") and "Traceback" not in err
    assert f"{SAMPLES}:3 (302)" in err and "at most 256 tokens" in err and "o/gx/uncommitted/data_docs" in err


def test_a_plan_of_ones_own(project, capsys):
    (project / "plan.yaml").write_text(
        "categorizations: {mood: {merry: {probability: 1, description: Be merry.}}}\ncombinations: [[mood]]\n"
    )
    code, _, err = run(capsys, "validate", DEV, "--plan", "plan.yaml", "--no-track")
    assert code == 2 and f"{DEV}:1 (user_expertise: " in err and "categories are those of the plan" in err

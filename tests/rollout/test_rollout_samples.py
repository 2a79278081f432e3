"""Samples: what a trainer sees of a tree, and their way through a file and back."""

import dataclasses
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.errors import UserError
from dragoman.engines.base import Constraint
from dragoman.rollout.record import Episode, Node, Trajectory
from dragoman.rollout.samples import Sample, read_samples, samples, write_samples


def node(id: str, point: str, **changes) -> Node:
    plain = Node(
        id=id, parent=None, point=point, role="filter", depth=2, prompt=[("user", "?")], prompt_ids=[5, 6],
        completion_ids=[7], logprobs=[-0.5], text=id, action={"type": "Keep", "ids": [1]}, temperature=1.0,
        started=0, seconds=0, prompt_tokens=2, completion_tokens=1,
    )  # fmt: skip
    return plain.model_copy(update=changes)


def episode(nodes: list[Node], ways: list[tuple[list[str], float | None]]) -> Episode:
    return Episode(
        key="k", question={"id": "q1"}, system="s", config={}, nodes=nodes, calls=[], started=0, seconds=0,
        trajectories=[
            Trajectory(nodes=w, steps=w, answer="", passages=[], stop="answered", rewards={"r": r, "other": 0.0})
            for w, r in ways
        ],
    )  # fmt: skip


SAMPLE = Sample(
    episode="k", question="q1", node="n", group="k/p", role="filter", kind="Keep", depth=2, forced=False,
    prompt_ids=(5, 6), completion_ids=(7,), logprobs=(-0.5,), temperature=1.0, grammar=None, credit=0.25,
)  # fmt: skip


def test_a_sample_is_its_node_with_the_credit_of_the_tree():
    root = node(
        "a", "top", role="router", depth=1, forced=True, action={"type": "Plan"}, grammar={"regex": "a|b"}, merged=2
    )
    left = node(
        "b", "below a", parent="a", prompt_ids=[1, 2, 3], completion_ids=[8, 9], logprobs=[-0.25, -1.5], temperature=0.5
    )
    right = node("c", "below a", parent="a", action={"type": "Answer", "thought": ""})
    tree = episode([root, left, right], [(["a", "b"], 1.0), (["a", "c"], 0.0), (["a", "c"], 1.0)])
    first, second, third = samples(tree, "r")
    assert first == Sample(
        episode="k", question="q1", node="a", group="k/top", role="router", kind="Plan", depth=1, forced=True,
        prompt_ids=(5, 6), completion_ids=(7,), logprobs=(-0.5,), temperature=1.0, grammar=Constraint(regex="a|b"),
        credit=0.75, draws=3,
    )  # fmt: skip
    assert (second.prompt_ids, second.completion_ids, second.logprobs) == ((1, 2, 3), (8, 9), (-0.25, -1.5))
    assert (second.kind, second.temperature, second.grammar, second.credit) == ("Keep", 0.5, None, 1.0)
    assert (third.kind, third.credit) == ("Answer", 0.5)


def test_credit_is_that_of_the_reward_that_was_asked_for():
    tree = episode([node("a", "top")], [(["a"], 1.0)])
    assert [s.credit for s in samples(tree, "r")] == [1.0]
    assert [s.credit for s in samples(tree, "other")] == [0.0]
    assert [s.credit for s in samples(tree, "r", price=0.25)] == [0.75]
    assert samples(tree, "no such reward") == []


def test_a_price_is_kept_apart_from_what_was_earned():
    root = node("a", "top", depth=1)
    below = [node(id, "below a", parent="a") for id in ("b", "c")]
    tree = episode([root, *below], [(["a", "b"], 1.0), (["a", "c"], 0.0)])
    assert [(s.node, s.credit, s.cost, s.raw_credit) for s in samples(tree, "r", price=0.25)] == [
        ("a", 0.0, 0.5, 0.5),
        ("b", 0.5, 0.5, 1.0),
        ("c", -0.5, 0.5, 0.0),
    ]


def test_siblings_share_a_group_and_equal_points_of_two_questions_do_not():
    tree = episode(
        [node("a", "top"), node("b", "top"), node("c", "elsewhere")], [(["a"], 1.0), (["b"], 0.0), (["c"], 0.0)]
    )
    groups = [s.group for s in samples(tree, "r")]
    assert groups[0] == groups[1] != groups[2]
    other = samples(tree.model_copy(update={"key": "l"}), "r")
    assert not {s.group for s in other} & set(groups)


def test_a_node_of_which_no_leaf_was_scored_gives_no_sample():
    tree = episode([node("a", "top"), node("b", "top")], [(["a"], None), (["b"], 0.0)])
    assert [(s.node, s.credit) for s in samples(tree, "r")] == [("b", 0.0)]


@pytest.mark.parametrize("missing", ["prompt_ids", "completion_ids"])
def test_a_node_whose_token_ids_the_engine_did_not_report_gives_no_sample(missing):
    tree = episode([node("a", "top", **{missing: []}), node("b", "top")], [(["a"], 1.0), (["b"], 1.0)])
    assert [s.node for s in samples(tree, "r")] == ["b"]


@pytest.mark.parametrize("action", [None, "prose"])
def test_a_text_that_is_no_action_of_a_kind_has_an_empty_kind(action):
    (sample,) = samples(episode([node("a", "top", action=action)], [(["a"], 0.0)]), "r")
    assert sample.kind == ""


def test_a_forced_text_that_is_no_action_is_a_sample_of_the_kind_that_was_forced():
    (sample,) = samples(episode([node("a", "top", action=None, forced_to="Keep")], [(["a"], 0.0)]), "r")
    assert sample.kind == "Keep"


ids = st.lists(st.integers(0, 2**31 - 1), max_size=6).map(tuple)
floats = st.floats(allow_nan=False, allow_infinity=False, width=32)
grammars = st.none() | st.builds(Constraint, regex=st.text()) | st.builds(Constraint, json_schema=st.text())
any_sample = st.builds(
    Sample,
    **{name: st.text(max_size=8) for name in ("episode", "question", "node", "group", "role", "kind")},
    depth=st.integers(1, 2**31 - 1),
    forced=st.booleans(),
    prompt_ids=ids,
    completion_ids=ids,
    logprobs=st.lists(floats, max_size=6).map(tuple),
    temperature=floats,
    grammar=grammars,
    credit=st.floats(allow_nan=False),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("samples")


@given(st.lists(any_sample, max_size=4))
@examples()
def test_samples_come_back_from_a_file_as_they_were(folder, rows):
    path = folder / "samples.parquet"
    write_samples(path, rows)
    assert read_samples(path) == rows


def test_log_probabilities_are_kept_in_single_precision(tmp_path):
    write_samples(tmp_path / "s.parquet", [dataclasses.replace(SAMPLE, logprobs=(-0.123457, -12.345678))])
    (sample,) = read_samples(tmp_path / "s.parquet")
    assert sample.logprobs == pytest.approx((-0.123457, -12.345678), rel=1e-7)


def test_the_temperature_of_the_cpu_profile_comes_back_as_it_was(tmp_path):
    write_samples(tmp_path / "s.parquet", [dataclasses.replace(SAMPLE, temperature=0.7)])
    assert read_samples(tmp_path / "s.parquet")[0].temperature == 0.7


def test_the_folder_is_made_and_an_earlier_file_is_replaced(tmp_path):
    path = tmp_path / "new" / "folder" / "samples.parquet"
    write_samples(path, [SAMPLE, SAMPLE])
    write_samples(path, [SAMPLE])
    assert read_samples(path) == [SAMPLE]
    assert list(path.parent.iterdir()) == [path]


def test_a_write_that_fails_half_way_leaves_the_earlier_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "samples.parquet"
    write_samples(path, [SAMPLE])

    def full_disk(table, where, **options):
        Path(where).write_bytes(b"PAR1 half of")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(pq, "write_table", full_disk)
        with pytest.raises(OSError, match="No space left"):
            write_samples(path, [SAMPLE, SAMPLE])
    assert list(tmp_path.iterdir()) == [path]
    assert read_samples(path) == [SAMPLE]


def test_a_row_that_does_not_fit_writes_nothing(tmp_path):
    with pytest.raises(pa.ArrowInvalid):
        write_samples(tmp_path / "s.parquet", [SAMPLE, dataclasses.replace(SAMPLE, prompt_ids=(2**31,))])
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_says_which_commands_write_one(tmp_path):
    path = tmp_path / "samples.parquet"
    with pytest.raises(
        UserError, match=r"samples\.parquet: no such file; `dragoman rollout` and `dragoman seeds`"
    ) as e:
        read_samples(path)
    assert str(e.value).startswith(str(path))


@pytest.mark.parametrize("content", [b"", b"a line of text\n", b'{"id": "q1"}\n' * 100], ids=["empty", "text", "json"])
def test_a_file_that_is_not_parquet_is_refused_by_name(tmp_path, content):
    path = tmp_path / "samples.parquet"
    path.write_bytes(content)
    with pytest.raises(UserError, match="not a file of samples") as e:
        read_samples(path)
    assert str(e.value).startswith(f"{path}: ") and "\n" not in str(e.value)


@pytest.mark.parametrize("missing", ["credit", "grammar", "episode"])
def test_a_table_without_one_of_the_columns_is_refused_by_name(tmp_path, missing):
    path = tmp_path / "samples.parquet"
    write_samples(path, [SAMPLE])
    pq.write_table(pq.read_table(path).drop_columns([missing]), path)
    with pytest.raises(UserError, match=f"not a file of samples .*{missing}") as e:
        read_samples(path)
    assert str(e.value).startswith(f"{path}: ")


def test_a_file_with_a_damaged_page_is_refused_by_name(tmp_path):
    path = tmp_path / "samples.parquet"
    write_samples(path, [SAMPLE])
    content = bytearray(path.read_bytes())
    content[4:200] = b"\xff" * 196
    path.write_bytes(content)
    with pytest.raises(UserError, match="not a file of samples"):
        read_samples(path)


def test_further_columns_do_no_harm(tmp_path):
    path = tmp_path / "samples.parquet"
    write_samples(path, [SAMPLE])
    pq.write_table(pq.read_table(path).append_column("note", pa.array(["mine"])), path)
    assert read_samples(path) == [SAMPLE]

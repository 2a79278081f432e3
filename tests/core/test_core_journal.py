"""The journal: each value is computed once, whatever ends the process in between."""

from pathlib import Path

import pytest

from dragoman.core.errors import UserError
from dragoman.core.journal import Journal


async def answers(path, *keys, value=1):
    """The values of these keys and those that had to be computed, in a process of their own."""
    computed = []

    async def compute(key):
        computed.append(key)
        return {"of": key, "is": value}

    with Journal(path) as journal:
        return [await journal.get(key, lambda key=key: compute(key)) for key in keys], computed


async def test_a_value_is_computed_once(tmp_path):
    path = tmp_path / "deep" / "journal.jsonl"
    first, computed = await answers(path, "a", "b", "a")
    assert computed == ["a", "b"] and first[0] == first[2] == {"of": "a", "is": 1}
    again, computed = await answers(path, "b", "c", "a", value=2)
    assert computed == ["c"]
    assert [value["is"] for value in again] == [1, 2, 1]


async def test_an_empty_value_is_a_value(tmp_path):
    async def nothing():
        return None

    async def never():
        raise AssertionError

    with Journal(tmp_path / "j") as journal:
        assert await journal.get("a", nothing) is None
    with Journal(tmp_path / "j") as journal:
        assert await journal.get("a", never) is None


async def test_what_failed_is_not_written_down(tmp_path):
    async def fail():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError), Journal(tmp_path / "j") as journal:
        await journal.get("a", fail)
    assert (await answers(tmp_path / "j", "a"))[1] == ["a"]


async def test_a_value_is_on_disk_before_it_is_used(tmp_path):
    with Journal(tmp_path / "j") as journal:

        async def value():
            return "été"

        await journal.get("a", value)
        assert (tmp_path / "j").read_text(encoding="utf-8") == '{"key":"a","value":"été"}\n'


@pytest.mark.parametrize("cut", range(1, 30, 4))
async def test_a_torn_last_line_is_computed_again(tmp_path, cut):
    path = tmp_path / "j"
    await answers(path, "a", "b")
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert (await answers(path, "a", "b"))[1] == ["b"]
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("line", "fault"), [(b"{oops", "not valid JSON"), (b"5", "a JSON object, found int"), (b"\xff", "not valid UTF-8")]
)
async def test_a_broken_line_in_the_middle_is_named(tmp_path, line, fault):
    path = tmp_path / "j"
    await answers(path, "a", "b")
    path.write_bytes(line + b"\n" + path.read_bytes())
    with pytest.raises(UserError, match=rf"j:1: .*{fault}.*; move the file away$"):
        await answers(path, "a")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
async def test_a_full_disk_says_what_to_do():
    path = Path("/dev/full")  # takes no byte
    with pytest.raises(UserError, match=r"^/dev/full: cannot write \(No space left on device\); make room and run"):
        await answers(path, "a")


async def test_a_journal_that_is_open_is_not_opened_again(tmp_path):
    with Journal(tmp_path / "j"), pytest.raises(UserError, match="is writing there"):
        await answers(tmp_path / "j", "a")
    assert await answers(tmp_path / "j", "a") == ([{"of": "a", "is": 1}], ["a"])

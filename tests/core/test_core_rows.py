"""What is said of a line that is no row."""

from __future__ import annotations

import pytest

from dragoman.core.rows import numbered


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (b"1" * 5000, "not valid JSON (a number has too many digits)"),
        (b"[" * 100_000 + b"]" * 100_000, "not valid JSON (it is nested too deeply)"),
    ],
)
def test_json_that_python_does_not_take_is_a_fault_of_its_line(value: bytes, fault: str) -> None:
    assert list(numbered([b'{"n": ' + value + b"}\n", b'{"n": 1}\n'])) == [(1, fault), (2, {"n": 1})]


def test_a_line_that_is_cut_off_is_told_by_the_column_where_it_ends() -> None:
    assert list(numbered([b'{"id": "a"\n', b'{"id": "b"}\n'])) == [
        (1, "not valid JSON (Expecting ',' delimiter at column 11)"),
        (2, {"id": "b"}),
    ]

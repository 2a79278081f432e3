from __future__ import annotations

from dragoman.core.settings import flatten


def test_nested_values_are_flat_under_dotted_keys():
    assert flatten({"a": {"b": 1, "c": {"d": 2}}, "e": 3}) == {"a.b": 1, "a.c.d": 2, "e": 3}

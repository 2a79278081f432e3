"""How a system is called, with its policy and the roles that an oracle plays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.systems.system_name import WITH_ORACLE, SystemName

SYSTEMS = st.text(min_size=1).filter(lambda text: "@" not in text)
POLICIES = st.one_of(st.text(), st.text("@+oracle:,")).filter(lambda text: WITH_ORACLE not in text)
ROLES = st.lists(st.text(min_size=1).filter(lambda text: "," not in text), max_size=3).map(tuple)


@given(st.builds(SystemName, SYSTEMS, POLICIES, ROLES))
def test_a_name_is_read_as_it_was_written(name):
    assert SystemName.parse(str(name)) == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("c3po", SystemName("c3po")),
        ("c3po@sft", SystemName("c3po", "sft")),
        ("c3po@results/a@b/rl", SystemName("c3po", "results/a@b/rl")),
        ("c3po@oracle", SystemName("c3po", "oracle")),
        ("c3po@+oracle:filter", SystemName("c3po", "", ("filter",))),
        ("c3po@sft+oracle:filter,decide", SystemName("c3po", "sft", ("filter", "decide"))),
    ],
)
def test_a_name_as_people_write_it_is_read_and_written(text, name):
    assert SystemName.parse(text) == name
    assert str(name) == text


@pytest.mark.parametrize(
    ("text", "is_oracle", "needs_gold"),
    [
        ("c3po", False, False),
        ("c3po@sft", False, False),
        ("c3po@oracle", True, True),
        ("c3po@sft+oracle:filter", False, True),
        ("c3po@oracle+oracle:filter", False, True),  # the untrained base decides in the other roles
    ],
)
def test_an_oracle_needs_gold_passages_in_whichever_role_it_decides(text, is_oracle, needs_gold):
    name = SystemName.parse(text)
    assert (name.is_oracle, name.needs_gold) == (is_oracle, needs_gold)

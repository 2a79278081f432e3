import pytest

from dragoman.core.errors import UserError
from dragoman.systems import ablation, ablations, build, system_names


@pytest.mark.parametrize(
    ("system", "name"), [(system, name) for system in system_names() for name in ablations(system)]
)
def test_every_ablation_is_a_system_that_can_be_built(system, name):
    assert build(system, ablation(system, name).settings).roles


@pytest.mark.parametrize(
    ("system", "message"),
    [("c3po", "unknown ablation 'no-llm' of c3po: choose from no-tree, no-rl"), ("direct", "of direct: it has none")],
)
def test_an_unknown_ablation_is_named(system, message):
    with pytest.raises(UserError, match=message):
        ablation(system, "no-llm")

import pytest

from dragoman.core.errors import UserError
from dragoman.systems import build
from dragoman.systems.c3po.ablations import ABLATIONS, ablation


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_ablation_is_a_system_that_can_be_built(name):
    assert build("c3po", dict(ablation(name).settings)).roles


def test_an_unknown_one_is_named():
    with pytest.raises(UserError, match="unknown ablation 'no-llm': choose from no-tree, no-rl"):
        ablation("no-llm")

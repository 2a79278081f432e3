import pytest

from dragoman.core.hub import split_revision


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("org/model", ("org/model", None)),
        ("org/model@0a1b2c", ("org/model", "0a1b2c")),
        ("org/model@refs/pr/1", ("org/model", "refs/pr/1")),
        ("smollm2", ("smollm2", None)),
        ("@rev", ("@rev", None)),
        ("model@", ("model@", None)),
    ],
)
def test_a_revision_stands_behind_the_last_at(name, split):
    assert split_revision(name) == split


def test_a_folder_with_an_at_in_its_name_is_a_name(tmp_path):
    folder = tmp_path / "mine@home"
    folder.mkdir()
    assert split_revision(str(folder)) == (str(folder), None)
    assert split_revision(str(tmp_path / "other@home")) == (str(tmp_path / "other"), "home")

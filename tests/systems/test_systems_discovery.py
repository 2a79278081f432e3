"""Systems are found by folder and by entry point, and what is wrong with one is said when it is asked for."""

import re
import subprocess
import sys

import pytest

from dragoman.core.errors import UserError
from dragoman.systems import ablations, build, discovery, profile_settings, system_names

GOOD = """
from dataclasses import dataclass
from dragoman.systems.base import System

@dataclass(frozen=True)
class Echo(System):
    times: int = 1

SYSTEM = Echo
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a distribution with one system in it."""

    def install(package: str, code: str, *, name: str, version: str = "1.2", profiles: str = "") -> None:
        home = tmp_path / f"{package}-home"
        info = home / f"{package}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Name: {package}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[dragoman.systems]\n{name} = {package}\n")
        (home / package).mkdir()
        (home / package / "__init__.py").write_text(code)
        if profiles:
            (home / package / "profiles.yaml").write_text(profiles)
        monkeypatch.syspath_prepend(home)

    return install


def test_the_folders_are_the_systems():
    assert {"c3po", "direct", "maps", "mrag", "mujica", "standard"} <= set(system_names())
    assert not {"grammar", "prompts"} & set(system_names())


def test_the_files_of_one_folder_are_systems_with_common_settings():
    assert {"ircot", "iter-retgen"} <= set(system_names()) and "baselines" not in system_names()
    assert profile_settings("iter-retgen", "paper") == profile_settings("ircot", "paper")
    assert profile_settings("ircot", "paper")["k"] == 10
    assert build("iter-retgen", {"rounds": 2}).rounds == 2 and ablations("iter-retgen") == {}
    with pytest.raises(UserError, match=r"unknown system 'iter_retgen'.*did you mean 'iter-retgen'"):
        build("iter_retgen")


def test_the_system_of_another_package_is_found_with_its_settings(install):
    install("echo_package", GOOD, name="echo", profiles="cpu: {times: 3}")
    assert "echo" in system_names()
    assert build("echo", profile_settings("echo", "cpu")).times == 3
    assert profile_settings("echo", "paper") == {} and ablations("echo") == {}
    with pytest.raises(UserError, match=re.escape("systems.echo.loud: no such setting; echo has times")):
        build("echo", {"loud": True})


@pytest.mark.parametrize(
    "code", ["SYSTEM = None", "", "class SYSTEM: ...", "from dragoman.systems.base import System as SYSTEM"]
)
def test_a_package_without_a_system_is_refused_with_its_file(install, code):
    install(f"empty{len(code)}", code, name="empty")
    with pytest.raises(UserError, match=rf"empty{len(code)}/__init__.py: must export SYSTEM, a dataclass"):
        build("empty")


def test_a_folder_without_a_system_is_refused_with_its_file(tmp_path, monkeypatch):
    (tmp_path / "hollow").mkdir()
    (tmp_path / "hollow" / "__init__.py").write_text("")
    monkeypatch.setattr(discovery, "HERE", tmp_path)
    monkeypatch.setattr("dragoman.systems.__path__", [str(tmp_path)])
    assert "hollow" in system_names()
    with pytest.raises(UserError, match=r"hollow/__init__.py: must export SYSTEM"):
        build("hollow")


def test_an_entry_point_that_fails_to_import_is_named_and_harms_no_other(install):
    install("broken_package", "import nothing_of_the_kind", name="broken", version="0.9")
    assert "broken" in system_names() and build("direct")
    message = "system 'broken': broken_package of broken_package 0.9 fails to import: ModuleNotFoundError: No module"
    with pytest.raises(UserError, match=message):
        build("broken")
    assert profile_settings("broken", "cpu") == {}


def test_an_entry_point_to_no_package_has_no_settings_and_is_named(install, tmp_path):
    install("lost_package", "", name="lost")
    (tmp_path / "lost_package-home" / "lost_package" / "__init__.py").unlink()
    (tmp_path / "lost_package-home" / "lost_package").rmdir()
    assert profile_settings("lost", "cpu") == {}
    with pytest.raises(UserError, match=r"lost_package of lost_package 1.2 fails to import"):
        build("lost")


def test_two_systems_of_one_name_are_refused_with_both_origins(install):
    install("first_package", GOOD, name="twice")
    install("second_package", GOOD, name="twice")
    install("third_package", GOOD, name="c3po")
    with pytest.raises(UserError, match=r"two systems are called 'twice', of second_package 1.2 and first_package 1.2"):
        build("twice")
    with pytest.raises(UserError, match=r"two systems are called 'c3po', of dragoman and third_package 1.2"):
        build("c3po")


def test_an_unknown_system_is_refused_with_the_choices_and_the_nearest():
    with pytest.raises(UserError, match=r"unknown system 'c4po': choose from auto-rag, c3po, .*; did you mean 'c3po'?"):
        build("c4po")
    with pytest.raises(UserError, match=r"unknown system 'xyz': choose from [^;]*$"):
        build("xyz")


def test_settings_that_are_no_mapping_are_refused_with_their_file(install):
    install("odd_package", GOOD, name="odd", profiles="cpu: 3")
    with pytest.raises(UserError, match=r"odd_package/profiles.yaml: cpu: expected settings by their names, found int"):
        profile_settings("odd", "cpu")


def test_opening_one_system_imports_no_other():
    code = "import sys, dragoman.systems as s; s.build('c3po'); print([m for m in sys.modules if 'mujica' in m])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"

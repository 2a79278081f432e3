"""The import closure of a module, and the hash of its code."""

import sys
from pathlib import Path

import pytest

from dragoman.core.identity import SETTINGS, code_hash, content_hash, import_closure

SOURCE = Path(content_hash.__code__.co_filename).parents[1]


def closure(module: str, stop=()) -> set[str]:
    return {path.relative_to(SOURCE).as_posix() for path in import_closure(module, stop)}


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A package outside dragoman: a system with a prompt, and a module that it does not import."""
    package = tmp_path / "toysystem"
    (package / "prompts").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "system.py").write_text("from dragoman.core.text import words\n\nfrom . import actions\n")
    (package / "actions.py").write_text("if TYPE_CHECKING:\n    import toysystem.typed\n")
    (package / "typed.py").write_text("")
    (package / "other.py").write_text("")
    (package / "prompts" / "router.txt").write_text("[user]\n{question}\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield package
    sys.modules.pop("toysystem", None)
    code_hash.cache_clear()


def test_a_closure_holds_what_is_imported_and_the_prompts_beside_it():
    found = closure("dragoman.systems.c3po.system")
    assert {"systems/c3po/system.py", "systems/c3po/actions.py", "systems/base.py", "core/types.py"} <= found
    assert {"systems/c3po/prompts/router.txt", "systems/prompts/answer.txt"} <= found


def test_a_closure_leaves_out_other_systems_settings_and_pages():
    found = closure("dragoman.systems.c3po.system") | closure("dragoman.rollout.view")
    assert not any("mujica" in path or path.endswith(".html") or Path(path).name in SETTINGS for path in found)


def test_a_closure_stops_where_it_is_told():
    found = closure("dragoman.runtime", stop=("dragoman.retrieval", "dragoman.systems"))
    assert "engines/base.py" in found
    assert not any(path.startswith(("retrieval/", "systems/")) for path in found)


def test_imports_inside_functions_are_followed():
    assert "engines/vllm.py" in closure("dragoman.engines")


def test_a_package_outside_dragoman_is_followed_with_relative_imports_and_its_prompts(toy):
    found = import_closure("toysystem.system")
    own = {path.relative_to(toy).as_posix() for path in found if path.is_relative_to(toy)}
    assert own == {"system.py", "actions.py", "prompts/router.txt"}
    assert SOURCE / "core" / "text.py" in found


def test_a_package_that_discovers_its_modules_counts_whole(toy):
    (toy / "actions.py").write_text("from pkgutil import iter_modules\n\nlist(iter_modules([]))\n")
    assert toy / "other.py" in import_closure("toysystem.system")


def test_a_module_that_cannot_be_parsed_counts_and_imports_nothing(toy):
    (toy / "actions.py").write_text("import toysystem.other\nif:\n")
    found = import_closure("toysystem.system")
    assert toy / "actions.py" in found and toy / "other.py" not in found


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    import toysystem.other\nfinally:\n    pass",
        "try:\n    pass\nexcept ValueError:\n    import toysystem.other",
        "while 1:\n    pass\nelse:\n    import toysystem.other",
        "match 1:\n    case 1:\n        from . import other",
        "class A:\n    async def run(self):\n        with open(''):\n            from toysystem import other",
        "if TYPE_CHECKING:\n    pass\nelse:\n    import toysystem.other",
    ],
)
def test_an_import_in_any_statement_is_followed(toy, source):
    (toy / "actions.py").write_text(source)
    assert toy / "other.py" in import_closure("toysystem.system")


def test_what_earlier_closures_have_read_is_not_read_again_and_changes_nothing(monkeypatch):
    names = ("dragoman.core.identity", "dragoman.pipeline.model", "dragoman.pipeline.corpus")
    expected = [import_closure(name) for name in names]
    known = {}
    assert [import_closure(name, (), known) for name in names] == expected
    monkeypatch.setattr(Path, "read_text", None)
    assert [import_closure(name, (), known) for name in names] == expected


@pytest.mark.parametrize(
    ("file", "changes"), [("prompts/router.txt", True), ("actions.py", True), ("other.py", False), ("typed.py", False)]
)
def test_the_hash_of_code_follows_what_is_imported(toy, file, changes):
    before = code_hash("toysystem.system")
    (toy / file).write_text((toy / file).read_text() + "\n# a comment\n")
    code_hash.cache_clear()
    assert (code_hash("toysystem.system") != before) == changes


def test_a_module_without_a_file_has_an_empty_closure():
    assert import_closure("builtins") == import_closure("nowhere.to.be.found") == []


def test_the_hash_of_values_follows_names_and_values_and_not_their_order():
    assert content_hash(a=1, b=[2]) == content_hash(b=[2], a=1)
    assert len({content_hash(a=1), content_hash(a=2), content_hash(b=1), content_hash(a=1, b=None)}) == 4

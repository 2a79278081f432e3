"""Whoever may write into MLflow writes the files of a version and their hash: a version must not name other files by that."""

import json
import shutil
from pathlib import Path

import pytest
from policies import trained

from dragoman import tracking
from dragoman.core.errors import UserError
from dragoman.registry.policy import find_policy
from dragoman.registry.versions import MODEL, Registry, content_sha256

registry = Registry()


@pytest.fixture
def kept(tmp_path, monkeypatch, empty_store):
    """Where the registry keeps the files of v1. A model that is nobody's business lies in `data/precious`."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(empty_store, "mlruns")
    policy = registry.policy(registry.register(trained(tmp_path, "rl", b"one")).name)
    shutil.copytree(policy.folder, "data/precious")
    return policy.folder.parents[1]


def change(folder: Path, values: dict) -> None:
    """Write other values into a set's `policy.json`."""
    pointer = folder / "policy.json"
    pointer.write_text(json.dumps(json.loads(pointer.read_text()) | values))


@pytest.mark.parametrize("key", ["roles", "folder"])
@pytest.mark.parametrize("way", ["up", "absolute"])
def test_a_fetched_set_that_names_a_folder_outside_of_it_is_refused_though_its_hash_is_right(kept, key, way):
    precious = str(Path("data/precious").resolve())
    named = "../" * 40 + precious.lstrip("/") if way == "up" else precious  # `up` leads there from any folder
    shutil.copytree(kept, "lying")
    change(Path("lying"), {key: {"*": named} if key == "roles" else named})
    run = tracking.keep_folder(Path("lying"), "weights")
    tracking.tag_version(MODEL, 1, {"content": content_sha256(find_policy("lying")), "run": run})
    shutil.rmtree("mlruns/policies")
    with pytest.raises(UserError, match=rf"v1: the files in run {run} name \S*precious, which is not one of them"):
        registry.policy("v1")
    assert list(Path("mlruns/policies").iterdir()) == []


def test_a_kept_set_that_names_a_folder_outside_of_it_is_refused(kept):
    change(kept, {"roles": {"*": str(Path("data/precious").resolve())}})
    with pytest.raises(UserError, match=r"v1: the files in \S+ are not those that were registered"):
        registry.policy("v1")


@pytest.mark.parametrize("whole", [True, False])
def test_a_kept_set_with_a_link_that_leads_out_of_it_is_refused(kept, whole):
    (weights,) = (kept / "policies").iterdir()
    link = weights if whole else weights / "model.safetensors"
    shutil.rmtree(link) if whole else link.unlink()
    link.symlink_to(Path("data/precious", "" if whole else link.name).resolve())
    with pytest.raises(UserError, match=r"v1: the files in \S+ are not those that were registered"):
        registry.policy("v1")


def test_a_fetched_set_whose_files_are_its_own_is_opened(kept):
    run = tracking.keep_folder(kept, "weights")
    tracking.tag_version(MODEL, 1, {"run": run})
    shutil.rmtree("mlruns/policies")
    assert (registry.policy("v1").of("filter") / "model.safetensors").read_bytes() == b"one"

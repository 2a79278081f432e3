"""Policy versions on disk: published, found again, and never mixed up with those of another run."""

import errno
import hashlib
import json
import shutil
from pathlib import Path

import pytest

from dragoman.core.errors import UserError
from dragoman.registry import policy
from dragoman.registry.policy import (
    SHARED,
    PolicySet,
    copy_tokenizer,
    find_policy,
    lineage,
    publish,
    read_manifest,
    resume,
)


def model(folder: Path, weights: bytes = b"weights", **files: str) -> Path:
    """As much of a model folder as a policy needs."""
    shutil.rmtree(folder, ignore_errors=True)  # what was published of an earlier one is linked to it
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "config.json").write_text("{}")
    for name, text in files.items():
        (folder / f"{name}.json").write_text(text)
    return folder


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def published(folder: Path, out: Path, manifest: dict) -> Path:
    """The folder of the one set of weights."""
    return publish(folder, out, manifest).of(SHARED)


def found(name: str, *results: Path) -> Path:
    return find_policy(name, *results).of(SHARED)


SHA256 = hashlib.sha256(b"weights").hexdigest()
VERSION = SHA256[:12]


def test_a_policy_is_named_after_its_weights(tmp_path):
    out = tmp_path / "rl"
    folder = published(model(out / "candidate"), out, {})
    assert folder == out / "policies" / VERSION
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert (out / "candidate").is_dir(), "a process that dies here does it again"
    assert json.loads((out / "policy.json").read_text()) == {
        "version": VERSION, "folder": f"policies/{VERSION}", "roles": {"*": f"policies/{VERSION}"}
    }  # fmt: skip


def test_the_name_depends_on_the_weights_alone(tmp_path):
    names = [
        published(model(tmp_path / "a" / "m", b"weights", notes="one"), tmp_path / "a", {"stage": "sft"}).name,
        published(model(tmp_path / "b" / "m", b"weights", notes="two"), tmp_path / "b", {"stage": "rl"}).name,
        published(model(tmp_path / "c" / "m", b"other weights", notes="one"), tmp_path / "c", {"stage": "sft"}).name,
    ]
    assert names[0] == names[1] != names[2]


def test_the_manifest_says_what_it_is_and_where_it_comes_from(tmp_path, monkeypatch):
    monkeypatch.setattr(policy.tracking, "git_revision", lambda: "abc-dirty")
    source = {"stage": "rl", "parent": "0123", "data": {"train": "4567"}, "metrics": {"dev_reward": 0.5}}
    folder = published(
        model(tmp_path / "m", manifest='{"version": "of the base", "source": "smollm2"}'), tmp_path, source
    )
    assert read_manifest(folder) == {"version": VERSION, "sha256": SHA256, "code": "abc-dirty", **source}


def test_a_folder_without_manifest_has_an_empty_one(tmp_path):
    assert read_manifest(tmp_path) == {}


def test_an_earlier_version_is_removed(tmp_path):
    out = tmp_path / "rl"
    first = published(model(tmp_path / "one", b"1"), out, {})
    second = published(model(tmp_path / "two", b"2"), out, {})
    assert not first.exists()
    assert files(out) == sorted(
        ["policy.json", *(f"policies/{second.name}/{f}" for f in ("config.json", "manifest.json", "model.safetensors"))]
    )
    assert found(str(out)) == second


def test_publishing_equal_weights_again_changes_nothing_but_the_manifest(tmp_path):
    out = tmp_path / "rl"
    first = published(model(tmp_path / "one"), out, {"metrics": 1})
    before = files(out)
    assert published(model(tmp_path / "two"), out, {"metrics": 2}) == first
    assert files(out) == before
    assert read_manifest(first)["metrics"] == 2


def test_publishing_what_is_published_changes_nothing(tmp_path):
    first = published(model(tmp_path / "one"), tmp_path, {"metrics": 1})
    before = {f: (tmp_path / f).read_bytes() for f in files(tmp_path)}
    assert published(first, tmp_path, {"metrics": 1}) == first
    assert {f: (tmp_path / f).read_bytes() for f in files(tmp_path)} == before


def test_a_folder_without_weights_cannot_be_published(tmp_path):
    (tmp_path / "m").mkdir()
    with pytest.raises(UserError, match="no safetensors"):
        published(tmp_path / "m", tmp_path, {})
    assert not (tmp_path / "policy.json").exists()


def test_a_policy_is_found_by_the_name_of_its_stage(tmp_path):
    kept = published(model(tmp_path / "m"), tmp_path / "results" / "sft", {})
    assert found("sft", tmp_path / "results") == kept


def test_a_policy_is_found_by_the_folder_of_its_stage(tmp_path):
    kept = published(model(tmp_path / "m"), tmp_path / "elsewhere" / "mine", {})
    assert found(str(tmp_path / "elsewhere" / "mine"), tmp_path / "results") == kept


def test_a_policy_is_found_by_its_own_folder(tmp_path):
    folder = model(tmp_path / "m")
    assert found(str(folder), tmp_path / "results") == folder
    kept = published(folder, tmp_path / "results" / "rl", {})
    assert found(str(kept), tmp_path / "results") == kept


def test_paths_are_taken_from_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = published(model(Path("m")), Path("results/rl"), {})
    model(Path("own"))
    assert found("rl") == found("results/rl") == kept == Path("results/rl/policies") / VERSION
    assert found("own") == Path("own")


def test_a_stage_folder_can_be_moved(tmp_path):
    published(model(tmp_path / "m"), tmp_path / "rl", {})
    (tmp_path / "rl").rename(tmp_path / "kept")
    assert found(str(tmp_path / "kept")) == tmp_path / "kept" / "policies" / VERSION


@pytest.mark.parametrize("name", ["rl", "nowhere/at/all"])
def test_an_unknown_policy_is_named_with_the_place_where_it_was_looked_for(tmp_path, name):
    (tmp_path / "rl").mkdir()  # a stage that has not finished
    with pytest.raises(UserError, match=f"policy '{name}': neither a model folder nor a finished stage .*policy.json"):
        found(name, tmp_path)


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("rl", "`dragoman rl` trains it"),
        ("results/mine/sft", "`dragoman sft --out results/mine/sft` trains it"),
        ("gepa", "`dragoman gepa` trains it"),
        ("pairs/mujica-warm-up/sft", "`dragoman warm-up mujica --out pairs/mujica-warm-up` trains it"),
        ("mine", "`dragoman sft --out mine` trains one there, and so does `dragoman rl`"),
    ],
)
def test_a_policy_that_is_missing_is_named_with_the_command_of_its_stage(tmp_path, name, command):
    with pytest.raises(UserError) as refused:
        found(name, tmp_path)
    assert str(refused.value).endswith(f"; {command}")


def test_a_pointer_to_a_folder_that_is_gone_finds_nothing(tmp_path):
    kept = published(model(tmp_path / "m"), tmp_path / "rl", {})
    (kept / "config.json").unlink()
    with pytest.raises(UserError, match="policy 'rl'"):
        found("rl", tmp_path)


def test_a_set_keeps_its_folders_side_by_side_and_is_read_back(tmp_path):
    shared, own = model(tmp_path / "a", b"1"), model(tmp_path / "b", b"2")
    policy = publish({"*": shared, "filter": own}, tmp_path / "rl", {"stage": "rl"})
    assert find_policy("rl", tmp_path) == policy and policy.manifest["stage"] == "rl"
    assert policy.folder == tmp_path / "rl" / "policies" / policy.version
    assert (policy.of("router") / "model.safetensors").read_bytes() == b"1"
    assert (policy.of("filter") / "model.safetensors").read_bytes() == b"2"
    assert {p.name for p in (tmp_path / "rl" / "policies").iterdir()} == {
        policy.version, policy.of("router").name, policy.of("filter").name
    }  # fmt: skip


def test_the_version_of_a_set_depends_on_all_weights_and_their_roles(tmp_path):
    made = [
        publish({"*": model(tmp_path / "a", b"1"), "filter": model(tmp_path / "b", b"2")}, tmp_path / "1", {}),
        publish({"filter": model(tmp_path / "a", b"2"), "*": model(tmp_path / "b", b"1")}, tmp_path / "2", {}),
        publish({"*": model(tmp_path / "a", b"2"), "filter": model(tmp_path / "b", b"1")}, tmp_path / "3", {}),
        publish({"*": model(tmp_path / "a", b"1"), "filter": model(tmp_path / "b", b"3")}, tmp_path / "4", {}),
    ]
    versions = [policy.version for policy in made]
    assert versions[0] == versions[1] and len(set(versions)) == 3


def test_a_carried_role_keeps_its_folder_and_its_manifest(tmp_path):
    before = publish(model(tmp_path / "a", b"1"), tmp_path / "sft", {"stage": "sft"})
    policy = publish({"filter": model(tmp_path / "b", b"2")}, tmp_path / "rl", {"stage": "rl"}, carried=before.weights)
    assert before.of("*").is_dir() and policy.of("router").parent == tmp_path / "rl" / "policies"
    assert read_manifest(policy.of("router"))["stage"] == "sft" and read_manifest(policy.of("filter"))["stage"] == "rl"


def test_equal_weights_of_two_roles_are_one_folder(tmp_path):
    shared = model(tmp_path / "a")
    policy = publish({"router": shared, "filter": shared, "decide": model(tmp_path / "b", b"2")}, tmp_path / "rl", {})
    assert policy.groups() == [(policy.of("router"), ("router", "filter")), (policy.of("decide"), ("decide",))]


def test_a_set_without_a_role_is_refused_with_the_role_and_those_it_has(tmp_path):
    policy = publish({"router": model(tmp_path / "a")}, tmp_path / "rl", {})
    policy.check(["router"])
    with pytest.raises(
        UserError, match=rf"{policy.version}: no weights for filter, only for router; add it to `roles`"
    ):
        policy.check(["router", "filter"])
    with pytest.raises(UserError, match="no weights for filter"):
        policy.of("filter")


def test_a_pointer_of_before_there_were_sets_is_one_for_all_roles(tmp_path):
    folder = model(tmp_path / "rl" / "policies" / "0123")
    (tmp_path / "rl" / "policy.json").write_text('{"version": "0123", "folder": "policies/0123"}')
    assert find_policy("rl", tmp_path) == PolicySet("0123", {"*": folder}, {}, folder)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": "1", "roles": ["a"]}', '{"version": "1", "roles": {"*": 1}}']
)
def test_a_broken_pointer_is_named(tmp_path, text):
    (tmp_path / "policy.json").write_text(text)
    with pytest.raises(UserError, match=r"policy\.json: not a policy"):
        find_policy(str(tmp_path))


@pytest.mark.parametrize("text", ['{"version": "a', "[]", b"\xff".decode("latin-1")])
def test_a_manifest_that_is_torn_is_named(tmp_path, text):
    folder = model(tmp_path / "model")
    (folder / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=r"model/manifest\.json: not a manifest"):
        find_policy(str(folder))


def test_a_run_with_equal_arguments_goes_on_with_its_folder(tmp_path):
    out = tmp_path / "new" / "sft"
    assert resume(out, {"lr": 1}) is None
    (out / "epochs").mkdir()
    (out / "epochs" / "1").write_text("half the work")
    assert resume(out, {"lr": 1}) is None
    assert (out / "epochs" / "1").read_text() == "half the work"


def test_a_run_with_other_arguments_starts_with_an_empty_folder_and_the_last_one_is_kept_beside_it(tmp_path, caplog):
    out, before = tmp_path / "sft", tmp_path / "sft.before"
    for lr in (1, 2):
        assert resume(out, {"lr": lr}) is None
        (out / "metrics.json").write_text(f'{{"dev_reward": 0.{lr}}}')
    assert (before / "metrics.json").read_text() == '{"dev_reward": 0.1}'
    assert resume(out, {"lr": 3}) is None
    assert files(out) == ["started.json"]
    assert f"since these have changed: lr; what it held is in {before}" in caplog.text
    assert (before / "metrics.json").read_text() == '{"dev_reward": 0.2}'
    assert resume(out, {"lr": 2}) is None  # and what was put aside does not come back by itself
    assert (before / "metrics.json").is_file()  # a run that had made nothing takes the place of none


def test_where_a_run_s_files_would_go_other_people_s_are_left_alone(tmp_path):
    (tmp_path / "sft.before").mkdir()
    (tmp_path / "sft.before/thesis.tex").write_text("years of work")
    resume(tmp_path / "sft", {"lr": 1})
    (tmp_path / "sft/metrics.json").write_text('{"dev_reward": 0.5}')
    with pytest.raises(UserError, match=r"sft\.before: holds files that no training run wrote.*rename it"):
        resume(tmp_path / "sft", {"lr": 2})
    assert resume(tmp_path / "sft", {"lr": 1}) == {"dev_reward": 0.5}
    assert (tmp_path / "sft.before/thesis.tex").read_text() == "years of work"


def test_a_folder_that_a_kill_leaves_half_removed_is_removed_by_the_next_run(tmp_path, monkeypatch):
    def die(folder, ignore_errors=False):
        (folder / "started.json").unlink()
        raise KeyboardInterrupt

    out = tmp_path / "sft"
    for lr in (1, 2):
        resume(out, {"lr": lr})
        (out / "metrics.json").write_text('{"dev_reward": 0.5}')
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", die)
        resume(out, {"lr": 3})
    assert resume(out, {"lr": 4}) is None
    (out / "metrics.json").write_text('{"dev_reward": 0.6}')
    assert resume(out, {"lr": 5}) is None
    kept = ["sft.before/metrics.json", "sft.before/started.json"]
    assert files(tmp_path) == [*kept, "sft/started.json"]  # and the rest of what was removed is gone


def test_a_mount_point_is_emptied_in_its_place(tmp_path, monkeypatch):
    rename, out = Path.rename, tmp_path / "sft"

    def rename_unless_mounted(path, target):
        if path == out:
            raise OSError(errno.EBUSY, "busy")
        return rename(path, target)

    resume(out, {"lr": 1})
    (out / "policies").mkdir()
    (out / "policies" / "weights").write_text("half the work")
    monkeypatch.setattr(Path, "rename", rename_unless_mounted)
    assert resume(out, {"lr": 2}) is None
    assert files(tmp_path) == ["sft/started.json"]


def test_a_link_to_a_folder_stays_one_when_that_is_emptied(tmp_path):
    (tmp_path / "large-disk").mkdir()
    out = tmp_path / "sft"
    out.symlink_to(tmp_path / "large-disk")
    resume(out, {"lr": 1})
    (out / "metrics.json").write_text('{"dev_reward": 0.5}')
    assert resume(out, {"lr": 2}) is None
    assert out.is_symlink() and [path.name for path in (tmp_path / "large-disk").iterdir()] == ["started.json"]
    assert (tmp_path / "large-disk.before/metrics.json").is_file()  # on the same disk, as it may be large


def test_a_finished_run_gives_its_metrics(tmp_path):
    resume(tmp_path, {"lr": 1})
    (tmp_path / "metrics.json").write_text('{"dev_reward": 0.5}')
    assert resume(tmp_path, {"lr": 1}) == {"dev_reward": 0.5}


def test_a_folder_with_other_people_s_files_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="holds files that no training run wrote"):
        resume(tmp_path, {"lr": 1})
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_new_model_gets_all_of_the_base_but_weights_and_manifest(tmp_path):
    base = model(tmp_path / "base", tokenizer="words", generation_config="greedy", manifest="of the base")
    (base / "model-2.safetensors").write_bytes(b"more weights")
    (base / "chat_template.jinja").write_text("{{ messages }}")
    (base / "cache").mkdir()
    new = model(tmp_path / "new", b"new weights", generation_config="its own")
    copy_tokenizer(base, new)
    assert files(new) == [
        "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json"
    ]  # fmt: skip
    assert (new / "model.safetensors").read_bytes() == b"new weights"
    assert (new / "generation_config.json").read_text() == "its own"
    assert (new / "tokenizer.json").read_text() == "words"


def test_the_index_of_the_base_s_weights_is_not_copied(tmp_path):
    base = model(tmp_path / "base")
    (base / "model.safetensors.index.json").write_text('{"weight_map": {"w": "model-00001-of-00002.safetensors"}}')
    new = model(tmp_path / "new")
    copy_tokenizer(base, new)
    assert files(new) == ["config.json", "model.safetensors"]


def test_a_published_policy_opens_like_the_model_that_it_came_from(tiny_model, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    own = tmp_path / "own"
    AutoModelForCausalLM.from_pretrained(tiny_model).save_pretrained(own)
    copy_tokenizer(tiny_model, own)
    folder = published(own, tmp_path / "rl", {})
    text = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False
    )
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n")
    assert AutoModelForCausalLM.from_pretrained(folder).num_parameters() > 0


def test_instructions_that_come_with_weights_are_part_of_the_policy_s_name(tmp_path):
    base = model(tmp_path / "base")
    one, two = (
        publish({}, tmp_path / name, {"instructions": {"router": name}}, carried={SHARED: base})
        for name in ("one", "two")
    )
    assert len({one.version, two.version, VERSION}) == 3
    again = find_policy(str(tmp_path / "one"))
    assert again.instructions == {"router": "one"} and again.version == one.version
    assert again.of("router") == tmp_path / "one" / "policies" / VERSION
    assert find_policy(str(base)).instructions == {}


def test_training_from_a_policy_with_instructions_is_refused_since_it_would_lose_them(tmp_path):
    policy = publish(
        {}, tmp_path / "gepa", {"instructions": {"router": "x"}}, carried={SHARED: model(tmp_path / "base")}
    )
    with pytest.raises(UserError, match=r"policy [0-9a-f]{12} has instructions of its own.*systems\.c3po\.rewritten"):
        lineage("rl", "c3po", policy, {}, {})

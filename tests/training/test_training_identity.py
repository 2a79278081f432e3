"""What makes a training run start anew, and what does not."""

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import ListRetriever, ScriptedEngine

from dragoman.core.identity import import_closure
from dragoman.core.types import Question
from dragoman.registry.policy import resume
from dragoman.rollout.backends import Backends
from dragoman.rollout.exploration import Exploration
from dragoman.systems import build
from dragoman.training.identity import DESCRIBED, run_identity
from dragoman.training.run import TrainingRun

DEV = [Question("q1", "Who?", ("Ada",))]
MANIFEST = {"stage": "rl", "system": "c3po", "parent": "abc", "parameters": {"lr": 1}, "data": {"questions": "f00"}}


def backends(**fingerprints: str) -> Backends:
    engine, retriever = ScriptedEngine(lambda prompt, rng: ""), ListRetriever([])
    made = {"llm": engine, "proxy": engine, "retriever": retriever}
    for part, fingerprint in fingerprints.items():
        made[part] = ListRetriever([]) if part == "retriever" else ScriptedEngine(lambda prompt, rng: "")
        made[part].fingerprint = fingerprint
    return Backends(**made)


def identity(**changes) -> dict:
    run = TrainingRun(
        system="c3po", dev=DEV, runtime=None, start=None, reward="em", seed=0, out=Path("results/rl"), data={}
    )
    run = replace(run, **{key: changes.pop(key) for key in ("dev", "reward", "seed") if key in changes})
    given = {"system": build("c3po"), "backends": backends(), "manifest": MANIFEST, "exploration": Exploration()}
    given |= {"learnt_from": ["q2", "q3"]} | changes
    return run_identity(["dragoman.training.loop", "dragoman.training.algorithms.grpo"], run, **given)


@pytest.mark.parametrize(
    "change",
    [
        {"system": build("c3po", {"max_depth": 9})},
        {"backends": backends(llm="another")},
        {"backends": backends(proxy="another")},
        {"backends": backends(retriever="another")},
        {"manifest": MANIFEST | {"parameters": {"lr": 2}}},
        {"manifest": MANIFEST | {"data": {"questions": "0ff"}}},
        {"reward": "judge"},
        {"shaping": "gold_recall"},
        {"seed": 1},
        {"exploration": Exploration(temperature=2)},
        {"learnt_from": ["q3", "q2"]},
        {"dev": []},
        {"dev": [Question("q1", "Who?", ("Ada", "Lovelace"))]},
        {"dev": [Question("q1", "Who?", ("Ada",), supporting_ids=("p1",))]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_change_of_what_a_run_depends_on_starts_a_finished_run_anew(tmp_path, change):
    resume(tmp_path, identity())
    (tmp_path / "metrics.json").write_text('{"dev_reward": 0.5}')
    assert resume(tmp_path, identity()) == {"dev_reward": 0.5}
    assert resume(tmp_path, identity(**change)) is None


@pytest.mark.parametrize("part", ["trainer", "code"])
def test_other_code_of_trainer_or_system_starts_a_run_anew(monkeypatch, part):
    before = identity()
    module = {"trainer": "dragoman.training.identity", "code": "dragoman.rollout.scheduler"}[part]
    monkeypatch.setattr(f"{module}.code_hash", lambda *modules, stop=(): "other code")
    changed = {key for key, value in identity().items() if value != before[key]}
    assert changed == {part}


def test_what_changed_is_said(tmp_path, caplog):
    caplog.set_level("INFO", "dragoman")
    resume(tmp_path, identity())
    resume(tmp_path, identity(system=replace(build("c3po"), max_depth=9), seed=3))
    assert "starts anew, since these have changed: settings, seed" in caplog.text


@pytest.mark.parametrize(
    ("trainer", "own", "others"),
    [
        (["sft"], {"sft", "actor"}, {"loop", "ppo", "grpo", "mygo"}),
        (
            ["loop", "algorithms.grpo"],
            {"grpo", "loop", "learner"},
            {"sft", "ppo", "mygo", "trajectory_grpo", "selftrain"},
        ),
        (["loop", "algorithms.mygo"], {"mygo", "loop", "learner"}, {"sft", "ppo", "grpo", "selftrain"}),
        (["loop", "algorithms.selftrain"], {"selftrain", "loop", "learner"}, {"sft", "ppo", "grpo", "mygo"}),
    ],
    ids=lambda case: case[-1] if isinstance(case, list) else "",
)
def test_a_trainer_s_code_is_what_it_imports_and_no_other_trainer(trainer, own, others):
    modules = [f"dragoman.training.{name}" for name in trainer]
    names = {path.stem for module in modules for path in import_closure(module, stop=DESCRIBED)}
    assert own <= names and not names & others


def test_episodes_of_a_system_do_not_depend_on_the_prompts_of_another():
    from dragoman.core.identity import FINGERPRINTED
    from dragoman.rollout.scheduler import ENGINE_ROOM

    modules = (type(build("c3po")).__module__, *ENGINE_ROOM)
    folders = {path.parent for module in modules for path in import_closure(module, stop=FINGERPRINTED)}
    systems = {folder for folder in folders if "systems" in folder.parts}
    assert Path("c3po/prompts") in {folder.relative_to(folder.parents[1]) for folder in systems}
    assert not any("mujica" in folder.parts for folder in folders)

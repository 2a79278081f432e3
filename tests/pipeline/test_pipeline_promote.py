"""The gate: what it lets through, what it refuses, and what it leaves behind. A real store, a scripted model."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from command import run as command
from fakes import ScriptedEngine
from gate import EVALUATION, QUESTIONS, ScriptedRuntime, aliases, as_promoted, gate, prepare, registry
from tiny import make_tiny

from dragoman import tracking
from dragoman.config import parse_params
from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.hashing import sha256_of
from dragoman.evaluation.settings import CostParams, PromoteParams
from dragoman.pipeline import compare, decisions, promote
from dragoman.pipeline.project import Project
from dragoman.registry.policy import publish
from dragoman.registry.versions import MODEL, ROLLED_BACK


@pytest.fixture
def project(tmp_path, monkeypatch, empty_store):
    """Two versions of a system, and data that passed validation."""
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path, empty_store)
    return tmp_path


async def test_a_better_challenger_becomes_champion_and_leaves_a_record(project, pictures):
    import mlflow

    first = await gate(1, ScriptedRuntime({"standard": 10, "c3po@v1": 20}))
    assert first.promoted and first.champion == "" and first.against == "standard"
    assert aliases() == {"champion": "v1"}
    second = await gate(2, ScriptedRuntime({"c3po@v1": 20, "c3po@v2": 32}))
    assert second.promoted and second.against == "c3po@v1" and second.reasons == ()
    assert aliases() == {"champion": "v2", "previous": "v1"}

    written = json.loads(Path("results/promote/decision.json").read_text())
    assert written["promoted"] and written["champion"] == "v1" and written["policy"] == registry.find("v2").policy
    table = Path("results/promote/table.md").read_text()
    assert "| gain in cover_em | +0.300 [" in table and "| c3po@v2 | 0.80 [" in table
    # 12 of 40 questions are won and none is lost: 2.8016 * sqrt(0.3 * 0.7 * 40 / 39 / 40) could have been seen
    (gain,) = (line for line in table.splitlines() if line.startswith("| gain in cover_em | +0.300 ["))
    assert gain.endswith(" | lower bound > +0.000 | yes | 0.206 |") and "| questions | 40 | >= 30 | yes | |" in table
    assert registry.find("v2").decision.startswith("promoted ")
    runs = mlflow.search_runs(
        experiment_names=["dragoman"], filter_string="tags.stage = 'promote'", output_format="list"
    )
    assert [r.info.run_name for r in runs] == ["promote v2 against c3po@v1", "promote v1 against standard"]
    assert runs[0].data.metrics["gain.cover_em.mean"] == 0.3 and runs[0].data.params["promote.margin"] == "0.0"
    client = mlflow.MlflowClient()
    assert {"decision.json", "table.md", "plots"} <= {a.path for a in client.list_artifacts(runs[0].info.run_id)}


class JudgedRuntime(ScriptedRuntime):
    """With a judge that is not the LLM."""

    def open(self, name):
        system, backends = super().open(name)
        judge = ScriptedEngine(lambda prompt, rng: "True")
        judge.fingerprint = "a judge"
        return system, replace(backends, open_judge=lambda: judge)


async def test_a_decision_says_of_which_questions_parts_and_settings_it_is(project):
    runtime, settings = JudgedRuntime({"standard": 10, "c3po@v1": 10}), PromoteParams(max_cost_ratio=7, margin=0.1)

    async def decided(questions, evaluation) -> dict:
        await promote.promote(
            registry.find("v1"), questions, runtime, settings, as_promoted(evaluation, seed=7),
            validation=Path("results/validate"), registry=registry,
        )  # fmt: skip
        return json.loads(Path("results/promote/decision.json").read_text())

    judged = await decided(QUESTIONS, EVALUATION.model_copy(update={"judge": True}))
    assert (judged["llm"], judged["retriever"], judged["judge"]) == ("scripted c3po@v1", "list", "a judge")
    assert (judged["dataset"], judged["seed"], judged["settings"]) == ("d", 7, settings.model_dump())
    assert re.fullmatch("[0-9a-f]{16}", judged["questions"])
    others = [replace(question, answers=("another",)) for question in QUESTIONS]
    again, other = await decided(QUESTIONS, EVALUATION), await decided(others, EVALUATION)
    assert (again["judge"], other["judge"]) == ("", "")  # nothing was judged
    assert again["questions"] == judged["questions"] != other["questions"]


async def test_each_decision_measures_both_and_one_that_is_made_again_keeps_what_was_measured(project):
    """Seconds are compared, and those of another day say nothing of these."""
    champion = Path("results/promote/episodes/c3po@v1/episodes.jsonl")
    registry.promote(registry.find("v1"), None)
    await gate(2, ScriptedRuntime({"c3po@v1": 20, "c3po@v2": 10}))
    first = champion.read_text()
    await gate(2, ScriptedRuntime({"c3po@v1": 20, "c3po@v2": 10}))
    assert champion.read_text() == first
    await gate(3, ScriptedRuntime({"c3po@v1": 20, "c3po@v3": 10}))
    assert {path.name for path in champion.parents[1].iterdir() if path.is_dir()} == {"c3po@v1", "c3po@v3"}
    assert champion.read_text() != first


async def test_a_score_that_is_an_expression_is_recorded_with_the_decision(project):
    import mlflow

    by_expression = EVALUATION.model_copy(update={"scores": ("0.8 * em + 0.2 * f1",)})
    decision = await gate(1, ScriptedRuntime({"standard": 10, "c3po@v1": 20}), evaluation=by_expression)
    assert decision.promoted and not Path("mlruns/promotion.json").exists()
    (run,) = mlflow.search_runs(
        experiment_names=["dragoman"], filter_string="tags.stage = 'promote'", output_format="list"
    )
    assert run.data.metrics["gain.0.8 _ em _ 0.2 _ f1.mean"] > 0


@pytest.mark.parametrize("taken_back", ["", "latency"])
async def test_what_a_canary_has_shown_is_in_the_record_and_one_that_was_taken_back_is_refused(project, taken_back):
    arm = {"answers": 40, "failed": 1, "seconds": 0.5, "up": 3, "down": 2}
    shown = {"since": "today", "share": 0.05, "rolled_back": taken_back, "champion": arm, "challenger": arm}
    registry.tried(registry.find("v1"), "canary", shown)
    decision = await gate(1, ScriptedRuntime({"standard": 10, "c3po@v1": 30}))
    assert decision.promoted is not bool(taken_back)
    assert decision.reasons == (("canary: taken back: latency, and not served to its end",) if taken_back else ())
    assert json.loads(Path("results/promote/decision.json").read_text())["trials"] == {"canary": shown}
    table = Path("results/promote/table.md").read_text()
    assert (
        "canary: since today, 5% of the questions; champion 40 answers, 1 failed, 0.5 s, 3 up, 2 down; challenger"
        in table
    )


async def test_a_canary_that_is_taken_back_while_the_gate_judges_is_refused(project):
    runtime, challenger = ScriptedRuntime({"standard": 10, "c3po@v1": 30}), registry.find("v1")
    opened, arm = runtime.open, {"answers": 4, "failed": 4, "seconds": 0.5, "up": 0, "down": 0}
    shown = {"since": "today", "share": 0.05, "rolled_back": "errors", "champion": arm, "challenger": arm}

    def open_while_it_is_taken_back(name):
        registry.tried(challenger, "canary", shown)
        return opened(name)

    runtime.open = open_while_it_is_taken_back
    decision = await gate(1, runtime)
    assert not decision.promoted and decision.reasons == ("canary: taken back: errors, and not served to its end",)


@pytest.mark.parametrize(
    ("right", "broken", "settings", "reason"),
    [
        (21, 0, {}, "gain in cover_em: +0.025 [+0.000, +0.075], and not lower bound > +0.000"),
        (32, 0, {"margin": 0.4}, "lower bound > +0.400"),
        (10, 0, {}, "gain in cover_em: -0.250"),
        (32, 2, {}, "failed: 2 of 40, and not <= 2.0%"),
        (32, 0, {"min_questions": 50}, "questions: 40, and not >= 50"),
        (32, 2, {"min_questions": 39, "max_failed": 0.5}, "questions: 38, and not >= 39"),
        (32, 0, {"max_cost_ratio": 0.5}, "calls: 1, and not <= 0.5"),
        (32, 0, {"max_cost": CostParams(tokens=2)}, "and not <= 2"),
    ],
)  # fmt: skip
async def test_a_challenger_is_refused_with_a_reason(project, right, broken, settings, reason):
    registry.promote(registry.find("v1"), None)
    decision = await gate(2, ScriptedRuntime({"c3po@v1": 20, "c3po@v2": right}, {"c3po@v2": broken}), **settings)
    assert not decision.promoted and any(reason in r for r in decision.reasons)
    assert aliases() == {"champion": "v1", "challenger": "v2"}
    assert registry.find("v2").decision.startswith("refused ") and reason in registry.find("v2").decision


def test_questions_that_the_judge_has_not_judged_do_not_count_where_its_score_decides(tmp_path):
    costs = {"calls": 1, "tokens": 1, "seconds": 1, "failed": 0}
    systems = {"a": costs | {"unjudged": 9}, "b": costs | {"unjudged": 4}}
    metrics = {"n": 40, "systems": systems, "paired": {"b - a": {}}}
    for score, count in (("judge", "27"), ("f1", "40")):
        made = promote.checks(metrics, "b", "a", PromoteParams(score=score), champion=True, validation=tmp_path)
        assert next(check.found for check in made if check.name == "questions") == count


@pytest.mark.parametrize(
    ("score", "own", "other", "found"),
    [
        ("judge", {"failed": 0, "unjudged": 470}, {"failed": 0, "unjudged": 0}, "unjudged: 470 of 500"),
        ("judge", {"failed": 0, "unjudged": 0}, {"failed": 0, "unjudged": 470}, "unjudged: 470 of 500"),
        ("judge", {"failed": 11, "unjudged": 11}, {"failed": 0, "unjudged": 0}, "unjudged: 11 of 500"),
        ("judge", {"failed": 0, "unjudged": 10}, {"failed": 400, "unjudged": 400}, None),  # faults of the opponent
        ("f1", {"failed": 0, "unjudged": 470}, {"failed": 0, "unjudged": 470}, None),
        ("f1", {"failed": 11, "unjudged": 0}, {"failed": 0, "unjudged": 0}, "failed: 11 of 500"),
    ],
)
def test_questions_without_the_score_that_decides_are_limited_by_max_failed(tmp_path, score, own, other, found):
    costs = {"calls": 1, "tokens": 1, "seconds": 1}
    gain = {"mean": 0.3, "low": 0.1, "high": 0.5}
    metrics = {"n": 500, "systems": {"a": costs | other, "b": costs | own}, "paired": {"b - a": {score: gain}}}
    made = promote.checks(metrics, "b", "a", PromoteParams(score=score), champion=True, validation=tmp_path)
    refused = [check.reason for check in made if check.name != "data" and not check.met]
    assert refused == ([] if found is None else [f"{found}, and not <= 2.0%"])


@pytest.mark.parametrize(
    ("validation", "reason"),
    [
        (None, "nothing was validated; run `dragoman validate`"),
        ({"failed": 2, "expectations": 20}, "2 of 20 expectations not met"),
        ({"failed": 0, "expectations": 0}, "0 of 0"),
        ({}, "cannot be read"),
    ],
)
async def test_data_must_have_passed_validation(project, validation, reason):
    path = Path("results/validate/metrics.json")
    path.unlink()
    if validation is not None:
        files.write_json(path, validation)
    decision = await gate(1, ScriptedRuntime({"standard": 10, "c3po@v1": 30}))
    assert not decision.promoted and len(decision.reasons) == 1 and reason in decision.reasons[0]


async def test_the_data_must_be_what_was_validated(project):
    runtime = ScriptedRuntime({"standard": 10, "c3po@v1": 30})
    judged = Path("test.jsonl")
    judged.write_text("{}\n")
    hashed = {"failed": 0, "expectations": 5, "sha256": {"elsewhere/test.jsonl": sha256_of([judged])}}
    files.write_json("results/validate/atlas/metrics.json", hashed)
    judged.write_text("{ }\n")
    refused = await gate(1, runtime, data=[judged])
    assert (
        len(refused.reasons) == 1
        and "test.jsonl: is not what was validated; run `dragoman validate`" in refused.reasons[0]
    )
    judged.write_text("{}\n")
    assert (await gate(1, runtime, data=[judged])).promoted


async def test_each_part_of_the_data_must_have_passed(project):
    runtime = ScriptedRuntime({"standard": 10, "c3po@v1": 30})
    files.write_json("results/validate/synthetic/metrics.json", {"failed": 1, "expectations": 5})
    assert "1 of 25 expectations not met" in (await gate(1, runtime)).reasons[0]
    files.write_json("results/validate/synthetic/metrics.json", {"failed": 0, "expectations": 5})
    assert (await gate(1, runtime)).promoted


async def test_a_first_challenger_may_cost_more_than_the_baseline_up_to_the_absolute_limit(project):
    runtime = ScriptedRuntime({"standard": 10, "c3po@v1": 30})
    refused = await gate(1, runtime, max_cost=CostParams(calls=0.5))
    assert [c.name for c in refused.checks] == ["gain in cover_em", "questions", "failed", "calls", "data"]
    assert (await gate(1, runtime, max_cost_ratio=0.1)).promoted


async def test_a_rollback_while_the_challenger_is_judged_stops_the_promotion(project):
    registry.promote(registry.find("v1"), None)
    registry.promote(registry.find("v2"), registry.find("v1"))
    runtime = ScriptedRuntime({"c3po@v2": 20, "c3po@v3": 32})
    opened = runtime.open

    def open_and_roll_back(name):
        if name == "c3po@v3" and aliases()["champion"] == "v2":
            decisions.rollback(registry)
        return opened(name)

    runtime.open = open_and_roll_back
    decision = await gate(3, runtime)
    assert not decision.promoted
    assert "v3 was compared with the champion v2, and the champion is v1 by now" in decision.reasons[0]
    assert aliases() == {"champion": "v1", "previous": "v2", "challenger": "v3"}


async def test_the_champion_is_no_challenger(project):
    registry.promote(registry.find("v1"), None)
    with pytest.raises(UserError, match="v1 is the champion already"):
        await gate(1, ScriptedRuntime({}))


def test_a_rollback_is_recorded(project, capsys):
    import mlflow

    for number, expected in ((1, None), (2, registry.find("v1"))):
        registry.promote(registry.find(f"v{number}"), expected)
    code, out, _ = command(capsys, "rollback")
    assert code == 0 and out.startswith("champion: v1 (")
    runs = mlflow.search_runs(experiment_names=["dragoman"], output_format="list")
    assert runs[0].info.run_name == "rollback to v1" and runs[0].data.tags["previous"] == "v2"


def test_a_rollback_without_a_champion_says_so(project, capsys):
    code, _, err = command(capsys, "rollback")
    assert code == 2 and "no champion before this one to go back to" in err


def test_lineage_and_comparison_to_read(project, capsys):
    code, out, _ = command(capsys, "lineage")
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == ["v3", "v2", "v1"]
    code, out, _ = command(capsys, "lineage", "v1")
    assert code == 0 and "  data questions: d1" in out and "metric dev_reward: 0.5" in out and "base smollm2" in out
    code, out, _ = command(capsys, "compare", "v1", "v2")
    assert code == 0 and "| stage | s1 | s2 |" in out and "parameter" not in out
    code, _, err = command(capsys, "compare", "v1", "v9")
    assert code == 2 and "'v9': no such version" in err


async def test_versions_that_were_trained_with_other_settings_are_compared_as_they_are(project, monkeypatch):
    opened = []

    async def evaluated(project, options):
        opened.append((project.params.allow_mismatch, options.systems, options.limit))
        return {}

    monkeypatch.setattr(compare.evaluate, "run", evaluated)
    limited = Project().changed({"promote.limit": 7})
    await compare.run(limited, compare.Options(a="v1", b="v2", evaluate=True))
    assert opened == [(True, ("c3po@v1", "c3po@v2"), 7)]
    registry.promote(registry.find("v1"), None)
    with pytest.raises(UserError, match="champion and v1 are one version, v1"):
        await compare.run(Project(), compare.Options(a="champion", b="v1", evaluate=True))


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"score": "judge"}, "judge needs evaluate.judge"),
        ({"dataset": "mine"}, "promote.dataset: 'mine' has no entry"),
        ({"baseline": "magic"}, "unknown system 'magic'"),
        ({"margins": 1}, "promote.margins: unknown key"),
    ],
)
def test_settings_that_cannot_be(section, sentence):
    with pytest.raises(UserError, match=re.escape(sentence)):
        parse_params({"promote": section}, origin="x")


@pytest.mark.slow
def test_the_command_with_a_real_model_and_a_real_index(tmp_path, monkeypatch, capsys, tiny_model, empty_store):
    """A proxy that knows nothing is registered, judged, and refused; the pipeline's names work for its version."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(empty_store, "mlruns")
    Path("conf").mkdir()
    Path("conf/cpu.yaml").write_text("evaluate: {bootstrap: 100, traces: 1}")
    Path("params.yaml").write_text(
        "llm: {engine: transformers, max_model_len: 2048}\nproxy: {engine: transformers, max_model_len: 2048}\n"
        "policies: [sft]\npromote: {min_questions: 1}\n"
        "systems: {standard: {k: 2, answer_tokens: 4}, c3po: {queries: span, max_depth: 2, roadmap_tokens: 4, answer_tokens: 4}}"
    )
    shutil.copytree(tiny_model, "data/model")
    passages = [{"id": f"p{i}", "title": f"Town {i}", "text": f"Town {i} lies on river {i * 7}."} for i in range(8)]
    files.write("data/atlas/corpus.jsonl", passages)
    asked = [
        {"id": f"q{i}", "question": f"On which river lies town {i}?", "answers": [f"river {i * 7}"]} for i in (1, 2)
    ]
    files.write("data/atlas/test.jsonl", asked)
    make_tiny(tmp_path / "made", seed=1)
    publish(tmp_path / "made", Path("results/sft"), {"stage": "sft", "system": "c3po", "base": "tiny"})
    code, _, err = command(capsys, "index")
    assert code == 0, err

    code, out, err = command(capsys, "promote")
    assert code == 3, err
    assert "| c3po@v1 |" in out and "| data | results/validate: nothing was validated" in out
    assert "refused: gain in cover_em: +0.000 [+0.000, +0.000], and not lower bound > +0.000; data: " in err
    assert json.loads(Path("results/promote/decision.json").read_text())["against"] == "standard"
    assert aliases() == {"challenger": "v1"}

    tracking.tag_version(MODEL, 1, {"decision": f"{ROLLED_BACK} yesterday"})
    code, out, _ = command(capsys, "promote")  # as at night: nothing is new
    assert code == 0 and "v1" in out and "was taken back: rolled back yesterday; name it to try it again" in out

    registry.promote(registry.find("v1"), None)
    code, out, _ = command(capsys, "promote")
    assert code == 0 and "is the champion already" in out
    code, out, err = command(capsys, "ask", "On which river lies town 3?", "--system", "c3po@champion")
    assert code == 0, err
    code, _, err = command(capsys, "ask", "On which river lies town 3?", "--system", "c3po@v7")
    assert code == 2 and "dragoman-proxy 'v7': no such version; there are: v1 (champion, " in err

from pathlib import Path

import pytest
import yaml

from dragoman.config import load_params
from dragoman.core.errors import UserError
from dragoman.systems import build, profile_settings, system_names

ROOT = Path(__file__).parents[1]
PROFILES = sorted(p.stem for p in (ROOT / "conf").glob("*.yaml"))


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_loads(profile):
    params = load_params(ROOT / "params.yaml", profile=profile)
    assert params.profile == profile


def test_the_four_profiles_are_there():
    assert PROFILES == ["cpu", "gpu", "paper", "smoke"]


@pytest.mark.parametrize("setting", ["answer_tokens", "passage_words"])
@pytest.mark.parametrize("profile", PROFILES)
def test_in_a_profile_all_systems_give_the_llm_as_much_to_read_and_to_write(profile, setting):
    systems = {name: build(name, profile_settings(name, profile)) for name in system_names()}
    found = {name: getattr(system, setting) for name, system in systems.items() if hasattr(system, setting)}
    assert {*systems} - {*found} <= {"direct"}  # it reads no passages
    assert len(set(found.values())) == 1, found


CACHED = {  # bytes a token: keys and values x layers x heads of keys x their width x 2 of bfloat16
    "smollm2": 2 * 30 * 3 * 64 * 2,
    "Qwen/Qwen2-0.5B-Instruct": 2 * 24 * 2 * 64 * 2,
    "Qwen/Qwen2.5-1.5B-Instruct": 2 * 28 * 2 * 128 * 2,
    "Qwen/Qwen2.5-7B-Instruct": 2 * 28 * 4 * 128 * 2,
}


@pytest.mark.parametrize("algorithm", ["ppo", "grpo", "mygo", "selftrain"])
@pytest.mark.parametrize("profile", PROFILES)
def test_the_cache_of_vllm_holds_a_sequence_as_long_as_may_be_of_the_model_of_each_profile(profile, algorithm):
    params = load_params(ROOT / "params.yaml", profile=profile).changed({"train.algorithm": algorithm}, origin="test")
    for engine in (params.llm, params.proxy):
        if engine.engine == "vllm":
            assert engine.model == "data/model", "the stage `model` makes that of `model.source`"
            assert engine.max_model_len * CACHED[params.model.source] <= engine.kv_cache_gib * 2**30


def test_every_yaml_file_in_the_tree_parses():
    folders = ("", ".github", "conf", "flows", "src", "docs", "requirements")
    files = [p for f in folders for p in (ROOT / f).glob("**/*.y*ml" if f else "*.y*ml")]
    assert len(files) >= 5
    for path in files:
        assert list(yaml.safe_load_all(path.read_text())) is not None


def project(tmp_path: Path, params: str, profile: str = "{}") -> Path:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "cpu.yaml").write_text(profile)
    (tmp_path / "params.yaml").write_text(params)
    return tmp_path / "params.yaml"


def test_params_win_over_the_profile(tmp_path):
    path = project(tmp_path, "evaluate: {limit: 3}", "evaluate: {limit: 7, concurrency: 9}")
    evaluate = load_params(path).evaluate
    assert (evaluate.limit, evaluate.concurrency) == (3, 9)


def test_another_index_method_than_the_profile_s_takes_none_of_its_settings(tmp_path):
    path = project(tmp_path, "index: {method: bm25, b: 0.3}", "index: {method: dense, encoder: mine, max_tokens: 99}")
    params = load_params(path)
    assert params.index.model_extra == {"b": 0.3}
    assert params.changed({"train.algorithm": "grpo"}, origin="x").index == params.index
    path.write_text("index: {max_tokens: 7}")
    assert load_params(path).index.model_extra == {"encoder": "mine", "max_tokens": 7}


def test_settings_of_a_system_come_from_its_folder_then_the_profile_then_params(tmp_path):
    conf = "systems: {c3po: {max_depth: 9, k: 9}}"
    settings = load_params(project(tmp_path, "systems: {c3po: {k: 2}}", conf)).system_settings("c3po")
    assert (settings["queries"], settings["max_depth"], settings["k"]) == ("names", 9, 2)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", system_names())
def test_every_system_can_be_built_with_its_settings_for_a_profile(name, profile):
    assert build(name, profile_settings(name, profile))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("evaluate: {limt: 3}", r"evaluate\.limt: unknown key"),
        ("evalate: {}", "evalate: unknown key"),
        ("evaluate: {limit: 0}", r"evaluate\.limit: .*greater than or equal to 1"),
        ("index: {method: tfidf}", "'tfidf' is not a retrieval method: choose one of bm25"),
        ("profile: huge", "profile 'huge' has no file .*there are: cpu"),
        ("datasets: [mine]", "'mine' has no entry under corpus"),
        ("oracles: [mine]", "oracles: 'mine' is not under datasets"),
        ("corpus: {atlas: {source: my_docs, dev: data/atlas/dev.jsonl}}", r"corpus\.atlas\.dev: lies in data/atlas/"),
        (
            "corpus: {atlas: {source: 'hf:data/atlas/saved@v1::train'}}",
            r"corpus\.atlas\.source: lies in data/atlas/",
        ),
        ("corpus: {atlas: {source: data/x/../atlas/mine}}", r"corpus\.atlas\.source: lies in data/atlas/"),
        ("corpus: {atlas: {source: 'hf:a:b:c:d'}}", "hf:a:b:c:d: expected hf:NAME"),
        ("train: {algorithm: [ppo, grpo]}", r"train\.algorithm: .*string"),
        ("evaluated: [c4po]", "unknown system 'c4po'"),
        ("evaluated: [ircot]", "evaluated: 'ircot' is a file of systems/baselines/: name it under baselines"),
        ("baselines: [c3po]", "baselines: 'c3po' is none; choose from auto-rag, drag, instructrag, ircot"),
        ("systems: {c3po: {depth: 3}}", r"systems\.c3po\.depth: no such setting"),
        ("llm: {engine: openai}", "urls"),
        ('llm: {engine: openai, urls: "http://a/v1"}', r"llm.urls: expected a list in brackets, such as"),
        ("corpus: {atlas: {chunk: {size: 5, overlap: 5}}}", "overlap 5 must be smaller"),
        ("a: [1", "params.yaml:.*not valid YAML"),
        (
            "llm: {revision: 2024-02-30}",
            "params.yaml: day is out of range for month; a text that looks like a date stands in",
        ),
        (
            "llm: {}\nseed: 1\nllm: {model: m}",
            r'params.yaml:3: not valid YAML \(found duplicate key "llm"; a section stands once',
        ),
        ("llm: {urls: [http://a/v1]}", r"params.yaml:1: .*unexpected ':'; put a URL within \[ \] or { } in quotes"),
        ('llm: {urls: ["http://a/v1"]}', "llm: urls: engine auto asks no server; say `engine: openai`"),
        ("- a", "expected a mapping"),
    ],
)
def test_what_is_refused_is_named(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        load_params(project(tmp_path, text))


def test_a_source_in_its_own_data_set_is_refused_as_an_absolute_path_and_behind_a_link(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data" / "mine"
    folder.mkdir(parents=True)
    (tmp_path / "linked").symlink_to(folder)
    path = project(tmp_path, "")
    for source in (folder / "docs", f"hf:{folder}/saved", "linked/docs"):
        path.write_text(f"{{datasets: [mine], train: {{dataset: mine}}, corpus: {{mine: {{source: '{source}'}}}}}}")
        with pytest.raises(UserError, match=r"corpus\.mine\.source: lies in data/mine/"):
            load_params(path)


def test_a_source_beside_its_data_set_is_taken_however_it_is_written(tmp_path):
    text = (
        "datasets: [mine]\ntrain: {dataset: mine}\ncorpus: {mine: {source: [data/mine/../docs, 'hf:mine', data/mine2]}}"
    )
    assert load_params(project(tmp_path, text)).datasets == ("mine",)


def test_a_changed_index_method_stays_when_the_algorithm_is_changed_later(tmp_path):
    path = project(tmp_path, "index: {method: dense, encoder: mine}")
    for method, settings in (("bm25", {}), ("hybrid", {"encoder": "mine"})):
        params = load_params(path).changed({"index.method": method}, origin="x")
        later = params.changed({"train.algorithm": "grpo"}, origin="x")
        assert (later.index, later.index.method) == (params.index, method)
        assert params.index.model_extra == settings


def test_a_changed_index_method_takes_along_what_both_methods_know_of_the_profile(tmp_path):
    path = project(tmp_path, "{}", "index: {method: dense, encoder: mine}")
    params = load_params(path).changed({"index.method": "hybrid", "index.pool": 7}, origin="x")
    later = params.changed({"train.algorithm": "grpo"}, origin="x")
    assert later.index == params.index and later.index.model_extra == {"encoder": "mine", "pool": 7}


def test_an_algorithm_that_is_changed_to_a_list_is_refused_by_its_key(tmp_path):
    with pytest.raises(UserError, match=r"x: train\.algorithm: "):
        load_params(project(tmp_path, "{}")).changed({"train.algorithm": ["ppo"]}, origin="x")


def test_baselines_are_compared_before_what_is_trained(tmp_path):
    params = load_params(project(tmp_path, "evaluated: [direct]\nbaselines: [iter-retgen]\npolicies: [rl]"))
    assert params.compared("atlas") == ("direct", "iter-retgen", "c3po@rl")


def test_what_rewrites_instructions_is_compared_too_where_it_is_named(tmp_path):
    path = project(tmp_path, "evaluated: [direct]\npolicies: [rl]\noptimised: [gepa]\n")
    assert load_params(path).compared("atlas") == ("direct", "c3po@rl", "c3po@gepa")
    path.write_text("optimised: [mipro]")
    with pytest.raises(UserError, match=r"optimised\.0: .*'gepa'"):
        load_params(path)


def test_a_missing_file_says_where_to_go(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        load_params(tmp_path / "params.yaml")


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_has_the_sections_that_dvc_watches(profile):
    watched = set()
    for stage in yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"].values():
        for entry in stage["params"]:
            if isinstance(entry, dict):
                watched |= {key for keys in entry.values() for key in keys}
    assert watched <= set(yaml.safe_load((ROOT / "conf" / f"{profile}.yaml").read_text()))

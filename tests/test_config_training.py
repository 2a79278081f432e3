"""The training sections of `params.yaml`: what is refused, what the profiles say, and when training has collapsed."""

import math
import shutil
from pathlib import Path

import pytest
import yaml

from dragoman.config import PER_ALGORITHM, Params, load_params, parse_params
from dragoman.core.errors import UserError
from dragoman.rollout.exploration import TREE, Exploration
from dragoman.training.settings import GuardParams, RlParams, SeedsParams, TrainParams

ROOT = Path(__file__).parents[1]
PROFILES = ["cpu", "gpu", "paper", "smoke"]


def refusal(section: dict) -> str:
    with pytest.raises(UserError) as e:
        parse_params(section, origin="params.yaml")
    return str(e.value)


@pytest.mark.parametrize("stage", ["seeds", "rl"])
@pytest.mark.parametrize(("key", "value"), [("top_p", 0.9), ("top_k", 50), ("min_p", 0.05), ("top_p", 1.0)])
def test_sampling_from_less_than_the_whole_distribution_is_refused_with_a_reason(stage, key, value):
    message = refusal({stage: {"exploration": {"temperature": 1.0, key: value}}})
    assert message.startswith(f"params.yaml: {stage}.exploration: {key}: training samples from the whole distribution")
    assert message.endswith("leave it out")


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"rl": {"exploration": {"temprature": 1}}}, "rl.exploration.temprature: unknown key"),
        ({"rl": {"exploration": {"temperature": 0}}}, "rl.exploration.temperature: "),
        ({"rl": {"exploration": {"breadth": [2, 0]}}}, "rl.exploration.breadth.1: "),
        ({"rl": {"exploration": {"breadth_of": {"answer": 0}}}}, "rl.exploration.breadth_of.answer: "),
        (
            {"seeds": {"exploration": {"breadth": [1], "breadth_of": {"answer": 2}, "temperature": 0}}},
            "set breadth to 1",
        ),
        ({"rl": {"exploration": {"max_nodes": 0}}}, "rl.exploration.max_nodes: "),
        ({"rl": {"exploration": {"max_tokens": 0}}}, "rl.exploration.max_tokens: "),
        ({"rl": {"exploration": 3}}, "rl.exploration: "),
        ({"rl": {"critic": "none"}}, "rl.critic: "),
        (
            {"rl": {"exploration": {"oracle": True}}},
            "rl: exploration.oracle: what is learnt from must be what the policy drew",
        ),
        ({"rl": {"guards": {"max_kll": 1}}}, "rl.guards.max_kll: unknown key"),
        ({"seeds": {"min_reward": -1}}, "seeds.min_reward: "),
        ({"seeds": {"min_advantage": 1.5}}, "seeds.min_advantage: "),
        ({"seeds": {"first": "worst"}}, "seeds.first: "),
        ({"seeds": {"teacher": {"engine": "openai"}}}, "seeds.teacher: urls: "),
        ({"sft": {"adapter": {"rank": 0}}}, "sft.adapter.rank: "),
        ({"train": {"system": "c4po"}}, "unknown system 'c4po'"),
        ({"train": {"dataset": "mine"}}, "train.dataset: 'mine' has no entry under corpus"),
        ({"train": {"reward": "accuracy"}}, "train.reward: "),
        ({"train": {"algorithm": "dpo"}}, "train.algorithm: unknown algorithm 'dpo': choose from grpo, mygo, ppo"),
        ({"rl": {"mygo": {"threshold": 0}}}, "rl.mygo.threshold: "),
        ({"rl": {"mygo": {"attempts": 0}}}, "rl.mygo.attempts: "),
        ({"rl": {"grpo": {"clip": 0.2}}}, "rl.grpo.clip: unknown key"),
        ({"rl": {"selftrain": {"most": 0}}}, "rl.selftrain.most: "),
    ],
)
def test_what_is_refused_is_named_in_full(section, message):
    assert message in refusal(section)


def test_single_trajectories_have_no_siblings_to_learn_from():
    tree = RlParams(critic="tree", only_contrasts=True)
    assert tree.single() == RlParams(critic="head", exploration=Exploration(breadth=(1,), force=0))
    assert RlParams(critic="separate").single().critic == "separate"


def test_a_breadth_for_no_depth_at_all_is_refused():
    assert "rl.exploration.breadth: " in refusal({"rl": {"exploration": {"breadth": []}}})


def test_the_default_exploration_is_the_paper_s():
    assert [TREE.draws("router", depth) for depth in range(1, 7)] == [2, 2, 2, 2, 1, 1] and TREE.force == 1


def test_a_role_s_own_breadth_wins_over_that_of_every_depth():
    tree = Exploration(breadth=(2, 1), breadth_of={"answer": 4}, force=0)
    assert [tree.draws(role, depth) for role in ("answer", "query") for depth in (1, 2, 3)] == [4, 4, 4, 2, 1, 1]
    tree = tree.model_copy(update={"forks": 0.4})
    assert [tree.draws(role, 1, chance) for role in ("answer", "query") for chance in (0.39, 0.4)] == [4, 4, 2, 1]
    assert tree.single() == Exploration(breadth=(1,), force=0)


@pytest.mark.parametrize(
    ("exploration", "compared"),
    [
        ({"breadth": [1], "force": 0}, False),
        ({"breadth": [1, 2], "force": 0}, True),
        ({"breadth": [1], "force": 1}, True),
        ({"breadth": [1], "force": 0, "breadth_of": {"answer": 2}}, True),
        ({"breadth": [1], "force": 0, "breadth_of": {"answer": 1}}, False),
    ],
)
def test_siblings_come_from_a_breadth_of_more_than_one_or_from_forced_kinds(exploration, compared):
    assert Exploration(**exploration).has_siblings is compared


def test_without_a_tree_there_is_one_trajectory_of_the_policy_s_own_choice():
    tree = Exploration(temperature=0.7, breadth=(2, 4), force=1, max_nodes=64, max_tokens=9000)
    single = RlParams(exploration=tree).single()
    limits = {"temperature": 0.7, "max_nodes": 64, "max_tokens": 9000}
    assert single.exploration == Exploration(breadth=(1,), force=0, **limits)
    assert [single.exploration.draws("router", depth) for depth in (1, 2, 9)] == [1, 1, 1]
    assert (tree.breadth, tree.force) == ((2, 4), 1)
    assert single.single() == single


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_can_train(profile):
    params = load_params(ROOT / "params.yaml", profile=profile)
    assert params.train.dataset in params.corpus
    for exploration in (params.seeds.exploration, params.rl.exploration):
        assert exploration.force and exploration.draws("router", 99) == 1
    assert max(params.seeds.exploration.breadth) > 1 and max(params.rl.exploration.breadth) > 1


@pytest.mark.parametrize("profile", PROFILES)
def test_what_a_profile_says_of_training_is_what_is_loaded(profile):
    params = load_params(ROOT / "params.yaml", profile=profile)
    said = yaml.safe_load((ROOT / "conf" / f"{profile}.yaml").read_text())
    own = yaml.safe_load((ROOT / "params.yaml").read_text())
    for stage in ("seeds", "sft", "rl"):
        loaded = getattr(params, stage).model_dump(mode="json")
        for key, value in said[stage].items():
            if key in (own.get(stage) or {}) or key == PER_ALGORITHM:
                continue
            if isinstance(value, dict):
                assert value.items() <= loaded[key].items()
            else:
                assert loaded[key] == value


def test_the_paper_s_profile_has_the_paper_s_numbers():
    params = load_params(ROOT / "params.yaml", profile="paper")
    assert params.rl.exploration == TREE
    assert (params.sft.lr, params.sft.batch_size, params.sft.epochs) == (4e-5, 512, 3)  # table 6
    assert (params.rl.policy_lr, params.rl.value_lr, params.rl.kl_coef) == (5e-7, 5e-6, 0.005)  # table 7
    assert (params.rl.adapter, params.rl.critic, params.rl.clip) == (None, "separate", 0.2)


def test_the_paper_s_profile_has_the_numbers_of_self_training():
    ppo = load_params(ROOT / "params.yaml", profile="paper")
    own = ppo.changed({"train.algorithm": "selftrain"}, origin="x").rl  # mRAG, section 3.2 and appendix D.2
    assert (own.selftrain.trajectories, own.selftrain.most, own.exploration.temperature) == (8, 3, 0.7)
    assert (own.adapter.rank, own.policy_lr, own.max_grad_norm, own.batch_size) == (16, 1e-4, 1.0, 128)
    assert (own.max_steps, own.warmup_steps, own.schedule, own.max_tokens) == (5000, 50, "linear", 16000)
    assert ppo.rl.policy_lr == 5e-7


def test_the_paper_s_profile_has_the_models_of_self_training_where_params_yaml_names_none(tmp_path):
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    (tmp_path / "params.yaml").write_text("{profile: paper, corpus: {atlas: {}}, train: {algorithm: selftrain}}")
    mrag = load_params(tmp_path / "params.yaml")  # mRAG, appendices D.1 and D.4
    assert (mrag.model.source, mrag.llm.model) == ("Qwen/Qwen2.5-7B-Instruct", "tiiuae/Falcon3-10B-Instruct")
    assert mrag.proxy.max_model_len == 32000 > mrag.rl.max_tokens
    c3po = mrag.changed({"train.algorithm": "ppo"}, origin="x")
    assert (c3po.proxy.max_model_len, c3po.llm.model) == (6144, "Qwen/Qwen2-72B-Instruct")
    assert (c3po.llm.urls, c3po.proxy.engine) == (mrag.llm.urls, mrag.proxy.engine)


def test_the_paper_s_profile_has_mygo_s_own_numbers_where_it_is_the_algorithm():
    c3po = load_params(ROOT / "params.yaml", profile="paper")
    mygo = c3po.changed({"train.algorithm": "mygo", "rl.mygo.threshold": 0.4}, origin="x")
    assert (mygo.rl.iterations * mygo.rl.questions, mygo.rl.questions, mygo.rl.mygo.attempts) == (20_000, 1000, 16)
    rates = [(s.final_lr, lr, s.final_lr * lr) for s, lr in ((mygo.sft, mygo.sft.lr), (mygo.rl, mygo.rl.policy_lr))]
    assert rates == [(0.1, 1e-5, pytest.approx(1e-6)), (0.02, 5e-7, pytest.approx(1e-8))]  # its D.3
    assert (c3po.model.source, mygo.model.source) == ("Qwen/Qwen2-0.5B-Instruct", "Qwen/Qwen2.5-7B-Instruct")
    assert (c3po.llm.model, mygo.llm.engine) == ("Qwen/Qwen2-72B-Instruct", "openai")
    encoders = [params.index.model_dump()["encoder"] for params in (c3po, mygo)]
    assert encoders == ["facebook/contriever-msmarco", "BAAI/bge-large-en-v1.5"]  # table 6
    assert (c3po.seeds.max_samples, mygo.seeds.max_samples) == (None, 1000)  # section 4.2.1
    assert (c3po.seeds.teacher is None, mygo.seeds.teacher, mygo.seeds.solutions) == (False, None, 1)
    assert (mygo.rl.mygo.threshold, mygo.sft.batch_size) == (0.4, c3po.sft.batch_size)
    assert mygo.changed({"train.algorithm": "ppo"}, origin="x").rl.model_dump(exclude={"mygo"}) == c3po.rl.model_dump(
        exclude={"mygo"}
    )


@pytest.mark.parametrize("algorithm", ["ppo", "mygo"])
def test_what_is_set_by_hand_wins_over_what_an_algorithm_brings_along(tmp_path, algorithm):
    (tmp_path / "conf").mkdir()
    conf = "rl: {questions: 5, iterations: 7, per_algorithm: {mygo: {questions: 50, iterations: 70}}}"
    (tmp_path / "conf/cpu.yaml").write_text(conf)
    (tmp_path / "params.yaml").write_text(f"train: {{algorithm: {algorithm}}}\nrl: {{iterations: 3}}")
    params = load_params(tmp_path / "params.yaml")
    expected = {"ppo": 5, "mygo": 50}
    assert (params.rl.questions, params.rl.iterations) == (expected[algorithm], 3)
    for other, questions in expected.items():
        assert params.changed({"train.algorithm": other}, origin="x").rl.questions == questions
        by_hand = params.changed({"rl.questions": 9}, origin="x").changed({"train.algorithm": other}, origin="x")
        assert (by_hand.rl.questions, by_hand.rl.iterations) == (9, 3)


def test_numbers_for_an_algorithm_that_there_is_not_are_refused(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/cpu.yaml").write_text("rl: {per_algorithm: {mygoo: {questions: 5}}}")
    (tmp_path / "params.yaml").write_text("seed: 1")
    with pytest.raises(UserError, match=r"cpu\.yaml: rl\.per_algorithm\.mygoo: no such algorithm; choose from grpo"):
        load_params(tmp_path / "params.yaml")


def test_settings_per_algorithm_that_are_a_list_are_an_error(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/cpu.yaml").write_text("rl: {per_algorithm: [mygo]}")
    (tmp_path / "params.yaml").write_text("{}")
    with pytest.raises(UserError, match=r"cpu\.yaml: rl\.per_algorithm: not a mapping"):
        load_params(tmp_path / "params.yaml")


def test_the_defaults_load_without_a_file():
    assert Params().rl == RlParams() and Params().seeds == SeedsParams()


SOUND = {
    "policy_loss": -0.1,
    "value_loss": 0.2,
    "grad_norm": 3.0,
    "kl": 0.05,
    "entropy": 0.4,
    "valid_actions": 0.9,
    "engine_difference": 0.01,
}
GUARDS = GuardParams(max_kl=0.5, min_entropy=0.1, min_valid_actions=0.6, max_engine_difference=0.2)


def test_a_sound_row_breaks_no_guard():
    assert GUARDS.broken_by(SOUND) == ""
    assert GuardParams().broken_by(SOUND) == ""


@pytest.mark.parametrize(
    ("name", "limit", "beyond"),
    [
        ("kl", 0.5, 0.501),
        ("entropy", 0.1, 0.099),
        ("valid_actions", 0.6, 0.599),
        ("engine_difference", 0.2, 0.201),
    ],
)
def test_each_guard_holds_at_its_limit_and_breaks_beyond_it(name, limit, beyond):
    assert GUARDS.broken_by(SOUND | {name: limit}) == ""
    assert GUARDS.broken_by(SOUND | {name: beyond}) == f"{name} is {beyond:.3f}, beyond its guard"


@pytest.mark.parametrize("name", ["kl", "entropy", "valid_actions", "engine_difference"])
def test_what_an_algorithm_does_not_measure_is_not_judged(name):
    assert GUARDS.broken_by({k: v for k, v in SOUND.items() if k != name}) == ""


@pytest.mark.parametrize("name", ["policy_loss", "value_loss", "grad_norm"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_or_a_gradient_that_is_not_a_number_breaks_them_all(name, value):
    assert GUARDS.broken_by(SOUND | {name: value}) == f"{name} is {value}"


@pytest.mark.parametrize("name", ["kl", "entropy", "valid_actions", "engine_difference"])
def test_a_guarded_figure_that_is_not_a_number_breaks_its_guard(name):
    assert name in GUARDS.broken_by(SOUND | {name: math.nan})


def test_the_first_broken_guard_is_named():
    assert GUARDS.broken_by(SOUND | {"kl": 9.0, "entropy": 0.0}) == "kl is 9.000, beyond its guard"
    assert GUARDS.broken_by(SOUND | {"kl": 9.0, "grad_norm": math.nan}) == "grad_norm is nan"


def test_a_weighted_reward_is_kept_in_its_canonical_form():
    weights = {"cover_em": 1, "f1": {"weight": 0.5}}
    assert TrainParams(reward=weights).reward == TrainParams(reward="cover_em + 0.5*f1").reward == "cover_em + 0.5 * f1"

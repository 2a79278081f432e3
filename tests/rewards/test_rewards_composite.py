"""Rewards by name, their weighted sums, what a trajectory earns, and that a judge that fails costs nothing but its verdict."""

import json
import math
import re
from dataclasses import dataclass

import pytest
from fakes import ListRetriever, ScriptedEngine

from dragoman.core.errors import CannotExpress, EngineFault, PromptTooLong, UserError
from dragoman.core.types import Passage, Question
from dragoman.rewards import Reward, base, discovery, expression, reward, reward_names
from dragoman.rewards.base import REWARDS
from dragoman.rollout.backends import Backends
from dragoman.rollout.credit import credit
from dragoman.rollout.exploration import TREE
from dragoman.rollout.record import Trajectory
from dragoman.rollout.scheduler import describe, roll_out
from dragoman.rollout.store import EpisodeStore
from dragoman.systems import build
from dragoman.systems.base import StopReason

QUESTION = Question("q", "What does Bhutan pay with?", ("ngultrum",))
SAID = {
    "Choose": "[Planning]",
    "Facts so": "Action: [LLM]",
    "Write Action": "Action: [all]",
    "documents": "the ngultrum",
}


def verdict(prompt: str, rng: object) -> str:
    if "rupee" in prompt:
        raise EngineFault("the judge is ill")
    return "True" if "the ngultrum" in prompt else "False"


@dataclass(frozen=True)
class Named:
    """An engine that is asked nothing."""

    fingerprint: str


async def earned(setting, answer: str | None, judge=None, question=QUESTION, passages=()) -> dict[str, float | None]:
    ids = [p.id for p in passages]
    trajectory = Trajectory(nodes=[], steps=[], answer=answer, passages=ids, stop=StopReason.ANSWERED)
    return await Reward.of(setting, judge).score(question, trajectory, passages)


@pytest.fixture
def plugin(monkeypatch):
    """Rewards that are known for one test."""
    monkeypatch.setattr(discovery, "REWARDS", dict(REWARDS))
    monkeypatch.setattr(base, "REWARDS", discovery.REWARDS)


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("f1", "f1"),
        ({"f1": 1}, "f1"),
        ({"f1": 2}, "2 * f1"),
        ({"cover_em": 1, "f1": 0.5}, "cover_em + 0.5 * f1"),
        (" cover_em+0.5*f1 ", "cover_em + 0.5 * f1"),
        ("em + -1 * precision + judge", "em + -1 * precision + judge"),
        ({"em": {"weight": 3}, "judge": {}}, "3 * em + judge"),
    ],
)
def test_a_setting_has_one_canonical_form_which_is_a_setting_itself(setting, name):
    assert expression(setting) == name and expression(name) == name


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "cover",
            "unknown reward 'cover': choose from answer_words, citation_precision, citation_recall, cover_em, delta_f1, em, f1, faithfulness, gold_precision, gold_recall, judge, length_penalty, lexical_faithfulness, lexical_nuggets, nuggets, precision, precision_ratio; did you mean 'cover_em'?",
        ),
        ("em * f1", "write a reward as"),
        ("em +", "write a reward as"),
        ("em(1)", "write a reward as"),
        ({}, "at least one term"),
        ({"em": "much"}, "reward em: its weight 'much' is not a number"),
        ("em(strict=True)", "reward em: no parameter 'strict'; it has none"),
        ({"judge": {"llm": 1}}, "reward judge: no parameter 'llm'"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_a_sentence(setting, message):
    with pytest.raises(UserError, match=re.escape(message)):
        expression(setting)


def test_a_weighted_sum_is_bounded_by_those_of_its_terms(plugin):
    assert Reward.of("cover_em + 0.5 * f1").bounds == (0, 1.5)
    assert Reward.of("cover_em + -0.5 * f1").bounds == (-0.5, 1)

    @reward()
    def unbounded(question, trajectory, passages):
        return 0.0

    assert Reward.of("cover_em + unbounded").bounds == (-math.inf, math.inf)
    assert Reward.of("cover_em + 0 * unbounded").bounds == (0, 1)


async def test_each_term_and_their_sum_are_recorded_by_name():
    scores = await earned("cover_em + 0.5 * precision", "it is the ngultrum")
    assert scores["cover_em"] == 1 and scores["em"] == 0 and scores["precision"] == pytest.approx(1 / 3)
    assert scores["cover_em + 0.5 * precision"] == pytest.approx(1 + 0.5 / 3)


async def test_a_reward_sees_the_texts_of_the_passages_and_its_parameters(plugin):
    @reward()
    async def mentions(question, trajectory, passages, *, word: str, each: float = 1.0):
        return each * sum(word in passage.text for passage in passages)

    found = [Passage("a", "A", "the ngultrum"), Passage("b", "B", "the rupee"), Passage("c", "C", "a ngultrum")]
    name = "mentions(each=-2, word='ngultrum')"
    assert (await earned({"mentions": {"word": "ngultrum", "each": -2}}, "yes", passages=found))[name] == -4


async def test_the_judge_is_asked_only_where_it_is_wanted():
    judge = ScriptedEngine(verdict)
    assert "judge" not in await earned("cover_em", "the ngultrum", judge) and judge.requests == []
    scores = await earned("judge", "the ngultrum", judge)
    assert (scores["cover_em"], scores["em"], scores["judge"]) == (1, 1, 1) and len(judge.requests) == 1


async def test_an_empty_answer_is_wrong_without_asking_and_a_failed_verdict_is_none():
    judge = ScriptedEngine(verdict)
    assert (await earned("judge", "", judge))["judge"] == 0 and judge.requests == []
    scores = await earned("cover_em + judge", "rupee", judge)
    assert (scores["judge"], scores["cover_em"], scores["cover_em + judge"]) == (None, 0, None)


@pytest.mark.parametrize(("question", "answer"), [(Question("q", "Why?"), "because"), (QUESTION, None)])
async def test_without_an_acceptable_answer_or_an_answer_nothing_is_scored(question, answer):
    scores = await earned("judge", answer, ScriptedEngine(verdict), question)
    assert set(scores.values()) == {None}


async def test_a_reward_that_fails_stops_the_run_with_its_name(plugin):
    @reward()
    def broken(question, trajectory, passages):
        raise ZeroDivisionError("by nothing")

    with pytest.raises(UserError, match="reward broken, question q: ZeroDivisionError: by nothing"):
        await earned("broken", "x")


def test_two_rewards_of_one_name_are_refused(plugin):
    def em(question, trajectory, passages):
        return 0.0

    with pytest.raises(UserError, match="two rewards are called 'em'"):
        reward()(em)


def test_a_reward_of_another_package_is_found_by_its_entry_point(plugin, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    info = tmp_path / "brevity-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: brevity\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dragoman.rewards]\nbrevity = brevity_reward\n")
    code = tmp_path / "brevity_reward.py"
    code.write_text("import nothing_of_that_name\n")
    discovery._import_all.cache_clear()
    with pytest.raises(UserError, match="reward 'brevity': brevity_reward fails to import: ModuleNotFoundError"):
        reward_names()
    code.write_text(
        "from dragoman.rewards import reward\n"
        "@reward(bounds=(0, 1))\n"
        "def brevity(question, trajectory, passages, *, words=5): return 1.0\n"
    )
    assert "brevity" in reward_names() and expression("brevity(words=3)") == "brevity(words=3)"
    assert Reward.of("brevity").modules == ["brevity_reward"]
    discovery._import_all.cache_clear()


async def test_a_tree_is_judged_and_a_verdict_that_failed_leaves_the_rest_of_it_sound(tmp_path):
    def llm(prompt: str, rng: object) -> str:
        if "True" in prompt or "False" in prompt:
            return verdict(prompt, rng)
        return "the ngultrum" if "Thimphu" in prompt else "rupee"

    def proxy(prompt: str, rng: object) -> str:
        if "Choose one action" in prompt:
            return {r"\[N": "[No Retrieval]", r"\[R": "[Retrieval] Bhutan", r"\[P": "[Planning]"}[prompt[:3]]
        return "Action: [LLM]" if "Facts so far" in prompt else "Action: [all]"

    backends = Backends(
        llm=ScriptedEngine(llm),
        proxy=ScriptedEngine(proxy),
        retriever=ListRetriever([Passage("b", "Bhutan", "Thimphu: the ngultrum")]),
    )
    judge = Reward.of("judge", backends.llm)
    with EpisodeStore(tmp_path) as store:
        (episode,) = await roll_out([QUESTION], "c3po", build("c3po"), backends, store, exploration=TREE, reward=judge)
    credits = credit(episode, "judge")
    assert {n.kind: credits[n.id] for n in episode.nodes if n.depth == 1} == {
        "NoRetrieval": None, "Plan": None, "Search": 1.0
    }  # fmt: skip
    config = json.loads((tmp_path / "episodes.jsonl").read_text())["config"]
    assert (config["reward"], config["judge"]) == ("judge", backends.llm.fingerprint)


async def test_a_judge_judges_and_the_llm_answers():
    asked = Question("q", "Who drew it?", ("Edith Marlowe",))
    llm = ScriptedEngine(lambda prompt, rng: "Bob")
    judge = ScriptedEngine(lambda prompt, rng: "False")
    found = [Passage(f"p{i}", "t", "x") for i in range(3)]
    reward = Reward.of("judge + delta_f1(first=1)", llm, lambda: judge)
    trajectory = Trajectory(nodes=[], steps=[], answer="Edith", passages=[], stop=StopReason.ANSWERED)
    scores = await reward.score(asked, trajectory, found)
    # F1 of one word of two is 2/3, and of Bob 0
    assert (scores["judge"], scores["delta_f1(first=1)"]) == (0, pytest.approx(2 / 3))
    assert (len(llm.requests), len(judge.requests)) == (1, 1)


@pytest.mark.parametrize(("setting", "opened"), [("cover_em", 0), ("delta_f1", 0), ("0.8 * nuggets + judge", 1)])
def test_a_judge_is_opened_where_a_term_asks_one_and_once(setting, opened):
    found = []
    reward = Reward.of(setting, ScriptedEngine(lambda prompt, rng: ""), lambda: found.append(object()) or found[-1])
    assert len(found) == opened and reward.judge is (found[0] if found else None)


@pytest.mark.parametrize("judged", [False, True])
def test_only_a_run_that_asks_a_judge_is_identified_by_it(judged):
    def described(setting: str, **opened) -> dict:
        backends = Backends(llm=Named("llm"), proxy=Named("proxy"), retriever=ListRetriever([]), **opened)
        return describe("c3po", build("c3po"), backends, TREE, 0, backends.reward(setting))

    other = {"open_judge": lambda: Named("other")} if judged else {}
    assert described("cover_em", **other) == described("cover_em") and "judge" not in described("cover_em")
    assert described("delta_f1", **other)["judge"] == "llm"
    assert described("judge", **other)["judge"] == ("other" if judged else "llm")


async def test_shaping_is_added_where_it_is_known_and_leaves_the_reward_as_it_is():
    shaped = Reward.of("cover_em", shaping="0.7 * gold_recall + 0.3 * gold_precision")
    name = "cover_em + 0.7 * gold_recall + 0.3 * gold_precision"
    assert (shaped.name, shaped.shaped_name, shaped.bounds, shaped.shaped_bounds) == ("cover_em", name, (0, 1), (0, 2))
    kept = Trajectory(nodes=[], steps=[], answer="ngultrum", passages=["x", "u"], stop=StopReason.ANSWERED)
    known = Question("q", "?", ("ngultrum",), supporting_ids=("x", "y"))
    assert (await shaped.score(known, kept, ()))[name] == pytest.approx(1 + 0.7 * 0.5 + 0.3 * 0.5)
    assert (await shaped.score(known, kept, ()))["cover_em"] == 1
    assert (await shaped.score(QUESTION, kept, ()))[name] == 1  # nobody knows its gold passages
    silent = Trajectory(nodes=[], steps=[], answer=None, passages=["x"], stop=StopReason.ENGINE_FAULT)
    assert (await shaped.score(known, silent, ()))[name] is None
    unasked = silent.model_copy(update={"stop": StopReason.NOT_ASKED})
    assert (await shaped.score(known, unasked, ()))[name] == pytest.approx(0.7 * 0.5 + 0.3)
    assert (await shaped.score(known, unasked, ()))["cover_em"] is None
    assert (await shaped.score(QUESTION, unasked, ()))[name] is None


@pytest.mark.parametrize(
    ("failure", "fault"), [(EngineFault("503"), "reward judge: 503"), (PromptTooLong("too long"), "")]
)
async def test_a_shaping_whose_call_failed_leaves_what_is_learnt_from_unknown(failure, fault):
    shaped = Reward.of("cover_em", ScriptedEngine(lambda prompt, rng: failure), shaping="0.5 * judge")
    right = Trajectory(nodes=[], steps=[], answer="ngultrum", passages=[], stop=StopReason.ANSWERED)
    scored = await shaped.scored(QUESTION, right, ())
    assert (scored.values["cover_em"], scored.values[shaped.shaped_name]) == (1, None)
    assert scored.fault == fault


async def test_a_shaping_that_its_engine_can_never_be_asked_for_is_an_error():
    engine = ScriptedEngine(lambda prompt, rng: CannotExpress("no regex"))
    shaped = Reward.of("cover_em", engine, shaping="0.5 * judge")
    right = Trajectory(nodes=[], steps=[], answer="ngultrum", passages=[], stop=StopReason.ANSWERED)
    with pytest.raises(UserError, match="reward judge: no answer can be scored: no regex"):
        await shaped.scored(QUESTION, right, ())


@pytest.mark.parametrize(
    ("reward", "shaping", "needed"),
    [
        ("cover_em", None, True),
        ("cover_em", "gold_recall", False),
        ("cover_em", "gold_recall + f1", True),
        ("gold_recall", "f1", False),
    ],
)
def test_answers_are_needed_where_neither_the_reward_nor_its_shaping_does_without(reward, shaping, needed):
    assert Reward.of(reward, shaping=shaping).needs_answers is needed


def test_without_shaping_the_two_names_are_one():
    assert Reward.of("f1").shaped_name == Reward.of("f1").name == "f1"

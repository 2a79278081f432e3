"""What a trajectory earns, and that a judge that fails costs nothing but its verdict."""

import json

from fakes import ListRetriever, ScriptedEngine

from dragoman.core.errors import EngineFault
from dragoman.core.types import Passage, Question
from dragoman.rewards.trajectory import Rewards
from dragoman.rollout.backends import Backends
from dragoman.rollout.credit import credit
from dragoman.rollout.exploration import TREE
from dragoman.rollout.scheduler import roll_out
from dragoman.rollout.store import EpisodeStore
from dragoman.systems import build

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


async def test_the_judge_is_asked_only_where_it_is_wanted():
    judge = ScriptedEngine(verdict)
    assert Rewards.for_training("cover_em", judge) == Rewards()
    assert "judge" not in await Rewards().of(QUESTION, "the ngultrum")
    earned = await Rewards.for_training("judge", judge).of(QUESTION, "the ngultrum")
    assert (earned["cover_em"], earned["em"], earned["judge"]) == (1, 1, 1) and len(judge.requests) == 1


async def test_an_empty_answer_is_wrong_without_asking_and_a_failed_verdict_is_none():
    judge = ScriptedEngine(verdict)
    assert (await Rewards(judge).of(QUESTION, ""))["judge"] == 0 and judge.requests == []
    earned = await Rewards(judge).of(QUESTION, "rupee")
    assert earned["judge"] is None and earned["cover_em"] == 0


async def test_without_acceptable_answers_nothing_is_scored():
    assert await Rewards(ScriptedEngine(verdict)).of(Question("q", "Why?"), "because") == {}


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
    rewards = Rewards.for_training("judge", backends.llm)
    with EpisodeStore(tmp_path) as store:
        (episode,) = await roll_out(
            [QUESTION], "c3po", build("c3po"), backends, store, exploration=TREE, rewards=rewards
        )
    credits = credit(episode, "judge")
    assert {n.kind: credits[n.id] for n in episode.nodes if n.depth == 1} == {
        "NoRetrieval": None, "Plan": None, "Search": 1.0
    }  # fmt: skip
    assert json.loads((tmp_path / "episodes.jsonl").read_text())["config"]["judge"] == backends.llm.fingerprint

"""Scores that are asked for beside the usual ones, from the setting to the table."""

import json
import random
from dataclasses import replace

import pytest
from fakes import ListRetriever, ScriptedEngine

from dragoman.core import files
from dragoman.core.errors import EngineFault, PromptTooLong, UserError
from dragoman.core.settings import parse_section
from dragoman.core.types import Passage, Question
from dragoman.corpus import load_questions
from dragoman.evaluation import evaluate as evaluation
from dragoman.evaluation.evaluate import Evaluation, evaluate, identity
from dragoman.evaluation.metrics import prediction, summarize
from dragoman.evaluation.report import markdown
from dragoman.evaluation.scoring import add_scores, kept_passages
from dragoman.evaluation.settings import EvaluateParams
from dragoman.rewards.discovery import find_reward
from dragoman.rollout.backends import Backends
from dragoman.rollout.tree import Tree
from dragoman.systems import build

PASSAGES = [
    Passage("bt", "Bhutan", "the capital of Bhutan is Thimphu"),
    Passage("np", "Nepal", "the capital of Nepal is Kathmandu"),
    Passage("x", "Else", "nothing of that"),
]
QUESTION = Question("q", "the capital of Bhutan", ("Thimphu",), supporting_ids=("bt",))
NAMES = ("0.8 * lexical_nuggets + 0.2 * lexical_faithfulness", "citation_precision", "answer_words")


def backends(script) -> Backends:
    engine = ScriptedEngine(script)
    return Backends(llm=engine, proxy=engine, retriever=ListRetriever(PASSAGES))


async def answered(opened: Backends, question: Question = QUESTION):
    system = build("standard", {"k": 2})
    return await Tree(question, system, opened).grow(system_name="standard")


async def scored(opened: Backends, names, question: Question = QUESTION) -> dict:
    episode = await answered(opened, question)
    row = prediction(episode, "standard")
    await add_scores({name: opened.reward(name) for name in names}, [episode], [row], opened)
    return row


async def test_a_question_that_outgrew_the_context_has_neither_an_answer_score_nor_a_recall():
    def too_long(prompt, rng):
        raise PromptTooLong("too long")

    row = prediction(await answered(backends(too_long)), "standard")
    assert row["stop"] == "prompt_too_long" and set(row["scores"].values()) == {None}


SAID = ("[Planning]", "Action: [Retrieval] the capital of Bhutan", "Action: [1]", "Action: [LLM]")


def planning() -> Backends:
    """For a C-3PO that plans, searches once and keeps what it finds: four decisions, a roadmap, a search and an answer."""
    said = iter(SAID)
    proxy = ScriptedEngine(lambda prompt, rng: next(said))
    return Backends(llm=ScriptedEngine(lambda prompt, rng: "Thimphu"), proxy=proxy, retriever=ListRetriever(PASSAGES))


async def test_the_costs_of_a_trajectory_with_decisions_are_those_of_its_decisions_searches_and_asks():
    episode = await Tree(QUESTION, build("c3po", {"k": 2}), planning()).grow(system_name="c3po")
    row = prediction(episode, "c3po")
    assert (row["answer"], row["passages"], row["stop"], row["error"]) == ("Thimphu", ["bt"], "answered", None)
    assert (row["strategy"], row["depth"]) == ("Plan", 4)
    assert (row["calls"], row["searches"], row["llm_calls"], row["llm_hits"]) == (6, 1, 2, 0)
    # a prompt of 3 tokens for each of six calls, and a token for each letter: of four actions, the roadmap and the answer
    assert row["tokens"] == 6 * 3 + sum(map(len, SAID)) + 2 * len("Thimphu") == episode.tokens


async def test_the_files_of_an_evaluation_have_the_keys_of_the_contract_and_no_others(tmp_path):
    class Opened:
        def open(self, name: str):
            return (build(name), planning()) if name == "c3po" else (build(name, {"k": 2}), planning())

    settings = EvaluateParams(bootstrap=100, traces=0)
    how = Evaluation(dataset="d", settings=settings, seed=3, out=tmp_path, track=None)
    await evaluate(["standard", "c3po"], [QUESTION], Opened(), how)
    rows = [row for _, row in files.read(tmp_path / "predictions.jsonl")]
    assert [(row["id"], row["system"]) for row in rows] == [("q", "standard"), ("q", "c3po")]
    scores, recalled = {"cover_em", "em", "f1", "precision"}, {"recall", "all_gold_recall"}
    for row in rows:
        assert row.keys() == {
            "id", "system", "type", "question", "answer", "answers", "scores", "passages", "strategy", "depth", "calls",
            "searches", "llm_calls", "llm_hits", "tokens", "started", "seconds", "stop", "error",
        }  # fmt: skip
        assert row["scores"].keys() == scores | recalled
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics.keys() == {"dataset", "n", "seed", "systems", "paired"}
    assert (metrics["dataset"], metrics["n"], metrics["seed"]) == ("d", 1, 3)
    assert list(metrics["systems"]) == ["standard", "c3po"]
    for system in metrics["systems"].values():
        assert system.keys() == scores | recalled | {
            "calls", "searches", "tokens", "seconds", "latency", "llm_hits", "failed", "unjudged", "judge_faults", "stops",
            "strategies", "depths",
        }  # fmt: skip
        assert all(system[score].keys() == {"mean", "low", "high"} for score in scores | recalled)
    assert (metrics["systems"]["standard"]["calls"], metrics["systems"]["c3po"]["calls"]) == (1, 6)
    assert metrics["systems"]["c3po"]["strategies"] == {"Plan": 1} and metrics["systems"]["c3po"]["depths"] == {"4": 1}
    assert metrics["paired"].keys() == {"c3po - standard"}
    assert metrics["paired"]["c3po - standard"].keys() == scores | recalled
    assert all(found.keys() == {"mean", "low", "high"} for found in metrics["paired"]["c3po - standard"].values())


async def test_each_answer_is_scored_by_the_rewards_that_are_named():
    row = await scored(backends(lambda prompt, rng: "Thimphu"), NAMES)
    assert {name: row["scores"][name] for name in NAMES} == {NAMES[0]: 1, NAMES[1]: 1, NAMES[2]: 1}
    row = await scored(backends(lambda prompt, rng: "Thimphu or Kathmandu"), NAMES)
    # stated, beside another name: 2/3; both are in the passages: 1; one of two cited passages is gold
    assert row["scores"][NAMES[0]] == pytest.approx(0.8 * 2 / 3 + 0.2)
    assert (row["scores"][NAMES[1]], row["scores"][NAMES[2]]) == (0.5, 3)


async def test_a_judge_is_asked_with_the_passages_that_were_kept_and_may_fail():
    def script(prompt: str, rng: random.Random):
        if prompt.startswith("{"):
            return json.dumps({"aspects": ["it is Thimphu"]})
        return ("1" if "Kathmandu" in prompt else "0") if "claims: it is Thimphu" in prompt else "Thimphu"

    assert (await scored(backends(script), ["faithfulness"]))["scores"]["faithfulness"] == 1

    def broken(prompt: str, rng: random.Random):
        return EngineFault("down") if prompt.startswith("{") else "Thimphu"

    row = await scored(backends(broken), ["faithfulness"])
    assert row["scores"]["faithfulness"] is None and row["scores"]["cover_em"] == 1
    assert "down" in row["judge_fault"]  # so that a bench asks it again
    good = await scored(backends(script), ["faithfulness"])
    system = summarize([row, good | {"id": "q2"}], dataset="d", seed=0, resamples=50)["systems"]["standard"]
    assert system["unscored"] == {"faithfulness": 1} and system["faithfulness"]["mean"] == 1  # and not 0.5


async def test_an_evaluation_whose_judge_or_scores_change_is_another_one(monkeypatch):
    def key(judged_by: str, **settings) -> str:
        opened = backends(lambda prompt, rng: "Thimphu")
        judge = ScriptedEngine(lambda prompt, rng: "Thimphu")
        judge.fingerprint = judged_by
        asked = replace(opened, open_judge=lambda: judge)
        return identity("standard", build("standard"), asked, [QUESTION], EvaluateParams(**settings), 0)

    for unjudged in ({}, {"scores": ["answer_words"]}):
        assert key("one", **unjudged) == key("another", **unjudged)
    for judged in ({"judge": True}, {"scores": ["faithfulness"]}):
        assert key("one", **judged) != key("another", **judged)
    hashed: list[str] = []
    monkeypatch.setattr(evaluation, "code_hash", lambda *modules, stop: hashed.extend(modules) or "")
    key("one", scores=["answer_words"])
    assert find_reward("answer_words").score.__module__ in hashed


async def test_a_synthetic_set_without_references_is_scored_by_its_answers(tmp_path):
    rows = [{"id": f"q{i}", "question": QUESTION.question, "answers": ["Thimphu"]} for i in range(2)]
    files.write(tmp_path / "test.jsonl", [rows[0], rows[1] | {"reference": None, "nuggets": []}])
    asked = load_questions(tmp_path / "test.jsonl")
    assert [(question.reference, question.nuggets) for question in asked] == [("", ())] * 2

    def script(prompt: str, rng: random.Random):
        assert not prompt.startswith("{"), "there is no text to find aspects in"
        return "2" if "Thimphu" in prompt and prompt.startswith("-1") else "Thimphu"

    for question in asked:
        row = await scored(backends(script), ["nuggets(draws=1)", "lexical_nuggets"], question)
        assert (row["scores"]["nuggets(draws=1)"], row["scores"]["lexical_nuggets"]) == (1, 1)


async def test_a_judge_of_its_own_is_asked_in_place_of_the_llm():
    grades = ScriptedEngine(lambda prompt, rng: json.dumps({"aspects": ["x"]}) if prompt.startswith("{") else "1")
    opened = replace(backends(lambda prompt, rng: "Thimphu"), open_judge=lambda: grades)
    assert (await scored(opened, ["faithfulness"]))["scores"]["faithfulness"] == 1
    assert len(grades.requests) == 2 and len(opened.llm.requests) == 1  # its answer


async def test_the_texts_of_kept_passages_come_from_the_same_searches():
    opened = backends(lambda prompt, rng: "Thimphu")
    episode = await answered(opened)
    assert await kept_passages(episode, opened.retriever) == PASSAGES[:2]
    other = Backends(llm=opened.llm, proxy=opened.llm, retriever=ListRetriever(PASSAGES[2:]))
    row = prediction(episode, "standard")
    await add_scores(
        {"answer_words": other.reward("answer_words")}, [episode], [row], other
    )  # of an index that was built anew
    assert row["scores"]["answer_words"] is None


async def test_what_has_no_answer_has_no_score():
    row = await scored(backends(lambda prompt, rng: EngineFault("down")), ["answer_words"])
    assert row["answer"] is None and row["scores"]["answer_words"] is None


async def test_of_a_question_about_two_things_the_whole_answer_counts():
    question = Question(
        "q", "capitals of Bhutan and Nepal", ("Thimphu and Kathmandu",), parts=(("Thimphu",), ("Kathmandu",))
    )
    half = await scored(backends(lambda prompt, rng: "Thimphu"), [], question)
    whole = await scored(backends(lambda prompt, rng: "Kathmandu, Thimphu"), [], question)
    assert (half["scores"]["cover_em"], whole["scores"]["cover_em"]) == (0, 1)


async def test_they_are_in_the_metrics_and_in_a_table_of_their_own():
    rows = []
    for name, said in (("one", "Thimphu"), ("two", "Thimphu or Kathmandu")):
        for i in range(3):
            opened = backends(lambda prompt, rng, said=said: said)
            row = await scored(opened, ["lexical_nuggets", "answer_words"])
            rows.append(row | {"id": f"q{i}", "system": name})
    rows[-1]["scores"]["lexical_nuggets"] = None
    metrics = summarize(rows, dataset="d", seed=0, resamples=100)
    assert metrics["scores"] == ["lexical_nuggets", "answer_words"]
    assert metrics["systems"]["two"]["lexical_nuggets"] == {"mean": 0.6667, "low": 0.6667, "high": 0.6667}
    assert metrics["systems"]["two"]["unscored"] == {"lexical_nuggets": 1, "answer_words": 0}
    assert metrics["paired"]["two - one"]["answer_words"]["mean"] == 2
    table = markdown(metrics)
    assert (
        "| | lexical_nuggets | answer_words |" in table and "| two | 0.67 [0.67, 0.67] | 3.00 [3.00, 3.00] |" in table
    )
    assert (
        "| two - one | -0.33 [-0.33, -0.33] | +2.00 [+2.00, +2.00] |" in table
    )  # all differ alike: none is detectable
    assert "\nAnswers without a score, which no mean counts: two (lexical_nuggets 1).\n" in table
    head = next(line for line in table.splitlines() if line.startswith("| system"))
    assert "lexical" not in head  # the table that everybody reads is as wide as it was


async def test_without_the_setting_nothing_is_added():
    rows = [await scored(backends(lambda prompt, rng: "Thimphu"), [])]
    metrics = summarize(rows, dataset="d", seed=0, resamples=100)
    assert "scores" not in metrics and "unscored" not in metrics["systems"]["standard"]
    assert markdown(metrics).count("|---") == markdown(metrics).splitlines()[3].count("|---")


def test_an_unknown_reward_is_refused_and_an_expression_kept_in_its_canonical_form():
    with pytest.raises(UserError, match=r"scores.0: unknown reward 'nugets'.*did you mean 'nuggets'"):
        parse_section(EvaluateParams, {"scores": ["nugets"]}, origin="params.yaml")
    assert EvaluateParams(scores=("0.8*nuggets+0.2*faithfulness",)).scores == ("0.8 * nuggets + 0.2 * faithfulness",)

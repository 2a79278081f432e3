"""Protocols of weights that are served behind a URL, against a server that plays them over a real socket."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from fakes import ListRetriever
from fastapi import FastAPI
from jinja2 import Environment
from openai_stub import serving
from test_systems_baselines import PASSAGES, QUESTION

from dragoman.core.errors import UserError
from dragoman.engines.base import Completion
from dragoman.engines.openai import OpenAIEngine
from dragoman.rollout.backends import Backends
from dragoman.rollout.record import Trajectory
from dragoman.rollout.tree import Tree
from dragoman.systems import build
from dragoman.systems.base import StopReason


class Stub(FastAPI):
    """Says one thing after the other, as a server does that stops before the tag, and keeps what it was asked."""

    def __init__(self, *texts: str) -> None:
        super().__init__()
        self.texts, self.bodies = list(texts), list[dict[str, Any]]()
        self.post("/v1/chat/completions")(self.reply)

    async def reply(self, body: dict[str, Any]) -> dict[str, Any]:
        self.bodies.append(body)
        message = {"role": "assistant", "content": self.texts.pop(0)}
        usage = {"prompt_tokens": 1, "completion_tokens": 1}
        return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}

    @property
    def begun(self) -> list[str]:
        """What each reply was to go on with."""
        return [m["content"] for body in self.bodies for m in body["messages"] if m["role"] == "assistant"]


class ByWord(Stub):
    """Says what belongs to the first of the words that its messages contain, or else the last text."""

    def __init__(self, replies: dict[str, str], otherwise: str) -> None:
        super().__init__()
        self.replies, self.otherwise = replies, otherwise

    async def reply(self, body: dict[str, Any]) -> dict[str, Any]:
        shown = "\n".join(message["content"] for message in body["messages"])
        self.texts.append(next((said for word, said in self.replies.items() if word in shown), self.otherwise))
        return await super().reply(body)


async def run(name: str, stub: Stub, structured: Any = "vllm", **settings: Any) -> tuple[Trajectory, list[str]]:
    retriever = ListRetriever(PASSAGES)
    with serving(stub) as url:
        engine = OpenAIEngine([url], "m", structured=structured)
        backends = Backends(llm=engine, proxy=engine, retriever=retriever)
        episode = await Tree(QUESTION, build(name, {"k": 1, **settings}), backends).grow()
        await engine.close()
    return episode.trajectories[0], retriever.queries


async def test_search_r1_goes_on_with_its_own_message_and_what_was_found():
    stub = Stub("<think>Who?</think>\n<search> capital\nThimphu\x00", "<think>Now</think>\n<answer> ngultrum ")
    trajectory, queries = await run("search-r1", stub)
    assert (trajectory.answer, trajectory.stop) == ("ngultrum", StopReason.ANSWERED)
    assert (queries, trajectory.passages) == (["capital Thimphu"], ["bhutan"])
    first, second = stub.bodies
    assert [m["role"] for m in first["messages"]] == ["user"] and "continue_final_message" not in first
    assert first["stop"] == ["</search>", "</answer>"] and first["max_tokens"] == 500
    assert (second["continue_final_message"], second["add_generation_prompt"]) == (True, False)
    assert second["messages"][0] == first["messages"][0]
    assert stub.begun == [
        "<think>Who?</think>\n<search> capital\nThimphu\x00</search>\n\n"
        "<information>Doc 1: Bhutan: Thimphu is the capital of Bhutan</information>\n\n"
    ]


async def test_search_r1_is_told_when_it_neither_searches_nor_answers():
    stub = Stub("Let me see.", "<answer>ngultrum</answer>")
    trajectory, queries = await run("search-r1", stub)
    assert (trajectory.answer, queries) == ("ngultrum", [])
    assert stub.begun[0].startswith("Let me see.\nThat was neither a query between <search> and </search> nor")


async def test_search_r1_without_an_answer_after_its_last_search_answers_from_what_it_found():
    stub = Stub("<search>Nepal", "<search>Bhutan", "<search>once more", "the ngultrum")
    trajectory, queries = await run("search-r1", stub, max_searches=2)
    assert (trajectory.answer, trajectory.stop) == ("the ngultrum", StopReason.DEPTH_LIMIT)
    assert queries == ["Nepal", "Bhutan"] and len(trajectory.passages) == 2
    assert stub.bodies[-1]["messages"][-1]["content"].endswith(f"Question: {QUESTION.question}")


async def test_search_r1_tells_weights_what_they_were_trained_with():
    stub = Stub("<answer>x")
    await run("search-r1", stub, instruction="As trained: {question}")
    assert stub.bodies[0]["messages"] == [{"role": "user", "content": f"As trained: {QUESTION.question}"}]
    with pytest.raises(UserError, match=r"instruction: must have \{question\}"):
        build("search-r1", {"instruction": "As trained"})


async def test_a_server_that_cannot_go_on_with_a_message_is_a_fault_with_the_setting():
    trajectory, _ = await run("search-r1", Stub("<search>Nepal"), structured="none")
    assert trajectory.stop is StopReason.ENGINE_FAULT and "set the engine's `structured` to vllm" in trajectory.error


async def test_r1_searcher_has_tags_of_its_own():
    stub = Stub("<think>hm <|begin_of_query|>capital Thimphu", "so</think><answer>ngultrum")
    trajectory, queries = await run("r1-searcher", stub)
    assert (trajectory.answer, queries) == ("ngultrum", ["capital Thimphu"])
    assert stub.bodies[0]["stop"] == ["<|end_of_query|>", "</answer>"]
    assert stub.begun[0].endswith(
        "<|end_of_query|>\n\n<|begin_of_documents|>\nDoc 1: Bhutan: Thimphu is the capital of Bhutan\n<|end_of_documents|>\n\n"
    )


@pytest.mark.parametrize(
    ("said", "queries", "passages", "answer", "stop", "goes_on"),
    [
        (  # two hops: what the first search has found stays in the message, and what the second finds comes behind it
            ["<|begin_of_query|>capital Thimphu", "<|begin_of_query|>currency Bhutan", "<answer>ngultrum"],
            ["capital Thimphu", "currency Bhutan"],
            ["bhutan", "ngultrum"],
            "ngultrum",
            StopReason.ANSWERED,
            "<|begin_of_query|>currency Bhutan<|end_of_query|>\n\n<|begin_of_documents|>\n"
            "Doc 1: Ngultrum: the currency of Bhutan is the ngultrum\n<|end_of_documents|>\n\n",
        ),
        (  # the tags of Search-R1 are not its own: nothing is searched for, and it is told which are
            ["<search>Nepal", "<answer>x"],
            [],
            [],
            "x",
            StopReason.ANSWERED,
            "<search>Nepal\nThat was neither a query between <|begin_of_query|> and <|end_of_query|> nor an answer between "
            "<answer> and </answer>.\n",
        ),
        (  # a third query, where two searches are allowed: the common prompt asks, and no tag is read from what it says
            ["<|begin_of_query|>Nepal", "<|begin_of_query|>Bhutan", "<|begin_of_query|>more", "the <b>rupee"],
            ["Nepal", "Bhutan"],
            ["nepal", "bhutan"],
            "the <b>rupee",
            StopReason.DEPTH_LIMIT,
            "Doc 1: Bhutan: Thimphu is the capital of Bhutan\n<|end_of_documents|>\n\n",
        ),
    ],
)
async def test_r1_searcher_searches_until_it_answers(said, queries, passages, answer, stop, goes_on):
    stub = Stub(*said)
    trajectory, searched = await run("r1-searcher", stub, max_searches=2)
    assert (searched, trajectory.passages) == (queries, passages)
    assert (trajectory.answer, trajectory.stop) == (answer, stop)
    assert stub.begun[-1].endswith(goes_on)


# self-rag


def judged(relevant: str, supported: str, utility: int) -> str:
    return f"[{relevant}]an answer[{supported}][Utility:{utility}]"


@pytest.mark.parametrize(
    ("said", "score"),
    [
        (judged("Relevant", "Fully supported", 5), 2.5),  # 1 + 1 + 0.5 * 1
        (judged("Relevant", "Partially supported", 3), 1.5),
        (judged("Irrelevant", "No support / Contradictory", 1), -0.5),
        ("[Relevant]an answer", 1.0),
        ("an answer", 0.0),
        ("[Irrelevant]an answer[Utility:4] and [Relevant]", 0.25),  # the first of a kind counts
    ],
)
def test_self_rag_weighs_what_the_model_says_of_its_answer(said, score):
    assert build("self-rag").critique(Completion(said, (), (), "stop")) == score


def test_self_rag_weighs_probabilities_where_they_are_reported():
    """Relevant 0.6 of 0.8; supported (0.5 + 0.5 * 0.25) of 1; useful 0.5 * (0.5 * 1 + 0.5 * 0); and e to the mean of 0 and -2."""
    places = (
        (("[Relevant]", math.log(0.6)), ("[Irrelevant]", math.log(0.2)), ("The", math.log(0.2))),
        ((" ngultrum", -0.1), ("[Fully supported]", -4.0)),
        (
            ("[Fully supported]", math.log(0.5)),
            ("[No support / Contradictory]", math.log(0.25)),
            ("[Partially supported]", math.log(0.25)),
        ),
        (("[Utility:5]", math.log(0.5)), ("[Utility:3]", math.log(0.5))),
    )
    answer = Completion("[Relevant] ngultrum[Fully supported][Utility:5]", (1, 2), (0.0, -2.0), "stop", places)
    assert build("self-rag").critique(answer) == pytest.approx(0.75 + 0.625 + 0.25 + math.exp(-1))
    unsure = Completion("x", (), (), "stop", ((("x", 0.0), ("[Relevant]", -9.0)),))
    assert build("self-rag").critique(unsure) == 1.0  # nothing was judged; the text is certain


async def test_self_rag_searches_when_asked_and_keeps_the_best_judged_answer():
    worse = "[Irrelevant]rupee[No support / Contradictory][Utility:2]"
    stub = ByWord(
        {"Thimphu is the": worse, "Kathmandu is": "[Relevant]the ngultrum[Fully supported][Utility:5]</s>"},
        "It is [Retrieval]",
    )
    trajectory, queries = await run("self-rag", stub, k=2)
    assert (trajectory.answer, trajectory.passages) == ("the ngultrum", ["nepal"])
    assert queries == [QUESTION.question]
    first, *others = stub.bodies
    assert first["messages"] == [{"role": "user", "content": f"### Instruction:\n{QUESTION.question}\n\n### Response:"}]
    assert {(body["skip_special_tokens"], *body["stop"]) for body in stub.bodies} == {(False, "<paragraph>")}
    assert sorted(body["messages"][-1]["content"] for body in others) == [
        "[Retrieval]<paragraph>Bhutan\nThimphu is the capital of Bhutan</paragraph>",
        "[Retrieval]<paragraph>Nepal\nKathmandu is the capital of Nepal</paragraph>",
    ]
    assert all(body["continue_final_message"] for body in others)


async def test_self_rag_takes_the_answer_that_its_weights_are_surer_of():
    """Both passages are called relevant, the second with more certainty."""

    class Sure(Stub):
        async def reply(self, body: dict[str, Any]) -> dict[str, Any]:
            sure = "Kathmandu" in str(body["messages"])
            self.texts.append("[Relevant]the ngultrum" if sure else "[Relevant]rupee")
            said, p = await super().reply(body), 0.9 if sure else 0.6
            chances = {"[Relevant]": p, "[Irrelevant]": 1 - p}
            top = [{"token": token, "logprob": math.log(chance)} for token, chance in chances.items()]
            said["choices"][0]["logprobs"] = {"content": [{**top[0], "top_logprobs": top}]}
            return said

    stub = Sure()
    trajectory, _ = await run("self-rag", stub, k=2, retrieves="always")
    assert (trajectory.answer, trajectory.passages) == ("the ngultrum", ["nepal"])
    assert {body["top_logprobs"] for body in stub.bodies} == {20}


async def test_self_rag_that_asks_for_no_search_has_answered():
    trajectory, queries = await run("self-rag", Stub("[No Retrieval]The ngultrum.[Utility:5]"))
    assert (trajectory.answer, queries) == ("The ngultrum.", [])


async def test_self_rag_can_be_told_when_to_search():
    stub = Stub("[Utility:5]")
    trajectory, queries = await run("self-rag", stub, retrieves="never")
    assert (trajectory.stop, queries, stub.begun) == (StopReason.EMPTY_ANSWER, [], ["[No Retrieval]"])
    trajectory, queries = await run("self-rag", Stub("[Relevant]x"), retrieves="always")
    assert (trajectory.answer, len(queries)) == ("x", 1)


async def test_a_server_that_leaves_special_tokens_out_is_a_fault_with_the_setting():
    trajectory, _ = await run("self-rag", Stub("x"), structured="none")
    assert trajectory.stop is StopReason.ENGINE_FAULT and "set the engine's `structured` to vllm" in trajectory.error


# auto-rag


async def test_auto_rag_looks_up_new_passages_until_it_has_the_answer():
    stub = Stub(
        "I need its land.\nRefined Query: [Dense] capital Thimphu",
        "It is Bhutan.\nRefined Query: capital Thimphu",
        "Nepal is no help.\nFinal Answer: the ngultrum\n",
    )
    trajectory, queries = await run("auto-rag", stub)
    assert (trajectory.answer, trajectory.stop) == ("the ngultrum", StopReason.ANSWERED)
    assert queries == ["capital Thimphu"] * 2 and trajectory.passages == ["bhutan", "nepal"]
    system, *turns = stub.bodies[-1]["messages"]
    assert system["role"] == "system" and [turn["role"] for turn in turns] == ["user", "assistant"] * 2 + ["user"]
    assert turns[0]["content"] == f"Question: {QUESTION.question}"
    assert turns[2]["content"] == "Retrieved Document_1: Bhutan: Thimphu is the capital of Bhutan"
    assert turns[4]["content"] == "Retrieved Document_2: Nepal: Kathmandu is the capital of Nepal"


async def test_auto_rag_writes_documents_itself_when_no_search_is_left():
    stub = Stub("Refined Query: Nepal", "Refined Query: Bhutan", "Its money is the ngultrum.", "Final Answer: ngultrum")
    trajectory, queries = await run("auto-rag", stub, max_searches=1, max_recalled=1)
    assert (trajectory.answer, queries) == ("ngultrum", ["Nepal"])
    assert "Search query: Bhutan" in stub.bodies[2]["messages"][0]["content"]
    assert stub.bodies[3]["messages"][-1]["content"] == "Retrieved Document_2: Its money is the ngultrum."


async def test_auto_rag_that_never_answers_is_asked_by_the_common_prompt():
    stub = Stub("Hm.", "Hm, hm.", "the rupee")  # without a query it searches for the question
    trajectory, queries = await run("auto-rag", stub, max_searches=1)
    assert (trajectory.answer, trajectory.stop) == ("the rupee", StopReason.DEPTH_LIMIT)
    assert queries == [QUESTION.question] and stub.bodies[-1]["messages"][-1]["content"].startswith("Answer")


async def test_auto_rag_tells_weights_what_they_were_trained_with():
    stub = Stub("Final Answer: x")
    await run("auto-rag", stub, instruction="As trained.")
    assert stub.bodies[0]["messages"][0] == {"role": "system", "content": "As trained."}


# slimplm


async def test_slimplm_answers_from_memory_what_its_draft_shows_to_be_known():
    stub = ByWord({"in a few sentences": "The ngultrum.", "Draft: ": "<Known(True)>"}, "ngultrum")
    trajectory, queries = await run("slimplm", stub)
    assert (trajectory.answer, queries) == ("ngultrum", []) and len(stub.bodies) == 3
    assert stub.bodies[1]["messages"][-1]["content"] == f"Draft: The ngultrum.\nQuestion: {QUESTION.question}"


async def test_slimplm_searches_for_parts_of_the_question_and_for_claims_that_are_not_known():
    parsed = (
        "<Questions> <Question(Which land?)> <NeedSearch(True)> <Query(capital Thimphu)> "
        "<Question(Which money?)> <NeedSearch(False)> <Query(money)> </Questions> <Claims> "
        "<Claim(It is Nepal)> <NeedSearch(True)> <Query(capital Kathmandu)> "
        "<Claim(It is the rupee)> <NeedSearch(True)> <Query(currency Nepal)> </Claims>"
    )
    replies = {
        "in a few sentences": "The rupee.",
        "Draft: It is Nepal\nQuestion: capital Kathmandu": "<Known(True)>",
        "Draft: It is the rupee\nQuestion: currency Nepal": "<Known(False)>",
        "Take both apart": parsed,
        "Draft: ": "<Known(False)>",
    }
    trajectory, queries = await run("slimplm", ByWord(replies, "ngultrum"))
    assert sorted(queries) == ["capital Thimphu", "currency Nepal"]
    assert (trajectory.passages, trajectory.stop) == (["bhutan", "rupee"], StopReason.ANSWERED)


async def test_slimplm_searches_for_the_question_where_nothing_can_be_read():
    trajectory, queries = await run("slimplm", ByWord({}, "hm"))
    assert queries == [QUESTION.question] and trajectory.stop is StopReason.UNREADABLE_REPLY


@pytest.mark.parametrize(
    ("name", "instruction", "slot"),
    [
        ("search-r1", "Put it into \\boxed{answer}. {question}", "answer"),
        ("auto-rag", "Say {thought} first.", "thought"),
        ("slimplm", "{answer} {question} {known}", "known"),
    ],
)
def test_a_slot_of_an_instruction_that_nothing_fills_is_refused_before_anything_is_asked(name, instruction, slot):
    with pytest.raises(UserError, match=rf"instruction: nothing fills \{{{slot}\}}; of braces it can have"):
        build(name, {"instruction": instruction})


async def test_slimplm_tells_weights_what_they_were_trained_with():
    stub = ByWord({"in a few sentences": "The rupee.", "((The rupee.))": "<Known(True)>"}, "x")
    await run("slimplm", stub, instruction="(({answer})) (({question}))")
    assert stub.bodies[1]["messages"] == [{"role": "user", "content": f"((The rupee.)) (({QUESTION.question}))"}]
    with pytest.raises(UserError, match=r"instruction: must have \{answer\}"):
        build("slimplm", {"instruction": "{question}"})


def test_slimplm_has_an_engine_for_each_model_that_is_set():
    judge = {"engine": "openai", "model": "judge", "urls": ["http://localhost:8001/v1"]}
    assert {ask: e.model for ask, e in build("slimplm", {"judge": judge}).engines.items()} == {"slimplm_judge": "judge"}
    with pytest.raises(UserError, match=r"systems\.slimplm\.proxy: modle: unknown key \(near: model\)"):
        build("slimplm", {"proxy": {"modle": "x"}})


def test_the_template_that_the_guide_gives_for_self_rag_makes_the_authors_prompt():
    guide = (Path(__file__).parents[2] / "docs/systems/baselines.md").read_text()
    (template,) = re.findall(r"^`(\{% for m in messages %\}.*)`\.$", guide, re.M)
    asked = build("self-rag")._ask.messages({"question": "Which river?", "begun": "[Retrieval]"})
    messages = [{"role": role, "content": text} for role, text in asked]
    rendered = Environment(trim_blocks=True, lstrip_blocks=True).from_string(template).render(messages=messages)
    assert rendered == "### Instruction:\nWhich river?\n\n### Response:\n[Retrieval]"

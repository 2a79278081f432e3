"""The control flow of each baseline on scripted answers, and what it does with a reply that cannot be read."""

from __future__ import annotations

import asyncio
import math
import threading
from dataclasses import replace
from typing import Any

import pytest
from fakes import ListRetriever, ScriptedEngine

from dragoman.core.errors import UserError
from dragoman.core.types import Passage, Question
from dragoman.engines.base import Completion
from dragoman.rollout.backends import Backends
from dragoman.rollout.record import Trajectory
from dragoman.rollout.tree import Tree
from dragoman.systems import baseline_names, build
from dragoman.systems.base import StopReason
from dragoman.systems.baselines import aside, interleaved, items, replug, rerank, verdict
from dragoman.systems.baselines.ircot import first_sentence

PASSAGES = [
    Passage("bhutan", "Bhutan", "Thimphu is the capital of Bhutan"),
    Passage("nepal", "Nepal", "Kathmandu is the capital of Nepal"),
    Passage("ngultrum", "Ngultrum", "the currency of Bhutan is the ngultrum"),
    Passage("rupee", "Rupee", "the currency of Nepal is the rupee"),
]
QUESTION = Question("q", "Which money has the land of Thimphu", ("ngultrum",))
Replies = dict[str, str | list[str]]


class Ran:
    """A run of a system on a question. The LLM says what belongs to the first key that its prompt contains, one after the other."""

    def __init__(self, name: str, replies: Replies, **settings: Any) -> None:
        self.left = {key: [said] if isinstance(said, str) else list(said) for key, said in replies.items()}
        self.engine, self.retriever = ScriptedEngine(self.say), ListRetriever(PASSAGES)
        self.system = build(name, {"k": 1, **settings})

    def say(self, prompt: str, rng: object) -> str:
        key = next(key for key in self.left if key in prompt)
        return self.left[key].pop(0) if len(self.left[key]) > 1 else self.left[key][0]

    async def on(self, question: Question = QUESTION) -> Trajectory:
        backends = Backends(llm=self.engine, proxy=self.engine, retriever=self.retriever)
        (trajectory,) = (await Tree(question, self.system, backends).grow()).trajectories
        return trajectory

    def prompts(self, key: str) -> list[str]:
        """The prompts that contain `key`."""
        return [said for request in self.engine.requests if key in (said := request.messages[-1]["content"])]


def test_the_baselines_are_the_files_of_their_folder():
    assert {
        "rewrite",
        "rerank",
        "skr",
        "sure",
        "ircot",
        "iter-retgen",
        "drag",
        "self-ask",
        "instructrag",
        "replug",
    } <= {*baseline_names()}


@pytest.mark.parametrize("name", baseline_names())
def test_a_count_below_one_is_refused(name):
    with pytest.raises(UserError, match="passage_words 0: must be at least 1"):
        build(name, {"passage_words": 0})


# what they share


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('1. Thimphu\n2) "Bhutan"\n- Nepal\n(a) Tibet', ["Thimphu", "Bhutan", "Nepal", "Tibet"]),
        ("-259 °C\n- 12 °C", ["-259 °C", "12 °C"]),
        ("J. R. R. Tolkien\n3.5 million\n\n...\n", ["J. R. R. Tolkien", "3.5 million"]),
        ("Query 1: Thimphu\nquery: thimphu", ["Thimphu"]),
        ("", []),
    ],
)
def test_a_list_is_read_line_by_line(text, found):
    assert items(text) == found


def test_a_verdict_is_the_first_of_the_words_as_a_word():
    assert verdict("I know: No, not yes.", "yes", "no") == "no"
    assert verdict("Nobody knows.", "yes", "no") == ""
    assert verdict("Summary 2 is better than 1.", "1", "2") == "2"


def test_rankings_are_merged_by_the_best_rank():
    a, b, c, d = PASSAGES
    assert interleaved([[a, b, c], [b], [d, a]], 9) == [a, b, d, c]
    assert interleaved([[a, b, c], [b]], 2) == [a, b] and interleaved([], 3) == []


# rewrite


async def test_rewrite_searches_for_each_query_and_answers_from_the_union():
    ran = Ran("rewrite", {"search queries": "1. capital Thimphu\n2. currency Bhutan", "Answer": "ngultrum"})
    trajectory = await ran.on()
    assert sorted(ran.retriever.queries) == ["capital Thimphu", "currency Bhutan"]
    assert (trajectory.passages, trajectory.answer) == (["bhutan", "ngultrum"], "ngultrum")
    assert trajectory.stop is StopReason.ANSWERED


async def test_rewrite_takes_so_many_queries_and_passages_and_no_more():
    replies = {"search queries": "capital Thimphu\ncurrency Bhutan\nNepal", "Answer": "x"}
    ran = Ran("rewrite", replies, queries=2, max_documents=1)
    assert (await ran.on()).passages == ["bhutan"] and "Nepal" not in ran.retriever.queries


async def test_rewrite_without_a_query_searches_for_the_question():
    ran = Ran("rewrite", {"search queries": "...", "Answer": "x"})
    trajectory = await ran.on()
    assert ran.retriever.queries == [QUESTION.question] and trajectory.stop is StopReason.UNREADABLE_REPLY


async def test_models_compute_aside_one_at_a_time_and_questions_go_on():
    go_on, done = threading.Event(), list[str]()

    def slow() -> None:
        assert go_on.wait(5)
        done.append("slow")

    both = asyncio.gather(aside(slow), aside(done.append, "quick"))
    await asyncio.sleep(0.05)
    assert not done
    go_on.set()
    await both
    assert done == ["slow", "quick"]


# rerank


async def test_rerank_keeps_what_helps_and_then_what_was_found_first():
    said = {"Document: Ngultrum": "Yes.", "Document: ": "No", "Answer": "ngultrum"}
    ran = Ran("rerank", said, k=2, candidates=4)
    trajectory = await ran.on()
    assert trajectory.passages == ["ngultrum", "bhutan"] and trajectory.stop is StopReason.ANSWERED
    assert len(ran.prompts("Document: ")) == 4


async def test_rerank_with_a_reply_that_is_neither_takes_it_for_no():
    ran = Ran("rerank", {"Document: Rupee": "Yes", "Document: Bhutan": "Maybe", "Document: ": "no", "Answer": "x"})
    trajectory = await ran.on()
    assert trajectory.passages == ["rupee"] and trajectory.stop is StopReason.UNREADABLE_REPLY


def place(**chances: float) -> tuple[tuple[str, float], ...]:
    """What a server reports of a token; an underscore is a space."""
    return tuple((token.replace("_", " "), math.log(chance)) for token, chance in chances.items())


@pytest.mark.parametrize(
    ("text", "places", "score"),
    [
        ("No", [place(No=0.5, yes=0.1, _Yes=0.1, Yes=0.1, Nothing=0.2)], 0.375),  # 0.3 to 0.5: "Nothing" is no "No"
        ("Yes", [place(Yes=0.6, _YES=0.2, The=0.1)], 1.0),
        ("Maybe", [place(Maybe=0.9, _no=0.06, yes=0.02)], 0.25),  # it wrote neither, and might have
        (" It: Yes", [place(_It=0.9, No=0.1), place(Yes=0.8, No=0.2)], 0.8),  # where it wrote it, and not before
        ("yes", [(("Ġyes", math.log(0.3)), ("Ġno", math.log(0.1)))], 0.75),
        ("Yes.", [], 1.0),  # no server told: the word counts whole
        ("NO", [place(N=0.9, Y=0.1), place(O=1.0)], 0.0),  # a word of several tokens
        ("Maybe", [place(Maybe=0.9, Perhaps=0.1)], None),
        ("Maybe", [], None),
        ("Maybe", [(("Maybe", 0.0), ("yes", -9999.0))], None),  # what a server writes for impossible
    ],
)
def test_rerank_reads_how_likely_yes_is_from_what_a_server_reports(text, places, score):
    found = rerank.yes(Completion(text, (), (), "stop", tuple(places)))
    assert found == (None if score is None else pytest.approx(score))


async def test_rerank_orders_by_the_probabilities_that_are_reported_and_puts_what_has_none_last():
    # 0.4, nothing that can be read, 0.9 and 0.1: neither word is a zero, which would come before the last
    ran = Ran("rerank", {"Document: ": "", "Answer": "x"}, k=4, candidates=4)
    reported = {
        "Bhutan:": ("No", place(No=0.6, Yes=0.4)),
        "Nepal:": ("Maybe", place(Maybe=1.0)),
        "Ngultrum:": ("Yes", place(Yes=0.9, No=0.1)),
        "Rupee:": ("No", place(No=0.9, _yes=0.1)),
    }
    generate = ran.engine.generate

    async def report(requests: Any) -> Any:
        results = []
        for request, result in zip(requests, await generate(requests), strict=True):
            prompt = request.messages[-1]["content"]
            if "Document: " in prompt:
                assert request.alternatives == 20
                said, alternatives = next(said for title, said in reported.items() if f"Document: {title}" in prompt)
                judged = replace(result.completions[0], text=said, alternatives=(alternatives,))
                result = replace(result, completions=(judged,))
            results.append(result)
        return results

    ran.engine.generate = report
    trajectory = await ran.on()
    assert trajectory.passages == ["ngultrum", "bhutan", "rupee", "nepal"]
    assert trajectory.stop is StopReason.UNREADABLE_REPLY


async def test_rerank_by_a_cross_encoder_asks_the_llm_for_the_answer_alone(monkeypatch):
    class ByLength:
        def predict(self, pairs: list[tuple[str, str]], **_: Any) -> list[float]:
            assert {question for question, _ in pairs} == {QUESTION.question}
            assert threading.current_thread() is not threading.main_thread()  # where all questions wait
            return [float(len(text)) for _, text in pairs]

    monkeypatch.setattr(rerank, "load_cross_encoder", {"mine": ByLength()}.get)
    ran = Ran("rerank", {"Answer": "x"}, k=2, cross_encoder="mine")
    assert (await ran.on()).passages == ["ngultrum", "rupee"] and len(ran.engine.requests) == 1


def test_a_cross_encoder_that_is_none_is_refused_before_the_first_question(tmp_path):
    with pytest.raises(UserError, match=r"cross-encoder '.*' cannot be loaded"):
        build("rerank", {"cross_encoder": str(tmp_path)}).prepared()


# iter-retgen


async def test_iter_retgen_puts_the_last_answer_behind_the_question_and_replaces_the_passages():
    ran = Ran("iter-retgen", {"[1] Bhutan": "Ngultrum currency ", "[1] Ngultrum": "rupee of Nepal", "[1] Rupee": "x"})
    trajectory = await ran.on()
    q = QUESTION.question
    assert ran.retriever.queries == [q, f"{q} Ngultrum currency", f"{q} rupee of Nepal"]
    assert (trajectory.passages, trajectory.answer) == (["rupee"], "x")
    answering = ran.prompts("Question: ")
    assert len(answering) == 3 and all("[2]" not in prompt for prompt in answering)


async def test_iter_retgen_with_an_empty_answer_searches_for_the_question_again():
    ran = Ran("iter-retgen", {"Answer": ["", "x"]}, rounds=2)
    assert (await ran.on()).stop is StopReason.EMPTY_ANSWER  # the same prompt is not asked twice
    assert ran.retriever.queries == [QUESTION.question]


async def test_iter_retgen_of_one_round_is_standard():
    ran = Ran("iter-retgen", {"Answer": "ngultrum"}, rounds=1)
    assert (await ran.on()).passages == ["bhutan"] and len(ran.engine.requests) == 1


# ircot


async def test_ircot_searches_with_each_thought_until_it_has_the_answer():
    thoughts = ["Its currency is of Bhutan indeed. It is old.", "So the answer is: the ngultrum."]
    ran = Ran("ircot", {"step by step": thoughts, "Answer": "ngultrum"})
    trajectory = await ran.on()
    assert ran.retriever.queries == [QUESTION.question, "Its currency is of Bhutan indeed."]
    assert (trajectory.passages, trajectory.stop) == (["bhutan", "ngultrum"], StopReason.ANSWERED)
    first, second = ran.prompts("step by step")
    assert "Steps so far: (none)" in first and "Steps so far: Its currency is of Bhutan indeed.\n" in second
    assert "[1] Bhutan" in first and "[2]" not in first and "[2] Ngultrum" in second


@pytest.mark.parametrize(
    ("thoughts", "stop", "searches"),
    [
        (["one.", "two.", "three."], StopReason.DEPTH_LIMIT, 3),
        (["one.", "one."], StopReason.REPEATED_QUERY, 2),
        (["\n "], StopReason.UNREADABLE_REPLY, 1),
    ],
)
async def test_ircot_that_does_not_come_to_an_answer_says_why_and_answers(thoughts, stop, searches):
    ran = Ran("ircot", {"step by step": thoughts, "Answer": "x"}, max_thoughts=2)
    trajectory = await ran.on()
    assert (trajectory.stop, trajectory.answer, len(ran.retriever.queries)) == (stop, "x", searches)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("It is 3.5 km long. Then", "It is 3.5 km long."),
        ("\n\nno stop\nmore", "no stop"),
        ("1. Find the bridge. 2. Go", "Find the bridge."),
        ("So the answer is: x", "So the answer is: x"),
        ("It was directed by J. Lee Thompson. Then", "It was directed by J. Lee Thompson."),
        ("The U.S. president came. Then", "The U.S. president came."),
        ("It is in the USA. Then", "It is in the USA."),
        ("Was it plan B? Then", "Was it plan B?"),
        (" ", ""),
    ],
)
def test_a_thought_is_the_first_sentence(text, sentence):
    assert first_sentence(text) == sentence


# self-ask


async def test_self_ask_looks_up_each_follow_up_question_until_it_gives_the_answer():
    said = ["Follow up: capital Thimphu\nIntermediate answer: China", "So the final answer is: ngultrum\nFollow up: x"]
    ran = Ran("self-ask", {"Known so far": said, "Answer the question": " Bhutan"})
    trajectory = await ran.on()
    assert (trajectory.answer, trajectory.stop) == ("ngultrum", StopReason.ANSWERED)
    assert ran.retriever.queries == ["capital Thimphu"] and trajectory.passages == ["bhutan"]
    first, second = ran.prompts("Known so far")
    assert "(nothing yet)" in first and "Follow up: capital Thimphu\nIntermediate answer: Bhutan\n" in second


@pytest.mark.parametrize(
    ("said", "stop", "queries"),
    [
        (["Follow up: Nepal", "Follow-up question: Bhutan", "x"], StopReason.DEPTH_LIMIT, ["Nepal", "Bhutan"]),
        (["Follow up: Nepal", "Follow up: Nepal"], StopReason.REPEATED_QUERY, ["Nepal"]),
        (["I do not know."], StopReason.UNREADABLE_REPLY, [QUESTION.question]),
    ],
)
async def test_self_ask_without_a_final_answer_says_why_and_answers_from_what_it_found(said, stop, queries):
    ran = Ran("self-ask", {"Known so far": said, "Answer the question": "x"}, max_questions=2)
    trajectory = await ran.on()
    assert (trajectory.answer, trajectory.stop, ran.retriever.queries) == ("x", stop, queries)


async def test_self_ask_with_an_empty_final_answer_has_given_none():
    trajectory = await Ran("self-ask", {"Known so far": "Final answer: ", "Answer the question": "x"}).on()
    assert (trajectory.answer, trajectory.stop) == ("x", StopReason.UNREADABLE_REPLY)


@pytest.mark.parametrize("said", ["Answer: ngultrum", "So the answer to the question is:\nngultrum"])
async def test_self_ask_may_answer_at_once(said):
    trajectory = await Ran("self-ask", {"Known so far": said}).on()
    assert (trajectory.answer, trajectory.passages) == ("ngultrum", [])


# sure


def sure(valid: tuple[str, str], compared: tuple[str, str], candidates: str = "1. ngultrum\n2. rupee") -> Ran:
    replies: Replies = {
        "two different answers": candidates,
        "Suppose the answer is: ngultrum": "for ngultrum",
        "Suppose the answer is: rupee": "for rupee",
        "Answer: ngultrum": valid[0],
        "Answer: rupee": valid[1],
        "Summary 1: for ngultrum": compared[0],
        "Summary 1: for rupee": compared[1],
        "Answer the question": "rag",
    }
    return Ran("sure", replies)


@pytest.mark.parametrize(
    ("valid", "compared", "answer"),
    [
        (("True", "True"), ("1", "2"), "ngultrum"),  # 2 + 2 to 2 + 0
        (("true.", "True"), ("2", "1"), "rupee"),  # 2 + 0 to 2 + 2
        (("True", "False"), ("1", "1"), "ngultrum"),  # 2 + 1 to 0 + 1: it said "the first" in either order
        (("False", "True"), ("2", "2"), "rupee"),  # 0 + 1 to 2 + 1
        (("True", "False"), ("2", "1"), "ngultrum"),  # 2 + 0 to 0 + 2: validity weighs as much as both orders
        (("False", "True"), ("1", "2"), "ngultrum"),  # 0 + 2 to 2 + 0: the first
        (("False", "False"), ("2", "2"), "ngultrum"),  # 1 to 1: the first
    ],
)
async def test_sure_takes_the_candidate_that_is_better_supported(valid, compared, answer):
    ran = sure(valid, compared)
    trajectory = await ran.on()
    assert (trajectory.answer, trajectory.stop) == (answer, StopReason.ANSWERED)
    assert trajectory.passages == ["bhutan"] and len(ran.engine.requests) == 1 + 2 + 2 + 2


async def test_sure_counts_what_cannot_be_read_for_nobody():
    trajectory = await sure(("hm", "True"), ("hm", "hm")).on()
    assert (trajectory.answer, trajectory.stop) == ("rupee", StopReason.UNREADABLE_REPLY)


async def test_sure_with_one_candidate_answers_as_standard_does():
    ran = sure(("True", "True"), ("1", "1"), candidates="ngultrum\nNgultrum")
    trajectory = await ran.on()
    assert (trajectory.answer, trajectory.stop) == ("rag", StopReason.UNREADABLE_REPLY)
    assert len(ran.engine.requests) == 2


# replug


async def test_replug_averages_over_a_prompt_for_each_passage(monkeypatch):
    texts = ["Bhutan\nThimphu is the capital of Bhutan", "Nepal\nKathmandu is the capital of Nepal"]

    def cosines(encoder: str, question: str, found: list[str]) -> list[float]:
        assert (question, found) == (QUESTION.question, texts)
        return [math.log(3), 0.0]

    monkeypatch.setattr(replug, "cosines", cosines)
    ran = Ran("replug", {"Answer": " ngultrum "}, k=2)
    ran.retriever.passages = PASSAGES[:2]
    trajectory = await ran.on()
    (request,) = ran.engine.requests
    assert request.weights == pytest.approx((0.75, 0.25))  # 3 and 1 of 4
    first, second = (prompt[-1][1] for prompt in (request.prompt, *request.beside))
    assert (
        "[1] Bhutan: " in first
        and "Nepal" not in first
        and second
        == first.replace("Bhutan: Thimphu is the capital of Bhutan", "Nepal: Kathmandu is the capital of Nepal")
    )
    assert (trajectory.answer, trajectory.passages) == ("ngultrum", ["bhutan", "nepal"])


async def test_replug_with_one_passage_asks_as_standard_does(monkeypatch):
    monkeypatch.setattr(replug, "cosines", lambda *_: [0.5])
    ran, standard = Ran("replug", {"Answer": "x"}), Ran("standard", {"Answer": "x"})
    await ran.on()
    await standard.on()
    assert ran.engine.requests == standard.engine.requests


async def test_replug_without_a_passage_answers_from_memory():
    ran = Ran("replug", {"": "x"})
    ran.retriever.passages = []
    assert (await ran.on()).answer == "x" and not ran.engine.requests[0].beside

"""MAPS's control flow on scripted answers: rounds, ways to stop, who answers, and what is left when an agent is taken away."""

import re

import pytest
from fakes import ListRetriever, ScriptedEngine
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.errors import UserError
from dragoman.core.text import plain_line
from dragoman.core.types import Passage, Question
from dragoman.rollout.backends import Backends
from dragoman.rollout.tree import Tree
from dragoman.systems import build
from dragoman.systems.base import StopReason
from dragoman.systems.grammar import InvalidAction, Keywords, Line
from dragoman.systems.maps import actions
from dragoman.systems.maps.actions import Answer, Extend, Insufficient, Sufficient
from dragoman.systems.maps.pool import Pool
from dragoman.systems.maps.system import MAPS

PASSAGES = [
    Passage("bhutan", "Bhutan", "Thimphu is the capital of Bhutan"),
    Passage("ngultrum", "Ngultrum", "the currency of Bhutan is the ngultrum"),
    Passage("nepal", "Nepal", "Kathmandu is the capital of Nepal"),
    *(Passage(f"x{i}", f"Noise {i}", f"nothing number {i}") for i in range(20)),
]
QUESTION = Question("q", "Which currency has the country whose capital is Thimphu?", ("ngultrum",))
MORE, ENOUGH = "[Insufficient]", "[Sufficient]"


async def run(proxy: list[str], passages: list[Passage] = PASSAGES, **settings):
    """Let the agents say the given texts in turn."""
    said = iter(proxy)
    retriever = ListRetriever(passages)
    llm = ScriptedEngine(lambda prompt, rng: "the ngultrum")
    backends = Backends(llm=llm, proxy=ScriptedEngine(lambda prompt, rng: next(said)), retriever=retriever)
    episode = await Tree(QUESTION, build("maps", {"k": 2, **settings}), backends).grow()
    (trajectory,) = episode.trajectories
    assert not list(said), "the agents were asked less often than the test says"
    return trajectory, episode, retriever, llm


async def test_a_pool_that_suffices_at_once_is_answered_from():
    trajectory, episode, retriever, llm = await run([ENOUGH])
    assert retriever.queries == [QUESTION.question]
    assert [node.role for node in episode.nodes] == ["judge"]
    assert (trajectory.answer, trajectory.stop) == ("the ngultrum", StopReason.ANSWERED)
    assert len(trajectory.passages) == 2 and "documents below" in llm.requests[0].messages[-1]["content"]


async def test_a_round_asks_retrieves_appends_and_judges():
    trajectory, episode, retriever, _ = await run([MORE, "currency Bhutan", ENOUGH], k=1)
    assert retriever.queries == [QUESTION.question, "currency Bhutan"]
    assert trajectory.passages == ["bhutan", "ngultrum"] and trajectory.stop is StopReason.ANSWERED
    assert [node.role for node in episode.nodes] == ["judge", "query", "judge"]
    last = episode.nodes[-1].prompt[-1][1]
    assert last.index(QUESTION.question) < last.index("Search: currency Bhutan\n[1] Ngultrum: the currency")


async def test_the_answer_agent_reads_the_pool_and_no_llm_is_asked():
    trajectory, episode, _, llm = await run([ENOUGH, "ngultrum"], answers="agent")
    assert [node.role for node in episode.nodes] == ["judge", "answer"]
    assert (trajectory.answer, trajectory.stop) == ("ngultrum", StopReason.ANSWERED)
    assert llm.requests == [] and "[1] Bhutan: Thimphu" in episode.nodes[-1].prompt[-1][1]


async def test_what_was_found_before_is_not_added_again():
    trajectory, *_ = await run([MORE, "capital Bhutan Thimphu", ENOUGH])
    assert sorted(trajectory.passages) == sorted(set(trajectory.passages))


async def test_a_judge_that_never_agrees_is_a_recorded_reason():
    proxy = [text for i in range(3) for text in (MORE, f"number {i}")]
    trajectory, episode, retriever, _ = await run(proxy)
    assert (trajectory.stop, trajectory.answer) == (StopReason.DEPTH_LIMIT, "the ngultrum")
    assert len(retriever.queries) == 1 + 3 and len(episode.nodes) == 6  # after the last round no verdict counts


async def test_a_pool_over_the_limit_is_cut_and_recorded():
    trajectory, *_ = await run([MORE, "nothing number"], max_documents=3)
    assert (len(trajectory.passages), trajectory.stop) == (3, StopReason.DOCUMENT_LIMIT)


async def test_a_pool_that_is_full_after_the_last_round_is_no_limit_of_documents():
    trajectory, *_ = await run([MORE, "nothing number"], max_documents=4, max_rounds=1)
    assert (len(trajectory.passages), trajectory.stop) == (4, StopReason.DEPTH_LIMIT)


@pytest.mark.parametrize("query", [QUESTION.question, "which currency has the country, whose capital is THIMPHU"])
async def test_a_query_that_is_repeated_ends_the_search_and_is_recorded(query):
    trajectory, _, retriever, _ = await run([MORE, query], query_words=20)
    assert (trajectory.stop, trajectory.answer) == (StopReason.REPEATED_QUERY, "the ngultrum")
    assert len(retriever.queries) == 1


async def test_an_empty_pool_is_extended_without_a_verdict_and_recorded():
    trajectory, episode, retriever, llm = await run(["capital", "currency", "Thimphu"], passages=[])
    assert [node.role for node in episode.nodes] == ["query"] * 3
    assert (trajectory.stop, trajectory.passages) == (StopReason.EMPTY_POOL, [])
    assert "documents below" not in llm.requests[0].messages[-1]["content"] and len(retriever.queries) == 4


async def test_an_empty_pool_is_answered_by_the_answer_agent_too():
    trajectory, episode, *_ = await run(["capital", "currency", "Thimphu", "ngultrum"], passages=[], answers="agent")
    assert [node.role for node in episode.nodes] == ["query", "query", "query", "answer"]
    assert (trajectory.stop, trajectory.answer) == (StopReason.EMPTY_POOL, "ngultrum")


async def test_a_verdict_that_is_none_ends_the_trajectory_with_its_reason():
    trajectory, *_ = await run(["Perhaps"])
    assert (trajectory.stop, trajectory.answer) == (StopReason.INVALID_ACTION, "")


async def test_without_a_judge_all_rounds_are_taken():
    trajectory, episode, retriever, _ = await run(["currency", "ngultrum"], rounds="fixed", max_rounds=2)
    assert [node.role for node in episode.nodes] == ["query", "query"]
    assert len(retriever.queries) == 3 and trajectory.stop is StopReason.ANSWERED


async def test_drawn_rounds_give_each_question_a_pool_of_its_own_size_whatever_the_trajectory():
    def rounds(question: str) -> int:
        return MAPS(rounds="drawn", max_rounds=3)._most_rounds(Question(question, "?"))

    assert {rounds(str(i)) for i in range(40)} == {0, 1, 2, 3}
    assert [rounds("q")] * 5 == [rounds("q") for _ in range(5)]
    said = ["currency", "ngultrum", "capital"][: rounds(QUESTION.id)]
    trajectory, episode, retriever, _ = await run(said, rounds="drawn", max_rounds=3)
    assert [node.role for node in episode.nodes] == ["query"] * len(said)
    assert len(retriever.queries) == 1 + len(said) and trajectory.stop is StopReason.ANSWERED


async def test_without_query_extension_further_rounds_take_the_next_pages():
    trajectory, episode, retriever, _ = await run([MORE, MORE, ENOUGH], extension="pages")
    assert retriever.queries == [QUESTION.question] * 3
    assert sorted(call.input["page"] for call in episode.calls if call.kind == "search") == [0, 1, 2]
    assert len(set(trajectory.passages)) == 6


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, ["query", "judge"]),
        ({"answers": "agent"}, ["query", "judge", "answer"]),
        ({"rounds": "fixed"}, ["query"]),
        ({"rounds": "drawn"}, ["query"]),
        ({"extension": "pages"}, ["judge"]),
    ],
)
def test_the_roles_are_those_that_decide(settings, names):
    assert [role.name for role in MAPS(**settings).roles] == names


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"answers": "judge"}, "answers 'judge': choose from llm, agent"),
        ({"max_answers": 99}, "max_answers 99: 100 options can be listed, and two are yes and no; lower it"),
        ({"rounds": "many"}, "rounds 'many': choose from judged, fixed, drawn"),
        ({"max_rounds": 0}, "max_rounds 0: must be at least 1"),
        ({"k": 21}, r"k 21: one search finds more than the pool may hold; raise max_documents \(20\)"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(settings, message):
    with pytest.raises(UserError, match=message):
        MAPS(**settings)


lines = st.text(max_size=80).map(lambda t: plain_line(t.translate({91: None, 93: None}))).filter(bool)
keywords = st.lists(lines.map(lambda t: t.split()[0][:20]), min_size=1, max_size=8).map(" ".join)


@given(st.one_of(
    keywords.map(lambda q: (actions.extension(Keywords(200)), Extend(q))),
    lines.map(lambda t: (actions.answer(Line(160)), Answer(t))),
    st.sampled_from([Sufficient(), Insufficient()]).map(lambda v: (actions.judge(), v)),
))  # fmt: skip
def test_every_action_is_read_back_from_its_text_and_can_be_sampled(said):
    grammar, action = said
    text = grammar.render(action)
    assert grammar.parse(text) == action == grammar.parse(f" {text} \n")
    assert re.fullmatch(grammar.constraint().regex, text)


def test_a_query_of_too_many_words_is_cut_when_read_and_refused_when_written():
    grammar = MAPS(query_words=3).query_agent.grammar(question="?", pool=Pool())
    assert grammar.parse("one two three four") == Extend("one two three")
    with pytest.raises(InvalidAction, match="more than 3 words"):
        grammar.render(Extend("one two three four"))


def test_a_pool_knows_its_queries_by_their_words():
    pool = Pool().extended("Where is Thimphu?", PASSAGES[:2], 3).extended("Nepal", PASSAGES[1:], 3)
    assert pool.queries == ("Where is Thimphu?", "Nepal")
    assert [p.id for p in pool.passages] == ["bhutan", "ngultrum", "nepal"]
    assert pool.has_asked("where is  Thimphu") and not pool.has_asked("Thimphu")

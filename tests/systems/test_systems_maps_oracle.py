"""What an oracle does in MAPS, and what the agents list where they decide at marks."""

from dataclasses import replace

import pytest
from fakes import ListRetriever, ScriptedEngine

from dragoman.core.types import Passage, Question
from dragoman.rollout.backends import Backends
from dragoman.rollout.tree import Tree
from dragoman.systems import build
from dragoman.systems.base import Gold, StopReason
from dragoman.systems.maps.actions import Answer, Extend, Insufficient, Sufficient
from dragoman.systems.maps.pool import Pool
from dragoman.systems.maps.system import MAPS
from dragoman.systems.options import rendered

TEXT = "Where was the designer of the Tarn Bridge, not of the Osse Viaduct, born?"
BRIDGE = Passage("b", "Tarn Bridge", "The Tarn Bridge was drawn by Edith Marlowe.")
EDITH = Passage("e", "Edith Marlowe", "Edith Marlowe was born in Perth.")
EARLY = Pool().extended(TEXT, [BRIDGE], 9)
LATE = EARLY.extended("Edith Marlowe", [EDITH], 9)
QUESTION = Question("q", TEXT, ("Perth",), supporting_ids=("b", "e"))


async def find(query: str, k: int) -> list[str]:
    return (["e", "b"] if "Marlowe" in query else ["x"] if "Osse" in query else ["b"])[:k]


GOLD = Gold(frozenset("be"), find, ("Perth",))


async def told(role, pool: Pool, gold: Gold = GOLD):
    return await role.oracle(gold, question=TEXT, pool=pool)


async def test_the_judge_is_told_whether_all_gold_is_in_the_pool():
    assert await told(MAPS().judge_agent, EARLY) == [Insufficient()]
    assert await told(MAPS().judge_agent, LATE) == [Sufficient()]


@pytest.mark.parametrize("queries", ["free", "span"])
async def test_the_query_that_is_written_finds_what_is_missing(queries):
    assert await told(MAPS(queries=queries).query_agent, EARLY) == [Extend("Edith Marlowe")]


async def test_the_query_that_is_listed_finds_what_is_missing():
    (right,) = await told(MAPS(decide="marks").query_agent, EARLY)
    assert right.query.startswith("Edith Marlowe Edith Marlowe")


async def test_where_no_query_finds_it_any_is_as_good():
    lost = replace(GOLD, ids=frozenset("bz"))
    role = MAPS(decide="marks").query_agent
    every = role.options(question=TEXT, pool=EARLY)
    assert await told(role, EARLY, lost) == [every.action([place]) for place in range(len(every.texts))]
    assert len(await told(MAPS().query_agent, EARLY, lost)) == 1


async def test_where_nothing_is_left_to_ask_a_query_that_is_written_is_repeated():
    role = MAPS(queries="span").query_agent
    nameless = Pool().extended("what is it?", [], 9)
    (action,) = await role.oracle(GOLD, question="what is it?", pool=nameless)
    assert nameless.has_asked(action.query)


@pytest.mark.parametrize(
    ("answers", "pool", "said"),
    [(("Perth", "the town of Perth"), LATE, "Perth"), (("Yes",), EARLY, "yes"), (("Perth",), EARLY, "no")],
)
async def test_the_answer_is_the_shortest_that_can_be_copied(answers, pool, said):
    role = MAPS(queries="span", answers="agent").answer_agent
    assert await told(role, pool, replace(GOLD, answers=answers)) == [Answer(said)]


@pytest.mark.parametrize(
    ("answers", "pool", "said"),
    [(("Perth", "the town of Perth"), LATE, ["Perth"]), (("Yes",), EARLY, ["yes"]), (("Perth",), EARLY, None)],
)
async def test_of_listed_answers_the_right_ones_or_where_none_is_all(answers, pool, said):
    role = MAPS(decide="marks", answers="agent").answer_agent
    every = [action.text for _, action in role.options(question=TEXT, pool=pool).actions]
    assert await told(role, pool, replace(GOLD, answers=answers)) == [Answer(text) for text in said or every]


@pytest.mark.parametrize("gold", ["The Man From Monterey", "Man from Monterey"])
async def test_a_listed_answer_is_right_whatever_the_articles(gold):
    pool = Pool().extended(TEXT, [Passage("m", "Monterey", "He wrote The Man From Monterey. Then he left.")], 9)
    role = MAPS(decide="marks", answers="agent").answer_agent
    told = await role.oracle(replace(GOLD, answers=(gold,)), question="What did he write?", pool=pool)
    assert told == [Answer("Man From Monterey")]
    assert replace(GOLD, answers=(gold,)).is_answered("It was Man From Monterey.")


def test_an_answer_is_listed_without_the_s_of_an_owner():
    pool = Pool().extended("Who paid?", [Passage("m", "", "Jane Doe paid with John Roe's money, and Jane Doe's.")], 9)
    options = MAPS(decide="marks", answers="agent").answer_agent.options(question="Who paid?", pool=pool)
    assert options.texts == ("yes", "no", "Jane Doe", "John Roe")


async def test_a_name_that_owns_something_is_copied_as_it_stands_and_phrased_without():
    pool = Pool().extended("Who was Edith Marlowe's father?", [], 9)
    for queries, query in (("span", "Edith Marlowe's"), ("free", "Edith Marlowe")):
        role = MAPS(queries=queries).query_agent
        assert await role.oracle(GOLD, question=pool.queries[0], pool=pool) == [Extend(query)]


def test_the_answer_agent_lists_yes_and_no_and_the_names_dates_and_numbers_that_were_read():
    dated = Pool().extended(
        TEXT, [Passage("d", "Edith Marlowe", "She was born on 6 May 1901, and died in 1988, at 87.")], 9
    )
    agent = MAPS(decide="marks", answers="agent").answer_agent
    options = agent.options(question="Who built the Osse Viaduct?", pool=dated)
    assert options.texts == ("yes", "no", "Osse Viaduct", "Edith Marlowe", "6 May 1901", "1988", "87")
    few = MAPS(decide="marks", answers="agent", max_answers=1).answer_agent
    assert few.options(question="Who built the Osse Viaduct?", pool=dated).texts == ("yes", "no", "Osse Viaduct")


def test_the_judge_lists_two_verdicts_after_question_and_pool():
    options = MAPS(decide="marks").judge_agent.options(question=TEXT, pool=EARLY)
    assert rendered(options) == (
        f"Question: {TEXT}\nKnown:\nTarn Bridge: {BRIDGE.text}\nVerdict:\nsufficient ->\ninsufficient ->"
    )
    assert options.action([0]) == Sufficient() and options.bias == ()
    doubting = MAPS(decide="marks", bias={"judge": {"Insufficient": 1.5}}).judge_agent
    assert doubting.options(question=TEXT, pool=EARLY).bias == (0.0, 1.5)


def test_the_query_agent_lists_names_that_were_not_asked_for():
    role = MAPS(decide="marks").query_agent
    assert role.options(question=TEXT, pool=EARLY).texts == ("Osse Viaduct", "Edith Marlowe")
    asked = EARLY.extended("Osse Viaduct", [], 9)
    assert role.options(question=TEXT, pool=asked).texts == ("Edith Marlowe",)


@pytest.mark.parametrize("text", ["what is it?", "?"])
def test_with_nothing_left_to_ask_the_question_alone_is_listed(text):
    options = MAPS(decide="marks").query_agent.options(question=text, pool=Pool().extended(text, [], 9))
    assert options.texts == ("the question",)


@pytest.mark.parametrize("pool", [EARLY, LATE, Pool().extended(TEXT, [], 9)])
def test_every_listed_action_has_a_text_that_reads_back_as_it(pool):
    for role in MAPS(decide="marks", answers="agent").roles:
        options, grammar = role.options(question=TEXT, pool=pool), role.grammar(question=TEXT, pool=pool)
        for place in range(len(options.texts)):
            action = options.action([place])
            assert grammar.parse(grammar.render(action)) == action and options.taken(action) == (place,)


@pytest.mark.parametrize("settings", [{}, {"queries": "span"}, {"decide": "marks"}])
async def test_a_world_of_an_oracle_gathers_all_gold_and_stops(settings):
    engine = ScriptedEngine(lambda prompt, rng: AssertionError("the oracle was to decide"))
    llm = ScriptedEngine(lambda prompt, rng: "in Perth")
    backends = Backends(
        llm=llm, proxy=engine, retriever=ListRetriever([BRIDGE, EDITH]), oracle_roles={"query", "judge"}
    )
    (trajectory,) = (await Tree(QUESTION, build("maps", {"k": 1, **settings}), backends).grow()).trajectories
    assert (trajectory.passages, trajectory.stop) == (["b", "e"], StopReason.ANSWERED)

"""What an oracle does in mRAG, and what the agents list where they decide at marks."""

from dataclasses import replace

import pytest
from fakes import ListRetriever, ScriptedEngine

from dragoman.core.types import Passage, Question
from dragoman.rollout.backends import Backends
from dragoman.rollout.tree import Tree
from dragoman.systems import build
from dragoman.systems.base import Gold, StopReason
from dragoman.systems.mrag.actions import (
    Analysis,
    Answer,
    Change,
    End,
    Finish,
    Keep,
    Look,
    More,
    Plan,
    Query,
    Search,
    Steps,
    Summary,
    Validate,
    Verdict,
)
from dragoman.systems.mrag.marks import KINDS
from dragoman.systems.mrag.state import NOTHING_NEW, Errand, State, Turn
from dragoman.systems.mrag.system import MRAG
from dragoman.systems.options import kinds_of, rendered

TEXT = "Where was the designer of the Tarn Bridge, not of the Osse Viaduct, born?"
WHOLE = TEXT.replace(",", "").removesuffix("?")
BRIDGE = Passage("b", "Tarn Bridge", "The Tarn Bridge was drawn by Edith Marlowe. It is of iron.")
EDITH = Passage("e", "Edith Marlowe", "Edith Marlowe had a dog. She was born in Perth.")
OTHER = Passage("o", "Osse Viaduct", "The Osse Viaduct is of stone.")
QUESTION = Question(
    "q", TEXT, ("Perth",), supporting_ids=("b", "e"), triples=(("Tarn Bridge", "drawn by", "Edith Marlowe"),)
)
MARKS, WRITES = MRAG(decide="marks"), MRAG()


async def find(query: str, k: int) -> list[str]:
    """The fifth document for the viaduct is the bridge: the third page of two."""
    rank = ["e", "b"] if "Marlowe" in query else ["x", "y", "z", "w", "b"] if query == "Osse Viaduct" else ["b"]
    return rank[:k]


GOLD = Gold(frozenset("be"), find, QUESTION.answers, QUESTION.triples)
PLANNED = State(turns=(Turn("planner", "", "Plan: the bridge"),), plan=("Tarn Bridge",))
SEARCHED = replace(PLANNED, turns=(*PLANNED.turns, Turn("searcher", "", "Relevant")), documents=(BRIDGE, EDITH))
ANSWERED = replace(
    SEARCHED,
    turns=(*SEARCHED.turns, Turn("answerer", "", "Response")),
    response="in Perth",
    read=(BRIDGE, EDITH),
)
CHECKED = replace(ANSWERED, turns=(*ANSWERED.turns, Turn("validator", "", "Supported")), verdict=Verdict())


@pytest.mark.parametrize("system", [MARKS, WRITES], ids=["marks", "text"])
@pytest.mark.parametrize(
    ("state", "told"),
    [
        (State(), Plan()),
        (PLANNED, Search(("Tarn Bridge",))),
        (replace(SEARCHED, documents=(BRIDGE,)), Search(("Tarn Bridge",))),
        (replace(PLANNED, turns=(*PLANNED.turns, Turn("searcher", "", NOTHING_NEW))), Answer()),
        (SEARCHED, Answer()),
        (ANSWERED, Validate()),
        (CHECKED, Finish()),
    ],
)
async def test_the_coordinator_plans_searches_answers_validates_and_finishes(system, state, told):
    assert await system.first_call.oracle(GOLD, question=TEXT, state=state) == [told]


async def test_a_response_from_before_the_last_documents_is_written_anew():
    late = replace(ANSWERED, turns=(*ANSWERED.turns, Turn("searcher", "", "Relevant")), read=(BRIDGE,))
    assert await MARKS.first_call.oracle(GOLD, question=TEXT, state=late) == [Answer()]
    revised = replace(late, turns=(*late.turns, Turn("reviser", "", "Response")))  # which reads no documents
    assert await MARKS.first_call.oracle(GOLD, question=TEXT, state=revised) == [Answer()]


@pytest.mark.parametrize("answered", [False, True])
async def test_states_in_which_the_coordinator_is_to_do_different_things_read_differently(answered):
    said = [Turn("answerer", "", "Response")] if answered else []
    state = State(documents=(BRIDGE, EDITH), response="in Perth" if answered else "")
    one = replace(
        state, turns=(Turn("searcher", "", "B"), *said, Turn("searcher", "", "E")), read=(BRIDGE,) if answered else ()
    )
    other = replace(
        state,
        turns=(Turn("searcher", "", "B, E"), *said, Turn("searcher", "", NOTHING_NEW)),
        read=state.documents if answered else (),
    )
    gold = GOLD if answered else replace(GOLD, ids=frozenset("bez"))
    role = MRAG(decide="marks", planner=False).first_call
    told = [await role.oracle(gold, question=TEXT, state=each) for each in (one, other)]
    assert told == ([[Answer()], [Validate()]] if answered else [[Search()], [Answer()]])
    shown = [role.options(question=TEXT, state=each).prompt for each in (one, other)]
    assert "searcher (nothing new)\n" in shown[1] and "(nothing new)" not in shown[0]
    assert ("Response (before the last documents): in Perth\n" in shown[0]) == answered
    assert "before the last documents" not in shown[1]


async def test_without_planner_and_validator_the_oracle_does_without():
    system = MRAG(planner=False, validator=False)
    assert await system.first_call.oracle(GOLD, question=TEXT, state=State()) == [Search()]
    assert await system.first_call.oracle(GOLD, question=TEXT, state=ANSWERED) == [Finish()]


async def test_the_plan_is_what_finds_gold():
    told = await MARKS.planner_agent.oracle(GOLD, question=TEXT, state=State(), information="")
    assert told == [Steps((WHOLE, "Tarn Bridge", "Osse Viaduct"))]
    lost = replace(GOLD, ids=frozenset("z9"))
    assert await MRAG(max_pages=1).planner_agent.oracle(lost, question=TEXT, state=State(), information="") == [
        Steps((WHOLE,))
    ]


async def test_the_first_query_is_the_question_and_the_next_what_finds_the_missing_soonest():
    role = MARKS.searcher.query
    assert await role.oracle(GOLD, question=TEXT, errand=Errand()) == [Query(WHOLE)]
    later = Errand(known=(BRIDGE,), asked=(WHOLE,))
    (told,) = await role.oracle(GOLD, question=TEXT, errand=later)
    assert "Edith Marlowe" in told.query
    lost = replace(GOLD, ids=frozenset("9"))
    every = role.options(question=TEXT, errand=later)
    assert await role.oracle(lost, question=TEXT, errand=later) == [every.action([i]) for i in range(len(every.texts))]


async def test_relevant_is_what_is_gold():
    errand = Errand(asked=(WHOLE,))
    state = {"question": TEXT, "errand": errand, "passages": (OTHER, BRIDGE)}
    assert await MARKS.searcher.select.oracle(GOLD, **state) == [Keep((False, True))]
    (told,) = await WRITES.searcher.read.oracle(GOLD, **state)
    assert isinstance(told, Change) and "Edith Marlowe" in told.query and told.relevant == (False, True)


async def test_the_search_ends_when_all_is_found_or_nothing_more_is():
    role = MARKS.searcher.move
    everything = Errand(known=(BRIDGE, EDITH), asked=(WHOLE,), reads=1)
    assert await role.oracle(GOLD, question=TEXT, errand=everything) == [End()]
    lost = replace(GOLD, ids=frozenset("z9"))
    assert await role.oracle(lost, question=TEXT, errand=Errand(asked=("Osse Viaduct",) * 2, reads=2)) == [End()]


async def test_the_same_query_is_read_on_where_its_next_page_is_the_soonest():
    async def deep(query: str, k: int) -> list[str]:
        return ["x", "y", "b"][:k] if query == WHOLE else ["x", "y", "z", "w", "b"][:k]

    gold = replace(GOLD, find=deep)
    role, errand = MARKS.searcher.move, Errand(asked=(WHOLE,), reads=1)
    assert await role.oracle(gold, question=TEXT, errand=errand) == [More()]
    assert More not in [type(m) for m in await role.oracle(gold, question=TEXT, errand=replace(errand, exhausted=True))]


@pytest.mark.parametrize(
    ("state", "holds"),
    [
        (ANSWERED, (True, True)),
        (replace(ANSWERED, documents=(BRIDGE,)), (False, True)),
        (replace(ANSWERED, response="in Pertha"), (True, False)),
    ],
)
async def test_a_response_is_supported_by_gold_and_correct_with_a_gold_answer(state, holds):
    for system in (MARKS, WRITES):
        role = system.validator_agent
        (told,) = await role.oracle(GOLD, question=TEXT, state=state, information="")
        assert (told.supported, told.correct) == holds
        assert role.grammar(question=TEXT, state=state, information="").render(told)
        if system is WRITES:
            assert (bool(told.supported_feedback), bool(told.correct_feedback)) == tuple(not held for held in holds)


async def test_a_response_to_several_things_is_correct_where_it_has_each_of_them():
    gold = replace(GOLD, answers=("Perth and 1902",), parts=(("Perth",), ("1902", "in 1902")))
    for response, correct in (("She was born in Perth. That was in 1902.", True), ("in Perth", False)):
        state = replace(ANSWERED, response=response)
        (told,) = await MARKS.validator_agent.oracle(gold, question=TEXT, state=state, information="")
        assert told.correct is correct


async def test_what_this_errand_has_rejected_is_not_looked_for_in_it_again():
    errand = Errand(known=(BRIDGE,), asked=(WHOLE, "Edith Marlowe"), reads=2)
    assert End() not in await MARKS.searcher.move.oracle(GOLD, question=TEXT, errand=errand)
    rejected = replace(errand, seen=(EDITH,))
    assert await MARKS.searcher.move.oracle(GOLD, question=TEXT, errand=rejected) == [End()]


async def test_a_fact_is_a_whole_sentence_over_initials():
    bridge = replace(BRIDGE, text="It was drawn by J. Doe and Edith Marlowe. It is of iron.")
    state = {"question": TEXT, "state": replace(SEARCHED, documents=(bridge,)), "information": ""}
    told = await WRITES.reasoner_agent.oracle(GOLD, **state, aspect="")
    assert told == [Analysis(("It was drawn by J. Doe and Edith Marlowe.",))]


async def test_summary_and_analysis_are_the_sentences_behind_the_answer():
    state = {"question": TEXT, "state": replace(SEARCHED, documents=(OTHER, BRIDGE, EDITH)), "information": ""}
    facts = ("The Tarn Bridge was drawn by Edith Marlowe.", "Edith Marlowe had a dog.", "She was born in Perth.")
    assert await WRITES.summarizer_agent.oracle(GOLD, **state) == [Summary(" ".join(facts))]
    assert await WRITES.reasoner_agent.oracle(GOLD, **state, aspect="") == [Analysis(facts)]


async def test_a_single_agent_looks_for_what_is_missing():
    role = MRAG(agents="single", decide="marks").first_call
    assert await role.oracle(GOLD, question=TEXT, state=State()) == [Look(WHOLE)]
    (told,) = await role.oracle(GOLD, question=TEXT, state=State(documents=(BRIDGE,), asked=(WHOLE,)))
    assert "Edith Marlowe" in told.query
    assert await role.oracle(GOLD, question=TEXT, state=State(documents=(BRIDGE, EDITH), asked=(WHOLE,))) == [Answer()]


def test_the_coordinator_lists_the_agents_that_make_sense():
    options = MARKS.first_call.options(question=TEXT, state=State())
    assert rendered(options) == (f"Question: {TEXT}\nKnown:\nnothing\nNext:\nplanner ->\nsearcher ->\nanswerer ->")
    eager = MRAG(decide="marks", bias={"coordinator": {"Search": 2.0, "Answer": -1.0}}).first_call
    assert eager.options(question=TEXT, state=State()).bias == (0.0, 2.0, -1.0)
    after = MARKS.first_call.options(question=TEXT, state=CHECKED)
    assert after.texts == ("planner", "searcher", "summarizer", "reasoner", "answerer", "reviser", "finisher")
    for line in ("Plan: Tarn Bridge", "Called: planner, searcher, answerer", "Response: in Perth", "Checked: good"):
        assert f"\n{line}" in after.prompt


def test_documents_that_fill_the_limit_end_the_offer_to_search():
    system = MRAG(decide="marks", max_documents=2)
    assert "searcher" not in system.first_call.options(question=TEXT, state=SEARCHED).texts
    options = system.searcher.move.options(question=TEXT, errand=Errand(known=(BRIDGE, EDITH), asked=("x",)))
    assert options.texts == ("end",)


def test_a_name_that_owns_something_is_planned_and_listed_once():
    text = "Where did Timothy Shriver's father study?"
    steps = MARKS.planner_agent.options(question=text, state=State(), information="")
    assert steps.texts == ("the question", "Timothy Shriver")
    errand = Errand(suggestions=steps.action([0, 1]).steps)
    assert MARKS.searcher.query.options(question=text, errand=errand).texts == ("the question", "Timothy Shriver")


def test_the_searcher_lists_planned_names_first_then_its_moves():
    errand = Errand(suggestions=("Osse Viaduct",))
    first = MARKS.searcher.query.options(question=TEXT, errand=errand)
    assert first.texts == ("the question", "Osse Viaduct", "Tarn Bridge")
    read = Errand(found=(BRIDGE,), asked=(WHOLE,), reads=1)
    moves = MARKS.searcher.move.options(question=TEXT, errand=read)
    assert moves.texts == ("Osse Viaduct", "Edith Marlowe", "the same again", "end")
    assert {*kinds_of(moves)} | {"Keep"} == {kind.__name__ for kind in KINDS["searcher"]}
    assert f"Searched: {WHOLE}\n" in moves.prompt


@pytest.mark.parametrize("state", [State(), PLANNED, SEARCHED, ANSWERED, CHECKED])
@pytest.mark.parametrize("agents", ["team", "single"])
def test_every_listed_action_has_a_text_that_reads_back_as_it(state, agents):
    system = MRAG(decide="marks", agents=agents)
    errand = Errand("", state.plan, state.documents, (WHOLE,), reads=1)
    of_errand = {"question": TEXT, "errand": errand}
    states = [
        (system.first_call, {"question": TEXT, "state": state}),
        (system.planner_agent, {"question": TEXT, "state": state, "information": ""}),
        (system.validator_agent, {"question": TEXT, "state": state, "information": ""}),
        (system.searcher.query, of_errand),
        (system.searcher.move, of_errand),
        (system.searcher.select, of_errand | {"passages": (OTHER, EDITH)}),
    ]
    for role, known in states:
        options, grammar = role.options(**known), role.grammar(**known)
        for place in range(len(options.texts)):
            action = options.action([place])
            assert grammar.parse(grammar.render(action)) == action and options.taken(action) == (place,)


def test_a_question_without_any_name_or_word_has_something_to_list():
    options = MARKS.searcher.query.options(question="?", errand=Errand())
    assert (options.texts, options.action([0])) == (("the question",), Query("the question"))
    assert MARKS.planner_agent.options(question="?", state=State(), information="").texts == ("the question",)


@pytest.mark.parametrize(
    "settings",
    [{}, {"decide": "marks"}, {"agents": "single"}, {"agents": "single", "decide": "marks"}, {"answers": "guided"}],
    ids=str,
)
async def test_a_world_of_an_oracle_gathers_all_gold_and_stops(settings):
    engine = ScriptedEngine(lambda prompt, rng: AssertionError("the oracle was to decide"))
    llm = ScriptedEngine(lambda prompt, rng: "in Perth")
    retriever = ListRetriever([OTHER, BRIDGE, EDITH])
    system = build("mrag", {"k": 1, "reason_chars": 0 if "decide" in settings else 20, **settings}).for_oracle()
    roles = [role.name for role in system.roles]
    backends = Backends(llm=llm, proxy=engine, retriever=retriever, oracle_roles=roles)
    (trajectory,) = (await Tree(QUESTION, system, backends).grow()).trajectories
    assert {"b", "e"} <= set(trajectory.passages) and (trajectory.stop, trajectory.error) == (StopReason.ANSWERED, None)
    if settings.get("agents") != "single":  # which keeps what it finds
        assert len(trajectory.passages) == 2

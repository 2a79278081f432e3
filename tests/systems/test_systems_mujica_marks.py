"""Mujica deciding at marks: what is listed, what the oracle takes, and that every listed action has a text."""

from itertools import combinations

import pytest
from fakes import ListRetriever, ScriptedEngine

from dragoman.core.errors import UserError
from dragoman.core.types import Passage, Question
from dragoman.rollout.backends import Backends
from dragoman.rollout.tree import Tree
from dragoman.systems.base import Gold
from dragoman.systems.mujica.actions import Answer, Found, Nothing, Searches, Subquestions
from dragoman.systems.mujica.slots import Search
from dragoman.systems.mujica.state import Fact, State
from dragoman.systems.mujica.system import Mujica
from dragoman.systems.options import Choice, rendered

QUESTION = "Where was the designer of the Tarn Bridge, not of the Osse Viaduct, born?"
WHOLE = "Where was the designer of the Tarn Bridge not of the Osse Viaduct born"
BRIDGE = Passage("b", "Tarn Bridge", "The Tarn Bridge was opened in 1871; Edith Marlowe drew it.")
EDITH = Passage("e", "Edith Marlowe", "Edith Marlowe was born in Perth.")
LATER = State((Fact(WHOLE, "Tarn Bridge"),), kept=(BRIDGE,))


def system(**settings) -> Mujica:
    return Mujica(**{"decide": "marks", "queries": "span", **settings})


def test_the_planner_lists_subquestions_after_the_question_and_what_is_known():
    options = system().planner.options(question=QUESTION, state=State())
    assert rendered(options) == (
        f"Question: {QUESTION}\nKnown:\nnothing\nNext:\nthe question ->\nTarn Bridge ->\nOsse Viaduct ->"
    )
    assert options.action([]) == Answer()
    assert options.action([2, 0]) == Subquestions((WHOLE, "Osse Viaduct"))
    later = system().planner.options(question=QUESTION, state=LATER)
    assert later.prompt.endswith(f"Known:\nTarn Bridge: {BRIDGE.text}\nNext:\n")
    assert later.texts == ("Osse Viaduct", "Edith Marlowe")


def test_a_chain_takes_one_subquestion_or_the_answer():
    options = system(max_questions=1).planner.options(question=QUESTION, state=LATER)
    assert options.texts == ("Osse Viaduct", "Edith Marlowe", "answer") and not options.many
    assert options.action([2]) == Answer()


def test_a_bias_stands_by_the_subquestions_or_the_answer_that_it_is_for():
    planning = {"bias": {"planner": {"Subquestions": 2.0}}}
    assert system(**planning).planner.options(question=QUESTION, state=State()).bias == (2.0, 2.0, 2.0)
    chain = system(**planning, max_questions=1)
    assert chain.planner.options(question=QUESTION, state=LATER).bias == (2.0, 2.0, 0.0)
    with pytest.raises(UserError, match=r"bias\.planner: nothing is called 'Answer'; choose from Subquestions"):
        system(max_questions=2, bias={"planner": {"Answer": -2.0}})  # it ends by taking none
    keeping = system(bias={"worker": {"Found": 1.0}}).worker
    assert keeping.options(question=QUESTION, subquestion=WHOLE, passages=[BRIDGE, EDITH]).bias == (1.0, 1.0)


def test_nothing_left_to_ask_leaves_the_answer():
    options = system().planner.options(question="who is it", state=State((Fact("who is it", ""),)))
    assert isinstance(options, Choice) and options.texts == ("answer",)


NIHONIUM = Passage("Nihonium\tnamed after\tJapan", "Nihonium", "named after: Japan")
SYMBOL = Passage("Nihonium\tsymbol\tNh", "Nihonium", "symbol: Nh")


def test_in_a_graph_entities_are_listed_and_each_is_asked_the_whole_question():
    agent = system(environment="graph").planner
    options = agent.options(question="What is it named after?", state=State(candidates=("nihonium",)))
    assert options.texts == ("nihonium",)
    assert options.action([0]) == Searches((Search("What is it named after", "nihonium"),))
    known = State((Fact("Nihonium: What is it", "Japan"),), (NIHONIUM,), candidates=("Nihonium",))
    later = agent.options(question="What is it", state=known)
    assert later.texts == ("Japan",) and later.prompt.endswith("Known:\nNihonium: named after: Japan\nNext:\n")


def test_in_a_graph_the_planner_answers_by_an_entity_that_it_knows_or_yes_or_no():
    agent = system(environment="graph", answers="planner").conclusion
    state = {"question": "What is it", "state": State(kept=(NIHONIUM, SYMBOL), candidates=("Nihonium",))}
    options, grammar = agent.options(**state), agent.grammar(**state)
    known = "Nihonium: named after: Japan\nNihonium: symbol: Nh\n"
    assert rendered(options) == (
        f"Question: What is it\nKnown:\n{known}Answer:\nNihonium ->\nJapan ->\nNh ->\nyes ->\nno ->"
    )
    for place, text in enumerate(options.texts):
        action = options.action([place])
        assert action == Answer(text) == grammar.parse(grammar.render(action))


def test_in_a_graph_yes_and_no_are_answers_however_many_entities_are_known():
    triples = tuple(Passage(f"Town {n}\tlies in\tLand {n}", f"Town {n}", f"lies in: Land {n}") for n in range(60))
    agent = system(environment="graph", answers="planner").conclusion
    texts = agent.options(question="Is it", state=State(kept=triples, candidates=("Town 0",))).texts
    assert len(texts) == 100 and texts[:2] == ("Town 0", "Land 0") and texts[-2:] == ("yes", "no")


@pytest.mark.parametrize(
    ("answers", "right"),
    [
        (("japan",), ["Japan"]),
        (("The Japan",), ["Japan"]),
        (("NH", "no"), ["Nh", "no"]),
        (("Tokyo",), ["Nihonium", "Japan", "Nh", "yes", "no"]),
    ],
)
async def test_the_oracle_takes_every_right_answer_and_any_where_none_is(answers, right):
    agent = system(environment="graph", answers="planner").conclusion
    state = State(kept=(NIHONIUM, SYMBOL), candidates=("Nihonium",))
    gold = Gold(frozenset({"a passage of text"}), find, answers, (("Nihonium", "named after", "Japan"),))
    told = await agent.oracle(gold, question="What is it", state=state)
    assert [action.answer for action in told] == right


def test_in_a_graph_a_worker_lists_the_triples_of_its_entity():
    state = {"question": QUESTION, "subquestion": WHOLE, "entity": "Nihonium", "passages": [NIHONIUM, SYMBOL]}
    options = system(environment="graph").worker.options(**state)
    assert rendered(options) == (
        f"Question: {QUESTION}\nSearched: Nihonium\nNihonium: named after: Japan ->\nNihonium: symbol: Nh ->"
    )
    assert options.action([1]) == Found((2,))


def test_a_worker_lists_passages_after_what_was_asked():
    role = system(proxy_words=4).worker
    options = role.options(question=QUESTION, subquestion="Edith Marlowe", passages=[BRIDGE, EDITH])
    assert rendered(options) == (
        f"Question: {QUESTION}\nSearched: Edith Marlowe\n"
        "Tarn Bridge: The Tarn Bridge was ... ->\nEdith Marlowe: Edith Marlowe was born ... ->"
    )
    assert options.action([]) == Nothing() and options.action([1, 0]) == Found((1, 2))
    assert role.options(question=QUESTION, subquestion=WHOLE, passages=[EDITH]).prompt == f"Question: {QUESTION}\n"


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize(
    ("role", "state"),
    [
        ("planner", {"state": State()}),
        ("planner", {"state": LATER}),
        ("worker", {"subquestion": "Edith", "passages": [BRIDGE, EDITH]}),
        ("graph", {"state": State(kept=(NIHONIUM,), candidates=("Tarn [old] Bridge", "N'Djamena", "A: B"))}),
    ],
)
def test_every_listed_action_has_a_text_that_reads_back_as_it(most, role, state):
    graph = {"environment": "graph"} if role == "graph" else {}
    agent = getattr(system(max_questions=most, **graph), "planner" if graph else role)
    state = state | {"question": QUESTION}
    options, grammar = agent.options(**state), agent.grammar(**state)
    every = range(len(options.texts))
    sizes = range(len(every) + 1) if options.many else [1]
    for places in (places for size in sizes for places in combinations(every, size)):
        action = options.action(places)
        assert grammar.parse(grammar.render(action)) == action
        assert options.taken(action) == places


async def find(query: str, k: int) -> list[str]:
    return (["e"] if "Marlowe" in query else ["x", "v"] if "Osse" in query else ["b"])[:k]


@pytest.mark.parametrize(
    ("gold", "state", "most", "right"),
    [
        ("be", State(), 4, [("the question",)]),
        ("be", LATER, 4, [("Edith Marlowe",)]),
        ("bev", LATER, 4, [("Osse Viaduct", "Edith Marlowe")]),
        ("bev", LATER, 1, [("Edith Marlowe",), ("Osse Viaduct",)]),
        ("b", LATER, 4, [()]),
        ("by", LATER, 4, [()]),
    ],
)
async def test_the_oracle_takes_every_shortest_plan(gold, state, most, right):
    agent = system(max_questions=most).planner
    options = agent.options(question=QUESTION, state=state)
    told = await agent.oracle(Gold(frozenset(gold), find), question=QUESTION, state=state)
    assert [tuple(options.texts[place] for place in options.taken(action)) for action in told] == right


async def test_subquestions_that_are_as_good_are_all_right():
    async def anything(query: str, k: int) -> list[str]:
        return ["e"]

    told = await system().planner.oracle(Gold(frozenset({"e"}), anything), question=QUESTION, state=LATER)
    assert [len(action.questions) for action in told] == [1, 1]


async def test_the_oracle_s_worker_takes_the_gold_passages():
    state = {"question": QUESTION, "subquestion": "Edith", "passages": [BRIDGE, EDITH]}
    role = system().worker
    assert await role.oracle(Gold(frozenset({"e"}), find), **state) == [Found((2,))]
    assert await role.oracle(Gold(frozenset({"x"}), find), **state) == [Nothing()]


async def test_an_oracle_s_run_asks_no_more_than_a_round_may():
    llm = ScriptedEngine(lambda prompt, rng: "Perth")
    proxy = ScriptedEngine(lambda prompt, rng: AssertionError("the oracle was to decide"))
    passages = [BRIDGE, EDITH, *(Passage(f"x{i}", f"Noise {i}", "nothing") for i in range(3))]
    backends = Backends(llm=llm, proxy=proxy, retriever=ListRetriever(passages), oracle_roles={"planner", "worker"})
    question = Question("q", "Where was the designer of the Tarn Bridge born?", ("Perth",), supporting_ids=("b", "e"))
    episode = await Tree(question, system(k=1), backends).grow()
    (trajectory,) = episode.trajectories
    assert [node.role for node in episode.nodes] == ["planner", "worker", "planner", "worker", "planner"]
    assert trajectory.passages == ["b", "e"] and trajectory.answer == "Perth"
    assert all(node.marked is not None for node in episode.nodes)


async def test_a_worker_of_sentences_lists_them_and_the_llm_is_shown_those_that_it_keeps():
    edith = Passage("e", "Edith Marlowe", "She drew bridges. She was born in Perth. She liked tea.")
    llm, proxy = ScriptedEngine(lambda prompt, rng: "Perth"), ScriptedEngine(lambda prompt, rng: "x")
    backends = Backends(llm=llm, proxy=proxy, retriever=ListRetriever([edith]), oracle_roles={"planner", "worker"})
    question = Question("q", "Where was Edith Marlowe born?", ("Perth",), supporting_ids=("e",))
    episode = await Tree(question, system(keep="sentences"), backends).grow()
    worker = next(node for node in episode.nodes if node.role == "worker")
    lines = ["Edith Marlowe: She drew bridges.", "She was born in Perth.", "She liked tea."]
    assert (worker.marked.options, worker.marked.taken, episode.trajectories[0].passages) == (lines, [1], ["e"])
    assert "[1] Edith Marlowe: She was born in Perth.\n" in llm.requests[0].messages[-1]["content"]


async def test_more_subquestions_than_a_round_may_have_are_cut():
    class Context:
        asked = 0

        async def act(self, role, **state):
            return role.options(**state).action([0, 1, 2]) if not state["state"].facts else Answer()

        async def ask(self, ask, **state):
            return "Perth"

        async def parallel(self, branches):
            self.asked = len(branches)
            return {name: ("", []) for name in branches}

    context = Context()
    await system(max_questions=2).run(Question("q", QUESTION, ("Perth",)), context)
    assert context.asked == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"queries": "free"}, "queries: free has to be written; set queries: span, or decide: text"),
        ({"answers": "planner"}, "answers: planner has to be written; set answers: llm"),
        ({"thoughts": True}, "thoughts: true has to be written; set thoughts: false"),
        ({"context": "dialogue"}, "context: dialogue has to be written; set context: facts"),
        ({"memory": True}, "memory: true has to be written; set memory: false"),
        ({"keep": "sentences", "environment": "graph"}, "keep: sentences is of lists of text"),
        ({"decide": "tokens"}, "decide 'tokens': choose from text, marks"),
        ({"max_candidates": 0}, "max_candidates 0: must be at least 1"),
    ],
)
def test_what_cannot_be_listed_is_refused(settings, message):
    with pytest.raises(UserError, match=message):
        system(**settings)

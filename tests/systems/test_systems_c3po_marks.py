"""C3PO deciding at marks: what is listed, what the oracle takes, and that every listed action has a text."""

import pytest
from fakes import ListRetriever, ScriptedEngine

from dragoman.core.errors import UserError
from dragoman.core.types import Passage, Question
from dragoman.rollout.backends import Backends
from dragoman.rollout.exploration import Exploration
from dragoman.rollout.tree import Tree
from dragoman.systems.base import Gold
from dragoman.systems.c3po.actions import Answer, Keep, NoRetrieval, Plan, Search
from dragoman.systems.c3po.marks import KINDS
from dragoman.systems.c3po.system import C3PO
from dragoman.systems.options import kinds_of, rendered

QUESTION = "Where was the designer of the Tarn Bridge born?"
BRIDGE = Passage("b", "Tarn Bridge", "The Tarn Bridge was opened in 1871; Edith Marlowe drew it.")
EDITH = Passage("e", "Edith Marlowe", "Edith Marlowe was born in Perth.")
SETTINGS = {"decide": "marks", "prompts": "brief", "queries": "names", "roadmap": False}


def system(**settings) -> C3PO:
    return C3PO(**{**SETTINGS, **settings})


def test_a_brief_prompt_is_the_question_and_the_strategies():
    assert rendered(system().router.options(question=QUESTION)) == (
        f"Question: {QUESTION}\nStrategy:\nfrom memory ->\nsearch ->\nplan ->"
    )


def test_a_full_prompt_begins_with_instructions():
    for role, state in states().items():
        brief = rendered(getattr(system(), role).options(**state))
        full = rendered(getattr(system(prompts="full"), role).options(**state))
        assert full.endswith(brief) and len(full) > len(brief)


def states() -> dict[str, dict[str, object]]:
    return {
        "router": {"question": QUESTION},
        "filter": {"question": QUESTION, "objective": "Perth", "passages": [BRIDGE, EDITH]},
        "decision_maker": {"question": QUESTION, "roadmap": "", "kept": [BRIDGE], "asked": []},
    }


def test_the_filter_lists_passages_after_what_was_asked():
    options = system(filter_words=4).filter.options(**states()["filter"])
    assert rendered(options) == (
        f"Question: {QUESTION}\nSearched: Perth\n"
        "Tarn Bridge: The Tarn Bridge was ... ->\nEdith Marlowe: Edith Marlowe was born ... ->"
    )
    assert options.action([]) == Keep(()) and options.action([1, 0]) == Keep((1, 2))


def test_a_focused_view_shows_the_sentences_about_the_question_in_their_order():
    text = "It spans the Tarn. Its arches are of stone. Edith Marlowe designed it. Many came."
    bridge = Passage("b", "Tarn Bridge", text)
    state = {"question": QUESTION, "roadmap": "", "kept": [bridge], "asked": []}
    shown = [
        system(view="focused", proxy_words=words).decision_maker.options(**state).prompt.splitlines()[2]
        for words in (3, 8, 40)
    ]
    assert shown == [
        "Tarn Bridge: Edith Marlowe designed ...",
        "Tarn Bridge: It spans the Tarn. Edith Marlowe designed it.",
        f"Tarn Bridge: {text}",
    ]
    texts = system(view="focused", filter_words=4).filter.options(question=QUESTION, objective="", passages=[bridge])
    assert texts.texts == ("Tarn Bridge: Edith Marlowe designed it.",)


@pytest.mark.parametrize("setting", [{"view": "focused"}, {"keep": "sentences"}], ids=str)
def test_what_is_of_lists_is_refused_where_actions_are_written(setting):
    ((name, value),) = setting.items()
    with pytest.raises(UserError, match=f"{name}: {value} is of lists at marks"):
        C3PO(**setting)


async def test_a_filter_of_sentences_lists_them_and_the_llm_is_shown_those_that_it_keeps():
    bridge = Passage("b", "Tarn Bridge", "It spans the Tarn. Edith Marlowe drew it. Its arches are of stone.")
    question = Question("q", "Who drew the Tarn Bridge?", ("Edith Marlowe",), supporting_ids=("b",))
    llm = ScriptedEngine(lambda prompt, rng: "x")
    backends = Backends(llm=llm, proxy=ScriptedEngine(lambda prompt, rng: "x"), retriever=ListRetriever([bridge]))
    oracle = Exploration(breadth=(1,), force=0, temperature=0, oracle=True)
    tree = Tree(question, system(keep="sentences"), backends, exploration=oracle)
    episode = await tree.grow()
    (trajectory,), (kept,) = episode.trajectories, tree.kept.values()
    (filtered,) = [node for node in episode.nodes if node.role == "filter"]
    lines = ["Tarn Bridge: It spans the Tarn.", "Edith Marlowe drew it.", "Its arches are of stone."]
    assert (filtered.marked.options, filtered.text, trajectory.passages) == (lines, "Action: [2]", ["b"])
    assert "[1] Tarn Bridge: Edith Marlowe drew it.\n" in llm.requests[0].messages[-1]["content"]
    assert kept == (Passage("b", "Tarn Bridge", "Edith Marlowe drew it."),)  # and so it is served


def test_passages_that_read_alike_are_told_apart_and_empty_ones_listed():
    passages = [BRIDGE, Passage("c", "Tarn Bridge", BRIDGE.text), Passage("d", "", " ")]
    texts = system().filter.options(question=QUESTION, objective="", passages=passages).texts
    assert len(set(texts)) == 3 and texts[1].endswith("(2)") and texts[2] == "(empty)"


def test_the_decision_maker_lists_searches_by_their_names_and_the_answer_last():
    options = system().decision_maker.options(**states()["decision_maker"])
    assert options.prompt.startswith(f"Question: {QUESTION}\nKnown:\nTarn Bridge: The Tarn Bridge was opened")
    assert options.texts[0] == "the question" and options.texts[-1] == "answer"
    assert "Edith Marlowe" in options.texts
    search = options.action([options.texts.index("Edith Marlowe")])
    assert isinstance(search, Search) and search.query.startswith("Edith Marlowe")
    assert options.action([len(options.texts) - 1]) == Answer()


def test_the_decision_maker_is_told_what_was_searched_for_by_the_names_of_its_list():
    asked = [QUESTION.rstrip("?"), "Edith Marlowe Edith Marlowe born", "Perth"]
    options = system().decision_maker.options(question=QUESTION, roadmap="", kept=[BRIDGE], asked=asked)
    assert f"Question: {QUESTION}\nSearched: the question; Edith Marlowe; Perth\nKnown:\n" in options.prompt
    assert "Edith Marlowe" not in options.texts


def test_nothing_left_to_search_for_leaves_the_answer():
    options = system().decision_maker.options(question="who is it", roadmap="", kept=[], asked=["who is it"])
    assert options.texts == ("answer",)
    assert options.prompt.endswith("Searched: the question\nKnown:\nnothing\nNext:\n")


def test_a_roadmap_stands_before_what_is_known():
    options = system().decision_maker.options(question="who is it", roadmap="1. Ask.\n2. Go.", kept=[], asked=[])
    assert "Plan: 1. Ask. 2. Go.\nKnown:" in options.prompt


@pytest.mark.parametrize("role", ["router", "filter", "decision_maker"])
def test_every_listed_action_has_a_text_that_reads_back_as_it(role):
    agent, state = getattr(system(), role), states()[role]
    options, grammar = agent.options(**state), agent.grammar(**state)
    for places in [[i] for i in range(len(options.texts))]:
        action = options.action(places)
        assert grammar.parse(grammar.render(action)) == action
        assert options.taken(action) == tuple(places)


@pytest.mark.parametrize(("strategy", "action"), [("NoRetrieval", NoRetrieval()), ("Plan", Plan())])
def test_a_router_that_is_held_to_a_strategy_lists_it_alone(strategy, action):
    options = system(strategy=strategy).router.options(question=QUESTION)
    assert [options.action([i]) for i in range(len(options.texts))] == [action]


@pytest.mark.parametrize("question", ["?", "«»", "[Tarn]"])
@pytest.mark.parametrize("queries", ["names", "free", "span"])
async def test_a_question_without_a_word_has_options_that_can_all_be_recorded(question, queries):
    for role, state in states().items():
        agent, state = getattr(system(queries=queries), role), {**state, "question": question}
        options, grammar = agent.options(**state), agent.grammar(**state)
        for place in range(len(options.texts)):
            assert grammar.render(options.action([place]))

    async def find(query: str, k: int) -> list[str]:
        return ["b"]

    router = system(queries=queries).router
    (told,) = await router.oracle(Gold(frozenset("b"), find), question=question)
    assert router.options(question=question).taken(told) == (1,)


@pytest.mark.parametrize(
    ("found", "right"),
    [
        ({}, [Search(QUESTION.rstrip("?")), Plan()]),
        ({"Tarn Bridge": "b"}, [Plan()]),
        ({QUESTION.rstrip("?"): "b"}, [Plan()]),
        ({QUESTION.rstrip("?"): "be"}, [Search(QUESTION.rstrip("?"))]),
    ],
    ids=["nothing is found", "a name finds some", "the question finds some", "the question finds all"],
)
async def test_a_search_is_as_right_as_a_plan_where_neither_leads_to_any_gold(found, right):
    async def find(query: str, k: int) -> list[str]:
        return ["x", *found.get(query, "")][:k]

    agent = system().router
    told = await agent.oracle(Gold(frozenset("be"), find), question=QUESTION)
    assert told == right
    assert all(agent.options(question=QUESTION).taken(action) for action in told)


async def test_a_router_that_writes_plans_where_nothing_is_found():
    async def find(query: str, k: int) -> list[str]:
        return []

    assert await C3PO(queries="names").router.oracle(Gold(frozenset("be"), find), question=QUESTION) == [Plan()]


async def test_searches_that_are_as_good_are_all_right():
    async def find(query: str, k: int) -> list[str]:
        return ["x", "e"] if "Marlowe" in query or "1871" in query else ["b", "x"]

    gold = Gold(frozenset({"b", "e"}), find)
    agent = system().decision_maker
    state = {"question": QUESTION, "roadmap": "", "kept": [BRIDGE], "asked": [QUESTION.rstrip("?")]}
    right = await agent.oracle(gold, **state)
    assert right and all(isinstance(action, Search) for action in right)
    options = agent.options(**state)
    assert {options.texts[place] for action in right for place in options.taken(action)} >= {"Edith Marlowe"}
    assert await agent.oracle(gold, **{**state, "kept": [BRIDGE, EDITH]}) == [Answer()]


def test_marks_write_no_thoughts():
    with pytest.raises(UserError, match="decide: marks writes nothing"):
        system(thoughts=True)
    with pytest.raises(UserError, match="decide 'tokens': choose from text, marks"):
        system(decide="tokens")


def test_biases_stand_by_the_options_that_they_are_for():
    biased = system(bias={"filter": {"Keep": 1.5}, "decide": {"Search": 2.0}, "router": {"Plan": 3.0}})
    options = {role: getattr(biased, role).options(**state) for role, state in states().items()}
    assert options["router"].bias == (0.0, 0.0, 3.0)
    assert options["filter"].bias == (1.5, 1.5)
    searches = len(options["decision_maker"].texts) - 1
    assert options["decision_maker"].bias == (*[2.0] * searches, 0.0)
    assert all(getattr(system(), role).options(**state).bias == () for role, state in states().items())


def test_a_bias_may_be_for_every_action_that_is_listed_and_for_no_other():
    listed = {role: {*kinds_of(getattr(system(), role).options(**state))} for role, state in states().items()}
    listed["decide"] = listed.pop("decision_maker")
    assert listed == {role: {kind.__name__ for kind in kinds} for role, kinds in KINDS.items()}

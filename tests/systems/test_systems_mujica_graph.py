"""Mujica in the environment of a knowledge graph: where it starts, what workers read, entities that are not there."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from fakes import ListRetriever, ScriptedEngine
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.errors import UserError
from dragoman.core.types import Question
from dragoman.corpus.triple_passages import triple_passages
from dragoman.retrieval.methods.graph import GraphRetriever
from dragoman.retrieval.store import PassageStore, write_passages
from dragoman.rollout.backends import Backends
from dragoman.rollout.exploration import TREE
from dragoman.rollout.tree import Tree
from dragoman.systems.base import StopReason
from dragoman.systems.grammar import InvalidAction
from dragoman.systems.mujica.actions import Searches
from dragoman.systems.mujica.slots import Search
from dragoman.systems.mujica.state import State
from dragoman.systems.mujica.system import Mujica
from dragoman.systems.mujica.topics import topic_entities

TRIPLES = [
    ("Nihonium", "named after", "Japan"),
    ("Nihonium", "symbol", "Nh"),
    ("Japan", "capital", "Tokyo"),
    ("Tokyo", "country", "Japan"),
    ("Chad", "capital", "N'Djamena"),
]
PATH = (("Nihonium", "named after", "Japan"), ("Japan", "capital", "Tokyo"))
QUESTION = Question("q", "What is the capital of the country after which nihonium is named?", ("Tokyo",), triples=PATH)


@pytest.fixture
def graph(tmp_path):
    passages = triple_passages(TRIPLES)
    write_passages(passages, tmp_path)
    retriever = GraphRetriever(ListRetriever(passages), PassageStore(tmp_path))
    yield retriever
    retriever._triples.close()


async def run(graph, plans: list[str], said: dict[str, str], question: Question = QUESTION, **settings):
    turns = iter(plans)

    def proxy(prompt, rng):
        if "[Nothing]" not in prompt:
            return next(turns)
        return said[re.findall(r"^Question: (.*?):", prompt, flags=re.M)[-1]]

    engine = ScriptedEngine(proxy)
    backends = Backends(llm=ScriptedEngine(lambda prompt, rng: "Tokyo"), proxy=engine, retriever=graph)
    episode = await Tree(question, Mujica(environment="graph", **settings), backends).grow()
    (trajectory,) = episode.trajectories
    return trajectory, episode


def prompts(episode, role: str) -> list[str]:
    return [node.prompt[-1][1] for node in episode.nodes if node.role == role]


SAID = {"Nihonium": "[1] Nihonium is named after Japan.", "Japan": "[1] The capital of Japan is Tokyo."}
NAMED = "[Search] Nihonium [for] Which country is it named after?"
CAPITAL = "[Search] Japan [for] What is its capital?"


async def test_a_question_is_answered_along_its_triples(graph):
    trajectory, episode = await run(graph, [NAMED, CAPITAL, "[Answer]"], SAID, candidates="gold", k=2)
    assert trajectory.stop is StopReason.ANSWERED
    assert trajectory.passages == ["Nihonium\tnamed after\tJapan", "Japan\tcapital\tTokyo"]
    start = f"Question: {QUESTION.question}\nEntities to start from: Nihonium\n\nKnown so far:\n"
    first, second, _ = prompts(episode, "planner")
    assert first.startswith(start) and second.startswith(start)
    assert "Nihonium: Which country is it named after? -> Nihonium is named after Japan." in second
    first, second = prompts(episode, "worker")
    facts = "[1] Nihonium: named after: Japan\n[2] Nihonium: symbol: Nh\n"
    assert first.startswith(f"Question: Nihonium: Which country is it named after?\n\n{facts}")
    assert "[1] Japan: capital: Tokyo\n[2] " in second
    worker = next(node for node in episode.nodes if node.role == "worker")
    assert "knowledge graph" in worker.prompt[0][1]


async def test_the_oracle_follows_the_triples(graph):
    nobody = ScriptedEngine(lambda prompt, rng: AssertionError("the oracle was to decide"))
    backends = Backends(llm=nobody, proxy=nobody, retriever=graph, oracle_roles={"planner", "worker"})
    question = replace(QUESTION, supporting_ids=("a passage of text",))
    system = Mujica(environment="graph", candidates="gold", queries="span", answers="planner", k=2)
    episode = await Tree(question, system, backends).grow()
    whole = QUESTION.question.rstrip("?")
    assert [node.text for node in episode.nodes] == [
        f"[Search] Nihonium [for] {whole}",
        "[1] Nihonium named after Japan",
        f"[Search] Japan [for] {whole}",
        "[1] Japan capital Tokyo",
        "[Answer] Tokyo",
    ]
    assert all(re.fullmatch(node.grammar["regex"], node.text) for node in episode.nodes)


async def test_the_oracle_at_marks_takes_the_entity_and_then_its_triple(graph):
    nobody = ScriptedEngine(lambda prompt, rng: AssertionError("the oracle was to decide"))
    backends = Backends(
        llm=ScriptedEngine(lambda p, r: "Tokyo"), proxy=nobody, retriever=graph, oracle_roles={"planner", "worker"}
    )
    question = replace(QUESTION, supporting_ids=("Nihonium\tnamed after\tJapan", "Japan\tcapital\tTokyo"))
    system = Mujica(environment="graph", candidates="gold", queries="span", decide="marks", k=2)
    episode = await Tree(question, system, backends).grow()
    taken = [[node.marked.options[place] for place in node.marked.taken] for node in episode.nodes]
    named, capital = "Nihonium: named after: Japan", "Japan: capital: Tokyo"
    assert taken == [["Nihonium"], [named], ["Japan"], [capital, named], []]  # the second entity has both triples
    assert episode.trajectories[0].passages == list(question.supporting_ids)


async def test_at_marks_the_planner_answers_without_the_llm(graph):
    nobody = ScriptedEngine(lambda prompt, rng: AssertionError("neither model was to be asked"))
    backends = Backends(llm=nobody, proxy=nobody, retriever=graph, oracle_roles={"planner", "worker"})
    question = replace(QUESTION, supporting_ids=("Nihonium\tnamed after\tJapan", "Japan\tcapital\tTokyo"))
    system = Mujica(environment="graph", candidates="gold", queries="span", decide="marks", answers="planner", k=2)
    episode = await Tree(question, system, backends).grow()
    (trajectory,) = episode.trajectories
    assert (trajectory.answer, trajectory.stop) == ("Tokyo", StopReason.ANSWERED)
    assert [node.text for node in episode.nodes][-2:] == ["[Answer]", "[Answer] Tokyo"]


async def test_entities_are_linked_by_a_search_for_the_question(graph):
    _, episode = await run(graph, ["[Answer]"], {}, candidates="search", k=2)
    (search,) = (call for call in episode.calls if call.kind == "search")
    assert search.input["query"] == QUESTION.question
    assert "Entities to start from: Nihonium\n" in prompts(episode, "planner")[0]


async def test_in_text_there_is_nothing_to_start_from(graph):
    engine = ScriptedEngine(lambda prompt, rng: "[Answer]" if "Known so far" in prompt else "Tokyo")
    backends = Backends(llm=engine, proxy=engine, retriever=graph)
    episode = await Tree(QUESTION, Mujica(candidates="gold"), backends).grow()
    assert not [call for call in episode.calls if call.kind == "search"]
    assert "start from" not in prompts(episode, "planner")[0]


async def test_an_entity_that_is_not_in_the_graph_is_nothing_found_and_the_plan_goes_on(graph):
    plans = [f"[Search] Atlantis [for] What is its capital?\n{CAPITAL}", "[Answer]"]
    trajectory, episode = await run(graph, plans, SAID, k=1)
    known = "Atlantis: What is its capital? -> nothing found\nJapan: What is its capital? -> The capital of Japan is"
    assert known in prompts(episode, "planner")[1]
    assert len(prompts(episode, "worker")) == 1  # no worker reads other entities' triples for it
    assert (trajectory.stop, trajectory.passages) == (StopReason.ANSWERED, ["Japan\tcapital\tTokyo"])


async def test_a_relation_without_triples_is_nothing_found_and_further_triples_are_read_next(graph):
    plans = ["[Search] Nihonium [for] Who found it?"] * 2 + ["[Answer]"]
    trajectory, episode = await run(graph, plans, {"Nihonium": "[Nothing]"}, k=1)
    first, second = prompts(episode, "worker")
    assert "[1] Nihonium: named after: Japan" in first and "[1] Nihonium: symbol: Nh" in second
    assert "Nihonium: Who found it? -> nothing found" in prompts(episode, "planner")[2]
    assert (trajectory.stop, trajectory.passages) == (StopReason.ANSWERED, [])


async def test_a_graph_in_which_nothing_is_found_is_answered_from_memory(graph):
    graph._search.passages, graph._headed, graph._ended = [], {}, {}
    trajectory, episode = await run(graph, [CAPITAL, "[Answer]"], {}, k=1)
    assert "start from" not in prompts(episode, "planner")[0]
    assert "Japan: What is its capital? -> nothing found" in prompts(episode, "planner")[1]
    assert (trajectory.stop, trajectory.passages, trajectory.answer) == (StopReason.ANSWERED, [], "Tokyo")


def test_a_question_without_a_topic_is_refused_before_any_is_asked():
    lacking = Question("q", "Who?", ("x",))
    with pytest.raises(UserError, match="question q: candidates: gold"):
        Mujica(environment="graph", candidates="gold").check(lacking)
    Mujica(environment="graph", candidates="search").check(lacking)
    Mujica().check(lacking)


async def test_gold_candidates_need_gold(graph):
    with pytest.raises(UserError, match=r"question q: candidates: gold .* has neither; set mujica.candidates: search"):
        await run(graph, [], {}, Question("q", "Who?", ("x",)), candidates="gold")


@pytest.mark.parametrize(
    ("question", "triples", "topics"),
    [
        (QUESTION.question, PATH, ("Nihonium",)),
        ("Which country has Macedonian as a language?", [("North Macedonia", "language", "Macedonian")], ("Macedonian",)),
        ("Which is lighter, hassium or N’Djamenium?", [("N'Djamenium", "n", "9"), ("Hassium", "n", "8")], ("N'Djamenium", "Hassium")),
        ("Is Guineas a country?", [("Guinea", "is", "country")], ("country",)),
        ("Where was Mary Mead's father born?", [("Mary E. Mead", "father", "Cliff"), ("Cliff", "born in", "Teton")], ("Mary E. Mead",)),
    ],
)  # fmt: skip
def test_topic_entities_are_named_in_the_question_or_begin_its_path(question, triples, topics):
    assert topic_entities(Question("q", question, triples=tuple(triples))) == topics


def test_a_topic_that_the_question_calls_by_another_name_is_the_end_that_is_no_answer():
    asked = Question("q", "Whose is the Maltese pound?", ("Malta",), triples=(("Malta", "currency", "Malta pound"),))
    assert topic_entities(asked) == ("Malta pound",)


def test_the_topic_of_a_data_set_comes_first():
    assert topic_entities(Question("q", QUESTION.question, triples=PATH, topics=("Chad",))) == ("Chad",)


@pytest.mark.parametrize("name", ["El Aaiún", "Gustav Iii of Sweden", "a k Faezul Huq"])
def test_a_small_model_may_ask_for_what_it_starts_from_and_for_what_was_found(name):
    small = Mujica(environment="graph", queries="span")
    kept = tuple(triple_passages([("Chad", "related to", name)]))
    says = f"[Search] {name} [for] Who is it"
    asked = [
        re.fullmatch(small.planner.grammar(question="Who is it?", state=state).constraint().regex, says)
        for state in (State(), State(candidates=(name,)), State(kept=kept))
    ]
    assert [bool(match) for match in asked] == [False, True, True]


lines = st.text(alphabet="ab ':?", min_size=1).map(lambda text: " ".join(text.split())).filter(bool)


@given(st.lists(st.builds(Search, lines, lines), min_size=1, max_size=4, unique=True), st.booleans())
def test_a_plan_of_searches_is_parsed_as_rendered(searches, thoughts):
    grammar = Mujica(environment="graph", thoughts=thoughts).planner.grammar(question="?", state=State())
    action = Searches(tuple(searches), "a thought" if thoughts else "")
    assert grammar.parse(grammar.render(action)) == action
    assert re.fullmatch(grammar.constraint().regex, grammar.render(action))


@pytest.mark.parametrize("text", ["[Search] Japan", "[Search] [for] Who?", "[Ask] Japan", "[Search] a [for] b [for] c"])
def test_a_search_without_an_entity_or_a_question_is_no_action(text):
    with pytest.raises(InvalidAction):
        Mujica(environment="graph").planner.grammar(question="?", state=State()).parse(text)


@pytest.mark.parametrize("thoughts", [False, True])
def test_examples_are_actions(thoughts):
    system = Mujica(environment="graph", thoughts=thoughts, shots=9)
    reply = system.worker.grammar(question="?", subquestion="?", passages=triple_passages(TRIPLES)[:4])
    plan = system.planner.grammar(question="?", state=State())
    assert len(system.worker.prompt.examples) == 2
    for role, grammar in ((system.worker, reply), (system.planner, plan)):
        for example in role.prompt.examples:
            assert grammar.render(grammar.parse(example["output"])) == example["output"]


@pytest.mark.slow
async def test_a_model_that_knows_nothing_acts_validly(graph, tiny_engine):
    system = Mujica(
        environment="graph", candidates="gold", queries="span", max_iterations=2, max_questions=2, k=2, answer_tokens=4
    )
    backends = Backends(llm=tiny_engine, proxy=tiny_engine, retriever=graph)
    episode = await Tree(QUESTION, system, backends, exploration=TREE, seed=1).grow()
    assert len(episode.trajectories) > 1 and all(node.action is not None for node in episode.nodes)
    assert all(t.answer for t in episode.trajectories)

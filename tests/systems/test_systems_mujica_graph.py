"""Mujica in the environment of a knowledge graph: where it starts, what workers read, entities that are not there."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from fakes import ListRetriever, ScriptedEngine

from dragoman.core.errors import UserError
from dragoman.core.types import Question
from dragoman.corpus.triples import entity_passages
from dragoman.retrieval.methods.graph import GraphRetriever
from dragoman.retrieval.store import PassageStore, write_passages
from dragoman.rollout.backends import Backends
from dragoman.rollout.exploration import TREE
from dragoman.rollout.tree import Tree
from dragoman.systems.base import StopReason
from dragoman.systems.mujica.state import State
from dragoman.systems.mujica.system import Mujica, topic_entities

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
    entities = entity_passages(TRIPLES)
    write_passages(entities, tmp_path)
    retriever = GraphRetriever(ListRetriever(entities), PassageStore(tmp_path))
    yield retriever
    retriever._entities.close()


async def run(graph, plans: list[str], said: dict[str, str], question: Question = QUESTION, **settings):
    turns = iter(plans)

    def proxy(prompt, rng):
        if "[Nothing]" not in prompt:
            return next(turns)
        return said[re.findall(r"^Question: (.*)$", prompt, flags=re.M)[-1]]

    engine = ScriptedEngine(proxy)
    backends = Backends(llm=ScriptedEngine(lambda prompt, rng: "Tokyo"), proxy=engine, retriever=graph)
    episode = await Tree(question, Mujica(environment="graph", **settings), backends).grow()
    (trajectory,) = episode.trajectories
    return trajectory, episode


def prompts(episode, role: str) -> list[str]:
    return [node.prompt[-1][1] for node in episode.nodes if node.role == role]


SAID = {"Nihonium": "[1] Nihonium is named after Japan.", "Japan": "[1] The capital of Japan is Tokyo."}


async def test_a_question_is_answered_along_its_triples(graph):
    plans = ["[Ask] Nihonium", "[Ask] Japan", "[Answer]"]
    trajectory, episode = await run(graph, plans, SAID, candidates="gold", k=1)
    assert (trajectory.stop, trajectory.passages) == (StopReason.ANSWERED, ["Nihonium", "Japan"])
    start = f"Question: {QUESTION.question}\nEntities to start from: Nihonium\n\nKnown so far:\n"
    assert all(prompt.startswith(start) for prompt in prompts(episode, "planner"))
    first, second = prompts(episode, "worker")
    assert first.startswith("Question: Nihonium\n\n[1] Nihonium: named after: Japan. symbol: Nh.")
    assert "capital: Tokyo. named after of: Nihonium. country of: Tokyo." in second
    worker = next(node for node in episode.nodes if node.role == "worker")
    assert "knowledge graph" in worker.prompt[0][1]


async def test_the_oracle_follows_the_triples(graph):
    nobody = ScriptedEngine(lambda prompt, rng: AssertionError("the oracle was to decide"))
    backends = Backends(llm=nobody, proxy=nobody, retriever=graph, oracle=True)
    question = replace(QUESTION, supporting_ids=("a passage of text",))
    system = Mujica(environment="graph", candidates="gold", queries="span", answers="planner", k=1)
    episode = await Tree(question, system, backends).grow()
    assert [node.text for node in episode.nodes] == [
        "[Ask] Nihonium",
        "[1] Nihonium named after Japan",
        "[Ask] Japan",
        "[1] Japan capital Tokyo",
        "[Answer] Tokyo",
    ]
    assert all(re.fullmatch(node.grammar["regex"], node.text) for node in episode.nodes)


async def test_entities_are_linked_by_a_search_for_the_question(graph):
    _, episode = await run(graph, ["[Answer]"], {}, candidates="search", k=2)
    (search,) = (call for call in episode.calls if call.kind == "search")
    assert search.input["query"] == QUESTION.question and search.output[0] == "Nihonium"
    assert re.search(r"Entities to start from: Nihonium, \w+\n", prompts(episode, "planner")[0])


async def test_in_text_there_is_nothing_to_start_from(graph):
    engine = ScriptedEngine(lambda prompt, rng: "[Answer]" if "Known so far" in prompt else "Tokyo")
    backends = Backends(llm=engine, proxy=engine, retriever=graph)
    episode = await Tree(QUESTION, Mujica(candidates="gold"), backends).grow()
    assert not [call for call in episode.calls if call.kind == "search"]
    assert "start from" not in prompts(episode, "planner")[0]


async def test_an_unknown_entity_is_nothing_found_and_the_plan_goes_on(graph):
    said = {"Atlantis": "[Nothing]", "Japan": SAID["Japan"]}
    trajectory, episode = await run(graph, ["[Ask] Atlantis\n[Ask] Japan", "[Answer]"], said, k=1)
    assert "Atlantis -> nothing found\nJapan -> The capital of Japan is Tokyo." in prompts(episode, "planner")[1]
    assert (trajectory.stop, trajectory.passages) == (StopReason.ANSWERED, ["Japan"])


async def test_a_graph_in_which_nothing_is_found_is_answered_from_memory(graph):
    graph._search.passages, graph._rows = [], {}
    trajectory, episode = await run(graph, ["[Ask] Japan", "[Answer]"], {}, k=1)
    assert "start from" not in prompts(episode, "planner")[0]
    assert "Japan -> nothing found" in prompts(episode, "planner")[1]
    assert (trajectory.stop, trajectory.passages, trajectory.answer) == (StopReason.ANSWERED, [], "Tokyo")


async def test_gold_candidates_need_gold(graph):
    with pytest.raises(UserError, match="question q: gold candidates are taken from its triples"):
        await run(graph, [], {}, Question("q", "Who?", ("x",)), candidates="gold")


@pytest.mark.parametrize(
    ("question", "triples", "topics"),
    [
        (QUESTION.question, PATH, ("Nihonium",)),
        ("Which country has Macedonian as a language?", [("North Macedonia", "language", "Macedonian")], ("Macedonian",)),
        ("Which is lighter, hassium or N’Djamenium?", [("N'Djamenium", "n", "9"), ("Hassium", "n", "8")], ("N'Djamenium", "Hassium")),
        ("Is Guineas a country?", [("Guinea", "is", "country")], ("country",)),
        ("What is it?", [("Guinea", "is", "land")], ()),
    ],
)  # fmt: skip
def test_topic_entities_are_named_in_the_question(question, triples, topics):
    assert topic_entities(Question("q", question, triples=tuple(triples))) == topics


def test_a_small_model_may_ask_for_a_candidate():
    small = Mujica(environment="graph", queries="span")
    asked = {
        state: re.fullmatch(
            small.planner.grammar(question="Who is it?", state=state).constraint().regex, "[Ask] El Aaiún"
        )
        for state in (State(), State(candidates=("El Aaiún",)))
    }
    assert [bool(match) for match in asked.values()] == [False, True]


@pytest.mark.parametrize("thoughts", [False, True])
def test_examples_are_actions(thoughts):
    system = Mujica(environment="graph", thoughts=thoughts, shots=9)
    reply = system.worker.grammar(question="?", subquestion="?", passages=entity_passages(TRIPLES)[:3])
    assert len(system.worker.prompt.examples) == 2
    for example in system.worker.prompt.examples:
        assert reply.render(reply.parse(example["output"])) == example["output"]


async def test_a_model_that_knows_nothing_acts_validly(graph, tiny_engine):
    system = Mujica(
        environment="graph", candidates="gold", queries="span", max_iterations=2, max_questions=2, k=2, answer_tokens=4
    )
    backends = Backends(llm=tiny_engine, proxy=tiny_engine, retriever=graph)
    episode = await Tree(QUESTION, system, backends, exploration=TREE, seed=1).grow()
    assert len(episode.trajectories) > 1 and all(node.action is not None for node in episode.nodes)
    assert all(t.answer for t in episode.trajectories)

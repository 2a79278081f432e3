"""Mujica's control flow, with a scripted proxy and LLM and a small list to search."""

import asyncio
import random
import re
import time
from pathlib import Path

import pytest
from fakes import ListRetriever, ScriptedEngine
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.errors import EngineFault, UserError
from dragoman.core.text import plain_line
from dragoman.core.types import Passage, Question
from dragoman.engines.base import Request
from dragoman.engines.local import Vocabulary
from dragoman.rollout.backends import Backends
from dragoman.rollout.exploration import TREE, Exploration
from dragoman.rollout.tree import Tree
from dragoman.systems import build
from dragoman.systems.base import Gold, StopReason
from dragoman.systems.grammar import InvalidAction, Line
from dragoman.systems.mujica import actions
from dragoman.systems.mujica.actions import Answer, Found, Nothing, Recalled, Subquestions
from dragoman.systems.mujica.state import Fact, State
from dragoman.systems.mujica.system import Mujica

PASSAGES = [
    Passage("tarn", "Tarn Bridge", "The Tarn Bridge was opened in 1871. It is of iron."),
    Passage("osse", "Osse Viaduct", "The Osse Viaduct was opened in 1902."),
    Passage("marlowe", "Edith Marlowe", "Edith Marlowe designed the Tarn Bridge."),
    *(Passage(f"x{i}", f"Noise {i}", f"nothing number {i}") for i in range(20)),
]
QUESTION = Question("q", "Who designed the older of the two, the Tarn Bridge or the Osse Viaduct?", ("Edith Marlowe",))
TARN, OSSE, WHO = (
    "When was the Tarn Bridge opened?",
    "When was the Osse Viaduct opened?",
    "Who designed the Tarn Bridge?",
)
BOTH = f"[Ask] {TARN}\n[Ask] {OSSE}"
SAID = {
    TARN: "[1] The Tarn Bridge was opened in 1871.",
    OSSE: "[1] The Osse Viaduct was opened in 1902.",
    WHO: "[1, 2] Edith Marlowe designed the Tarn Bridge.",
}


def is_worker(prompt: str) -> bool:
    return "If no result answers it" in prompt


def asked_of(prompt: str) -> str:
    return re.findall(r"^(?:.*)Question: (.*)$", prompt, flags=re.M)[-1]


async def run(plans: list[str], said: dict[str, str] = SAID, passages=PASSAGES, **settings):
    """Let the planner say the given texts in turn, and each worker what `said` has for its subquestion."""
    turns = iter(plans)
    proxy = ScriptedEngine(
        lambda prompt, rng: said.get(asked_of(prompt), "[Nothing]") if is_worker(prompt) else next(turns)
    )
    llm = ScriptedEngine(lambda prompt, rng: "Edith Marlowe")
    retriever = ListRetriever(passages)
    backends = Backends(llm=llm, proxy=proxy, retriever=retriever)
    episode = await Tree(QUESTION, build("mujica", settings), backends).grow()
    (trajectory,) = episode.trajectories
    return trajectory, episode, retriever, llm


def prompts(episode, role: str) -> list[str]:
    """What a role was shown, first turn first."""
    return [node.prompt[-1][1] for node in episode.nodes if node.role == role]


async def test_the_oracle_asks_for_what_is_missing_and_workers_say_what_leads_on():
    passages = [
        Passage("osse", "Osse Viaduct", "The Osse Viaduct was opened in 1902. It was drawn by Edith Marlowe."),
        Passage("who", "Edith Marlowe", "Edith Marlowe was born in Perth."),
        *(Passage(f"noise{i}", f"Noise {i}", f"nothing number {i}") for i in range(3)),
    ]
    proxy = ScriptedEngine(lambda prompt, rng: AssertionError("the oracle was to decide"))
    llm = ScriptedEngine(lambda prompt, rng: "Perth")
    backends = Backends(llm=llm, proxy=proxy, retriever=ListRetriever(passages), oracle_roles={"planner", "worker"})
    asked = "Where was the architect of the Osse Viaduct born?"
    question = Question("q", asked, ("Perth",), supporting_ids=("osse", "who"))
    episode = await Tree(question, build("mujica", {"k": 1, "queries": "span"}), backends).grow()
    assert [node.text for node in episode.nodes] == [
        "[Ask] Where was the architect of the Osse Viaduct born",
        "[1] Osse Viaduct It was drawn by Edith Marlowe",
        "[Ask] Edith Marlowe",
        "[1] Edith Marlowe was born in Perth",
        "[Answer]",
    ]
    assert episode.trajectories[0].passages == ["osse", "who"]
    assert all(re.fullmatch(node.grammar["regex"], node.text) for node in episode.nodes)


async def test_the_oracle_s_worker_says_nothing_of_passages_that_are_not_gold():
    async def find(query: str, k: int) -> list[str]:
        return []

    role = build("mujica").worker
    gold = Gold(frozenset({"who"}), find)
    assert await role.oracle(gold, question="?", subquestion="?", passages=PASSAGES[:2]) == [Nothing()]


async def test_the_oracle_of_a_planner_that_answers_has_each_worker_say_what_it_then_says():
    passages = [
        Passage("osse", "Osse Viaduct", "The Osse Viaduct is of stone. It was opened in 1902."),
        Passage("tarn", "Tarn Bridge", "The Tarn Bridge is of iron. It was opened in 1871."),
        Passage("ilse", "Ilse Brandt", "Ilse Brandt drew a bridge."),
    ]
    triples = (("Osse Viaduct", "opened", "1902"), ("Tarn Bridge", "opened", "1871"))
    asked = "Which was opened first, the Tarn Bridge or the Osse Viaduct?"
    question = Question("q", asked, ("Tarn Bridge",), supporting_ids=("osse", "tarn"), triples=triples)
    settings = {"k": 2, "queries": "span", "answers": "planner"}
    assert await told(question, passages, settings) == [
        "[Ask] Osse Viaduct\n[Ask] Tarn Bridge",
        "[1] Osse Viaduct It was opened in 1902",
        "[1] Tarn Bridge It was opened in 1871",
        "[Answer] Tarn Bridge",
    ]
    assert await told(question, passages, settings | {"max_iterations": 1, "max_questions": 1}) == [
        "[Ask] Osse Viaduct",
        "[1] Osse Viaduct It was opened in 1902",
        "[Answer] no",  # one of the two is not known
    ]


async def test_an_answer_that_nobody_has_said_is_not_the_oracle_s():
    question = Question("q", "Who drew the Osse Viaduct?", ("Ilse Brandt",), supporting_ids=("osse",))
    passages = [Passage("osse", "Osse Viaduct", "The Osse Viaduct is of stone.")]
    for queries in ("span", "free"):
        *_, last = await told(question, passages, {"queries": queries, "answers": "planner"})
        assert last == "[Answer] no"


async def test_an_oracle_that_cannot_say_what_to_do_is_refused():
    question = Question("q", "Who?", ("x",), supporting_ids=("osse",))
    with pytest.raises(UserError, match="question q: what is known of it does not tell the oracle of 'planner'"):
        await told(question, PASSAGES, {"environment": "graph"})


async def test_without_gold_triples_a_graph_s_roles_act_as_the_policy_says():
    says = ["[Search] Osse [for] Who is it?", "[Nothing]", "[Answer] it"]
    engine = ScriptedEngine(lambda prompt, rng: says.pop(0))
    backends = Backends(llm=engine, proxy=engine, retriever=ListRetriever(PASSAGES))
    question = Question("q", "Who?", ("x",), supporting_ids=("osse",))
    system = build("mujica", {"environment": "graph", "answers": "planner", "max_iterations": 1, "k": 1})
    episode = await Tree(
        question, system, backends, exploration=Exploration(breadth=(1,), force=0, temperature=0, oracle=True)
    ).grow()
    assert not any(node.forced for node in episode.nodes) and episode.trajectories[0].answer == "it"


async def told(question: Question, passages: list[Passage], settings: dict[str, object]) -> list[str]:
    """What the oracle says of a question, all of which the sampler could come to say, first turn first."""
    nobody = ScriptedEngine(lambda prompt, rng: AssertionError("the oracle was to decide"))
    backends = Backends(llm=nobody, proxy=nobody, retriever=ListRetriever(passages), oracle_roles={"planner", "worker"})
    episode = await Tree(question, build("mujica", settings), backends).grow()
    assert all(re.fullmatch(node.grammar["regex"], node.text) for node in episode.nodes)
    (trajectory,) = episode.trajectories
    texts = {node.id: node.text for node in episode.nodes}
    return [texts[step] for step in trajectory.steps if step in texts]


async def test_a_plan_of_two_rounds():
    trajectory, _, retriever, llm = await run([BOTH, f"[Ask] {WHO}", "[Answer]"], k=2)
    assert (trajectory.answer, trajectory.stop) == ("Edith Marlowe", StopReason.ANSWERED)
    assert retriever.queries == [TARN, OSSE, WHO]
    assert trajectory.passages[:2] == ["tarn", "osse"] and "marlowe" in trajectory.passages
    assert "opened in 1871" in llm.requests[0].messages[-1]["content"]


async def test_the_planner_sees_short_answers_and_no_passage():
    _, episode, _, _ = await run([BOTH, f"[Ask] {WHO}", "[Answer]"], k=2)
    first, second, third = prompts(episode, "planner")
    assert "Known so far:\n(none)" in first
    assert f"{TARN} -> The Tarn Bridge was opened in 1871.\n{OSSE} -> The Osse Viaduct was opened in 1902." in second
    assert f"{WHO} -> Edith Marlowe designed" in third
    assert "It is of iron" not in first + second + third
    of_the_bridge = [p for p in prompts(episode, "worker") if TARN in p]
    assert of_the_bridge and all("It is of iron" in p for p in of_the_bridge)


async def test_the_graph_of_subquestions_is_in_the_nodes():
    _, episode, _, _ = await run([BOTH, f"[Ask] {WHO}", "[Answer]"])
    first, second, third = (n for n in episode.nodes if n.role == "planner")
    workers = {asked_of(n.prompt[-1][1]): n for n in episode.nodes if n.role == "worker"}
    assert workers[TARN].parent == workers[OSSE].parent == first.id
    assert second.joins == [workers[TARN].id, workers[OSSE].id] and second.parent == first.id
    assert workers[WHO].parent == second.id and third.joins == [workers[WHO].id]


async def test_subquestions_of_one_round_are_looked_up_at_once():
    gate = asyncio.Barrier(2)  # opens when both workers are under way, and never otherwise

    class Together(ScriptedEngine):
        async def _one(self, request: Request):
            if is_worker(request.messages[-1]["content"]):
                await asyncio.wait_for(gate.wait(), 5)
            return await super()._one(request)

    turns = iter([BOTH, "[Answer]"])
    proxy = Together(lambda prompt, rng: SAID[asked_of(prompt)] if is_worker(prompt) else next(turns))
    backends = Backends(llm=ScriptedEngine(lambda p, r: "x"), proxy=proxy, retriever=ListRetriever(PASSAGES))
    (trajectory,) = (await Tree(QUESTION, Mujica(), backends).grow()).trajectories
    assert trajectory.stop is StopReason.ANSWERED


def explorer(prompt: str, rng: random.Random) -> str:
    """A proxy that has no opinion. The kinds that it may choose from stand in the grammar, with escaped brackets."""
    if is_worker(prompt):
        replies = ["[1] one thing.", "[1, 2] two things."]
        kinds = [["[Nothing]"]] * (r"\[Nothing\]" in prompt) + [replies] * (not prompt.startswith(r"\[Nothing\]"))
        return rng.choice(rng.choice(kinds))
    if "Known so far" in prompt:
        kinds = [kind for kind in ("Ask", "Answer") if rf"\[{kind}\]" in prompt]
        return "[Answer]" if rng.choice(kinds) == "Answer" else rng.choice([f"[Ask] {TARN}", BOTH, f"[Ask] {WHO}"])
    return "an answer"


def exploring(jitter: random.Random | None = None) -> Backends:
    engine = ScriptedEngine(explorer, jitter=jitter)
    return Backends(llm=engine, proxy=engine, retriever=ListRetriever(PASSAGES))


ENDINGS = (StopReason.ANSWERED, StopReason.DEPTH_LIMIT, StopReason.DOCUMENT_LIMIT, StopReason.CIRCULAR_PLAN)
SMALL = Mujica(max_iterations=2, k=2)
WIDE = Exploration(breadth=(6, 3, 2))


def content(episode):
    return (
        [n.model_copy(update={"started": 0, "seconds": 0}) for n in episode.nodes],
        [c.model_copy(update={"started": 0, "seconds": 0}) for c in episode.calls],
        episode.trajectories,
    )


async def test_a_tree_is_the_same_whatever_the_order_in_which_workers_finish():
    grown = [
        await Tree(QUESTION, SMALL, exploring(random.Random(i)), exploration=WIDE, seed=3).grow() for i in range(4)
    ]
    assert all(content(episode) == content(grown[0]) for episode in grown)
    assert {n.kind for n in grown[0].nodes if n.depth == 1} == {"Subquestions", "Answer"}
    assert len(grown[0].trajectories) > 4 and any(len(n.joins) == 2 for n in grown[0].nodes)


async def test_a_tree_that_was_killed_at_any_call_resumes_to_the_same():
    calls: list[tuple[str, object]] = []
    whole = await Tree(
        QUESTION, SMALL, exploring(), exploration=WIDE, seed=3, remember=lambda i, v: calls.append((i, v))
    ).grow()
    for killed_after in (*range(0, len(calls), 3), len(calls)):
        backends = exploring()
        recorded = dict(calls[:killed_after])
        resumed = await Tree(QUESTION, SMALL, backends, exploration=WIDE, seed=3, recorded=recorded).grow()
        assert content(resumed) == content(whole)
    assert backends.proxy.requests == [] and backends.retriever.queries == []


async def test_a_worker_that_fails_is_the_record_of_its_trajectory():
    def broken(prompt, rng):
        return EngineFault("gone") if is_worker(prompt) and OSSE in prompt else explorer(prompt, rng)

    engine = ScriptedEngine(broken)
    backends = Backends(llm=engine, proxy=engine, retriever=ListRetriever(PASSAGES))
    episode = await Tree(QUESTION, SMALL, backends, exploration=WIDE, seed=1).grow()
    stops = {t.stop for t in episode.trajectories}
    assert StopReason.ENGINE_FAULT in stops and StopReason.ANSWERED in stops


async def test_the_tree_s_own_limit_holds_in_branches_too():
    limited = WIDE.model_copy(update={"max_nodes": 12})
    episode = await Tree(QUESTION, SMALL, exploring(), exploration=limited, seed=3).grow()
    assert len(episode.nodes) <= 12
    assert any(t.stop is StopReason.NODE_LIMIT for t in episode.trajectories)


async def test_an_answer_without_a_search_is_from_memory():
    trajectory, _, retriever, llm = await run(["[Answer]"])
    assert (trajectory.answer, trajectory.passages, retriever.queries) == ("Edith Marlowe", [], [])
    assert "documents below" not in llm.requests[0].messages[-1]["content"]


async def test_the_limit_of_rounds_answers_with_what_there_is():
    trajectory, episode, _, _ = await run([f"[Ask] {TARN}", f"[Ask] {OSSE}"], max_iterations=2)
    assert (trajectory.stop, trajectory.answer) == (StopReason.DEPTH_LIMIT, "Edith Marlowe")
    assert len(prompts(episode, "planner")) == 2


async def test_the_limit_of_documents_cuts_all_subquestions_alike():
    said = {TARN: "[1, 2] x", OSSE: "[1, 2] x"}
    trajectory, _, _, _ = await run([BOTH], said, max_documents=2)
    assert (trajectory.passages, trajectory.stop) == (["tarn", "osse"], StopReason.DOCUMENT_LIMIT)


async def test_a_plan_that_goes_in_a_circle_ends():
    trajectory, _, retriever, _ = await run([BOTH, f"[Ask] {OSSE}\n[Ask] {TARN}"])
    assert (trajectory.stop, trajectory.answer) == (StopReason.CIRCULAR_PLAN, "Edith Marlowe")
    assert retriever.queries == [TARN, OSSE]


async def test_of_a_plan_only_what_is_new_is_asked():
    trajectory, _, retriever, _ = await run([f"[Ask] {TARN}", BOTH, "[Answer]"])
    assert retriever.queries == [TARN, OSSE] and trajectory.stop is StopReason.ANSWERED


async def test_what_found_nothing_is_looked_up_further_down():
    trajectory, episode, _, _ = await run([f"[Ask] {WHO}", f"[Ask] {WHO}", "[Answer]"], said={}, k=2)
    assert sorted(c.input["page"] for c in episode.calls if c.kind == "search") == [0, 1]
    assert f"{WHO} -> nothing found" in prompts(episode, "planner")[1]
    assert trajectory.passages == [] and trajectory.stop is StopReason.ANSWERED


async def test_a_search_without_results_needs_no_worker():
    trajectory, episode, _, _ = await run([BOTH, "[Answer]"], passages=[])
    assert [n.role for n in episode.nodes] == ["planner", "planner"]
    assert f"{TARN} -> nothing found" in prompts(episode, "planner")[1]
    assert trajectory.stop is StopReason.ANSWERED


async def test_the_same_subquestion_twice_in_a_plan_is_one():
    _, episode, retriever, _ = await run([f"[Ask] {TARN}\n[Ask] {TARN}", "[Answer]"])
    assert retriever.queries == [TARN] and len(prompts(episode, "worker")) == 1


FIFTY = "\n".join(f"[Ask] When was bridge {i} opened?" for i in range(50))


@pytest.mark.parametrize(
    ("plan", "said", "stop"),
    [
        ("[Ask] ", SAID, StopReason.INVALID_ACTION),
        (f"[Ask] {TARN}\n[Ask] \n[Ask] {OSSE}", SAID, StopReason.INVALID_ACTION),
        (FIFTY, SAID, StopReason.INVALID_ACTION),
        (f"[Ask] {TARN}\n[Answer]", SAID, StopReason.INVALID_ACTION),
        ("Let me think.", SAID, StopReason.INVALID_ACTION),
        (f"[Ask] {TARN}", {TARN: "[9] In 1871."}, StopReason.HALLUCINATED_INDEX),
        (f"[Ask] {TARN}", {TARN: "[] In 1871."}, StopReason.INVALID_ACTION),
        (f"[Ask] {TARN}", {TARN: "[1]"}, StopReason.INVALID_ACTION),
    ],
)
async def test_a_broken_plan_or_reply_ends_the_trajectory_with_its_reason(plan, said, stop):
    trajectory, _, _, _ = await run([plan], said)
    assert (trajectory.stop, trajectory.answer) == (stop, "")


def test_a_long_text_that_is_no_plan_is_refused_at_once():
    started = time.monotonic()
    for text in (FIFTY + " ]", "[Ask] " + " " * 5000 + "]", "[Ask]  a  " * 3000):
        with pytest.raises(InvalidAction):
            Mujica(max_questions=5000).planner.grammar(question="?", state=State()).parse(text + "[x")
    assert time.monotonic() - started < 5


async def test_a_chain_asks_one_subquestion_a_round():
    chain = Mujica(max_questions=1)
    constraint = chain.planner.grammar(question="?", state=State()).constraint()
    assert re.fullmatch(constraint.regex, f"[Ask] {TARN}") and not re.fullmatch(constraint.regex, BOTH)
    trajectory, _, _, _ = await run([BOTH], max_questions=1)
    assert trajectory.stop is StopReason.INVALID_ACTION
    trajectory, _, _, _ = await run([f"[Ask] {TARN}", f"[Ask] {OSSE}", "[Answer]"], max_questions=1)
    assert trajectory.passages == ["tarn", "osse"]


async def test_without_workers_the_planner_reads_what_is_found():
    trajectory, episode, _, _ = await run([BOTH, "[Answer]"], split=False, k=2)
    assert [n.role for n in episode.nodes] == ["planner", "planner"]
    assert "[1] Tarn Bridge: The Tarn Bridge was opened in 1871. It is of iron." in prompts(episode, "planner")[1]
    assert trajectory.passages[:2] == ["tarn", "osse"]
    assert [role.name for role in Mujica(split=False).roles] == ["planner"]


async def test_the_planner_may_answer_itself():
    trajectory, episode, _, llm = await run([BOTH, "[Answer] the Tarn Bridge's"], answers="planner")
    assert (trajectory.answer, trajectory.stop) == ("the Tarn Bridge's", StopReason.ANSWERED)
    assert trajectory.passages == ["tarn", "osse"] and llm.requests == []
    assert "[Answer] and the answer" in prompts(episode, "planner")[0]


@pytest.mark.parametrize(
    ("plans", "settings", "stop"),
    [
        ([BOTH], {"max_iterations": 1}, StopReason.DEPTH_LIMIT),
        ([BOTH, BOTH], {}, StopReason.CIRCULAR_PLAN),
        ([BOTH], {"max_documents": 2}, StopReason.DOCUMENT_LIMIT),
    ],
)
async def test_a_planner_that_answers_has_a_last_word_at_a_limit(plans, settings, stop):
    trajectory, episode, _, _ = await run([*plans, "[Answer] Marlowe"], answers="planner", **settings)
    assert (trajectory.answer, trajectory.stop) == ("Marlowe", stop)
    last = episode.nodes[-1]
    assert last.role == "planner" and "[Ask]" not in last.prompt[-1][1] and "Ask" not in last.grammar["regex"]


async def test_thoughts_are_written_first_and_not_shown_again():
    thoughtful = [f"Thought: two dates are missing\n{BOTH}", "Thought: done\n[Answer]"]
    said = {q: f"Thought: the first one\n{text}" for q, text in SAID.items()}
    trajectory, episode, _, _ = await run(thoughtful, said, thoughts=True)
    assert trajectory.stop is StopReason.ANSWERED and trajectory.passages == ["tarn", "osse"]
    assert episode.nodes[0].action["thought"] == "two dates are missing"
    assert "two dates" not in prompts(episode, "planner")[1]


async def test_the_dialogue_is_what_the_planner_said_and_was_told_turn_by_turn():
    plans = [f"Thought: two dates\n{BOTH}", f"Thought: who\n[Ask] {WHO}", "Thought: done\n[Answer]"]
    said = {q: f"Thought: the first one\n{text}" for q, text in SAID.items()}
    trajectory, episode, _, _ = await run(plans, said, context="dialogue", thoughts=True, k=2)
    first, second, third = ([*map(tuple, n.prompt)] for n in episode.nodes if n.role == "planner")
    assert trajectory.stop is StopReason.ANSWERED
    told = f"{TARN} -> The Tarn Bridge was opened in 1871.\n{OSSE} -> The Osse Viaduct was opened in 1902."
    assert second == [*first, ("assistant", plans[0]), ("user", told)]
    assert third[:-1] == [*second, ("assistant", plans[1])]
    assert third[-1] == ("user", f"{WHO} -> Edith Marlowe designed the Tarn Bridge.")


async def test_a_dialogue_at_its_limit_ends_with_the_planner_s_conclusion():
    plans, settings = [BOTH, "[Answer] Marlowe"], {"max_iterations": 1, "answers": "planner", "context": "dialogue"}
    trajectory, episode, _, _ = await run(plans, shots=1, **settings)
    first, last = (n.prompt for n in episode.nodes if n.role == "planner")
    assert [role for role, _ in first] == ["system", "user", "assistant", "user"]  # with one example
    assert (trajectory.answer, trajectory.stop) == ("Marlowe", StopReason.DEPTH_LIMIT)
    assert last[: len(first)] == first and "no more searches" in last[-1][1] and "1871" in last[-1][1]


async def test_in_a_dialogue_without_workers_the_planner_is_told_what_was_found():
    _, episode, _, _ = await run([BOTH, "[Answer]"], split=False, context="dialogue", k=1)
    assert (
        episode.nodes[1].prompt[-1][1].startswith("[1] Tarn Bridge: The Tarn Bridge was opened in 1871. It is of iron.")
    )


@pytest.mark.parametrize("passages", [PASSAGES, []])
async def test_a_worker_without_evidence_may_answer_from_memory(passages):
    said = {TARN: "[Memory] It was opened in 1871, I think.", OSSE: "[Nothing]"}
    trajectory, episode, _, _ = await run([BOTH, "[Answer]"], said, passages=passages, memory=True)
    known = f"{TARN} -> It was opened in 1871, I think.\n{OSSE} -> nothing found"
    assert known in prompts(episode, "planner")[1]
    assert trajectory.passages == [] and trajectory.stop is StopReason.ANSWERED
    assert "write [Memory] and the answer as you know it, or [Nothing]" in prompts(episode, "worker")[0]


async def test_without_the_setting_a_memory_is_no_action():
    trajectory, _, _, _ = await run([f"[Ask] {TARN}"], {TARN: "[Memory] In 1871."})
    assert trajectory.stop is StopReason.INVALID_ACTION


def test_a_small_model_copies_instead_of_writing():
    small = Mujica(queries="span", answers="planner")
    state = State((Fact("Tarn Bridge", "The Tarn Bridge was opened in 1871"), Fact("Osse", "")))

    def allows(grammar, text: str) -> bool:
        return re.fullmatch(grammar.constraint().regex, text) is not None

    first, later = (small.planner.grammar(question=QUESTION.question, state=s) for s in (State(), state))
    for grammar in (first, later):
        assert allows(grammar, "[Ask] the Tarn Bridge\n[Ask] the Osse Viaduct")
        assert allows(grammar, f"[Ask] {QUESTION.question.rstrip('?').replace(',', '')}")
        assert allows(grammar, "[Answer] yes") and allows(grammar, "[Answer] Osse Viaduct")
        assert not allows(grammar, "[Ask] When was the Tarn Bridge opened")
    assert allows(later, "[Answer] 1871") and not allows(first, "[Answer] 1871")
    worker = small.worker.grammar(question=QUESTION.question, subquestion="Tarn Bridge", passages=PASSAGES[:2])
    assert allows(worker, "[1, 2] The Tarn Bridge was opened in 1871")
    assert allows(worker, "[1] Tarn Bridge It is of iron") and allows(worker, "[Nothing]")
    assert not allows(worker, "[] It is of iron") and not allows(worker, "[1] Tarn Bridge It is of")


async def test_only_a_small_worker_is_told_the_whole_question():
    for queries, told in (("span", True), ("free", False)):
        _, episode, _, _ = await run([BOTH, "[Answer]"], queries=queries)
        assert {QUESTION.question in prompt for prompt in prompts(episode, "worker")} == {told}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"queries": "sparql"}, "queries 'sparql': choose from free, span"),
        ({"answers": "worker"}, "answers 'worker': choose from llm, planner"),
        ({"environment": "web"}, "environment 'web': choose from text, graph"),
        ({"candidates": "none"}, "candidates 'none': choose from search, gold"),
        ({"max_iterations": 0}, "max_iterations 0: must be at least 1"),
        ({"max_questions": 0}, "max_questions 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        build("mujica", settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"queries": "span", "answers": "planner"},
        {"queries": "span", "split": False},
        {"queries": "span", "max_questions": 1},
        pytest.param(
            {"queries": "free", "query_chars": 6, "sentence_chars": 6, "thoughts": True, "thought_chars": 6},
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda settings: ",".join(map(str, settings.values())),
)
async def test_a_model_that_knows_nothing_acts_validly_from_the_first_step(settings, tiny_engine):
    backends = Backends(llm=tiny_engine, proxy=tiny_engine, retriever=ListRetriever(PASSAGES))
    system = build("mujica", {"max_iterations": 2, "max_questions": 2, "k": 2, "answer_tokens": 4} | settings)
    episode = await Tree(QUESTION, system, backends, exploration=TREE, seed=1).grow()
    assert len(episode.trajectories) > 1
    assert all(node.action is not None for node in episode.nodes)
    assert all(t.answer and t.stop in ENDINGS for t in episode.trajectories)


@pytest.mark.parametrize("thoughts", [False, True])
@pytest.mark.parametrize("answers", ["llm", "planner"])
async def test_examples_are_actions(thoughts, answers):
    system = Mujica(thoughts=thoughts, answers=answers, shots=9)
    planner, worker = (role.prompt.examples for role in system.roles)
    assert len(planner) == 4 and len(worker) == 2
    plan = system.planner.grammar(question="?", state=State())
    for example in planner:
        assert plan.render(plan.parse(example["output"])) == example["output"]
    reply = system.worker.grammar(question="?", subquestion="?", passages=PASSAGES[:3])
    for example in worker:
        assert reply.render(reply.parse(example["output"])) == example["output"]


def test_the_longest_prompts_fit_a_small_context(smollm2: Path):
    system = Mujica(thoughts=True, shots=9)
    words = " ".join(["Paraguayan", "guaraní"] * 60)
    passages = [Passage(f"p{i}", "Ciudad del Este", words) for i in range(system.max_documents)]
    facts = system.max_iterations * system.max_questions
    state = State(
        tuple(Fact(f"{i} {words}"[: system.query_chars], words[: system.sentence_chars]) for i in range(facts))
    )
    vocabulary = Vocabulary(smollm2, None)

    def tokens(role, **shown) -> int:
        return len(vocabulary.encode(Request(role.messages(shown), 1))) + role.max_tokens

    assert tokens(system.planner, question=words[:300], state=state) < 4096
    assert tokens(system.worker, question="?", subquestion=words[:160], passages=passages[: system.k]) < 4096
    iterative = Mujica(split=False)
    assert tokens(iterative.planner, question=words[:300], state=State(kept=tuple(passages))) < 4096


lines = st.text(max_size=60).map(lambda t: plain_line(t.translate({91: None, 93: None}))).filter(bool)
plans = st.lists(lines, min_size=1, max_size=5, unique=True).map(tuple)
found = st.integers(1, 9).flatmap(
    lambda n: st.tuples(st.just(n), st.sets(st.integers(1, n), min_size=1).map(lambda s: tuple(sorted(s))))
)


def check_round_trip(grammar, action):
    text = grammar.render(action)
    assert grammar.parse(text) == action
    assert grammar.parse(f" {text} \n") == action
    assert re.fullmatch(grammar.constraint().regex, text)


@given(plans, lines, lines)
def test_a_planner_s_actions_are_parsed_as_rendered(questions, answer, thought):
    check_round_trip(actions.planner(Line(), 5, Line(), None), Subquestions(questions))
    check_round_trip(actions.planner(Line(), 5, Line(), None), Answer(answer))
    check_round_trip(actions.planner(Line(), 5, None, None), Answer())
    check_round_trip(actions.planner(Line(), 5, Line(), Line()), Subquestions(questions, thought))
    check_round_trip(actions.planner(Line(), 5, Line(), Line()), Answer(answer, thought))
    check_round_trip(actions.planner(Line(), 5, None, Line()), Answer(thought=thought))
    check_round_trip(actions.conclusion(Line()), Answer(answer))


@given(found, lines, lines)
def test_a_worker_s_actions_are_parsed_as_rendered(case, sentence, thought):
    n, ids = case
    check_round_trip(actions.worker(n, Line(), None), Found(ids, sentence))
    check_round_trip(actions.worker(n, Line(), Line()), Found(ids, sentence, thought))
    check_round_trip(actions.worker(n, Line(), None), Nothing())
    check_round_trip(actions.worker(n, Line(), Line()), Nothing(thought))
    check_round_trip(actions.worker(n, Line(), Line(), Line()), Recalled(sentence, thought))
    check_round_trip(actions.worker(0, Line(), None, Line()), Recalled(sentence))


@pytest.mark.parametrize("questions", [(), ("a", "a"), tuple("abcdef"), ("a\nb",), ("[Ask]",)])
def test_a_plan_that_has_no_text_is_refused(questions):
    with pytest.raises(InvalidAction):
        actions.planner(Line(), 5, None, None).render(Subquestions(questions))

"""mRAG's control flow on scripted answers: algorithms 1 and 2, the dialogues, ways to stop, and what the LLM is asked."""

import json
from dataclasses import replace

import pytest
from fakes import ListRetriever, ScriptedEngine

from dragoman.core.errors import PromptTooLong, UserError
from dragoman.core.types import Passage, Question
from dragoman.engines.base import AnswerEnd
from dragoman.registry.trained_with import trained_with
from dragoman.rollout.backends import Backends
from dragoman.rollout.exploration import GREEDY
from dragoman.rollout.tree import Tree
from dragoman.systems import build, profile_settings
from dragoman.systems.base import StopReason
from dragoman.systems.mrag import roles as agent_roles
from dragoman.systems.mrag.actions import Verdict
from dragoman.systems.mrag.state import NOTHING_NEW, Errand, State
from dragoman.systems.mrag.system import MRAG

PASSAGES = [
    Passage("bhutan", "Bhutan", "Thimphu is the capital of Bhutan"),
    Passage("ngultrum", "Ngultrum", "the currency of Bhutan is the ngultrum"),
    Passage("nepal", "Nepal", "Kathmandu is the capital of Nepal"),
    *(Passage(f"x{i}", f"Noise {i}", f"nothing number {i}") for i in range(20)),
]
QUESTION = Question("q", "Which currency has the country whose capital is Thimphu?", ("ngultrum",))


def call(agent: str, **fields) -> str:
    return json.dumps({"agent": agent, **fields})


def read(next: str, *relevant: bool, **fields) -> str:
    return json.dumps({"next": next, **fields, "relevant": list(relevant)})


PLAN, ANSWER, CHECK, FINISH = (call(agent) for agent in ("planner", "answerer", "validator", "finisher"))
SEARCH = call("searcher", suggestions=["the country", "its currency"])
STEPS = json.dumps({"steps": ["find the country", "find its currency"]})
GOOD = json.dumps(
    {"met": [], "unmet": [], "supported": True, "supported_feedback": "", "correct": True, "correct_feedback": ""}
)


def query(text: str) -> str:
    return json.dumps({"query": text})


async def run(
    proxy: list[str | Exception], passages: list[Passage] = PASSAGES, llm=None, engine=ScriptedEngine, **settings
):
    """Let the agents say the given texts in turn."""
    said = iter(proxy)
    retriever = ListRetriever(passages)
    model = ScriptedEngine(llm or (lambda prompt, rng: "the ngultrum"))
    backends = Backends(llm=model, proxy=engine(lambda prompt, rng: next(said)), retriever=retriever)
    episode = await Tree(QUESTION, build("mrag", settings), backends).grow()
    (trajectory,) = episode.trajectories
    assert not list(said), "the agents were asked less often than the test says"
    return trajectory, episode, retriever, model


def roles(episode) -> list[str]:
    by_depth = sorted(episode.nodes, key=lambda node: node.depth)
    return [node.role for node in by_depth]


async def test_the_coordinator_calls_agents_until_it_finishes():
    searching = [
        query("capital Thimphu"),
        read("new query", True, False, query="currency of Bhutan"),
        read("end", True),
    ]
    script = [PLAN, STEPS, SEARCH, *searching, ANSWER, CHECK, GOOD, FINISH]
    trajectory, episode, retriever, llm = await run(script)
    assert (trajectory.answer, trajectory.stop) == ("the ngultrum", StopReason.ANSWERED)
    assert trajectory.passages == ["bhutan", "ngultrum"] and trajectory.error is None
    assert retriever.queries == ["capital Thimphu", "currency of Bhutan"]
    team = ["planner", "coordinator", *["searcher"] * 3, "coordinator", "coordinator", "validator", "coordinator"]
    assert roles(episode) == ["coordinator", *team]
    assert len(llm.requests) == 1 and "Ngultrum: the currency" in llm.requests[0].messages[-1]["content"]


async def test_every_output_is_appended_to_the_coordinators_dialogue():
    _, episode, *_ = await run([PLAN, STEPS, ANSWER, FINISH])
    last = max(episode.nodes, key=lambda node: node.depth).prompt
    assert [kind for kind, _ in last] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert QUESTION.question in last[1][1] and last[2][1] == PLAN
    assert last[3][1] == "Plan: find the country; find its currency" and last[4][1] == ANSWER
    assert last[5][1].startswith("Response: the ngultrum") and "finisher" in last[5][1]


async def test_the_searcher_goes_on_in_its_dialogue():
    script = [
        SEARCH,
        query("capital Thimphu"),
        read("same query", True, False),
        read("end", False, False),
        ANSWER,
        FINISH,
    ]
    _, episode, *_ = await run(script)
    first, second, third = (node.prompt for node in episode.nodes if node.role == "searcher")
    assert "Look for: the country; its currency" in first[-1][1] and len(first) == 2
    assert second[:2] == first and second[2] == ("assistant", query("capital Thimphu"))
    assert 'Found by "capital Thimphu"' in second[-1][1] and "Thimphu is the capital" in second[-1][1]
    assert third[:3] == second[:3] and third[4] == ("assistant", read("same query", True, False))


async def test_the_searcher_reads_the_next_documents_and_five_pages_at_most():
    pages = [read("same query", *[False] * 2) for _ in range(4)]
    script = [SEARCH, query("number"), *pages, read("end", False, False), ANSWER, FINISH]
    trajectory, episode, *_ = await run(script)
    searches = sorted((call.input for call in episode.calls if call.kind == "search"), key=lambda asked: asked["page"])
    assert searches == [{"query": "number", "k": 2, "page": page} for page in range(5)]
    last = [node for node in episode.nodes if node.role == "searcher"][-1]
    assert '"same query"' not in last.grammar["json_schema"] and trajectory.passages == []


async def test_a_query_that_was_asked_in_another_errand_gives_its_next_page():
    errand = [SEARCH, query("number"), read("end", False, True)]
    _, episode, retriever, _ = await run([*errand, *errand, ANSWER, FINISH])
    assert retriever.queries == ["number"] * 2
    assert sorted(call.input["page"] for call in episode.calls if call.kind == "search") == [0, 1]


async def test_a_search_that_finds_no_document_is_no_question_of_relevance():
    trajectory, episode, *_ = await run([SEARCH, query("?"), read("end"), ANSWER, FINISH], passages=[])
    assert trajectory.stop is StopReason.ANSWERED and trajectory.passages == []
    assert episode.nodes[-1].prompt[-3][1] == NOTHING_NEW


async def test_an_empty_query_stands_for_the_question():
    _, _, retriever, _ = await run([SEARCH, query(""), read("end", True, False), ANSWER, FINISH])
    assert retriever.queries == [QUESTION.question.removesuffix("?")]


async def test_an_agent_that_is_called_again_and_again_for_the_same_is_a_recorded_reason():
    trajectory, episode, _, llm = await run([PLAN, STEPS, PLAN, STEPS])
    assert (trajectory.stop, trajectory.answer) == (StopReason.REPEATED_CALL, "the ngultrum")
    assert roles(episode) == ["coordinator", "planner"] * 2 and len(llm.requests) == 1


async def test_an_agent_that_says_something_else_each_time_may_be_called_on():
    other = json.dumps({"steps": ["ask again"]})
    trajectory, *_ = await run([PLAN, STEPS, PLAN, other, PLAN, STEPS, ANSWER, FINISH])
    assert trajectory.stop is StopReason.ANSWERED


async def test_a_coordinator_that_never_ends_is_stopped_by_the_limit_of_calls():
    trajectory, episode, *_ = await run([PLAN, STEPS, ANSWER, PLAN, STEPS], max_calls=3)
    assert (trajectory.stop, trajectory.answer) == (StopReason.DEPTH_LIMIT, "the ngultrum")
    assert roles(episode).count("coordinator") == 3


@pytest.mark.parametrize("profile", ["paper", "default"])
async def test_one_agent_that_is_called_for_ever_ends_at_thirty_calls_with_the_reason(profile):
    """It says something else each time, so nothing is repeated."""
    settings = profile_settings("mrag", "paper") if profile == "paper" else {}
    said = {"information": "x", "reason": "y"} if profile == "paper" else {}
    calls = [text for i in range(30) for text in (call("planner", **said), json.dumps({"steps": [f"step {i}"]}))]
    trajectory, episode, _, llm = await run(calls, **settings)
    assert (trajectory.stop, trajectory.answer, trajectory.error) == (StopReason.DEPTH_LIMIT, "the ngultrum", None)
    assert (roles(episode).count("coordinator"), roles(episode).count("planner")) == (30, 30)
    assert len(llm.requests) == 1  # there was no response, so the answerer was called at last


async def test_a_coordinator_whose_dialogue_no_longer_fits_its_context_returns_the_response_that_it_has():
    trajectory, *_ = await run([ANSWER, PromptTooLong("9,000 tokens")])
    assert (trajectory.stop, trajectory.answer) == (StopReason.DEPTH_LIMIT, "the ngultrum")
    trajectory, *_ = await run([PLAN, STEPS, PromptTooLong("9,000 tokens")])
    assert (trajectory.stop, trajectory.answer) == (StopReason.PROMPT_TOO_LONG, None)


@pytest.mark.parametrize("agent", [CHECK, SEARCH, PLAN], ids=["validator", "searcher", "planner"])
async def test_an_agent_whose_prompt_does_not_fit_costs_no_response_that_is_there(agent):
    trajectory, *_ = await run([ANSWER, agent, PromptTooLong("9,000 tokens")])
    assert (trajectory.stop, trajectory.answer) == (StopReason.DEPTH_LIMIT, "the ngultrum")


def test_the_prompts_of_later_turns_are_among_those_that_a_policy_is_trained_with(monkeypatch):
    before = trained_with(MRAG())["prompts"]
    monkeypatch.setattr(agent_roles, "searcher_read", agent_roles.searcher_query)
    assert trained_with(MRAG())["prompts"] != before


async def test_a_coordinator_hears_of_no_document_beyond_the_limit_of_documents():
    script = [SEARCH, query("capital Thimphu"), read("end", True, True), ANSWER, FINISH]
    trajectory, episode, *_ = await run(script, max_documents=1)
    assert len(trajectory.passages) == 1
    heard = str(episode.nodes[-1].prompt)
    assert "Thimphu is the capital" in heard and "Kathmandu" not in heard and "ngultrum: the currency" not in heard


async def test_documents_found_after_the_response_are_no_part_of_it():
    later = [SEARCH, query("capital Thimphu"), read("end", True, False)]
    trajectory, *_ = await run([ANSWER, *later, FINISH])
    assert trajectory.answer == "the ngultrum" and trajectory.passages == []
    trajectory, *_ = await run([ANSWER, *later, ANSWER, FINISH])
    assert trajectory.passages == ["bhutan"]


async def test_a_revised_response_rests_on_the_documents_of_the_one_before():
    first = [SEARCH, query("capital Thimphu"), read("end", True, False), ANSWER]
    second = [SEARCH, query("currency of Bhutan"), read("end", True)]
    trajectory, *_ = await run([*first, *second, call("reviser", suggestion="say more"), FINISH])
    assert trajectory.passages == ["bhutan"]


async def test_an_llm_that_was_asked_and_said_nothing_was_asked_in_decisions_alone_too():
    said = iter([ANSWER, ANSWER, ANSWER, FINISH])
    silent = ScriptedEngine(lambda prompt, rng: "")
    backends = Backends(llm=silent, proxy=ScriptedEngine(lambda p, rng: next(said)), retriever=ListRetriever(PASSAGES))
    known = replace(QUESTION, supporting_ids=("bhutan",))
    decisions = GREEDY.model_copy(update={"answers": False})
    (trajectory,) = (await Tree(known, build("mrag"), backends, exploration=decisions).grow()).trajectories
    assert trajectory.stop is StopReason.EMPTY_ANSWER and trajectory.answer == "" and silent.requests


async def test_an_llm_that_says_nothing_leaves_an_empty_answer():
    trajectory, *_ = await run([ANSWER, ANSWER], llm=lambda prompt, rng: " ")
    assert (trajectory.stop, trajectory.answer) == (StopReason.EMPTY_ANSWER, "")


@pytest.mark.parametrize(
    "said",
    [
        call("critic"),
        call("finisher"),
        call("validator"),
        '{"agent": "searcher", "sugg',
        "I would search.",
        '{"agent": []}',
    ],
)
async def test_what_is_no_call_of_an_agent_ends_the_trajectory_with_its_reason(said):
    """An agent that is not there, one that needs a response, and JSON that is cut off."""
    trajectory, *_ = await run([said])
    assert (trajectory.stop, trajectory.answer) == (StopReason.INVALID_ACTION, "")


@pytest.mark.parametrize(
    "said",
    [
        [PLAN, STEPS[:-4]],
        [SEARCH, '{"query": "capi'],
        [SEARCH, query("capital Thimphu"), read("end", True, False)[:-9]],
        [SEARCH, query("capital Thimphu"), read("stop", True, False)],
        [ANSWER, CHECK, GOOD[:40]],
        [ANSWER, call("critic")],
    ],
    ids=["planner", "query", "verdicts", "a move that is none", "validator", "an agent that is none"],
)
async def test_what_an_agent_says_that_is_cut_off_or_unknown_ends_the_trajectory_with_its_reason(said):
    """Nothing is answered from half of a plan, and the record has what was said."""
    trajectory, episode, *_ = await run(said)
    assert (trajectory.stop, trajectory.answer) == (StopReason.INVALID_ACTION, "")
    last = max(episode.nodes, key=lambda node: node.depth)
    assert trajectory.error == f"{last.role}: {said[-1]!r}" and last.text == said[-1]


async def test_json_that_the_token_limit_cuts_off_is_a_truncated_action():
    """A token is a byte here. Of 30, the coordinator's call takes 20, and the planner's steps would take 52."""

    class Limited(ScriptedEngine):
        async def generate(self, requests):
            (result,), most = await super().generate(requests), requests[0].max_tokens
            (whole,) = result.completions
            end = "length" if len(whole.text) > most else "stop"
            return [replace(result, completions=(replace(whole, text=whole.text[:most], finish_reason=end),))]

    trajectory, *_ = await run([PLAN, STEPS], engine=Limited, action_tokens=30)
    assert (len(PLAN), len(STEPS), trajectory.error) == (20, 52, f"planner: {STEPS[:30]!r}")
    assert (trajectory.stop, trajectory.answer) == (StopReason.TRUNCATED_ACTION, "")


async def test_verdicts_on_more_documents_than_there_are_are_refused():
    trajectory, *_ = await run([SEARCH, query("capital"), read("end", True, True, True)])
    assert trajectory.stop is StopReason.INVALID_ACTION


async def test_a_validator_that_contradicts_itself_is_read_strictly():
    both = json.loads(GOOD) | {"met": ["short", "names a year"], "unmet": ["short"]}
    _, episode, *_ = await run([ANSWER, CHECK, json.dumps(both), FINISH])
    heard = max(episode.nodes, key=lambda node: node.depth).prompt[-1][1]
    assert heard.startswith("Supported: yes.\nCorrect: yes.\nMet: names a year\nNot met: short\n")
    assert not Verdict(met=("short",), unmet=("short",)).passes and Verdict(met=("short",)).passes


async def test_a_validator_that_says_no_and_names_nothing_wrong_is_heard_and_does_not_hold_up_the_end():
    refused = json.loads(GOOD) | {"met": ["all of it"], "supported": False, "supported_feedback": "", "correct": True}
    trajectory, episode, *_ = await run([ANSWER, CHECK, json.dumps(refused), FINISH])
    heard = max(episode.nodes, key=lambda node: node.depth).prompt[-1][1]
    assert heard.startswith("Supported: no.\nCorrect: yes.\nMet: all of it\n")
    assert (trajectory.stop, trajectory.answer) == (StopReason.ANSWERED, "the ngultrum")
    assert not Verdict(supported=False).passes


async def test_a_response_is_validated_once_and_again_when_it_was_written_anew():
    bad = json.loads(GOOD) | {"correct": False, "correct_feedback": "Name the currency."}
    mend = call("reviser", suggestion="Name the currency.")
    texts = iter(["rupee", "the ngultrum"])
    script = [ANSWER, CHECK, json.dumps(bad), mend, CHECK, GOOD, FINISH]
    trajectory, episode, _, llm = await run(script, llm=lambda prompt, rng: next(texts))
    assert (trajectory.answer, trajectory.stop) == ("the ngultrum", StopReason.ANSWERED)
    after = [node for node in episode.nodes if node.role == "coordinator"]
    assert "validator" in after[1].prompt[-1][1] and "validator" not in after[2].prompt[-1][1].splitlines()[-1]
    dialogue = llm.requests[1].messages
    assert dialogue[-2] == {"role": "assistant", "content": "rupee"} and "Name the currency." in dialogue[-1]["content"]


async def test_guided_the_llm_is_told_plan_guidance_and_what_is_important():
    answer = call("answerer", guidance="one word", important="the currency")
    _, _, _, llm = await run([PLAN, STEPS, answer, FINISH], answers="guided")
    asked = llm.requests[0].messages[-1]["content"]
    for told in ("find the country; find its currency", "one word", "the currency"):
        assert told in asked


async def test_summary_and_analysis_are_among_what_is_gathered():
    found = [SEARCH, query("capital Thimphu"), read("end", True, False)]
    summary = [call("summarizer"), json.dumps({"summary": "It is Bhutan."})]
    analysis = [call("reasoner", aspect="the currency"), json.dumps({"steps": ["So it is the ngultrum."]})]
    _, episode, *_ = await run([*found, *summary, *analysis, PLAN, STEPS, ANSWER, FINISH])
    (reasoner,) = (node for node in episode.nodes if node.role == "reasoner")
    (planner,) = (node for node in episode.nodes if node.role == "planner")
    assert "It is Bhutan." in reasoner.prompt[-1][1] and "Think about this: the currency" in reasoner.prompt[-1][1]
    assert "It is Bhutan.\nSo it is the ngultrum." in planner.prompt[-1][1]


async def test_information_and_reasons_are_written_where_they_have_a_length():
    plan = call("planner", information="It is about Bhutan.", reason="to begin with")
    answer, finish = call("answerer", reason=""), call("finisher", reason="done")
    _, episode, *_ = await run([plan, STEPS, answer, finish], information_chars=40, reason_chars=20)
    (planner,) = (node for node in episode.nodes if node.role == "planner")
    assert "Known so far:\nIt is about Bhutan.\n" in planner.prompt[-1][1]
    assert episode.nodes[0].action["reason"] == "to begin with"


@pytest.mark.parametrize(("chars", "asked"), [(0, False), (20, True)])
async def test_the_searcher_is_asked_for_reasons_where_it_has_to_give_them(chars, asked):
    why = {"reason": "x"} if asked else {}
    search = call("searcher", suggestions=[], **why)
    found = [json.dumps({"query": "capital Thimphu", **why}), read("end", True, False, **why)]
    script = [search, *found, call("answerer", **why), call("finisher", **why)]
    trajectory, episode, *_ = await run(script, reason_chars=chars)
    assert trajectory.stop is StopReason.ANSWERED
    prompts = [node.prompt[-1][1] for node in episode.nodes if node.role == "searcher"]
    assert len(prompts) == 2 and all(('"reason": "..."}' in prompt) == asked for prompt in prompts)


async def test_a_single_agent_searches_itself_and_keeps_what_it_finds():
    script = [call("search", query="capital Thimphu"), call("search", query="capital Thimphu"), ANSWER, FINISH]
    trajectory, episode, *_ = await run(script, agents="single")
    assert set(roles(episode)) == {"coordinator"} and len(trajectory.passages) == 4
    assert sorted(call.input["page"] for call in episode.calls if call.kind == "search") == [0, 1]
    assert [role.name for role in MRAG(agents="single").roles] == ["coordinator"]


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, ["coordinator", "searcher", "planner", "summarizer", "reasoner", "validator"]),
        ({"validator": False}, ["coordinator", "searcher", "planner", "summarizer", "reasoner"]),
        ({"planner": False, "summarizer": False, "reasoner": False}, ["coordinator", "searcher", "validator"]),
    ],
)
def test_the_roles_are_those_of_the_team(settings, names):
    system = MRAG(**settings)
    assert [role.name for role in system.roles] == names
    told = system.first_call.view(question="?", state=State())["agents"]
    assert all((f'"agent": "{agent}"' in told) == settings.get(agent, True) for agent in ("planner", "validator"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"agents": "many"}, "agents 'many': choose from team, single"),
        ({"max_calls": 0}, "max_calls 0: must be at least 1"),
        ({"max_repeats": 1}, "max_repeats 1: must be at least 2"),
        ({"decide": "marks", "reason_chars": 9}, "decide: marks scores what is listed and writes no reason_chars"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(settings, message):
    with pytest.raises(UserError, match=message):
        MRAG(**settings)


def test_an_errand_counts_pages_and_knows_what_was_read():
    first, second, *_ = PASSAGES
    errand = Errand(known=(first,)).asks("a", last_page=False).asks("b", last_page=False).asks("a", last_page=True)
    assert (errand.pages("a"), errand.pages("b"), errand.query, errand.reads) == (2, 1, "a", 3) and errand.exhausted
    assert errand.new([first, second, second]) == (second,)
    assert errand.read([second], [False]).new([second]) == () and errand.read([second], [True]).kept == (first, second)


async def test_response_and_revision_end_where_answers_do():
    *_, model = await run([ANSWER, call("reviser", suggestion="say more"), FINISH])
    assert [isinstance(stop, AnswerEnd) for request in model.requests for stop in request.stop] == [True, True]

"""C-3PO's control flow, with a scripted proxy and LLM and a small list to search."""

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from fakes import ListRetriever, ScriptedEngine

from dragoman.core.errors import UserError
from dragoman.core.types import Passage, Question
from dragoman.rollout.backends import Backends
from dragoman.rollout.exploration import Exploration
from dragoman.rollout.tree import Tree
from dragoman.systems import build
from dragoman.systems.base import StopReason
from dragoman.systems.c3po.actions import NoRetrieval, Plan, Search
from dragoman.systems.c3po.system import C3PO

PASSAGES = [
    Passage("bhutan", "Bhutan", "Thimphu is the capital of Bhutan"),
    Passage("ngultrum", "Ngultrum", "the currency of Bhutan is the ngultrum"),
    Passage("nepal", "Nepal", "Kathmandu is the capital of Nepal"),
    *(Passage(f"x{i}", f"Noise {i}", f"nothing number {i}") for i in range(20)),
]
QUESTION = Question("q", "Which currency has the country whose capital is Thimphu?", ("ngultrum",))


async def run(proxy: list[str], **settings):
    """Let the proxy say the given texts in turn."""
    said = iter(proxy)
    retriever = ListRetriever(PASSAGES)
    llm = ScriptedEngine(lambda prompt, rng: "1. find the country" if "List the facts" in prompt else "ngultrum")
    backends = Backends(llm=llm, proxy=ScriptedEngine(lambda prompt, rng: next(said)), retriever=retriever)
    episode = await Tree(QUESTION, build("c3po", settings), backends).grow()
    (trajectory,) = episode.trajectories
    return trajectory, episode, retriever, llm


async def test_direct_answering():
    trajectory, _, retriever, llm = await run(["[No Retrieval]"])
    assert (trajectory.answer, trajectory.passages, trajectory.stop) == ("ngultrum", [], StopReason.ANSWERED)
    assert retriever.queries == [] and len(llm.requests) == 1


async def test_single_pass():
    trajectory, episode, retriever, llm = await run(["[Retrieval] capital Thimphu", "Action: [1, 3]"], k=3)
    assert retriever.queries == ["capital Thimphu"]
    assert trajectory.passages == ["bhutan", "ngultrum"]
    assert [n.role for n in episode.nodes] == ["router", "filter"]
    assert "Thimphu is the capital" in llm.requests[0].messages[-1]["content"]


async def test_single_pass_may_keep_nothing():
    trajectory, _, _, llm = await run(["[Retrieval] capital", "Action: []"])
    assert trajectory.passages == [] and "documents below" not in llm.requests[0].messages[-1]["content"]


async def test_a_single_pass_keeps_no_more_than_the_limit_of_documents():
    for said in ("Action: [all]", "Action: [1, 2, 3]"):
        trajectory, *_ = await run(["[Retrieval] capital Thimphu", said], k=3, max_documents=2)
        assert (len(trajectory.passages), trajectory.stop) == (2, StopReason.DOCUMENT_LIMIT)
    trajectory, *_ = await run(["[Retrieval] capital Thimphu", "Action: [1, 2]"], k=3, max_documents=2)
    assert trajectory.stop is StopReason.ANSWERED


@pytest.mark.parametrize("name", ["k", "max_depth", "max_documents"])
@pytest.mark.parametrize("value", [0, -1])
def test_a_count_below_one_is_refused(name, value):
    with pytest.raises(UserError, match=f"{name} {value}: must be at least 1"):
        C3PO(**{name: value})


async def test_multi_step_reasoning():
    proxy = [
        "[Planning]",
        "Action: [Retrieval] country capital Thimphu",
        "Action: [1]",
        "Action: [Retrieval] currency Bhutan",
        "Action: [1]",
        "Action: [LLM]",
    ]
    trajectory, episode, retriever, llm = await run(proxy, k=2)
    assert retriever.queries == ["country capital Thimphu", "currency Bhutan"]
    assert trajectory.passages == ["bhutan", "ngultrum"]
    assert trajectory.stop is StopReason.ANSWERED
    assert [c.name for c in sorted(episode.calls, key=lambda c: c.started) if c.kind == "ask"] == ["roadmap", "answer"]
    last = episode.nodes[-1].prompt[-1][1]
    assert "1. find the country" in last and "[2] Ngultrum" in last
    assert "Searches so far: country capital Thimphu; currency Bhutan" in last
    objective = next(n for n in episode.nodes if n.role == "filter").prompt[-1][1]
    assert "Objective of this step: country capital Thimphu" in objective
    assert len(llm.requests) == 2


async def test_the_same_query_again_is_the_next_page():
    search = "Action: [Retrieval] nothing number"
    proxy = ["[Planning]", search, "Action: [1]", search, "Action: [1]", "Action: [LLM]"]
    trajectory, episode, retriever, _ = await run(proxy, k=2)
    assert retriever.queries == ["nothing number"] * 2
    assert sorted(c.input["page"] for c in episode.calls if c.kind == "search") == [0, 1]
    assert len(set(trajectory.passages)) == 2


async def test_a_passage_that_is_kept_is_not_put_before_the_filter_again():
    proxy = [
        "[Planning]",
        "Action: [Retrieval] capital",
        "Action: [1]",
        "Action: [Retrieval] capital of",
        "Action: [1]",
    ]
    trajectory, episode, _, _ = await run([*proxy, "Action: [LLM]"], k=2)
    first, second = (node.prompt[-1][1] for node in episode.nodes if node.role == "filter")
    assert "Bhutan: Thimphu" in first and "Bhutan: Thimphu" not in second and "[1] Nepal" in second
    assert trajectory.passages == ["bhutan", "nepal"]


async def test_a_search_that_finds_only_what_is_kept_asks_no_filter():
    proxy = ["[Planning]", "Action: [Retrieval] capital", "Action: [1]", "Action: [Retrieval] Thimphu", "Action: [LLM]"]
    trajectory, episode, _, _ = await run(proxy, k=1)
    assert [node.role for node in episode.nodes].count("filter") == 1 and trajectory.passages == ["bhutan"]


async def test_the_depth_limit_answers_with_what_there_is():
    proxy = ["[Planning]", *[t for i in range(9) for t in (f"Action: [Retrieval] number {i}", "Action: []")]]
    trajectory, episode, _, _ = await run(proxy, max_depth=5)
    assert (len(episode.nodes), trajectory.stop) == (5, StopReason.DEPTH_LIMIT)
    assert trajectory.answer == "ngultrum"


async def test_the_document_limit_answers_with_what_there_is():
    proxy = ["[Planning]", "Action: [Retrieval] nothing", "Action: [1, 2, 3]"]
    trajectory, _, _, _ = await run(proxy, max_documents=2)
    assert (len(trajectory.passages), trajectory.stop) == (2, StopReason.DOCUMENT_LIMIT)


@pytest.mark.parametrize(
    ("proxy", "stop"),
    [
        (["Paris"], StopReason.INVALID_ACTION),
        (["[Retrieval] x", "Action: [99]"], StopReason.HALLUCINATED_INDEX),
        (["[Planning]", "I think so"], StopReason.INVALID_ACTION),
    ],
)
async def test_what_is_no_action_ends_the_trajectory_with_its_reason(proxy, stop):
    trajectory, _, _, _ = await run(proxy)
    assert (trajectory.stop, trajectory.answer) == (stop, "")


async def test_an_empty_answer_is_a_reason():
    backends = Backends(
        llm=ScriptedEngine(lambda prompt, rng: " "),
        proxy=ScriptedEngine(lambda prompt, rng: "[No Retrieval]"),
        retriever=ListRetriever(PASSAGES),
    )
    (trajectory,) = (await Tree(QUESTION, build("c3po"), backends).grow()).trajectories
    assert trajectory.stop is StopReason.EMPTY_ANSWER


async def test_the_filter_may_keep_all_that_was_found():
    trajectory, _, _, _ = await run(["[Retrieval] capital Bhutan", "Action: [all]"], k=3)
    kept_by_number, _, _, _ = await run(["[Retrieval] capital Bhutan", "Action: [1, 2, 3]"], k=3)
    assert trajectory.passages == kept_by_number.passages and len(trajectory.passages) == 3


async def test_a_thought_becomes_the_objective():
    proxy = ["[Planning]", "Thought: need the country\nAction: [Retrieval] Thimphu", "Thought: none\nAction: []"]
    _, episode, _, _ = await run(proxy, thoughts=True, max_depth=3)
    assert "Objective of this step: need the country" in episode.nodes[-1].prompt[-1][1]


WIDE = Exploration(breadth=(8,))


async def test_a_tree_tries_all_three_strategies():
    def proxy(prompt, rng):
        if "Choose one action" in prompt:
            grammar = prompt.splitlines()[0]
            return next(a for a in ("[No Retrieval]", "[Planning]", "[Retrieval] Thimphu") if a[1:4] in grammar[:6])
        if "Facts so far" in prompt:
            return rng.choice(["Action: [LLM]", "Action: [Retrieval] Bhutan currency"])
        return rng.choice(["Action: [1]", "Action: []", "Action: [all]"])

    backends = Backends(
        llm=ScriptedEngine(lambda prompt, rng: "ngultrum"),
        proxy=ScriptedEngine(proxy),
        retriever=ListRetriever(PASSAGES),
    )
    episode = await Tree(QUESTION, build("c3po"), backends, exploration=WIDE, seed=2).grow()
    firsts = {n.action["type"] for n in episode.nodes if n.depth == 1}
    assert firsts == {"NoRetrieval", "Search", "Plan"}
    assert len(episode.trajectories) > 3
    asked = [c for c in episode.calls if c.name == "roadmap"]
    assert len(asked) == 1  # once per question, reused by all trajectories


@pytest.mark.parametrize(("strategy", "kind"), [("NoRetrieval", NoRetrieval), ("Search", Search), ("Plan", Plan)])
def test_a_fixed_strategy_leaves_the_router_no_other(strategy, kind):
    grammar = C3PO(strategy=strategy).router.grammar(question="Who?")
    assert len(grammar.alternatives()) == 1
    action = kind(query="who") if kind is Search else kind()
    assert grammar.parse(grammar.render(action)) == action


def test_a_strategy_that_does_not_exist_is_refused():
    with pytest.raises(UserError, match="strategy 'Guess': choose from NoRetrieval, Search, Plan"):
        C3PO(strategy="Guess")


async def told(question: Question, passages=PASSAGES, **settings) -> tuple[list[str], list[str]]:
    """What the oracle does for a question, and the passages it keeps."""
    proxy = ScriptedEngine(lambda prompt, rng: AssertionError("the oracle was to decide"))
    backends = Backends(llm=ScriptedEngine(lambda prompt, rng: "x"), proxy=proxy, retriever=ListRetriever(passages))
    system = build("c3po", {"queries": "names", **settings})
    episode = await Tree(
        question, system, backends, exploration=Exploration(breadth=(1,), force=0, temperature=0, oracle=True)
    ).grow()
    (trajectory,) = episode.trajectories
    nodes = {n.id: n for n in episode.nodes}
    assert all(re.fullmatch(n.grammar["regex"], n.text) for n in episode.nodes), "the policy could never say that"
    assert all(n.forced and not n.completion_ids for n in episode.nodes) and proxy.requests == []
    return [nodes[i].text for i in trajectory.nodes], trajectory.passages


async def test_the_oracle_searches_once_where_that_finds_all():
    question = replace(QUESTION, question="What is the capital of Bhutan?", supporting_ids=("bhutan",))
    assert await told(question) == (["[Retrieval] the question", "Action: [1]"], ["bhutan"])


async def test_the_oracle_goes_on_with_the_name_that_leads_to_what_is_missing():
    asked = "Of which country is Thimphu the capital, and what is its money?"
    question = replace(QUESTION, question=asked, supporting_ids=("bhutan", "ngultrum"))
    texts, passages = await told(question, k=2)
    assert texts == [
        "[Planning]",
        "Action: [Retrieval] the question",
        "Action: [1]",
        "Action: [Retrieval] Bhutan",
        "Action: [1]",
        "Action: [LLM]",
    ]
    assert passages == ["bhutan", "ngultrum"]


async def test_to_the_oracle_a_chunk_of_a_gold_passage_is_that_passage():
    asked = "Of which country is Thimphu the capital, and what is its money?"
    question = replace(QUESTION, question=asked, supporting_ids=("bhutan", "ngultrum"))
    cut = [replace(passage, id=f"{passage.id}#0") for passage in PASSAGES]
    texts, passages = await told(question, cut, k=2)
    assert (texts, passages) == ((await told(question, k=2))[0], ["bhutan#0", "ngultrum#0"])


async def test_the_oracle_names_what_the_question_does_not_find():
    # the question shares more words with the other passages than with the one its name finds
    others = [Passage(f"x{i}", "Noise", "which of these is it that") for i in range(3)]
    question = replace(QUESTION, question="Which of these is it that Thimphu", supporting_ids=("bhutan",))
    texts, passages = await told(question, [*others, *PASSAGES], k=1)
    assert texts == [
        "[Planning]",
        "Action: [Retrieval] the question",
        "Action: []",
        "Action: [Retrieval] Thimphu",
        "Action: [1]",
        "Action: [LLM]",
    ]
    assert passages == ["bhutan"]


@pytest.mark.parametrize(("queries", "found"), [("span", []), ("free", ["bhutan"])])
async def test_the_oracle_says_nothing_that_the_policy_cannot(queries, found):
    others = [Passage(f"x{i}", "Noise", "which of these is it that") for i in range(3)]
    question = replace(QUESTION, question="Which of these is it that Thimphu", supporting_ids=("bhutan",))
    texts, passages = await told(question, [*others, *PASSAGES], k=1, queries=queries)
    first = ["[Planning]", "Action: [Retrieval] Which of these is it that Thimphu", "Action: []"]
    assert texts[:3] == first and texts[-1] == "Action: [LLM]"
    assert passages == found  # with nothing kept a span is the whole question again; only who phrases freely may name


@pytest.mark.parametrize(
    ("strategy", "first"),
    [("NoRetrieval", "[No Retrieval]"), ("Search", "[Retrieval] the question"), ("Plan", "[Planning]")],
)
async def test_the_oracle_takes_the_strategy_that_the_router_is_held_to(strategy, first):
    asked = "Of which country is Thimphu the capital, and what is its money?"
    both = replace(QUESTION, question=asked, supporting_ids=("bhutan", "ngultrum"))
    for question in (both, replace(both, supporting_ids=("bhutan",))):  # a plan would be better, one search would do
        assert (await told(question, k=2, strategy=strategy))[0][0] == first


async def test_the_oracle_answers_when_no_query_leads_on():
    texts, passages = await told(replace(QUESTION, supporting_ids=("bhutan", "nowhere")), k=1)
    assert texts[0] == "[Planning]" and texts[-1] == "Action: [LLM]"
    assert "nowhere" not in passages


async def test_without_gold_passages_the_policy_decides():
    proxy = ScriptedEngine(lambda prompt, rng: "[No Retrieval]")
    backends = Backends(llm=ScriptedEngine(lambda prompt, rng: "x"), proxy=proxy, retriever=ListRetriever(PASSAGES))
    episode = await Tree(
        QUESTION, build("c3po"), backends, exploration=Exploration(breadth=(1,), force=0, temperature=0, oracle=True)
    ).grow()
    assert [n.text for n in episode.nodes] == ["[No Retrieval]"] and len(proxy.requests) == 1


async def test_a_world_of_an_oracle_says_what_it_lacks():
    proxy = ScriptedEngine(lambda prompt, rng: AssertionError("the oracle was to decide"))
    llm, roles = ScriptedEngine(lambda p, r: "x"), {"router", "filter", "decide"}
    backends = Backends(llm=llm, proxy=proxy, retriever=ListRetriever(PASSAGES), oracle_roles=roles)
    known = replace(QUESTION, question="What is the capital of Bhutan?", supporting_ids=("bhutan",))
    episode = await Tree(known, build("c3po"), backends).grow()
    assert episode.trajectories[0].passages == ["bhutan"]
    with pytest.raises(UserError, match="question q: an oracle needs its supporting_ids"):
        await Tree(QUESTION, build("c3po"), backends).grow()
    with pytest.raises(UserError, match="the oracle of 'filter' cannot act here, where it writes no thoughts"):
        await Tree(known, build("c3po", {"thoughts": True}), backends).grow()


async def test_a_role_without_an_oracle_is_named():
    class Untold:
        roles = (replace(C3PO().router, oracle=None),)

        async def run(self, question, ctx):
            await ctx.act(self.roles[0], question=question.question)

    engine = ScriptedEngine(lambda prompt, rng: AssertionError("the oracle was to decide"))
    backends = Backends(llm=engine, proxy=engine, retriever=ListRetriever(PASSAGES), oracle_roles={"router"})
    with pytest.raises(UserError, match="the role 'router' has no oracle"):
        await Tree(replace(QUESTION, supporting_ids=("bhutan",)), Untold(), backends).grow()


async def test_a_filter_may_keep_by_title():
    question = replace(QUESTION, question="What is the capital of Bhutan?", supporting_ids=("bhutan",))
    texts, passages = await told(question, select="titles")
    assert (texts, passages) == (["[Retrieval] the question", "Action: [Bhutan]"], ["bhutan"])
    role = C3PO(select="titles").filter
    untitled = [Passage("a", "", "Thimphu has no traffic lights."), Passage("b", "Bhutan", "A country.")]
    shown = role.view(question="?", objective="", passages=untitled)["passages"]
    assert shown == "- Thimphu has no traffic lights: Thimphu has no traffic lights.\n- Bhutan: A country."


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"select": "letters"}, "select 'letters': choose from numbers, titles"),
     ({"select": "titles", "thoughts": True}, "too small to write thoughts")],
)  # fmt: skip
def test_a_selection_that_cannot_be_is_refused(settings, message):
    with pytest.raises(UserError, match=message):
        C3PO(**settings)


def test_a_search_under_a_plan_may_be_the_question_or_a_name():
    def allowed(query: str, kept: Sequence[Passage] = ()) -> bool:
        grammar = C3PO(queries="names").decision_maker.grammar(
            question=QUESTION.question, roadmap="", kept=kept, asked=()
        )
        return bool(re.fullmatch(grammar.constraint().regex, f"Action: [Retrieval] {query}"))

    assert allowed("the question") and allowed("Thimphu") and not allowed("Bhutan") and not allowed("capital")
    kept = [Passage("b", "Bhutan", "Thimphu is the capital of Bhutan. Its neighbours are India and China.")]
    assert all(allowed(name, kept) for name in ("Thimphu", "Bhutan", "India", "China", "the question"))
    assert not any(allowed(other, kept) for other in ("Its", "capital", "Which", "India and China"))


def test_with_names_nothing_is_asked_twice_as_long_as_there_is_something_else():
    def allowed(query: str, *asked: str, question: str = "Of which country is Thimphu the capital?") -> bool:
        kept = [Passage("b", "Bhutan", "Bhutan has " + "Very " * 40 + "long names.")]
        grammar = C3PO(queries="names").decision_maker.grammar(question=question, roadmap="", kept=kept, asked=asked)
        return bool(re.fullmatch(grammar.constraint().regex, f"Action: [Retrieval] {query}"))

    whole = "Of which country is Thimphu the capital"
    assert allowed("Bhutan", whole, "Thimphu") and not allowed("the question", whole)
    assert not allowed("Thimphu", "Thimphu") and not allowed("Bhutan", whole, "Bhutan")
    assert allowed("the question", whole, "Thimphu", "Bhutan")  # its next page
    assert allowed("the question", question="Thimphu?") and not allowed("Thimphu", question="Thimphu?")
    assert allowed("Bhutan", question="?") and not allowed("anything", question="?")
    nameless = C3PO(queries="names").decision_maker.grammar(
        question="what is it?", roadmap="", kept=[], asked=["what is it"]
    )
    assert nameless.parse("Action: [Retrieval] the question") == Search("what is it")
    assert re.fullmatch(C3PO(queries="names").router.grammar(question="?").constraint().regex, "[Retrieval] anything")


def test_what_was_asked_is_shown_by_the_name_it_was_asked_by():
    shown = C3PO(queries="names").decision_maker.view(
        question="Who is he?", roadmap="", kept=[], asked=["Who is he", "Bhutan"]
    )
    assert shown["searches"] == "the question; Bhutan"
    assert C3PO().decision_maker.view(question="Who?", roadmap="", kept=[], asked=[])["searches"] == "(none)"


def test_the_filter_may_be_shown_less_of_a_passage_than_the_others():
    passages = [Passage("a", "A", "one two three four")]
    system = C3PO(proxy_words=3, filter_words=2)
    assert system.filter.view(question="?", objective="", passages=passages)["passages"] == "[1] A: one two ..."
    assert (
        system.decision_maker.view(question="?", roadmap="", kept=passages, asked=[])["passages"]
        == "[1] A: one two three ..."
    )
    whole = C3PO(proxy_words=3).filter.view(question="?", objective="", passages=passages)["passages"]
    assert whole == "[1] A: one two three ..."

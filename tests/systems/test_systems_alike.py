"""Names that read alike in a list, or as something else that stands there: what is listed can be taken, and nothing else is told of."""

import pytest

from dragoman.core.types import Passage
from dragoman.systems.base import Gold
from dragoman.systems.c3po.actions import Answer
from dragoman.systems.c3po.system import C3PO
from dragoman.systems.maps.pool import Pool
from dragoman.systems.maps.system import MAPS
from dragoman.systems.mrag.state import Errand
from dragoman.systems.mrag.state import State as Gathered
from dragoman.systems.mrag.system import MRAG
from dragoman.systems.mujica.state import Fact, State
from dragoman.systems.mujica.system import Mujica

QUESTION = "Which rule follows the Tarn->Osse?"
KEPT = [
    Passage("1", "Alpha->Beta", "A rule."),
    Passage("2", "Alpha-Beta", "Another rule."),
    Passage("3", "answer", "What ends a rule."),
    Passage("4", "end", "What ends another."),
    Passage("5", "finisher", "Who ends."),
]
ASKED = (QUESTION.rstrip("?"),)
POOL = Pool().extended(ASKED[0], KEPT, 9)
STATES = {
    "c3po": (C3PO(decide="marks"), "decision_maker", {"roadmap": "", "kept": KEPT, "asked": [*ASKED]}),
    "maps": (MAPS(decide="marks"), "query_agent", {"pool": POOL}),
    "mujica": (
        Mujica(decide="marks", queries="span", max_questions=1), "planner", {"state": State((Fact(ASKED[0], ""),), kept=(*KEPT,))},
    ),
    "mrag": (
        MRAG(decide="marks", agents="single"), "first_call", {"state": Gathered(documents=(*KEPT,), asked=ASKED)},
    ),
    "mrag's searcher": (MRAG(decide="marks").searcher, "move", {"errand": Errand(known=(*KEPT,), asked=ASKED, reads=1)}),
}  # fmt: skip


@pytest.mark.parametrize("name", STATES)
async def test_whatever_an_oracle_takes_is_among_the_options(name):
    system, role, state = STATES[name]
    agent = getattr(system, role)
    options = agent.options(question=QUESTION, **state)
    assert "Alpha-Beta" in options.texts and options.texts.count("answer") <= 1
    for place in range(len(options.texts)):
        assert options.taken(options.action([place])) == (place,)

    async def find(query, depth):
        return ["gold"]  # every search finds it, so all are as good

    gold = Gold(frozenset({"gold"}), find=find)
    right = await agent.oracle(gold, question=QUESTION, **state)
    assert len(right) > 1
    for action in right:
        options.taken(action)


def test_an_article_about_answer_does_not_take_the_place_of_the_end():
    system, role, state = STATES["c3po"]
    options = getattr(system, role).options(question=QUESTION, **state)
    assert options.action([options.texts.index("answer")]) == Answer()

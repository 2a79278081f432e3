"""The question as a query, and names to search for, in the systems that copy them."""

import pytest

from dragoman.core.types import Passage
from dragoman.systems import build, profile_settings
from dragoman.systems.base import Gold
from dragoman.systems.c3po import queries as c3po
from dragoman.systems.c3po.actions import Search
from dragoman.systems.grammar import Span, can_say
from dragoman.systems.maps import queries as maps
from dragoman.systems.mrag import queries as mrag
from dragoman.systems.mrag.state import Errand
from dragoman.systems.mujica import queries as mujica
from dragoman.systems.mujica.state import State
from dragoman.systems.names import QUESTION_CHARS, known_names

MODULES = {"c3po": c3po, "maps": maps, "mrag": mrag, "mujica": mujica}
LEAD_IN = " ".join(f"w{i}" for i in range(40))
LONG = f"{LEAD_IN} so who drew Tarn Bridge?"  # 45 words
ENDLESS = f"{'I would like to know one more thing about it ' * 15}, so who drew Tarn Bridge?"  # 156 words


@pytest.mark.parametrize("name", MODULES)
def test_a_question_with_a_long_lead_in_is_searched_for_with_its_end(name):
    system = build(name, profile_settings(name, "cpu"))
    assert len(LONG.split()) == 45 and len(LONG) < 240 < len(ENDLESS) < QUESTION_CHARS
    assert MODULES[name].whole(system, LONG) == LONG.rstrip("?")
    assert MODULES[name].whole(system, ENDLESS).endswith("so who drew Tarn Bridge")
    assert len(MODULES[name].whole(system, "endless " * 999)) <= QUESTION_CHARS


@pytest.mark.parametrize("text", [LONG, ENDLESS])
def test_at_marks_a_long_question_is_listed_whole_and_has_a_text(text):
    for name in MODULES:
        system = build(name, profile_settings(name, "cpu"))
        role, state = {
            "c3po": lambda s: (s.decision_maker, {"roadmap": "", "kept": [], "asked": []}),
            "maps": lambda s: (s.query_agent, {"pool": maps.Pool()}),
            "mrag": lambda s: (s.searcher.query, {"errand": Errand()}),
            "mujica": lambda s: (s.planner, {"state": State()}),
        }[name](system)
        options, grammar = role.options(question=text, **state), role.grammar(question=text, **state)
        action = options.action([0])
        assert name == "maps" or MODULES[name].whole(system, text) in str(action)
        assert grammar.parse(grammar.render(action)) == action


@pytest.mark.parametrize("text", [LONG, ENDLESS])
def test_where_the_question_is_written_it_is_copied_as_one_run_that_fits(text):
    for name, chars in (("c3po", 240), ("mujica", 240), ("maps", 160)):
        system = build(name, {"queries": "span"})
        slot = {
            "c3po": lambda s: c3po.first_queries(s, text)[0],
            "mujica": lambda s: mujica.subquestion(s, text, State()),
            "maps": lambda s: maps.query(s, text, maps.Pool()),
        }[name](system)
        whole = MODULES[name].whole(system, text)
        assert isinstance(slot, Span) and can_say(slot, whole) and len(whole) <= chars
        assert not can_say(slot, whole.split(maxsplit=1)[1])


async def test_one_search_for_a_long_question_can_be_told():
    async def find(query: str, k: int) -> list[str]:
        return ["b"] if "Tarn Bridge" in query else []

    for settings in ({"queries": "span"}, {"queries": "names"}, {"decide": "marks"}):
        told = await build("c3po", settings).router.oracle(Gold(frozenset("b"), find), question=LONG)
        assert told == [Search(LONG.rstrip("?"))]


def test_an_owner_is_known_by_the_name_alone_unless_it_is_to_be_copied():
    kept = [Passage("x", "", "Jane Doe met John Roe's aunt.")]
    assert known_names("Who was Jane Doe's father?", kept, passage_words=9, chars=99) == ["Jane Doe", "John Roe"]
    written = known_names("Who was Jane Doe's father?", kept, passage_words=9, chars=99, as_written=True)
    assert written == ["Jane Doe's", "John Roe's"]

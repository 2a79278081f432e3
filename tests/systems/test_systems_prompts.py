import json
from pathlib import Path

import pytest
from fakes import ListRetriever, ScriptedEngine

import dragoman.rewards
import dragoman.systems
from dragoman.core.errors import PromptTooLong
from dragoman.core.types import Passage, Question
from dragoman.rollout.backends import Backends
from dragoman.rollout.tree import Tree
from dragoman.systems import build
from dragoman.systems.prompts import Prompt, Quoting, load, number, one_line

FOLDERS = [Path(m.__file__).parent for m in (dragoman.systems, dragoman.rewards)]
FILES = sorted(p for folder in FOLDERS for p in folder.rglob("prompts/*.txt"))
OF_AGENTS = [path for path in FILES if path.parents[1].name in ("c3po", "maps", "mrag", "mujica")]
FOUND = ("{passages}", "{known}", "{searches}", "{pool}", "{information}")
LATER = ("searcher_next",)  # of a dialogue whose first message has the question
OF_THE_STATE = {"otherwise"}  # slots that examples leave to the state they stand before


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parents[1].name}/{p.stem}")
def test_every_prompt_loads_and_its_examples_fill_its_slots(path):
    package = ".".join(path.parts[path.parts.index("dragoman") : -2])
    prompt = load(package, path.stem)
    assert prompt.slots
    for example in prompt.examples:
        assert prompt.slots - set(example) <= OF_THE_STATE and example["output"]


@pytest.mark.parametrize("path", OF_AGENTS, ids=lambda p: f"{p.parents[1].name}/{p.stem}")
def test_an_agent_reads_the_question_before_what_was_found(path):
    user = load(f"dragoman.systems.{path.parents[1].name}", path.stem).user
    found = [user.index(slot) for slot in FOUND if slot in user]
    assert path.stem in LATER or all(user.index("{question}") < place for place in found)


def test_sections_shots_and_history_in_order():
    prompt = Prompt("p", "be brief", "Q: {q}", ({"q": "1?", "output": "one"}, {"q": "2?", "output": "two"}))
    assert prompt.messages({"q": "3?"}, shots=1, history=(("user", "hello"), ("assistant", "hi"))) == (
        ("system", "be brief"),
        ("user", "Q: 1?"),
        ("assistant", "one"),
        ("user", "hello"),
        ("assistant", "hi"),
        ("user", "Q: 3?"),
    )


def test_a_reply_that_has_begun_is_the_last_message_and_an_empty_one_is_none():
    prompt = Prompt("p", "", "{q}", assistant="{begun}")
    assert prompt.slots == {"q", "begun"}
    assert prompt.messages({"q": "1?", "begun": "one"}) == (("user", "1?"), ("assistant", "one"))
    assert prompt.messages({"q": "1?", "begun": ""}) == (("user", "1?"),)


def test_a_text_that_quotes_knows_where_also_as_an_earlier_turn():
    prompt = Prompt("p", "{q}", "See {a}, {q} and {b}{a}.")
    messages = prompt.messages({"a": "{b}", "b": "", "q": "?"}, quotes=("a", "b"))
    assert messages == (("system", "?"), ("user", "See {b}, ? and {b}."))
    asked = Prompt("p", "", "{q}").messages({"q": "{b}"}, history=messages, quotes=("a",))
    marked = [text.marked("<{}>".format) if isinstance(text, Quoting) else text for _, text in asked]
    assert marked == ["?", "See <{b}>, ? and <><{b}>.", "{b}"]


def test_braces_in_data_are_not_filled_again():
    assert Prompt("p", "", "{a} {b}").messages({"a": "{b}", "b": "x"}) == (("user", "{b} x"),)


def test_a_missing_slot_is_named():
    with pytest.raises(KeyError, match=r"slot \{b\}"):
        Prompt("p", "", "{b}").messages({"a": "1"})


def test_passages_are_numbered_and_cut():
    passages = [Passage("1", "T", "one two three"), Passage("2", "", "four")]
    assert number(passages, 2) == "[1] T: one two ...\n[2] four"
    assert number([], 2) == "(none)"


@pytest.mark.parametrize("letter", ["a", "-", "京", "ก", "🙂", "я"])
def test_a_passage_without_spaces_or_with_an_endless_title_is_cut_too(letter):
    line = number([Passage("1", "T" * 30_000, letter * 20_000)], 40)
    assert len(line) <= 2 * 40 * 20 + 20 and line.endswith(" ...") and "T" * 60 in line and letter * 60 in line
    assert one_line(Passage("1", "", "東京は日本の首都"), 3) == "東京は日本の ..."


async def test_passages_that_a_model_cannot_read_are_cut_until_it_can(tmp_path):
    def short_sighted(prompt, random):
        return PromptTooLong("exceeds the context") if len(prompt) > 450 else "so it is"

    def tree(script):
        passages = [Passage(str(i), f"t{i}", "river " * 500) for i in range(3)]
        engine = ScriptedEngine(script)
        backends = Backends(llm=engine, proxy=engine, retriever=ListRetriever(passages))
        return Tree(Question("q", "Which river?"), build("standard"), backends)

    (end,) = (await tree(short_sighted).grow(key="k", system_name="standard")).trajectories
    assert (end.answer, end.stop) == ("so it is", "answered")
    episode = await tree(lambda *_: PromptTooLong("never")).grow(key="k", system_name="standard")
    (end,) = episode.trajectories
    assert (end.answer, end.stop, end.error) == (None, "prompt_too_long", "never")
    assert not episode.faulty and episode.too_long, "a model with a longer context may be asked next"


@pytest.mark.parametrize(
    ("name", "settings", "told"),
    [
        ("iter-retgen", {}, {}),
        ("self-ask", {}, {}),
        ("mrag", {"answers": "plain"}, {}),
        ("mrag", {"answers": "guided"}, {"guidance": "be short", "important": "the river"}),
    ],
)
async def test_drafts_are_cut_as_answers_are(name, settings, told):
    """What is asked on the way is asked by the same prompt, and one long passage must not end it."""
    turns = iter(
        [
            '{"agent": "searcher", "suggestions": []}',
            '{"query": "river"}',
            '{"next": "end", "relevant": [true, true]}',
            json.dumps({"agent": "answerer", **told}),
            '{"agent": "finisher"}',
        ]
    )

    def short_sighted(prompt, random):
        if "Known so far" in prompt:  # of self-ask, which looks one thing up
            return "Final answer: so it is" if "so it is" in prompt else "Follow up: which one?"
        return PromptTooLong("exceeds the context") if len(prompt) > 1200 else "so it is"

    passages = [Passage(str(i), f"t{i}", "river " * 500) for i in range(3)]
    backends = Backends(
        llm=ScriptedEngine(short_sighted),
        proxy=ScriptedEngine(lambda prompt, random: next(turns)),
        retriever=ListRetriever(passages),
    )
    system = build(name, {"k": 2, "passage_words": 400} | settings)
    (end,) = (await Tree(Question("q", "Which river?"), system, backends).grow()).trajectories
    assert (end.answer, end.stop) == ("so it is", "answered"), end.error

"""Where answers end: at a line break, or where the model ends them."""

from __future__ import annotations

from fakes import ScriptedEngine

from dragoman.core.types import Passage, Question
from dragoman.engines import EnginePool, open_engine
from dragoman.engines.base import AnswerEnd, Request, SeveralLines
from dragoman.engines.cache import _key
from dragoman.engines.settings import EngineParams
from dragoman.systems.answer import answer_ask

ANSWERING, STATE = answer_ask(Question("q", "Why?"), [Passage("p", "", "So.")], words=9, max_tokens=48)
ANSWER = ANSWERING.request(ANSWERING.messages(STATE))


async def test_an_answer_ends_at_a_line_break_unless_it_may_have_several_lines() -> None:
    engine = ScriptedEngine(lambda prompt, rng: "one\ntwo")
    other = Request(ANSWER.prompt, 48, stop=("\n",))
    (result, _) = await SeveralLines(engine).generate([ANSWER, other])
    assert ANSWER.stop == ("\n",) and [request.stop for request in engine.requests] == [(), ("\n",)]
    assert result.completions[0].text == "one\ntwo"


async def test_answers_of_several_lines_are_of_another_fingerprint_and_share_what_is_loaded() -> None:
    pool = EnginePool()
    settings = EngineParams(engine="openai", model="m", urls=("http://localhost:1/v1",), revision="a")
    usual = open_engine(settings, pool=pool)
    several = open_engine(settings.model_copy(update={"one_line_answers": False}), pool=pool)
    assert several.fingerprint == f"{usual.fingerprint}/lines" and len(pool) == 1
    for engine in (usual, several):
        await engine.close()
    assert len(pool) == 0


def test_the_end_of_an_answer_is_an_ordinary_stop_string_to_what_is_kept() -> None:
    assert _key("f", Request(ANSWER.prompt, 48, stop=(AnswerEnd("\n"),))) == _key(
        "f", Request(ANSWER.prompt, 48, stop=("\n",))
    )

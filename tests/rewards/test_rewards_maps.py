"""The rewards of MAPS against values worked out by hand (eq. 1 to 7)."""

from types import SimpleNamespace

import pytest
from fakes import ScriptedEngine

from dragoman.core.errors import EngineFault
from dragoman.core.types import Passage, Question
from dragoman.rewards import Reward
from dragoman.rewards.maps import delta_f1, precision_ratio
from dragoman.systems.base import StopReason

QUESTION = Question("q", "Who drew the bridge?", ("Edith Marlowe",))
PASSAGES = [Passage(f"p{i}", f"T{i}", "text") for i in range(4)]


def said(answer: str | None) -> SimpleNamespace:
    return SimpleNamespace(nodes=[], steps=[], answer=answer, passages=[], stop=StopReason.ANSWERED)


@pytest.mark.parametrize(
    ("answer", "golds", "value"),
    [
        ("Edith Marlowe", ("Edith Marlowe",), 1),
        ("it was Edith Marlowe", ("Edith Marlowe",), 2 / 4),
        ("the Edith", ("Edith Marlowe",), 1),  # articles are no words
        ("Marlowe Marlowe", ("Edith Marlowe",), 1 / 2),
        ("Edith Toll", ("Ada Toll Marsh", "Edith B Toll"), 1),  # the best over gold answers
        ("yes it is", ("yes",), 1 / 3),  # where `precision` gives 0
        ("", ("Edith Marlowe",), 0),
        (None, ("Edith Marlowe",), None),
        ("Edith", (), None),
    ],
)
def test_precision_ratio_is_the_share_of_the_answers_words_that_are_gold(answer, golds, value):
    assert precision_ratio(Question("q", "?", golds), said(answer), []) == (value and pytest.approx(value))


@pytest.mark.parametrize(
    ("answer", "total"),
    [
        ("Edith Marlowe", 1 + 0.5 * 1 + 0),
        ("by Edith Marlowe", 0 + 0.5 * (2 / 3) + 0),
        ("it was drawn by Edith Marlowe", 0 + 0.5 * (2 / 6) - 1),
    ],
)
async def test_the_first_stage_sums_match_precision_and_length(answer, total):
    reward = Reward.of("em + 0.5 * precision_ratio + length_penalty(words=5)")
    assert reward.bounds == (-1, 1.5)
    assert (await reward.score(QUESTION, said(answer), []))[reward.name] == pytest.approx(total)


async def test_the_second_stage_takes_f1_in_the_place_of_precision():
    reward = Reward.of("em + 0.5 * f1 + length_penalty")
    # IN = 2, PN(y) = 3, PN(y*) = 2: F1 = 2 * 2 / (3 + 2)
    assert (await reward.score(QUESTION, said("by Edith Marlowe"), []))[reward.name] == pytest.approx(0.5 * 4 / 5)


@pytest.mark.parametrize(
    ("before", "after", "value"),
    [("Edith", "Edith Marlowe", 1 - 2 / 3), ("Edith Marlowe", "Ada", -1), ("Ada", "Ben", 0), ("", "Edith Marlowe", 1)],
)
async def test_delta_f1_is_what_the_later_passages_brought(before, after, value):
    llm = ScriptedEngine(lambda prompt, rng: before)
    assert await delta_f1(QUESTION, said(after), PASSAGES, llm=llm, first=2) == pytest.approx(value)
    shown = llm.requests[0].messages[-1]["content"]
    assert "T1: text" in shown and "T2" not in shown and QUESTION.question in shown


@pytest.mark.parametrize(
    ("llm", "agent"),
    [("Edith Marlowe", "Edith"), ("Ada", "Edith Marlowe")],  # either may be the better one at answering
)
async def test_siblings_compare_as_by_f1_whether_or_not_they_found_more(llm, agent):
    async def worth(answer, passages):
        engine = ScriptedEngine(lambda prompt, rng: llm)
        return await delta_f1(QUESTION, said(answer), passages, llm=engine, first=2)

    repeated, found, lost = await worth(agent, PASSAGES[:2]), await worth(agent, PASSAGES), await worth("Ben", PASSAGES)
    assert repeated == found > lost


async def test_where_the_llm_answers_nothing_new_brings_nothing():
    engine = ScriptedEngine(lambda prompt, rng: "Edith")
    assert await delta_f1(QUESTION, said("Edith"), PASSAGES[:2], llm=engine, first=2) == 0


async def test_without_an_answer_or_an_action_no_llm_is_asked():
    llm = ScriptedEngine(lambda prompt, rng: "Edith")
    assert await delta_f1(QUESTION, said(None), PASSAGES, llm=llm) is None
    invalid = SimpleNamespace(**vars(said("")) | {"stop": StopReason.INVALID_ACTION})
    assert await delta_f1(QUESTION, invalid, [], llm=llm) == -1
    assert llm.requests == []


async def test_an_answer_before_that_cannot_be_had_is_no_score():
    llm = ScriptedEngine(lambda prompt, rng: EngineFault("down"))
    reward = Reward.of("delta_f1(first=2)", llm)
    assert (await reward.score(QUESTION, said("Edith"), PASSAGES))[reward.name] is None

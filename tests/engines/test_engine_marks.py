"""Options scored at marks, on the real engine and a tiny model."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dragoman.core.errors import EngineFault
from dragoman.engines.base import CannotScore, Request, Result
from dragoman.engines.marks import encode_options, yes_and_no
from dragoman.engines.openai import OpenAIEngine
from dragoman.engines.transformers import TransformersEngine

PROMPT = "Question: Where is Thimphu?\n"
OPTIONS = ("Bhutan: a country ->", "Thimphu: its capital", "Perth")


def letters(text: str) -> list[int]:
    return [ord(c) for c in text]


def request(*options: str, prompt: str = PROMPT) -> Request:
    return Request(prompt=(("user", prompt),), max_tokens=1, options=options)


@pytest.fixture
async def engine(tiny_model):
    opened = TransformersEngine(tiny_model, dtype="float32", threads=1)
    yield opened
    await opened.close()


def test_each_option_ends_in_a_mark_whose_place_is_known():
    ids, marks = encode_options(letters, "Q\n", ["ab", "c"])
    assert "".join(map(chr, ids)) == "Q\nab ->\nc ->"
    assert [ids[m] for m in marks] == letters(">>")
    assert marks == (6, 11)


def test_yes_and_no_are_the_first_tokens_that_differ():
    assert yes_and_no(letters) == (ord("y"), ord("n"))


async def test_a_logit_is_yes_minus_no_after_the_mark(engine, tiny_model):
    (result,) = await engine.generate([request(*OPTIONS)])
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    yes, no = yes_and_no(lambda text: tokenizer.encode(text, add_special_tokens=False))
    with torch.inference_mode():
        logits = model(torch.tensor([result.prompt_ids])).logits[0]
    wanted = [float(logits[m, yes] - logits[m, no]) for m in result.marks]
    assert result.logits == pytest.approx(wanted, abs=1e-4)
    assert len(result.logits) == 3
    assert result.completions == ()


async def test_scores_do_not_depend_on_what_else_is_in_the_batch(engine):
    (alone,) = await engine.generate([request(*OPTIONS)])
    many = await engine.generate(
        [request("x", "y"), request(*OPTIONS), Request((("user", "Hello"),), 4), request("a longer line " * 9)]
    )
    assert many[1].logits == pytest.approx(alone.logits, abs=1e-5)
    assert many[2].completions[0].text is not None


async def test_a_later_option_changes_no_earlier_score(engine):
    one, three = await engine.generate([request(OPTIONS[0]), request(*OPTIONS)])
    assert three.logits[0] == pytest.approx(one.logits[0], abs=1e-5)


async def test_options_longer_than_the_context_fail_their_own_request_alone(engine):
    with pytest.raises(EngineFault, match="show fewer, or fewer words"):
        await engine.generate([request("word " * 9000)])
    (result,) = await engine.generate([request("short")])
    assert len(result.logits) == 1


async def test_an_engine_that_writes_text_alone_names_the_setting():
    engine = OpenAIEngine(["http://127.0.0.1:1/v1"], "m")
    with pytest.raises(CannotScore, match=r"proxy\.engine"):
        await engine.generate([request("a")])


def test_a_scored_result_survives_as_json():
    result = Result((1, 2), (), 2, 0, logits=(0.5,), marks=(1,))
    assert Result.from_json(result.to_json()) == result

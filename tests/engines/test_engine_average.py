"""One completion of several prompts: its tokens are of the average of their probabilities."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

from dragoman.engines.base import CannotAverage, Request
from dragoman.engines.openai import OpenAIEngine
from dragoman.engines.sampling import Average
from dragoman.engines.transformers import TransformersEngine

PROMPTS = ((5, 6, 7, 8), (9, 10), (300, 20, 400))
WEIGHTS = (0.5, 0.2, 0.3)
REQUEST = Request(PROMPTS[0], 6, beside=PROMPTS[1:], weights=WEIGHTS)


@pytest.fixture
async def engine(tiny_model):
    opened = TransformersEngine(tiny_model, dtype="float32", threads=1)
    yield opened
    await opened.close()


def test_probabilities_are_averaged_and_not_logits():
    """Two prompts of weights 1/2: 0.9, 0.1, 0 and 0.01, 0.29, 0.7 average to 0.455, 0.195, 0.35.

    Averaged logits would prefer the second token: sqrt(0.1 * 0.29) = 0.17 is more than sqrt(0.9 * 0.01) = 0.09. Beside
    that completion, in the same batch, is one of a single prompt that prefers the last token.
    """
    taken = []
    rows = [_row(taken, (0.5, 0.5)), _row(taken, (1.0,))]
    scores = torch.tensor([[0.9, 0.1, 1e-9], [0.01, 0.29, 0.7], [0.2, 0.2, 0.6]]).log()
    drawn = Average(rows, 3)(torch.zeros(3, 4, dtype=torch.long), scores + torch.tensor([[3.0], [-5.0], [0.0]]))
    (token, logprob, likeliest), (other, *_) = taken
    assert (token, logprob) == (0, pytest.approx(math.log(0.455), abs=1e-6))
    assert likeliest == [(0, logprob), (2, pytest.approx(math.log(0.35), abs=1e-6))]
    assert other == 2
    assert drawn.tolist() == [[0.0, -math.inf, -math.inf]] * 2 + [[-math.inf, -math.inf, 0.0]]


def _row(taken, weights):
    return SimpleNamespace(
        job=SimpleNamespace(request=SimpleNamespace(alternatives=2, weights=weights)),
        prompts=[(5, 6)] * len(weights),
        temperature=0.0,
        matcher=None,
        finish_reason=None,
        add=lambda *drew: taken.append(drew),
    )


async def test_each_token_is_the_likeliest_of_the_average(engine, tiny_model):
    (result,) = await engine.generate([REQUEST])
    (completion,) = result.completions
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    so_far: list[int] = []
    for token, logprob in zip(completion.token_ids, completion.logprobs, strict=True):
        with torch.inference_mode():
            each = [model(torch.tensor([[*prompt, *so_far]])).logits[0, -1].softmax(-1) for prompt in PROMPTS]
        average = sum(weight * p for weight, p in zip(WEIGHTS, each, strict=True))
        assert token == average.argmax()
        assert logprob == pytest.approx(float(average[token].log()), abs=1e-4)
        so_far.append(token)
    assert (result.prompt_ids, result.prompt_tokens) == (PROMPTS[0], 9)
    assert 0 < result.completion_tokens == len(completion.token_ids) <= 6


async def test_a_prompt_that_weighs_everything_is_completed_as_if_alone(engine):
    alone = replace(REQUEST, beside=(), weights=(), temperature=1.0, n=2)
    average, single = await engine.generate([replace(alone, beside=PROMPTS[1:], weights=(1.0, 0.0, 0.0)), alone])
    assert [c.token_ids for c in average.completions] == [c.token_ids for c in single.completions]


async def test_averages_and_other_requests_of_one_batch_are_as_each_alone(engine):
    other = replace(REQUEST, prompt=(11, 12, 13, 14, 15), beside=((20,), (21, 22)), weights=(0.1, 0.6, 0.3))
    single = Request((5, 6, 7), 6)
    together = await engine.generate([REQUEST, single, other])
    for request, result in zip([REQUEST, single, other], together, strict=True):
        (alone,) = await engine.generate([request])
        assert result.completions[0].token_ids == alone.completions[0].token_ids


async def test_a_batch_of_averages_is_bounded_by_its_prompts(tiny_model, monkeypatch):
    engine = TransformersEngine(tiny_model, dtype="float32", threads=1, max_batch=7)  # two of three prompts each
    sizes = []
    decode = engine._decode
    monkeypatch.setattr(engine, "_decode", lambda rows: (sizes.append(len(rows)), decode(rows)))
    await engine.generate([REQUEST] * 5)
    await engine.close()
    assert (sum(sizes), max(sizes)) == (5, 2)


async def test_an_engine_that_takes_one_prompt_at_a_time_names_the_setting():
    with pytest.raises(CannotAverage, match=r"set llm\.engine to transformers"):
        await OpenAIEngine(["http://127.0.0.1:1/v1"], "m").generate([REQUEST])


def test_each_prompt_needs_a_weight():
    with pytest.raises(ValueError, match="3 prompts need a weight each, and there are 2"):
        replace(REQUEST, weights=(0.5, 0.5))

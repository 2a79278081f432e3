"""What every engine owes its callers: the same tests for all three, on the same model."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dragoman.core.errors import EngineFault, PromptTooLong
from dragoman.engines.base import Completion, Constraint, Engine, Request, Result
from dragoman.engines.local import LocalEngine

if TYPE_CHECKING:
    import torch

ASK = Request(prompt=(("user", "What is the capital of France?"),), max_tokens=12)
SAMPLE = replace(ASK, temperature=1.0, seed=7)
QUERY = r"(yes|no|search: [a-z]{2,12}( [a-z]{2,12})?)"
SCHEMA = {
    "type": "object",
    "properties": {
        "keep": {"type": "boolean"},
        "strategy": {"enum": ["none", "search", "plan"]},
        "note": {"type": "string", "maxLength": 8},
    },
    "required": ["keep", "strategy", "note"],
    "additionalProperties": False,
}


async def one(engine: Engine, request: Request) -> Result:
    (result,) = await engine.generate([request])
    return result


def ids(result: Result) -> list[tuple[int, ...]]:
    return [c.token_ids for c in result.completions]


@cache
def reference(folder: Path):
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@cache
def tokenizer(folder: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def distributions(folder: Path, prompt_ids: tuple[int, ...], completion: Completion) -> torch.Tensor:
    """[tokens of the completion, vocabulary]: the model's own log-probabilities, in one pass without any cache."""
    import torch

    with torch.inference_mode():
        logits = reference(folder)(torch.tensor([[*prompt_ids, *completion.token_ids]])).logits[0]
    return logits[len(prompt_ids) - 1 : -1].log_softmax(-1)


async def test_greedy_is_deterministic_and_takes_the_likeliest_token(engine: Engine, tiny: Path) -> None:
    first, second = await one(engine, ASK), await one(engine, replace(ASK, seed=99))
    assert ids(first) == ids(second)
    (completion,) = first.completions
    own = distributions(tiny, first.prompt_ids, completion)
    assert own.argmax(-1).tolist() == list(completion.token_ids)
    assert completion.logprobs == pytest.approx(own.max(-1).values.tolist(), abs=1e-3)


async def test_alternatives_are_the_likeliest_tokens_of_each_place_best_first(engine: Engine, tiny: Path) -> None:
    result = await one(engine, replace(ASK, alternatives=3))
    (completion,) = result.completions
    best = distributions(tiny, result.prompt_ids, completion).topk(3)
    assert len(completion.alternatives) == len(completion.token_ids) == 12
    for place, values, tokens in zip(completion.alternatives, best.values.tolist(), best.indices.tolist(), strict=True):
        assert [p for _, p in place] == pytest.approx(values, abs=1e-3)
        assert [text for text, _ in place] == [tokenizer(tiny).decode([token]) for token in tokens]
    assert not (await one(engine, ASK)).completions[0].alternatives


async def test_alternatives_are_of_the_distribution_that_is_drawn_from_grammar_and_all(engine: Engine) -> None:
    asked = replace(SAMPLE, grammar=Constraint(regex="(yes|no)"), alternatives=20)
    (completion,) = (await one(engine, asked)).completions
    assert sum(math.exp(p) for _, p in completion.alternatives[0]) == pytest.approx(1, abs=1e-3)
    assert {text for text, _ in completion.alternatives[0]} <= {"y", "ye", "yes", "n", "no"}


async def test_length_ends_a_completion_and_all_is_counted(engine: Engine) -> None:
    result = await one(engine, replace(SAMPLE, n=3))
    assert [c.finish_reason for c in result.completions] == ["length"] * 3
    assert [len(c.token_ids) for c in result.completions] == [12] * 3
    assert result.completion_tokens == 36
    assert result.prompt_tokens == len(result.prompt_ids) > 0
    assert result.model


async def test_n_completions_differ_and_seeds_reproduce_them(engine: Engine) -> None:
    four = replace(SAMPLE, n=4)
    first, again, other = await engine.generate([four, four, replace(four, seed=8)])
    assert ids(first) == ids(again)
    assert len(set(ids(first)) | set(ids(other))) == 8


async def test_neighbouring_seeds_share_no_completion(engine: Engine) -> None:
    drawn = await engine.generate([replace(SAMPLE, n=3, seed=seed) for seed in range(4)])
    assert len({c for result in drawn for c in ids(result)}) == 12


async def test_greedy_copies_are_equal_and_paid_once(engine: Engine) -> None:
    result = await one(engine, replace(ASK, n=3))
    assert len(set(ids(result))) == 1
    assert len(result.completions) == 3
    assert result.completion_tokens == 12


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
async def test_logprobs_are_those_at_the_temperature(engine: Engine, tiny: Path, temperature: float) -> None:
    result = await one(engine, replace(SAMPLE, temperature=temperature, n=2))
    assert len(result.completions) == 2
    for completion in result.completions:
        assert len(completion.logprobs) == len(completion.token_ids)
        assert max(completion.logprobs) <= 0
        own = (distributions(tiny, result.prompt_ids, completion) / temperature).log_softmax(-1)
        expected = [own[i, token_id].item() for i, token_id in enumerate(completion.token_ids)]
        assert completion.logprobs == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("temperature", [0.0, 0.5, 2.0])
async def test_logprobs_are_those_under_the_grammar(engine: Engine, tiny: Path, temperature: float) -> None:
    """One letter out of four, whose probabilities then add up to 1, and the end, which is certain."""
    letters = await engine.generate([replace(SAMPLE, grammar=Constraint(regex=letter)) for letter in "abcd"])
    tokens = [completion.token_ids[0] for result in letters for completion in result.completions]
    assert [completion.logprobs for result in letters for completion in result.completions] == [
        pytest.approx((0.0, 0.0), abs=1e-6)
    ] * 4
    result = await one(engine, replace(SAMPLE, temperature=temperature, n=6, grammar=Constraint(regex="[abcd]")))
    assert len(result.completions) == 6
    for completion in result.completions:
        first, end = completion.logprobs
        own = distributions(tiny, result.prompt_ids, completion)[0, tokens] / (temperature or 1.0)
        assert first == pytest.approx(own.log_softmax(-1)[tokens.index(completion.token_ids[0])].item(), abs=1e-3)
        assert end == pytest.approx(0.0, abs=1e-6)


async def test_thirty_samples_match_the_regular_expression(engine: Engine) -> None:
    result = await one(engine, replace(SAMPLE, n=30, max_tokens=40, temperature=1.5, grammar=Constraint(regex=QUERY)))
    texts = [c.text for c in result.completions]
    assert all(re.fullmatch(QUERY, text) for text in texts), texts
    assert len(set(texts)) > 5
    assert {c.finish_reason for c in result.completions} == {"stop"}
    assert len({c.token_ids[-1] for c in result.completions}) == 1, "the end-of-sequence token belongs to the ids"


async def test_thirty_samples_fit_the_json_schema(engine: Engine) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    grammar = Constraint(json_schema=json.dumps(SCHEMA))
    result = await one(engine, replace(SAMPLE, n=30, max_tokens=80, grammar=grammar))
    for completion in result.completions:
        jsonschema.validate(json.loads(completion.text), SCHEMA)
    assert {c.finish_reason for c in result.completions} == {"stop"}


async def test_greedy_obeys_the_grammar(engine: Engine) -> None:
    result = await one(engine, replace(ASK, grammar=Constraint(regex="(alpha|beta)")))
    assert result.completions[0].text in ("alpha", "beta")


async def test_a_grammar_cut_off_by_length_is_a_prefix(engine: Engine) -> None:
    result = await one(engine, replace(SAMPLE, max_tokens=3, grammar=Constraint(regex="[0-9]{30}")))
    assert result.completions[0].finish_reason == "length"
    assert re.fullmatch("[0-9]{3,30}", result.completions[0].text)


async def test_stop_strings_end_the_text_but_not_the_ids(engine: Engine) -> None:
    whole = (await one(engine, replace(SAMPLE, max_tokens=24))).completions[0]
    stop = whole.text[len(whole.text) // 2 :][:3]
    cut = (await one(engine, replace(SAMPLE, max_tokens=24, stop=("never said", stop)))).completions[0]
    assert cut.finish_reason == "stop"
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]
    assert len(cut.logprobs) == len(cut.token_ids) < len(whole.token_ids)


async def test_a_prompt_of_token_ids_equals_its_messages(engine: Engine) -> None:
    by_messages = await one(engine, SAMPLE)
    by_ids = await one(engine, replace(SAMPLE, prompt=by_messages.prompt_ids))
    assert by_ids.prompt_ids == by_messages.prompt_ids
    assert ids(by_ids) == ids(by_messages)


async def test_forty_callers_at_once_get_their_own_results(engine: Engine) -> None:
    requests = [
        replace(SAMPLE, prompt=(("user", f"Question {i} " + "and so on " * (i % 7)),), max_tokens=3 + i % 9, seed=i)
        for i in range(40)
    ]
    results = await asyncio.gather(*(one(engine, request) for request in requests))
    assert [len(r.completions[0].token_ids) for r in results] == [r.max_tokens for r in requests]
    alone = await one(engine, requests[17])
    assert ids(alone) == ids(results[17])


async def test_no_requests_no_results(engine: Engine) -> None:
    assert await engine.generate([]) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompt": tuple(range(100, 601))}, "501 tokens"),
        ({"max_tokens": 600}, "600 new"),
        ({"grammar": Constraint(regex="(unclosed")}, "unclosed"),
        ({"grammar": Constraint(json_schema='{"type": "nonsense"}')}, "nonsense"),
        ({"prompt": (1, 2, 60_000)}, "vocabulary"),
    ],
)
async def test_a_bad_request_is_its_own_fault_alone(engine: Engine, change: dict[str, object], said: str) -> None:
    bad = engine.generate([replace(SAMPLE, **change)])
    good = engine.generate([SAMPLE])
    fault, (result,) = await asyncio.gather(bad, good, return_exceptions=True)
    assert isinstance(fault, EngineFault)
    assert isinstance(fault, PromptTooLong) == ("tokens" in said or "new" in said)
    assert said in str(fault)
    assert len(result.completions[0].token_ids) == 12
    assert ids(await one(engine, SAMPLE)) == ids(result)


async def test_a_caller_that_gives_up_leaves_the_engine_working(engine: Engine) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(engine.generate([replace(SAMPLE, n=4, max_tokens=150)]), 0.05)
    assert len((await one(engine, SAMPLE)).completions) == 1


async def test_work_that_was_given_up_is_not_done(engine: Engine) -> None:
    if not isinstance(engine, LocalEngine):
        pytest.skip("a server sees the connection close")
    started = time.monotonic()
    await one(engine, SAMPLE)
    alone = time.monotonic() - started
    long = replace(SAMPLE, max_tokens=450, n=2)
    callers = [asyncio.ensure_future(engine.generate([replace(long, seed=seed)])) for seed in range(40)]
    while len(engine._pending) < 40:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)  # some have begun
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    started = time.monotonic()
    await one(engine, SAMPLE)
    assert time.monotonic() - started < 3 + 10 * alone, (
        "the next caller waits for a step of the others, not for their 36,000 tokens"
    )
    assert not engine._pending


def test_one_engine_serves_several_event_loops(engine: Engine) -> None:
    first = asyncio.run(one(engine, SAMPLE))
    second = asyncio.run(one(engine, SAMPLE))
    assert ids(first) == ids(second)

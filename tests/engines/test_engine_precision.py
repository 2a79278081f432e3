from pathlib import Path

import pytest
import torch

from dragoman.engines import open_engine, precision
from dragoman.engines.local import fingerprint
from dragoman.engines.settings import EngineParams


@pytest.mark.parametrize(("able", "expected"), [(True, "bfloat16"), (False, "float32")])
def test_auto_is_bfloat16_where_the_machine_is_faster_by_it(monkeypatch, able, expected):
    monkeypatch.setattr(precision, "faster_by_bfloat16", lambda: able)
    assert precision.resolved("auto") == expected
    assert precision.resolved("float16") == "float16"  # what is named is taken, whatever the machine


def test_a_processor_computes_in_bfloat16_with_amx_alone():
    facts = Path("/proc/cpuinfo")
    if not facts.is_file() or torch.cuda.is_available():
        pytest.skip("needs Linux without a GPU")
    assert precision.faster_by_bfloat16() == ({"amx_tile", "amx_bf16"} <= set(facts.read_text().split()))


async def test_an_engine_is_named_by_what_it_computes_in(tiny: Path, monkeypatch):
    """Answers that were kept on one machine are not taken for those of another."""
    monkeypatch.setattr(precision, "faster_by_bfloat16", lambda: False)
    engine = open_engine(EngineParams(engine="transformers", model=str(tiny), max_model_len=None, threads=1))
    try:
        assert engine.fingerprint == fingerprint(tiny, "float32") != fingerprint(tiny, "bfloat16")
    finally:
        await engine.close()

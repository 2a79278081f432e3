from pathlib import Path

import pytest

from dragoman.engines import open_engine, precision
from dragoman.engines.local import fingerprint
from dragoman.engines.settings import EngineParams


@pytest.mark.parametrize(("able", "expected"), [(True, "bfloat16"), (False, "float32")])
def test_auto_is_bfloat16_where_the_machine_has_instructions_for_it(monkeypatch, able, expected):
    monkeypatch.setattr(precision, "multiplies_bfloat16", lambda: able)
    assert precision.resolved("auto") == expected
    assert precision.resolved("float16") == "float16"  # what is named is taken, whatever the machine


def test_a_processor_with_avx2_alone_has_no_instructions_for_bfloat16():
    facts = Path("/proc/cpuinfo")
    flags = set(facts.read_text().split()) if facts.is_file() else set()
    if "avx2" not in flags or {"avx512bw", "avx_ne_convert"} & flags:
        pytest.skip("needs a processor with AVX2 alone")
    assert not precision.multiplies_bfloat16()


async def test_an_engine_is_named_by_what_it_computes_in(tiny: Path, monkeypatch):
    """Answers that were kept on one machine are not taken for those of another."""
    monkeypatch.setattr(precision, "multiplies_bfloat16", lambda: False)
    engine = open_engine(EngineParams(engine="transformers", model=str(tiny), max_model_len=None, threads=1))
    try:
        assert engine.fingerprint == fingerprint(tiny, "float32") != fingerprint(tiny, "bfloat16")
    finally:
        await engine.close()

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


@pytest.mark.parametrize(
    ("processor", "fast"),
    [
        ({"cpu_name": "Intel(R) Xeon(R) Platinum 8488C", "amx_bf16": True, "avx512_bf16": True}, True),
        ({"cpu_name": "Intel(R) Xeon(R) Platinum 8488C", "amx_bf16": False, "avx512_bf16": True}, False),
        ({"cpu_name": "AMD EPYC 9R45", "amx_bf16": False, "avx512_bf16": True}, True),
        ({"cpu_name": "AMD EPYC 7R13", "amx_bf16": False, "avx512_bf16": False}, False),
        ({"architecture": "aarch64"}, False),
    ],
)
def test_a_processor_computes_in_bfloat16_with_amx_or_as_amds_with_avx512_bf16(monkeypatch, processor, fast):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: processor)
    assert precision.faster_by_bfloat16() is fast


def test_torch_tells_what_the_operating_system_tells_of_the_processor():
    facts = Path("/proc/cpuinfo")
    if not facts.is_file():
        pytest.skip("needs Linux")
    told = torch.cpu.get_capabilities()
    assert {name: told.get(name, False) for name in ("amx_bf16", "avx512_bf16")} == {
        name: name in facts.read_text().split() for name in ("amx_bf16", "avx512_bf16")
    }
    assert ("AuthenticAMD" in facts.read_text()) == str(told.get("cpu_name")).startswith("AMD")


async def test_an_engine_is_named_by_what_it_computes_in(tiny: Path, monkeypatch):
    """Answers that were kept on one machine are not taken for those of another."""
    monkeypatch.setattr(precision, "faster_by_bfloat16", lambda: False)
    engine = open_engine(EngineParams(engine="transformers", model=str(tiny), max_model_len=None, threads=1))
    try:
        assert engine.fingerprint == fingerprint(tiny, "float32") != fingerprint(tiny, "bfloat16")
    finally:
        await engine.close()

"""What the in-process engines stand on, and the pool that shares engines."""

from __future__ import annotations

import builtins
import json
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny import make_tiny

from dragoman import engines
from dragoman.core.errors import EngineFault, UserError
from dragoman.engines import EnginePool, open_engine
from dragoman.engines.base import Request, Result
from dragoman.engines.local import Vocabulary, fingerprint, seed_of
from dragoman.engines.settings import EngineParams
from dragoman.engines.transformers import TransformersEngine


def test_the_fingerprint_follows_weights_tokenizer_and_precision(tiny: Path, other_tiny: Path, tmp_path: Path) -> None:
    own = fingerprint(tiny, "float32")
    copy = tmp_path / "copy"
    shutil.copytree(tiny, copy)
    assert fingerprint(copy, "float32") == own
    assert fingerprint(copy, "bfloat16") != own
    assert fingerprint(other_tiny, "float32") != own
    (copy / "chat_template.jinja").write_text("{{ messages }}")
    assert fingerprint(copy, "float32") != own


def test_the_fingerprint_of_weights_that_were_replaced_is_new_whatever_their_manifest_says(
    tiny: Path, other_tiny: Path, tmp_path: Path
) -> None:
    from dragoman.engines.fetch import weights_sha256

    folder = tmp_path / "fetched"
    shutil.copytree(tiny, folder)
    (folder / "manifest.json").write_text(json.dumps({"sha256": weights_sha256(folder)}))
    assert fingerprint(folder, "float32") == fingerprint(tiny, "float32")
    shutil.copyfile(other_tiny / "model.safetensors", folder / "model.safetensors")
    assert fingerprint(folder, "float32") != fingerprint(tiny, "float32")


def test_the_fingerprint_follows_the_config_but_for_what_changes_no_distribution(tiny: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny, tmp_path / "copy")
    own, path = fingerprint(tiny, "float32"), folder / "config.json"
    config = json.loads(path.read_text())

    def written(**changes: Any) -> str:
        path.write_text(json.dumps(dict(reversed([*(config | changes).items()]))))
        return fingerprint(folder, "float32")

    idle = {"transformers_version": "0", "_name_or_path": "elsewhere", "dtype": "float16", "torch_dtype": "float16"}
    assert written() == written(**idle, use_cache=False) == own, "nor does the order of the fields change anything"
    assert written(rope_scaling={"rope_type": "linear", "factor": 2.0}) != own
    assert written(text_config={"dtype": "float16"}) == written(text_config={"dtype": "float32"}) != own


def test_the_fingerprint_of_a_folder_without_a_config_is_that_of_the_rest(tiny: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny, tmp_path / "copy", ignore=shutil.ignore_patterns("config.json"))
    assert fingerprint(folder, "float32") == fingerprint(folder, "float32") != fingerprint(tiny, "float32")


def test_a_config_that_is_no_json_is_the_users(tiny: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny, tmp_path / "copy")
    (folder / "config.json").write_text("{oops")
    with pytest.raises(UserError, match=r"config\.json: not valid JSON .*fetch the model again"):
        fingerprint(folder, "float32")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], "not a JSON object"),
        (None, "not a JSON object"),
        ({"architectures": 3}, "architectures is 3, not a list of names"),
        ({"architectures": [3]}, r"architectures is \[3\], not a list of names"),
    ],
)
def test_a_config_that_is_no_object_or_names_no_architectures_is_the_users(
    tiny: Path, tmp_path: Path, content: Any, message: str
) -> None:
    folder = shutil.copytree(tiny, tmp_path / "copy")
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=rf"config\.json: {message}; fetch the model again"):
        fingerprint(folder, "float32")


@pytest.mark.parametrize(
    ("gone", "changes", "message"),
    [
        ("tokenizer*", {}, r"its config or its tokenizer cannot be loaded \(.*fetch it by `dragoman model`"),
        ("", {"model_type": "nonsense"}, r"its config or its tokenizer cannot be loaded \(.*`nonsense`"),
        (
            "",
            {"vocab_size": "many"},
            r"its config\.json has a value that cannot be \(.*'vocab_size' expected int, got str",
        ),
        ("", {"id2label": 3}, r"its config or its tokenizer cannot be loaded \(AttributeError: .*fetch it by"),
        ("", {"layer_types": 3}, r"its config or its tokenizer cannot be loaded \(TypeError: .*fetch it by"),
        ("", {"model_type": "mamba"}, r"its config\.json has no max_position_embeddings"),
    ],
)
def test_a_folder_whose_vocabulary_cannot_be_used_is_the_users(
    tmp_path: Path, gone: str, changes: dict[str, Any], message: str
) -> None:
    folder = make_tiny(tmp_path / "model", seed=0)
    for file in folder.glob(gone or "no such file"):
        file.unlink()
    config = json.loads((folder / "config.json").read_text())
    del config["max_position_embeddings"]
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(UserError, match=f"{folder}: {message}"):
        Vocabulary(folder, None)


def test_weights_that_nothing_here_can_read_are_the_users(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    def refuse(*_: object, **__: object) -> None:
        raise ImportError("requires bitsandbytes")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", refuse)
    with pytest.raises(UserError, match=rf"{tiny}: needs a package that is not installed here \(requires bitsandbytes"):
        TransformersEngine(tiny)


def test_a_message_of_the_assistant_that_has_begun_is_gone_on_with(tiny: Path) -> None:
    vocabulary = Vocabulary(tiny, None)
    asked = Request(prompt=(("user", "Hello?"),), max_tokens=5)
    begun = Request(prompt=(*asked.prompt, ("assistant", "Well, I")), max_tokens=5)
    first, second = (vocabulary.tokenizer.decode(vocabulary.encode(request)) for request in (asked, begun))
    assert second == f"{first}Well, I"


def test_seeds_do_not_run_into_each_other() -> None:
    requests = [Request(prompt=(1,), max_tokens=1, seed=seed) for seed in (-1, 0, 1, 2, 2**70)]
    seeds = {seed_of(request, index) + i for request in requests for index in (0, 1) for i in range(8)}
    assert len(seeds) == 5 * 2 * 8
    assert all(0 <= seed < 2**63 for seed in seeds)


class Fake:
    fingerprint = "fake"
    closed = 0

    async def generate(self, requests: Sequence[Request]) -> list[Result]:
        if self.closed:
            raise EngineFault("closed")
        return []

    async def close(self) -> None:
        self.closed += 1


async def test_a_pool_loads_once_and_closes_with_the_last_user() -> None:
    pool, made = EnginePool(), []

    def load() -> Fake:
        made.append(Fake())
        return made[-1]

    llm, proxy, other = pool.open("a", load), pool.open("a", load), pool.open("b", load)
    assert len(made) == 2
    await llm.close()
    await llm.close()  # the second time is not another user's share
    assert await proxy.generate([]) == []
    with pytest.raises(RuntimeError, match="after close"):
        await llm.generate([])
    await proxy.close()
    assert (made[0].closed, made[1].closed, len(pool)) == (1, 0, 1)
    await other.close()
    assert len(pool) == 0


async def test_an_engine_that_broke_down_is_loaded_again_for_all_its_users(tiny: Path, monkeypatch) -> None:
    pool, made = EnginePool(), []

    def load() -> TransformersEngine:
        made.append(TransformersEngine(tiny, dtype="float32", threads=1))
        return made[-1]

    llm, proxy = pool.open("a", load), pool.open("a", load)
    request = Request(prompt=(5, 6), max_tokens=2)
    monkeypatch.setattr(made[0], "_next_batch", lambda waiting: 1 / 0)
    with pytest.raises(EngineFault, match="ZeroDivisionError"):
        await llm.generate([request])
    (result,) = await proxy.generate([request])
    assert len(made) == 2 and (await llm.generate([request])) == [result]
    monkeypatch.setattr(made[1], "_next_batch", lambda waiting: 1 / 0)
    for _ in range(2):
        with pytest.raises(EngineFault, match="ZeroDivisionError"):
            await llm.generate([request])
    assert len(made) == 2, "it would be loaded again and again"
    monkeypatch.setattr(engines, "RETRY_S", 0.0)
    pool._loaded["a"].retry_at = 0.0
    assert await llm.generate([request]) == [result]
    await llm.close()
    await proxy.close()
    assert made[2].is_dead is False and len(pool) == 0


def test_a_pool_forgets_what_failed_to_load() -> None:
    pool = EnginePool()
    with pytest.raises(ZeroDivisionError):
        pool.open("a", lambda: 1 / 0)
    assert len(pool) == 0
    assert pool.open("a", Fake).fingerprint == "fake"


async def test_equal_settings_share_a_model_and_a_folder_written_anew_does_not(
    tiny: Path, other_tiny: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    pool = EnginePool()
    settings = EngineParams(engine="transformers", model=str(folder), dtype="float32", max_model_len=None)
    llm, proxy = open_engine(settings, pool=pool), open_engine(settings.model_copy(update={"retries": 1}), pool=pool)
    assert len(pool) == 1
    shutil.copytree(other_tiny, folder, dirs_exist_ok=True)
    retrained = open_engine(settings, pool=pool)
    assert len(pool) == 2
    assert retrained.fingerprint != llm.fingerprint == proxy.fingerprint
    for engine in (llm, proxy, retrained):
        await engine.close()
    assert len(pool) == 0


async def test_auto_takes_transformers_where_vllm_is_missing(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    importer = builtins.__import__

    def without_vllm(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "vllm" and threading.current_thread() is threading.main_thread():  # not the thread of another engine
            raise RuntimeError("operator torchvision::nms does not exist")
        return importer(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_vllm)
    pool = EnginePool()
    engine = open_engine(EngineParams(model=str(tiny), dtype="float32", max_model_len=None), pool=pool)
    assert "torchvision::nms" in caplog.text
    (result,) = await engine.generate([Request(prompt=(5, 6, 7), max_tokens=2)])
    assert len(result.completions[0].token_ids) == 2
    await engine.close()
    with pytest.raises(UserError, match="set the engine's kind to transformers"):
        open_engine(EngineParams(engine="vllm", model=str(tiny)), pool=pool)


def test_auto_takes_vllm_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vllm", exc_type=ImportError)
    assert engines._automatic() == "vllm"


def test_bad_settings_are_the_users(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no safetensors"):
        open_engine(EngineParams(engine="transformers", model=str(tmp_path)))


async def test_weights_kept_in_float32_are_rounded_when_they_are_read(tiny: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(tiny, tmp_path / "exact", ignore=shutil.ignore_patterns("manifest.json"))
    weights = load_file(folder / "model.safetensors")
    exact = {name: tensor.float() * 1.001 for name, tensor in weights.items()}  # between two numbers of bfloat16
    save_file(exact, folder / "model.safetensors", metadata={"format": "pt"})
    engine = TransformersEngine(folder)
    read = dict(engine._model.named_parameters())
    assert {tensor.dtype for tensor in read.values()} == {torch.bfloat16}
    assert all(torch.equal(read[name], exact[name].to(torch.bfloat16)) for name in exact if name in read)
    assert any(not torch.equal(read[name].float(), exact[name]) for name in exact if name in read)
    await engine.close()

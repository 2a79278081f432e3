"""Models of sentence-transformers that retrievers use: loaded, and named by their weights."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dragoman.core.errors import UserError
from dragoman.core.hub import split_revision

if TYPE_CHECKING:
    from torch import nn

Kind = Literal["SentenceTransformer", "SparseEncoder", "CrossEncoder"]


def load_model(kind: Kind, path: str, *, what: str, instead: str, device: str | None = None) -> Any:
    """The model in a folder, or behind an id of the Hugging Face hub, with `@REVISION` behind it or without.

    Args:
        what, instead: how an error begins, and what it says is to be given.

    Raises:
        UserError: it cannot be loaded.
    """
    import sentence_transformers
    import torch
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError
    from transformers.utils import logging as transformers_logging

    name, revision = split_revision(path)
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        return getattr(sentence_transformers, kind)(name, device=device, revision=revision)
    except StrictDataclassError as e:  # it names the key
        raise UserError(
            f"{what}: its config.json has a value that cannot be ({' '.join(str(e).split())}): give {instead}"
        ) from None
    except torch.OutOfMemoryError as e:
        raise UserError(
            f"{what} does not fit into the memory that the GPU has free ({str(e).splitlines()[0]}): end what else runs there, or "
            f"give {instead}"
        ) from None
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as e:
        # ImportError: of what reads quantised weights
        reason = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
        raise UserError(f"{what} cannot be loaded ({reason}): give {instead}") from None
    except (TypeError, AttributeError, LookupError, ArithmeticError) as e:  # of JSON that transformers takes unchecked
        raise UserError(f"{what} cannot be loaded ({type(e).__name__}: {e}): give {instead}") from e
    finally:
        if bars:
            transformers_logging.enable_progress_bar()


def tensors_sha256(model: nn.Module) -> str:
    """Names a model by what it computes with, wherever it lies. 0.3 s for 23 million parameters."""
    import torch

    hashed = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        hashed.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return hashed.hexdigest()


def check_weights(model: nn.Module, sha256: str, name: str, folder: Path) -> None:
    """Raise a UserError unless the model called `name` is the one that the index in `folder` was built with."""
    if tensors_sha256(model) != sha256:
        raise UserError(f"{folder}: was built with other weights than {name} has now: build it again")

"""Models of an experiment: loaded once a process, with the hashes of all in them that decides a number."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tintformer.errors import LoadError

if TYPE_CHECKING:
    from tintformer.auxiliary.description import Auxiliary

_PROVENANCE = (
    "_name_or_path",
    "transformers_version",
    "architectures",
    "dtype",
    "torch_dtype",
    # How the weights were packed in the file; what they are now, their own hash says.
    "quantization_config",
)


@dataclass(frozen=True, eq=False, kw_only=True)
class OpenModel:
    """A model, its tokenizer, and what of them decides numbers."""

    auxiliary: Auxiliary
    tokenizer: Any
    identity: dict[str, str]


def short_name(model: str) -> str:
    """What tables call a model: the last part of its path or id."""
    return Path(model).name


@lru_cache(maxsize=2)
def open_model(name: str, dtype: str, device: str | None = None) -> OpenModel:
    """Load a model; two stay in memory, for comparisons."""
    import torch

    from tintformer.learning.text import find_tokenizer
    from tintformer.storage.loading import load

    auxiliary, tokenizer = load(name, dtype=getattr(torch, dtype), device=device), find_tokenizer(name)
    return OpenModel(auxiliary=auxiliary, tokenizer=tokenizer, identity=model_identity(auxiliary.model, tokenizer))


def weights_hash(model: Any) -> str:
    """SHA-256 over names, shapes, types and bytes of all parameters and persistent buffers; tied ones count once.

    The order in which modules were registered does not matter; the type does: float16 and float32 are other weights.
    """
    import torch

    # Tied weights are one tensor under two names, and whether they are tied shows in what is moved.
    digest, seen = hashlib.sha256(), set[int]()
    for name, tensor in sorted(model.state_dict(keep_vars=True).items()):
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        if tensor.is_meta:
            raise LoadError(f"{name} has no weights (it is on the meta device); load the model before it is hashed")
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}\n".encode())
        if plain.numel():
            digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def config_hash(model: Any) -> str:
    """SHA-256 of a model's configuration without its provenance.

    The same weights with other heads, rotary base or norm epsilon give other numbers, and no weight shows it.
    """
    config: dict[str, Any] = {name: value for name, value in model.config.to_dict().items() if name not in _PROVENANCE}
    return _sha256(json.dumps(config, sort_keys=True, default=str))


def tokenizer_hash(tokenizer: Any) -> str:
    """SHA-256 of how a tokenizer cuts a text: all of a fast one, the vocabulary of another."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = sorted(tokenizer.get_vocab().items()) if backend is None else backend.to_str()
    return _sha256(json.dumps([content, tokenizer.bos_token_id]))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def model_identity(model: Any, tokenizer: Any) -> dict[str, str]:
    """What of a model decides its numbers, whatever it is called."""
    return {
        "weights": weights_hash(model),
        "config": config_hash(model),
        "tokenizer": tokenizer_hash(tokenizer),
    }


@lru_cache(maxsize=1)
def open_untrained(name: str, dtype: str, device: str | None, seed: int) -> Auxiliary:
    """A model of the same shape whose weights are drawn as the family's own class draws them before training."""
    import copy

    import torch

    from tintformer.storage.loading import load

    model = open_model(name, dtype, device).auxiliary.model
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):  # how a file was packed; there is none
        del config.quantization_config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # On the CPU and in float32: the same numbers for every device and dtype.
        drawn = type(model)(config).eval()
    parameter = next(model.parameters())
    return load(drawn.to(parameter.device, parameter.dtype))


def untrained_identity(identity: dict[str, str], seed: int) -> dict[str, str]:
    """What decides the numbers of an untrained model: its shape, the seed, and who draws."""
    import torch
    import transformers

    return {
        "config": identity["config"],
        "tokenizer": identity["tokenizer"],
        "drawn": f"seed {seed}, torch {torch.__version__}, transformers {transformers.__version__}",
    }

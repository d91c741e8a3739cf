"""The models that are timed: well-known shapes with random weights, or any model by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tintformer.benchmarks.settings import BenchError
from tintformer.errors import LoadError
from tintformer.storage.loading import load


def _gpt2() -> Any:
    from transformers import GPT2Config

    return GPT2Config()


def _opt_125m() -> Any:
    from transformers import OPTConfig

    return OPTConfig()


def _smollm2_135m() -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        vocab_size=49152,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5},
        rms_norm_eps=1e-5,
    )


def _tiny() -> Any:
    from transformers import GPT2Config

    return GPT2Config(
        vocab_size=64, n_positions=64, n_embd=16, n_layer=2, n_head=2, bos_token_id=None, eos_token_id=None
    )


SHAPES: dict[str, Callable[[], Any]] = {
    "gpt2": _gpt2,
    "opt-125m": _opt_125m,
    "smollm2-135m": _smollm2_135m,
    "tiny": _tiny,
}
"""Configurations by name. `gpt2` here is GPT-2 small with random weights: time does not depend on their values."""


def make_model(name: str, dtype: torch.dtype, *, seed: int = 0) -> Any:
    """A Hugging Face model in evaluation mode with fused attention, as people run it."""
    if name not in SHAPES:
        return _load(name, dtype)
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = AutoModelForCausalLM.from_config(SHAPES[name](), attn_implementation="sdpa")
    return model.to(dtype).eval()


def check_models(names: tuple[str, ...]) -> None:
    """Load what is not a shape once, so that a wrong name fails before hours of measuring and not after them."""
    for name in names:
        if name not in SHAPES:
            _load(name, torch.float32)


def _load(name: str, dtype: torch.dtype) -> Any:
    try:
        return load(name, dtype=dtype).model
    except LoadError as error:
        raise BenchError(f"model {name!r} is no shape known here ({', '.join(SHAPES)}) and: {error}") from error

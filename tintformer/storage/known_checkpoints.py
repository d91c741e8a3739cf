"""Shapes of well-known checkpoints, by hub id: a table of facts, from the configurations that their owners publish."""

from __future__ import annotations

from typing import Any

_Knobs = dict[str, Any]


def _models(model_type: str, columns: str, shapes: dict[str, tuple[int, ...]], **same: Any) -> dict[str, _Knobs]:
    """Knobs of a family's configuration by hub id: the columns that differ, and those that are the same for all."""
    keys = columns.split()
    return {
        name: {"model_type": model_type, **dict(zip(keys, shape, strict=True)), **same}
        for name, shape in shapes.items()
    }


def _rope(theta: float, **more: Any) -> _Knobs:
    return {"rope_type": "default", "rope_theta": theta, **more}


def _llama3_rope(factor: float) -> _Knobs:
    """The stretch of the frequencies that took Llama 3 from 8,192 to 131,072 positions."""
    return {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


_OPT = "hidden_size ffn_dim word_embed_proj_dim num_hidden_layers num_attention_heads"
_NEOX = "hidden_size intermediate_size num_hidden_layers num_attention_heads vocab_size"
_PHI = "hidden_size intermediate_size num_hidden_layers num_attention_heads"
_NEO = "hidden_size num_layers num_heads"
_LLAMA = "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads"

_LLAMA3: _Knobs = {"vocab_size": 128256, "rms_norm_eps": 1e-5}
_SMOLLM2: _Knobs = {
    "vocab_size": 49152,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
_QWEN3: _Knobs = {
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_parameters": _rope(1e6),
}

CHECKPOINTS: dict[str, _Knobs] = {
    **_models(
        "gpt2",
        "n_embd n_layer n_head",
        {
            "openai-community/gpt2": (768, 12, 12),
            "openai-community/gpt2-medium": (1024, 24, 16),
            "openai-community/gpt2-large": (1280, 36, 20),
            "openai-community/gpt2-xl": (1600, 48, 25),
            "distilbert/distilgpt2": (768, 6, 12),
        },
    ),
    **_models(
        "opt",
        _OPT,
        {
            "facebook/opt-125m": (768, 3072, 768, 12, 12),
            "facebook/opt-1.3b": (2048, 8192, 2048, 24, 32),
            "facebook/opt-2.7b": (2560, 10240, 2560, 32, 32),
            "facebook/opt-6.7b": (4096, 16384, 4096, 32, 32),
            "facebook/opt-13b": (5120, 20480, 5120, 40, 40),
            "facebook/opt-30b": (7168, 28672, 7168, 48, 56),
            "facebook/opt-66b": (9216, 36864, 9216, 64, 72),
        },
    ),
    # The one post-norm OPT; its embeddings have half the width.
    **_models("opt", _OPT, {"facebook/opt-350m": (1024, 4096, 512, 24, 16)}, do_layer_norm_before=False),
    **_models(
        "bloom",
        "hidden_size n_layer n_head",
        {
            "bigscience/bloom-560m": (1024, 24, 16),
            "bigscience/bloom-1b1": (1536, 24, 16),
            "bigscience/bloom-1b7": (2048, 24, 16),
            "bigscience/bloom-3b": (2560, 30, 32),
            "bigscience/bloom-7b1": (4096, 30, 32),
            "bigscience/bloom": (14336, 70, 112),
        },
    ),
    **_models(
        "gpt_neox",
        _NEOX,
        {
            "EleutherAI/pythia-14m": (128, 512, 6, 4, 50304),
            "EleutherAI/pythia-31m": (256, 1024, 6, 8, 50304),
            "EleutherAI/pythia-70m": (512, 2048, 6, 8, 50304),
            "EleutherAI/pythia-160m": (768, 3072, 12, 12, 50304),
            "EleutherAI/pythia-410m": (1024, 4096, 24, 16, 50304),
            "EleutherAI/pythia-1b": (2048, 8192, 16, 8, 50304),
            "EleutherAI/pythia-1.4b": (2048, 8192, 24, 16, 50304),
            "EleutherAI/pythia-2.8b": (2560, 10240, 32, 32, 50304),
            "EleutherAI/pythia-6.9b": (4096, 16384, 32, 32, 50432),
            "EleutherAI/pythia-12b": (5120, 20480, 36, 40, 50688),
        },
        rope_parameters=_rope(1e4, partial_rotary_factor=0.25),
    ),
    **_models(
        "gpt_neox",
        _NEOX,
        {"EleutherAI/gpt-neox-20b": (6144, 24576, 44, 64, 50432)},
        rope_parameters=_rope(1e4, partial_rotary_factor=0.25),
        hidden_act="gelu_fast",
    ),
    **_models(
        "gptj", "n_embd n_layer n_head rotary_dim vocab_size", {"EleutherAI/gpt-j-6b": (4096, 28, 16, 64, 50400)}
    ),
    **_models("gpt_neo", _NEO, {"EleutherAI/gpt-neo-125m": (768, 12, 12)}, attention_types=[[["global", "local"], 6]]),
    **_models(
        "gpt_neo", _NEO, {"EleutherAI/gpt-neo-1.3B": (2048, 24, 16)}, attention_types=[[["global", "local"], 12]]
    ),
    **_models(
        "gpt_neo", _NEO, {"EleutherAI/gpt-neo-2.7B": (2560, 32, 20)}, attention_types=[[["global", "local"], 16]]
    ),
    **_models(
        "llama",
        _LLAMA,
        {
            "huggyllama/llama-7b": (4096, 11008, 32, 32, 32),
            "huggyllama/llama-13b": (5120, 13824, 40, 40, 40),
            "huggyllama/llama-30b": (6656, 17920, 60, 52, 52),
        },
        rms_norm_eps=1e-6,
    ),
    **_models("llama", _LLAMA, {"huggyllama/llama-65b": (8192, 22016, 80, 64, 64)}, rms_norm_eps=1e-5),
    **_models(
        "llama",
        _LLAMA,
        {
            "meta-llama/Llama-2-7b-hf": (4096, 11008, 32, 32, 32),
            "meta-llama/Llama-2-13b-hf": (5120, 13824, 40, 40, 40),
            "meta-llama/Llama-2-70b-hf": (8192, 28672, 80, 64, 8),
        },
        rms_norm_eps=1e-5,
        max_position_embeddings=4096,
    ),
    **_models(
        "llama",
        _LLAMA,
        {
            "meta-llama/Meta-Llama-3-8B": (4096, 14336, 32, 32, 8),
            "meta-llama/Meta-Llama-3-70B": (8192, 28672, 80, 64, 8),
        },
        **_LLAMA3,
        rope_parameters=_rope(5e5),
        max_position_embeddings=8192,
    ),
    **_models(
        "llama",
        _LLAMA,
        {
            "meta-llama/Llama-3.1-8B": (4096, 14336, 32, 32, 8),
            "meta-llama/Llama-3.1-70B": (8192, 28672, 80, 64, 8),
            "meta-llama/Llama-3.1-405B": (16384, 53248, 126, 128, 8),
        },
        **_LLAMA3,
        rope_parameters=_llama3_rope(8.0),
        max_position_embeddings=131072,
    ),
    **_models(
        "llama",
        _LLAMA,
        {
            "meta-llama/Llama-3.2-1B": (2048, 8192, 16, 32, 8),
            "meta-llama/Llama-3.2-3B": (3072, 8192, 28, 24, 8),
        },
        **_LLAMA3,
        rope_parameters=_llama3_rope(32.0),
        max_position_embeddings=131072,
        tie_word_embeddings=True,
    ),
    **_models(
        "llama",
        _LLAMA,
        {
            "HuggingFaceTB/SmolLM2-135M": (576, 1536, 30, 9, 3),
            "HuggingFaceTB/SmolLM2-360M": (960, 2560, 32, 15, 5),
        },
        **_SMOLLM2,
        rope_parameters=_rope(1e5),
    ),
    **_models(
        "llama",
        _LLAMA,
        {"HuggingFaceTB/SmolLM2-1.7B": (2048, 8192, 24, 32, 32)},
        **_SMOLLM2,
        rope_parameters=_rope(1.3e5),
    ),
    **_models(
        "mistral",
        _LLAMA,
        {"mistralai/Mistral-7B-v0.1": (4096, 14336, 32, 32, 8)},
        rms_norm_eps=1e-5,
        sliding_window=4096,
        max_position_embeddings=32768,
    ),
    **_models(
        "qwen2",
        _LLAMA + " vocab_size max_position_embeddings tie_word_embeddings",
        {
            "Qwen/Qwen2.5-0.5B": (896, 4864, 24, 14, 2, 151936, 32768, True),
            "Qwen/Qwen2.5-1.5B": (1536, 8960, 28, 12, 2, 151936, 131072, True),
            "Qwen/Qwen2.5-3B": (2048, 11008, 36, 16, 2, 151936, 32768, True),
            "Qwen/Qwen2.5-7B": (3584, 18944, 28, 28, 4, 152064, 131072, False),
        },
        rope_parameters=_rope(1e6),
    ),
    **_models(
        "qwen3",
        _LLAMA + " tie_word_embeddings",
        {
            "Qwen/Qwen3-0.6B": (1024, 3072, 28, 16, 8, True),
            "Qwen/Qwen3-1.7B": (2048, 6144, 28, 16, 8, True),
            "Qwen/Qwen3-4B": (2560, 9728, 36, 32, 8, True),
            "Qwen/Qwen3-8B": (4096, 12288, 36, 32, 8, False),
        },
        **_QWEN3,
    ),
    **_models(
        "gemma",
        _LLAMA,
        {"google/gemma-2b": (2048, 16384, 18, 8, 1), "google/gemma-7b": (3072, 24576, 28, 16, 16)},
        head_dim=256,
    ),
    **_models(
        "phi",
        _PHI,
        {"microsoft/phi-1_5": (2048, 8192, 24, 32)},
        rope_parameters=_rope(1e4, partial_rotary_factor=0.5),
    ),
    **_models(
        "phi",
        _PHI,
        {"microsoft/phi-2": (2560, 10240, 32, 32)},
        rope_parameters=_rope(1e4, partial_rotary_factor=0.4),
    ),
}
"""Knobs of each configuration, `model_type` among them. What is not there is the family's default in transformers."""

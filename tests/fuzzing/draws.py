# pyright: basic
"""Random models, learning rules and batches: every switch that a family reads and every knob of a rule.

To attack along another dimension, draw it here: all kinds of cases of `numbers.py` take their rules and batches from
these functions.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from cases import TOKENS, build_model

from tintformer import LearningRule

MAX_POSITIONS = 48
FUNCTIONS = ("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "silu")
Settings = dict[str, Any]


def _heads(r: Random) -> tuple[int, int]:
    """Query heads, and key/value heads that divide them."""
    heads = r.choice((1, 2, 3, 4, 6))
    return heads, r.choice([count for count in range(1, heads + 1) if heads % count == 0])


def _width(r: Random, heads: int) -> int:
    """Of all heads together: at least 4, the rows that a simulator stacks by default."""
    return heads * r.choice([width for width in (2, 3, 4) if heads * width >= 4])


def _rope(r: Random, partial: float | None = None) -> Settings:
    theta = r.choice((10.0, 100.0, 10000.0))
    original = {"original_max_position_embeddings": r.choice((4, 16))}
    scheme = {
        "default": {},
        "linear": {"factor": r.choice((1.0, 2.0, 3.5))},
        "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": r.choice((2.0, 4.0)), **original},
        "yarn": {"factor": r.choice((2.0, 4.0)), **original},
    }
    kind = r.choice(list(scheme))
    found = {"rope_type": kind, "rope_theta": theta, **scheme[kind]}
    return found if partial is None else found | {"partial_rotary_factor": partial}


def _llama(r: Random, *, free_heads: bool = True) -> Settings:
    heads, groups = _heads(r)
    width = r.choice((2, 4, 6))
    # Multiples of the heads, which transformers asks of some families although a head has a width of its own.
    sizes = [size for size in (6, 12, 16, 20) if size % heads == 0]
    if not free_heads and heads * width < 4:
        width = 4
    return {
        "hidden_size": r.choice(sizes) if free_heads else heads * width,
        "intermediate_size": r.choice((5, 12, 17)),
        "num_hidden_layers": r.randint(1, 3),
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "max_position_embeddings": MAX_POSITIONS,
        "rope_parameters": _rope(r),
        "hidden_act": r.choice(FUNCTIONS),
        "rms_norm_eps": r.choice((1e-6, 1e-5, 1e-2)),
        **({"head_dim": width} if free_heads else {}),
    }


def _with_biases(r: Random, **more: Any) -> Settings:
    return {**_llama(r), "attention_bias": r.random() < 0.5, **more}


def _sliding(r: Random, shape: Settings) -> Settings:
    layers = shape["num_hidden_layers"]
    if r.random() < 0.5:
        return shape
    window = {"use_sliding_window": True, "sliding_window": r.randint(1, 5), "max_window_layers": r.randint(0, layers)}
    return shape | window


def _gpt2(r: Random) -> Settings:
    heads, _ = _heads(r)
    return {
        "n_embd": _width(r, heads),
        "n_layer": r.randint(1, 3),
        "n_head": heads,
        "n_positions": MAX_POSITIONS,
        "n_inner": r.choice((None, 5, 17)),
        "activation_function": r.choice(FUNCTIONS),
        "layer_norm_epsilon": r.choice((1e-6, 1e-5, 1e-2)),
        "scale_attn_weights": r.random() < 0.7,
        "scale_attn_by_inverse_layer_idx": r.random() < 0.3,
        "reorder_and_upcast_attn": r.random() < 0.3,
    }


def _opt(r: Random) -> Settings:
    heads, _ = _heads(r)
    width, first = _width(r, heads), r.random() < 0.6
    return {
        "hidden_size": width,
        "ffn_dim": r.choice((5, 12, 17)),
        "num_hidden_layers": r.randint(1, 3),
        "num_attention_heads": heads,
        "max_position_embeddings": MAX_POSITIONS,
        "activation_function": r.choice(FUNCTIONS),
        "do_layer_norm_before": first,
        "word_embed_proj_dim": r.choice((width, width, 8)),
        "enable_bias": r.random() < 0.7,
        "layer_norm_elementwise_affine": r.random() < 0.7,
        "_remove_final_layer_norm": r.random() < 0.3,
    }


def _bloom(r: Random) -> Settings:
    heads, _ = _heads(r)
    return {
        "hidden_size": _width(r, heads),
        "n_layer": r.randint(1, 3),
        "n_head": heads,
        "layer_norm_epsilon": r.choice((1e-6, 1e-5, 1e-2)),
        "apply_residual_connection_post_layernorm": r.random() < 0.4,
    }


def _gptj(r: Random) -> Settings:
    heads, _ = _heads(r)
    width = r.choice([width for width in (2, 4, 8) if heads * width >= 4])
    return {
        "n_embd": heads * width,
        "n_layer": r.randint(1, 3),
        "n_head": heads,
        "n_positions": MAX_POSITIONS,
        "rotary_dim": r.choice([dim for dim in (2, 4, 8) if dim <= width]),
        "n_inner": r.choice((None, 5, 17)),
        "activation_function": r.choice(FUNCTIONS),
        "layer_norm_epsilon": r.choice((1e-6, 1e-5, 1e-2)),
    }


def _neox(r: Random) -> Settings:
    heads, _ = _heads(r)
    return {
        "hidden_size": heads * r.choice((4, 8)),
        "intermediate_size": r.choice((5, 12, 17)),
        "num_hidden_layers": r.randint(1, 3),
        "num_attention_heads": heads,
        "max_position_embeddings": MAX_POSITIONS,
        "rope_parameters": _rope(r, r.choice((0.5, 1.0))),
        "hidden_act": r.choice(FUNCTIONS),
        "layer_norm_eps": r.choice((1e-6, 1e-5, 1e-2)),
        "use_parallel_residual": r.random() < 0.5,
        "attention_bias": r.random() < 0.5,
    }


def _gpt_neo(r: Random) -> Settings:
    heads, _ = _heads(r)
    types = [[r.choice((["global"], ["local"], ["global", "local"], ["local", "global"])), r.randint(1, 2)]]
    return {
        "hidden_size": _width(r, heads),
        "num_layers": sum(len(names) * count for names, count in types),
        "num_heads": heads,
        "max_position_embeddings": MAX_POSITIONS,
        "attention_types": types,
        "window_size": r.randint(1, 6),
        "intermediate_size": r.choice((None, 5, 17)),
        "activation_function": r.choice(FUNCTIONS),
        "layer_norm_epsilon": r.choice((1e-6, 1e-5, 1e-2)),
    }


def _phi(r: Random) -> Settings:
    heads, groups = _heads(r)
    return {
        "hidden_size": heads * r.choice((4, 8)),
        "intermediate_size": r.choice((5, 12, 17)),
        "num_hidden_layers": r.randint(1, 3),
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "max_position_embeddings": MAX_POSITIONS,
        "rope_parameters": _rope(r, r.choice((0.5, 1.0))),
        "hidden_act": r.choice(FUNCTIONS),
        "layer_norm_eps": r.choice((1e-6, 1e-5, 1e-2)),
        "qk_layernorm": r.random() < 0.5,
    }


FAMILIES: dict[str, Callable[[Random], Settings]] = {
    "GPT2": _gpt2,
    "OPT": _opt,
    "Llama": lambda r: _with_biases(r, mlp_bias=r.random() < 0.5),
    "Mistral": lambda r: _llama(r) | {"sliding_window": r.choice((None, 1, 2, 4))},
    "Qwen2": lambda r: _sliding(r, _llama(r, free_heads=False)),
    "Qwen3": lambda r: _sliding(r, _with_biases(r)),
    "Bloom": _bloom,
    "GPTJ": _gptj,
    "GPTNeoX": _neox,
    "GPTNeo": _gpt_neo,
    "Phi": _phi,
    "Gemma": lambda r: _with_biases(r),
}
"""What a configuration may set, by the prefix of the family's Hugging Face classes."""


def draw_model(r: Random, dtype: torch.dtype = torch.float64) -> tuple[Any, Settings]:
    """A tiny model of any family, and what its configuration sets."""
    import transformers

    prefix = r.choice(list(FAMILIES))
    settings = {"vocab_size": r.randint(5, 40), "tie_word_embeddings": r.random() < 0.5, **FAMILIES[prefix](r)}
    settings = {key: value for key, value in settings.items() if value is not None or key == "sliding_window"}
    config = getattr(transformers, f"{prefix}Config")(**TOKENS, **settings)
    return build_model(prefix, config, dtype, seed=r.randrange(2**31)), {"family": prefix, **settings}


def draw_rule(r: Random, num_blocks: int, *, dense: bool = False) -> LearningRule:
    """Any rule that can be written, with a rate that does not throw a tiny model off; `dense` optimisers as well."""
    optimizer = r.choice(("rms", "adam", "muon")) if dense and r.random() < 0.3 else "sgd"
    # Round-off of a difference is divided by its step, and then by what a dense optimiser divides a gradient by.
    gradients = ("exact", "exact", "first_order", "central") if optimizer == "sgd" else ("exact",)
    attention = r.choice(("value", "value", "exact", "exact", *(("perturbed",) if optimizer == "sgd" else ())))
    loss = r.choice(("cross_entropy", "cross_entropy", "mse", "quad"))
    reduction = r.choice(("sum", "mean"))
    rate = {"cross_entropy": 2e-3, "mse": 1e-3, "quad": 1e-4}[loss] * (5 if reduction == "mean" else 1)
    return LearningRule(
        learning_rate=rate * r.choice((0.3, 1.0)),
        steps=r.choice((1, 1, 2, 3)),
        layers=r.choice((None, r.randint(1, num_blocks))),
        loss=loss,
        reduction=reduction,
        norm_gradient=r.choice(gradients),
        activation_gradient=r.choice(gradients),
        attention_gradient=attention,
        epsilon=r.choice((None, None, 1e-3, 1e-2)),
        epsilon_mode=r.choice(("fixed", "relative")),
        update_norm_scale=r.random() < 0.5,
        update_query_key=attention != "value" and r.random() < 0.5,
        optimizer=optimizer,
        **_descent(r, num_blocks, optimizer),
    )


def _descent(r: Random, num_blocks: int, optimizer: str) -> Settings:
    """How a rule goes on from one step to the next, and by how much each op moves."""
    momentum = 0.0 if optimizer == "adam" else r.choice((0.0, 0.0, 0.5, 0.9))
    patterns = (f"blocks.{r.randrange(num_blocks)}.*", "*.value", "*.up", "final.*", "*")
    return {
        "momentum": momentum,
        "nesterov": momentum > 0 and r.random() < 0.5,
        "decay": r.choice((0.0, 0.0, 0.1, 1.0)),
        "rates": {name: r.choice((0.0, 0.5, 2.0)) for name in r.sample(patterns, r.choice((0, 0, 1, 2)))},
        "schedule": tuple(r.choice((0.0, 0.25, 1.0, 1.5)) for _ in range(r.choice((0, 0, 1, 2, 4)))),
    }


def draw_batch(
    r: Random, model: Any, *, padding: str | None = None, segments: bool = True, positions: bool = True, steps: int = 1
) -> dict[str, Any]:
    """Sequences with every mask that a call takes; `padding` on one side, or on either if none is given.

    Of several `steps` each may have targets of its own.
    """
    rows, width = r.randint(1, 4), r.randint(2, 13)
    shape = (rows, width)
    ids = torch.tensor([[r.randrange(model.config.vocab_size) for _ in range(width)] for _ in range(rows)])
    attended, train = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.bool)
    side, share = padding or r.choice(("left", "right")), r.choice((0.3, 0.6, 1.0))
    for row in range(rows):
        length = r.choice((width, r.randint(2, width)))
        start = 0 if side == "right" else width - length
        attended[row, start : start + length] = 1
        trained = max(2, round(share * length))
        scattered = r.random() < 0.3
        for token in range(start, start + length):
            train[row, token] = r.random() < share if scattered else token < start + trained
        train[row, start + 1] = True  # no row without a training part
    batch: dict[str, Any] = {"input_ids": ids, "train_mask": train, "attention_mask": attended}
    if r.random() < 0.3:
        batch["loss_mask"] = torch.tensor([[r.random() < 0.6 for _ in range(width)] for _ in range(rows)])
    if segments and r.random() < 0.35:
        batch["segment_ids"] = _segments(r, attended)
    elif positions and model.config.model_type != "bloom" and r.random() < 0.2:
        forward = torch.tensor([[r.randint(1, 3) for _ in range(width)] for _ in range(rows)])
        batch["position_ids"] = forward.cumsum(1)
    if steps > 1 and r.random() < 0.5:
        batch["step_ids"] = torch.tensor([[r.randint(0, steps) for _ in range(width)] for _ in range(rows)])
    return batch


def _segments(r: Random, attended: torch.Tensor) -> torch.Tensor:
    """Examples one behind the other or mixed, behind tokens that all of them see or none."""
    result = torch.zeros_like(attended)
    mixed, shared = r.random() < 0.2, r.choice((0, 0, 1, 2))
    for row in range(len(attended)):
        number = 0
        for token, seen in enumerate(attended[row].tolist()):
            number = r.randrange(3) if mixed else number + (r.random() < 0.25)
            first = int(attended[row, :token].sum()) < shared
            result[row, token] = -1 if seen and first else number
    return result

"""BLOOM: ALiBi, a norm on the embeddings, projections fused head by head."""

from __future__ import annotations

import math
from typing import Any

import torch

from tintformer.auxiliary.families.family import Config, Family, Paths
from tintformer.auxiliary.ops import Alibi


def _alibi(model: Any, config: Config) -> Alibi:
    """Slopes 2^(-8 h / H) for a power of two of heads; otherwise odd steps of the next power fill up (Press et al.)."""
    # The slopes of _get_alibi_slopes in modeling_bloom.py.
    heads = config.num_attention_heads
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * head / power) for head in range(1, power + 1)]
    slopes += [2 ** (-4 * head / power) for head in range(1, 2 * (heads - power) + 1, 2)]
    dtype = torch.promote_types(model.dtype, torch.float32)
    # An offloaded model says "meta", where there are no numbers; an attention takes them to where it is.
    device = "cpu" if model.device.type == "meta" else model.device
    return Alibi(slopes=torch.tensor(slopes, dtype=dtype).to(device))


FAMILY = Family(
    model_type="bloom",
    title="BLOOM",
    example="bigscience/bloom-560m",
    paths=Paths(
        tokens="transformer.word_embeddings",
        embedding_norm="transformer.word_embeddings_layernorm",
        blocks="transformer.h",
        final_norm="transformer.ln_f",
        head="lm_head",
        attention_norm="input_layernorm",
        query_key_value="self_attention.query_key_value",
        output="self_attention.dense",
        mlp_norm="post_attention_layernorm",
        up="mlp.dense_h_to_4h",
        activation="mlp.gelu_impl",
        down="mlp.dense_4h_to_h",
    ),
    norm="layer",
    # BloomBlock.forward: the flag takes the normalised input, not the input, as the residual.
    order=lambda config: "normed_residual" if config.apply_residual_connection_post_layernorm else "pre_norm",
    # BloomAttention._reshape views the fused output as [heads, 3, head width].
    fused_by_head=True,
    position_scheme="alibi",
    position=_alibi,
    # Not a setting: BloomMLP always has BloomGelu, whose sqrt(2 / pi) is written with eight digits.
    activation=lambda config: "gelu_bloom",
    notes="embedding norm; projections fused by head",
)

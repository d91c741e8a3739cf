"""Qwen3: LLaMA with norms on queries and keys, and heads whose total width need not be the model's."""

from __future__ import annotations

from dataclasses import replace

from tintformer.auxiliary.families.family import Family, rotary_of, sliding_layers
from tintformer.auxiliary.families.llama import PATHS

FAMILY = Family(
    model_type="qwen3",
    title="Qwen3",
    example="Qwen/Qwen3-0.6B",
    # Qwen3Attention normalises each head by itself, over the head's width.
    paths=replace(PATHS, query_norm="self_attn.q_norm", key_norm="self_attn.k_norm"),
    norm="rms",
    position_scheme="rotary",
    position=rotary_of("model.rotary_emb"),
    window=sliding_layers,
    activation=lambda config: config.hidden_act,
    notes="query/key norms; sliding window by layer",
)

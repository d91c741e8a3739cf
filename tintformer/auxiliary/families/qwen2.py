"""Qwen2: LLaMA with biases on queries, keys and values; a sliding window on the upper layers by choice."""

from __future__ import annotations

from tintformer.auxiliary.families.family import Family, rotary_of, sliding_layers
from tintformer.auxiliary.families.llama import PATHS

FAMILY = Family(
    model_type="qwen2",
    title="Qwen2",
    example="Qwen/Qwen2.5-0.5B",
    paths=PATHS,
    norm="rms",
    position_scheme="rotary",
    position=rotary_of("model.rotary_emb"),
    # Qwen2Config makes layer_types from max_window_layers: full attention below it, sliding from it on.
    window=sliding_layers,
    activation=lambda config: config.hidden_act,
    notes="query/key/value biases; sliding window by layer",
)

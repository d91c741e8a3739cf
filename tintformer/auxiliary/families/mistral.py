"""Mistral: LLaMA with a sliding window on every layer."""

from __future__ import annotations

from tintformer.auxiliary.families.family import Family, rotary_of
from tintformer.auxiliary.families.llama import PATHS

FAMILY = Family(
    model_type="mistral",
    title="Mistral",
    example="mistralai/Mistral-7B-v0.1",
    paths=PATHS,
    norm="rms",
    position_scheme="rotary",
    position=rotary_of("model.rotary_emb"),
    # On every layer or, where sliding_window is null (from v0.2 on), on none.
    window=lambda config, layer: config.sliding_window,
    activation=lambda config: config.hidden_act,
    notes="sliding window",
)

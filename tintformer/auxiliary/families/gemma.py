"""Gemma: LLaMA with norm scales 1 + weight, scaled embeddings and a GELU-gated unit."""

from __future__ import annotations

from typing import Any

from tintformer.auxiliary.families.family import Config, Family, rotary_of
from tintformer.auxiliary.families.llama import PATHS


def _embedding_scale(model: Any) -> float:
    """The model's own factor, rounded as the model rounds it; unrounded on the meta device, where buffers are empty."""
    # GemmaTextScaledWordEmbedding keeps sqrt(hidden_size) as a buffer, rounded to float32 or less.
    tokens = model.get_submodule(PATHS.tokens)
    return float(tokens.scalar_embed_scale if tokens.embed_scale.is_meta else tokens.embed_scale)


def _refuse(config: Config) -> list[str]:
    return ["use_bidirectional_attention: only causal decoders learn here"] * bool(config.use_bidirectional_attention)


FAMILY = Family(
    model_type="gemma",
    title="Gemma",
    example="google/gemma-2b",
    paths=PATHS,
    norm="rms",
    # GemmaRMSNorm.forward: output * (1.0 + weight), so that a weight of zero is the identity.
    unit_offset=True,
    embedding_scale=_embedding_scale,
    position_scheme="rotary",
    position=rotary_of("model.rotary_emb"),
    activation=lambda config: config.hidden_act,
    refuse=_refuse,
    notes="norm scale 1 + weight; scaled embeddings",
)

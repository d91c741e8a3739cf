"""LLaMA: RMSNorm, rotary positions, gated unit, grouped queries. Many families differ from it by a flag only."""

from __future__ import annotations

from tintformer.auxiliary.families.family import Family, Paths, rotary_of

PATHS = Paths(
    tokens="model.embed_tokens",
    blocks="model.layers",
    final_norm="model.norm",
    head="lm_head",
    attention_norm="input_layernorm",
    query="self_attn.q_proj",
    key="self_attn.k_proj",
    value="self_attn.v_proj",
    output="self_attn.o_proj",
    mlp_norm="post_attention_layernorm",
    up="mlp.up_proj",
    gate="mlp.gate_proj",
    activation="mlp.act_fn",
    down="mlp.down_proj",
)

FAMILY = Family(
    model_type="llama",
    title="LLaMA",
    example="HuggingFaceTB/SmolLM2-135M",
    paths=PATHS,
    norm="rms",
    position_scheme="rotary",
    position=rotary_of("model.rotary_emb"),
    activation=lambda config: config.hidden_act,
    notes="rotary scaling default, linear, llama3, yarn",
)

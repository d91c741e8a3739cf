"""GPT-Neo: learned positions, unscaled attention, every other layer local."""

from __future__ import annotations

from tintformer.auxiliary.families.family import Family, Paths

FAMILY = Family(
    model_type="gpt_neo",
    title="GPT-Neo",
    example="EleutherAI/gpt-neo-125m",
    paths=Paths(
        tokens="transformer.wte",
        positions="transformer.wpe",
        blocks="transformer.h",
        final_norm="transformer.ln_f",
        head="lm_head",
        attention_norm="ln_1",
        query="attn.attention.q_proj",
        key="attn.attention.k_proj",
        value="attn.attention.v_proj",
        output="attn.attention.out_proj",
        mlp_norm="ln_2",
        up="mlp.c_fc",
        activation="mlp.act",
        down="mlp.c_proj",
    ),
    position_scheme="learned",
    norm="layer",
    # GPTNeoSelfAttention does not divide the scores by sqrt(head width).
    scale=lambda config, layer: 1.0,
    # A local layer sees window_size tokens with the current one: the band of GPTNeoSelfAttention's bias buffer.
    window=lambda config, layer: config.window_size if config.attention_layers[layer] == "local" else None,
    activation=lambda config: config.activation_function,
    notes="unscaled scores; every other layer local",
)

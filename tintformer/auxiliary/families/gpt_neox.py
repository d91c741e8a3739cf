"""GPT-NeoX and Pythia: parallel blocks with two norms (or sequential ones), partial rotary, fused by head."""

from __future__ import annotations

from tintformer.auxiliary.families.family import Family, Paths, rotary_of

FAMILY = Family(
    model_type="gpt_neox",
    title="GPT-NeoX / Pythia",
    example="EleutherAI/pythia-160m",
    paths=Paths(
        tokens="gpt_neox.embed_in",
        blocks="gpt_neox.layers",
        final_norm="gpt_neox.final_layer_norm",
        head="lm_head",
        attention_norm="input_layernorm",
        query_key_value="attention.query_key_value",
        output="attention.dense",
        mlp_norm="post_attention_layernorm",
        up="mlp.dense_h_to_4h",
        activation="mlp.act",
        down="mlp.dense_4h_to_h",
    ),
    norm="layer",
    order=lambda config: "parallel" if config.use_parallel_residual else "pre_norm",
    # GPTNeoXAttention.forward: view(heads, 3 * head width), then chunk(3).
    fused_by_head=True,
    position_scheme="rotary",
    position=rotary_of("gpt_neox.rotary_emb"),
    activation=lambda config: config.hidden_act,
    notes="partial rotary; projections fused by head",
)

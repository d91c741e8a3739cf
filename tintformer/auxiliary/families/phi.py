"""Phi: attention and feed-forward in parallel behind one norm, partial rotary, biases everywhere."""

from __future__ import annotations

from tintformer.auxiliary.families.family import Family, Paths, rotary_of

FAMILY = Family(
    model_type="phi",
    title="Phi",
    example="microsoft/phi-1_5",
    paths=Paths(
        tokens="model.embed_tokens",
        blocks="model.layers",
        final_norm="model.final_layernorm",
        head="lm_head",
        attention_norm="input_layernorm",
        query="self_attn.q_proj",
        key="self_attn.k_proj",
        value="self_attn.v_proj",
        # There with qk_layernorm=True alone; `describe` skips a path at which there is no module.
        query_norm="self_attn.q_layernorm",
        key_norm="self_attn.k_layernorm",
        output="self_attn.dense",
        up="mlp.fc1",
        activation="mlp.activation_fn",
        down="mlp.fc2",
    ),
    norm="layer",
    # PhiDecoderLayer.forward: attention and feed-forward read the same normalised input, and both are added.
    order=lambda config: "parallel_one_norm",
    position_scheme="rotary",
    position=rotary_of("model.rotary_emb"),
    activation=lambda config: config.hidden_act,
    notes="partial rotary; head bias; query/key norms by choice",
)

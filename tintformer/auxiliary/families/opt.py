"""OPT, the 350m kind included: post-norm, in/out projections and no final norm."""

from __future__ import annotations

from tintformer.auxiliary.families.family import Family, Paths

FAMILY = Family(
    model_type="opt",
    title="OPT",
    example="facebook/opt-125m",
    paths=Paths(
        tokens="model.decoder.embed_tokens",
        project_in="model.decoder.project_in",
        positions="model.decoder.embed_positions",
        blocks="model.decoder.layers",
        final_norm="model.decoder.final_layer_norm",
        project_out="model.decoder.project_out",
        head="lm_head",
        attention_norm="self_attn_layer_norm",
        query="self_attn.q_proj",
        key="self_attn.k_proj",
        value="self_attn.v_proj",
        output="self_attn.out_proj",
        mlp_norm="final_layer_norm",  # of a block; the decoder has one of the same name, above
        up="fc1",
        activation="activation_fn",
        down="fc2",
    ),
    position_scheme="learned",
    norm="layer",
    # opt-350m alone is post-norm; OPTDecoder then has no final norm, and `describe` finds none at its path.
    order=lambda config: "pre_norm" if config.do_layer_norm_before else "post_norm",
    # OPTLearnedPositionalEmbedding.offset: position 0 is row 2 of the table, and the rows before it are never read.
    position_offset=2,
    activation=lambda config: config.activation_function,
    notes="position offset 2; the 350m kind: post-norm, in/out projections, no final norm",
)

"""GPT-2: fused Conv1D projections, learned positions; also layer-wise and unscaled attention."""

from __future__ import annotations

from tintformer.auxiliary.families.family import Config, Family, Paths


def _scale(config: Config, layer: int) -> float:
    # As GPT2Attention.__init__ computes its `scaling` from these two settings.
    head_dim = config.hidden_size // config.num_attention_heads
    scale = head_dim**-0.5 if config.scale_attn_weights else 1.0
    return scale / (layer + 1) if config.scale_attn_by_inverse_layer_idx else scale


FAMILY = Family(
    model_type="gpt2",
    title="GPT-2",
    example="gpt2",
    paths=Paths(
        tokens="transformer.wte",
        positions="transformer.wpe",
        blocks="transformer.h",
        final_norm="transformer.ln_f",
        head="lm_head",
        attention_norm="ln_1",
        query_key_value="attn.c_attn",
        output="attn.c_proj",
        mlp_norm="ln_2",
        up="mlp.c_fc",
        activation="mlp.act",
        down="mlp.c_proj",
    ),
    position_scheme="learned",
    norm="layer",
    # Conv1D of transformers/pytorch_utils.py: a linear whose weight is [in, out].
    transposed=True,
    scale=_scale,
    activation=lambda config: config.activation_function,
    notes="projections fused as Conv1D; layer-wise or no scaling of scores",
)

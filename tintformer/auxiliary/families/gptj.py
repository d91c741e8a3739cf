"""GPT-J: attention and feed-forward in parallel behind one norm, interleaved partial rotary positions."""

from __future__ import annotations

from typing import Any

import torch

from tintformer.auxiliary.families.family import Config, Family, Paths
from tintformer.auxiliary.ops import Rotary


def _refuse(config: Config) -> list[str]:
    # Without rotary_dim GPTJAttention makes a table of the model's width for heads that are narrower, and fails itself.
    if not config.rotary_dim:
        return ["rotary_dim is not set: its table does not fit the heads"]
    width = config.n_embd // config.n_head
    if config.rotary_dim > width:
        return [f"rotary_dim is {config.rotary_dim}, but a head is {width} wide"]
    return []


def _rotary(model: Any, config: Config) -> Rotary:
    """GPT-J keeps a table of sines instead of a rotary module; the frequencies are those of its table."""
    # create_sinusoidal_positions in modeling_gptj.py has the base 10000 in its code, not in the configuration, and
    # rotate_every_two turns neighbouring coordinates.
    exponents = torch.arange(0, config.rotary_dim, 2, device=model.device) / config.rotary_dim
    return Rotary(inverse_frequencies=1.0 / 10000**exponents, interleaved=True)


FAMILY = Family(
    model_type="gptj",
    title="GPT-J",
    example="EleutherAI/gpt-j-6b",
    paths=Paths(
        tokens="transformer.wte",
        blocks="transformer.h",
        final_norm="transformer.ln_f",
        head="lm_head",
        attention_norm="ln_1",
        query="attn.q_proj",
        key="attn.k_proj",
        value="attn.v_proj",
        output="attn.out_proj",
        up="mlp.fc_in",
        activation="mlp.act",
        down="mlp.fc_out",
    ),
    norm="layer",
    order=lambda config: "parallel_one_norm",
    position_scheme="rotary",
    position=_rotary,
    activation=lambda config: config.activation_function,
    refuse=_refuse,
    notes="partial, interleaved rotary; head bias",
)

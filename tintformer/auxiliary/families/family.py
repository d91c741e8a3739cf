"""What a family file says: a literal map from our names to the family's module paths, and its flags."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tintformer.auxiliary.ops import Alibi, Rotary

Config = Any
"""A Hugging Face configuration; its fields differ by family, which is why family files read it."""

Order = Literal["pre_norm", "post_norm", "parallel", "parallel_one_norm", "normed_residual"]
"""How a block is wired:
`pre_norm`         x + A(N x), then x + M(N x)
`post_norm`        N(x + A x), then N(x + M x)
`parallel`         x + A(N x) + M(N' x)
`parallel_one_norm` x + A(N x) + M(N x)
`normed_residual`  n = N x; n + A n, then the same with M
"""


@dataclass(frozen=True, kw_only=True)
class Paths:
    """Module paths: the upper ones from the model's root, the lower ones from a block."""

    tokens: str
    blocks: str
    head: str
    positions: str | None = None
    embedding_norm: str | None = None
    project_in: str | None = None
    final_norm: str | None = None
    project_out: str | None = None

    attention_norm: str
    output: str
    up: str
    down: str
    activation: str
    """The module that applies the activation; only the oracle needs it."""
    mlp_norm: str | None = None
    query: str | None = None
    key: str | None = None
    value: str | None = None
    query_key_value: str | None = None
    """The fused projection, in place of `query`, `key` and `value`."""
    query_norm: str | None = None
    key_norm: str | None = None
    gate: str | None = None
    """The gated half of a gated unit; its presence makes the feed-forward one."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """How models of one Hugging Face `model_type` become a description."""

    model_type: str
    title: str
    example: str
    """A well-known checkpoint, for the table of families."""
    paths: Paths
    norm: Literal["layer", "rms"]
    activation: Callable[[Config], str]
    order: Callable[[Config], Order] = lambda config: "pre_norm"
    scale: Callable[[Config, int], float] | None = None
    """Factor on the scores of a layer; None: 1 / sqrt(head width)."""
    window: Callable[[Config, int], int | None] = lambda config, layer: None
    """How many tokens a layer's attention sees; None: all."""
    position_scheme: Literal["learned", "rotary", "alibi"]
    position: Callable[[Any, Config], Rotary | Alibi] | None = None
    """Rotary or ALiBi from the model and its config; None where positions are learned."""
    position_offset: int = 0
    embedding_scale: Callable[[Any], float] = lambda model: 1.0
    transposed: bool = False
    """Linears are stored `[in, out]` (Conv1D)."""
    fused_by_head: bool = False
    """The fused projection holds query, key, value of one head after the other, instead of three blocks."""
    unit_offset: bool = False
    """Norm scales are 1 + weight."""
    refuse: Callable[[Config], list[str]] = lambda config: []
    """Reasons why a configuration of this family cannot be described; [] if it can."""
    notes: str = ""
    """What the other fields do not say, for the table."""


def rotary_of(path: str) -> Callable[[Any, Config], Rotary]:
    """Frequencies and scaling from the model's own rotary module, so that every scaling scheme of HF's works."""

    def read(model: Any, config: Config) -> Rotary:
        module = model.get_submodule(path)
        # attention_scaling is yarn's factor; the module computes inv_freq for its scheme once, when it is made.
        return Rotary(inverse_frequencies=module.inv_freq, scaling=float(module.attention_scaling))

    return read


def sliding_layers(config: Config, layer: int) -> int | None:
    """The window of configurations that list `layer_types`."""
    return config.sliding_window if config.layer_types[layer] == "sliding_attention" else None

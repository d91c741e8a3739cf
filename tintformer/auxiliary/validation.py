"""Everything that keeps a model from being described, found in one pass and reported together.

Whether the ops of a description fit each other: a configuration may say one size and the weights another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import index
from typing import Any

import torch

from tintformer.auxiliary.activations import FUNCTIONS
from tintformer.auxiliary.alterations import alterations
from tintformer.auxiliary.description import Auxiliary
from tintformer.auxiliary.families import families
from tintformer.auxiliary.families.family import Config, Family
from tintformer.auxiliary.ops import Activation, Attend, Fork, Join, Linear, Move, Norm, Step
from tintformer.auxiliary.placement import placed_parameters
from tintformer.errors import UnsupportedModelError

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
"""Rotary schemes whose frequencies do not depend on the input; dynamic and longrope change them as they go."""

COMPUTED = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""Dtypes that torch computes in; float8 and the like are for storage alone."""

_SIZES = (
    "vocab_size",
    "max_position_embeddings",
    "hidden_size",
    "word_embed_proj_dim",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rotary_dim",
    "intermediate_size",
    "n_inner",
    "ffn_dim",
)
"""What any family counts, under the names that transformers has for all; where one is None, the family derives it."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")


def find_family(config: Config, name: str) -> Family:
    """The family of a supported configuration; otherwise one error that lists every reason."""
    # By model_type and never by a part of a name; everything is collected, so that a user sees all reasons at once.
    family = families().get(config.model_type)
    reasons = config_reasons(config)
    if family is None:
        known = ", ".join(sorted(families()))
        reasons.insert(0, f"model_type {config.model_type!r} is not a known family; known are {known}")
    else:
        # What else there is to say is computed from the sizes.
        reasons += _size_reasons(config) or (_window_reasons(config, family) + family.refuse(config))
        if (function := family.activation(config)) not in FUNCTIONS:
            reasons.append(f"activation {function!r} has no derivative here; known are {', '.join(sorted(FUNCTIONS))}")
    if family is None or reasons:
        raise UnsupportedModelError(name, reasons)
    return family


def config_reasons(config: Config) -> list[str]:
    """Reasons that hold for any family, read from the configuration alone."""
    # Silence would be worse than a refusal: a setting that is ignored gives plausible numbers of another model.
    reasons: list[str] = []
    experts = next((key for key in _EXPERTS if (getattr(config, key, None) or 0) > 1), None)
    if experts:
        reasons.append(f"mixture of experts ({experts}={getattr(config, experts)}): routing has no simulated backward")
    if getattr(config, "is_encoder_decoder", False):
        reasons.append("encoder-decoder: only decoders are simulated")
    if getattr(config, "add_cross_attention", False):
        reasons.append("cross-attention (add_cross_attention=True): only self-attention is simulated")
    if (method := _quantisation(config)) not in (None, "gguf"):  # GGUF files are dequantised as they are read
        reasons.append(f"quantised weights ({method}): load the full-precision checkpoint")
    for cap in _CAPS:
        if getattr(config, cap, None) is not None:
            reasons.append(f"soft-capping ({cap}={getattr(config, cap)}) has no simulated backward")
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in ROPE_TYPES:
        reasons.append(f"rotary scheme {rope!r} changes its frequencies with the input; known are {ROPE_TYPES}")
    return reasons


def _size_reasons(config: Config) -> list[str]:
    """Sizes that no model has, and heads that cannot be shared out."""
    found = {config.attribute_map.get(key, key): getattr(config, key, None) for key in _SIZES}
    reasons = [
        f"{key}={value!r:.40}: a size is a whole number of at least 1"
        for key, value in found.items()
        if not (value is None or _is_size(value))
    ]
    heads, shared = (getattr(config, key, None) for key in ("num_attention_heads", "num_key_value_heads"))
    if not reasons and heads and shared and heads % shared:
        reasons.append(f"{heads} query heads cannot share {shared} key/value heads evenly")
    return reasons


def _window_reasons(config: Config, family: Family) -> list[str]:
    """Windows through which a layer sees nothing, for which every implementation computes something else."""
    layers: int = config.num_hidden_layers
    try:
        windows = {family.window(config, layer) for layer in range(layers)} - {None}
    except IndexError:  # a configuration that was changed since its class checked it
        return [f"it has {layers} layers and lists the attention of fewer: make the two agree"]
    return [
        f"a window of {window!r:.40} tokens: a layer that has one sees at least 1, the token itself"
        for window in windows
        if not _is_size(window)
    ]


def _is_size(value: Any) -> bool:
    """Also of numpy and torch, which configurations may hold."""
    try:
        return index(value) >= 1
    except TypeError:
        return False


def _quantisation(config: Config) -> str | None:
    found = getattr(config, "quantization_config", None)
    if found is None:
        return None
    method = found.get("quant_method") if isinstance(found, dict) else getattr(found, "quant_method", None)
    return str(getattr(method, "value", method))


def check_model(model: Any, name: str, *, finite: bool = False) -> Family:
    """The family of a supported model object that computes as its class says and whose weights are there and finite.

    `finite` says that they are known to be: to read them all takes longer than to load them.
    """
    family = find_family(model.config, name)
    reasons = alterations(model)
    if model.get_output_embeddings() is None:
        reasons.append(f"{type(model).__name__} has no language-model head; load it as a causal language model")
    placed = placed_parameters(model)
    for parameter_name, (parameter, _) in placed.items():
        if parameter.is_meta:
            reasons.append(f"parameter {parameter_name} has no data (device meta)")
        elif parameter.dtype not in COMPUTED:
            reasons.append(f"parameter {parameter_name} has dtype {parameter.dtype}: quantised weights do not learn")
        elif not parameter.numel():  # of which there is no smallest element
            reasons.append(f"parameter {parameter_name} is empty, of shape {tuple(parameter.shape)}")
        elif not (finite or all(torch.isfinite(end) for end in parameter.aminmax())):  # in no memory, unlike one by one
            reasons.append(f"parameter {parameter_name} contains NaN or infinity: the checkpoint is damaged")
    if len(found := Counter(data.dtype for data, _ in placed.values())) > 1:
        dtypes = ", ".join(f"{dtype} ({count})" for dtype, count in found.most_common())
        reasons.append(f"parameters of several dtypes, {dtypes}: convert it, e.g. model.to(torch.float32)")
    if reasons:
        raise UnsupportedModelError(name, reasons)
    return family


def check_widths(auxiliary: Auxiliary) -> None:
    """Refuse a model in which an op gets another width than it has weights for."""
    # torch would say so in the middle of a pass, in terms of matrices that no user has seen.
    try:
        width = auxiliary.embedding.tokens.source.shape[-1]
        if auxiliary.embedding.projection is not None:
            width = _after((auxiliary.embedding.projection,), width)
        for steps in (*auxiliary.blocks, auxiliary.final):
            width = _after(steps, width)
        _require("the head", auxiliary.head.weight.source.shape[-1], width)
    except _Misfit as misfit:
        raise UnsupportedModelError(auxiliary.name, [f"{misfit}: its sizes contradict each other"]) from None


class _Misfit(Exception):
    """An op and what reaches it are of different widths."""


def _require(what: str, width: int, found: int) -> None:
    if width != found:
        raise _Misfit(f"{what} takes {width} numbers a token and gets {found}")


def _after(steps: Sequence[Step], width: int) -> int:
    """The width of a stream behind steps."""
    for step in steps:
        match step:
            case Linear():
                outputs, inputs = _shape(step)
                _require(step.name, inputs, width)
                width = outputs
            case Norm():
                if step.scale is not None:
                    _require(step.name, step.scale.source.shape[0] * step.num_groups, width)
            case Fork():
                width = _joined(step.join, [_after(branch, width) for branch in step.branches])
            case Activation() | Move():
                pass
    return width


def _joined(join: Join, widths: list[int]) -> int:
    if isinstance(join, Attend):
        query, key = join.num_heads * join.head_dim, join.num_key_value_heads * join.head_dim
        for branch, wanted, found in zip(("queries", "keys", "values"), (query, key, key), widths, strict=True):
            _require(f"{join.name} ({branch})", wanted, found)
        return query
    for other in widths[1:]:
        _require(join.name, widths[0], other)
    return widths[0]


def _shape(op: Linear) -> tuple[int, int]:
    """Outputs and inputs, without reading the weight."""
    first, second = op.weight.source.shape
    outputs, inputs = (second, first) if op.weight.transposed else (first, second)
    return outputs if op.weight.part is None else outputs // op.weight.part.count, inputs

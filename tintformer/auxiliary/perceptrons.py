"""Linear regression and multi-layer perceptrons as auxiliaries: they learn from `Examples`, vectors instead of tokens.

A token is a row of a table, and so is its target; a vector is a sum of the rows of the identity. With the identity as
embedding and as head all that is written for language models holds for them as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from tintformer.auxiliary.description import Auxiliary, Embedding, Head
from tintformer.auxiliary.model_record import ModelRecord
from tintformer.auxiliary.ops import Activation, Linear, Step, Weight
from tintformer.auxiliary.validation import COMPUTED, check_widths
from tintformer.errors import InputError, UnsupportedModelError, brief
from tintformer.typed_fields import Range, checked

Width = Annotated[int, Range(at_least=1, at_most=2**16)]

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh}
"""Those of a perceptron, by the names of the ops."""


def regression(
    inputs: int,
    outputs: int = 1,
    *,
    bias: bool = False,
    weight: Any = None,
    dtype: torch.dtype = torch.float32,
) -> Auxiliary:
    """Linear regression y = W x (+ b) as an auxiliary, which learns from `Examples`.

    Args:
        inputs: Numbers in an input.
        outputs: Numbers in a target.
        bias: Whether there is one; it begins as 0.
        weight: The matrix to begin with, `[outputs, inputs]`; None: zeros.
        dtype: What it computes in.
    """
    widths = [checked(name, width, Width, InputError) for name, width in (("inputs", inputs), ("outputs", outputs))]
    layer = nn.Linear(*widths, bias=checked("bias", bias, bool, InputError), dtype=_floating(dtype))
    begin = torch.zeros_like(layer.weight) if weight is None else torch.as_tensor(weight, dtype=dtype)
    if begin.shape != layer.weight.shape:
        raise InputError(f"weight has shape {tuple(begin.shape)}; it must be [outputs, inputs] = {widths[::-1]}")
    with torch.no_grad():
        layer.weight.copy_(begin)
        if bias:
            layer.bias.zero_()
    return _describe(nn.Sequential(layer), f"regression {inputs} -> {outputs}")


def mlp(
    layers: Sequence[int] | nn.Sequential,
    *,
    activation: str = "relu",
    bias: bool = True,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Auxiliary:
    """A perceptron of any depth as an auxiliary, which learns from `Examples`; each of its layers is a block.

    Args:
        layers: The widths from the input to the output, such as `[8, 64, 1]`, initialised as torch does it; or a
            `torch.nn.Sequential` of `Linear` and activations, which is shared, not copied, and to which the other
            arguments do not apply.
        activation: Between the layers: relu, gelu, silu or tanh.
        bias: Whether the layers have one.
        seed: Of the initial weights.
        dtype: What it computes in.
    """
    if isinstance(layers, nn.Sequential):
        return _describe(layers, "mlp")
    widths = _widths(layers)
    if checked("activation", activation, str, InputError) not in ACTIVATIONS:
        raise InputError(f"activation={activation!r} is unknown here; choose one of {', '.join(ACTIVATIONS)}")
    modules: list[nn.Module] = []
    # torch's own initialisation draws from the global generator, which is left as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(checked("seed", seed, Annotated[int, Range(at_least=0)], InputError))
        for inputs, outputs in pairwise(widths):
            linear = nn.Linear(inputs, outputs, bias=checked("bias", bias, bool, InputError), dtype=_floating(dtype))
            modules += [linear, ACTIVATIONS[activation]()]
    return _describe(nn.Sequential(*modules[:-1]), f"mlp {'-'.join(map(str, widths))}")


def _widths(layers: Any) -> list[int]:
    if not isinstance(layers, list | tuple) or len(layers) < 2:
        raise InputError(f"layers={brief(layers)} must be at least two widths, or a torch.nn.Sequential")
    return [checked("layers", width, Width, InputError) for width in layers]


def _floating(dtype: Any) -> torch.dtype:
    if dtype not in COMPUTED:
        raise InputError(f"dtype={brief(dtype)} is no floating-point type of torch; use torch.float32 or torch.float64")
    return dtype


def _describe(model: nn.Sequential, name: str) -> Auxiliary:
    """Blocks of a linear and what follows it; tensors are shared with the model."""
    _check_modules(model, name)
    blocks: list[list[Step]] = []
    for path, module in model.named_children():
        if isinstance(module, nn.Linear):
            blocks.append([_linear(path, module, number=len(blocks))])
        else:
            function = next(key for key, kind in ACTIVATIONS.items() if type(module) is kind)
            blocks[-1].append(Activation(name=f"blocks.{len(blocks) - 1}.activation", function=function))
    linears = [module for module in model if isinstance(module, nn.Linear)]
    auxiliary = Auxiliary(
        name=name,
        family="perceptron",
        embedding=Embedding(tokens=_identity("inputs", linears[0].weight, linears[0].in_features)),
        blocks=tuple(map(tuple, blocks)),
        final=(),
        head=Head(weight=_identity("outputs", linears[-1].weight, linears[-1].out_features)),
        max_positions=None,
        model=model,
        record=ModelRecord(model),
        takes_examples=True,
    )
    check_widths(auxiliary)
    return auxiliary


def _linear(path: str, module: nn.Linear, *, number: int) -> Linear:
    weights = {key: Weight(name=f"{path}.{key}", source=value) for key, value in module.named_parameters()}
    return Linear(name=f"blocks.{number}.linear", weight=weights["weight"], bias=weights.get("bias"))


def _identity(name: str, like: Tensor, width: int) -> Weight:
    return Weight(name=name, source=torch.eye(width, dtype=like.dtype, device=like.device))


def _check_modules(model: nn.Sequential, name: str) -> None:
    reasons: list[str] = []
    children = list(model)
    if not children or type(children[0]) is not nn.Linear:
        reasons.append("its first module is no torch.nn.Linear")
    for path, module in model.named_children():
        plain_gelu = not isinstance(module, nn.GELU) or module.approximate == "none"
        if type(module) not in (nn.Linear, *ACTIVATIONS.values()) or not plain_gelu:
            known = ", ".join(kind.__name__ for kind in ACTIVATIONS.values())
            reasons.append(f"module {path} is a {type(module).__name__}; known are Linear, {known}")
    for path, parameter in model.named_parameters():
        if parameter.dtype not in COMPUTED or parameter.is_meta:
            reasons.append(f"parameter {path} has dtype {parameter.dtype} on {parameter.device}: it cannot learn")
        elif not bool(torch.isfinite(parameter).all()):
            reasons.append(f"parameter {path} contains NaN or infinity")
    if len({parameter.dtype for parameter in model.parameters()}) > 1:
        reasons.append("parameters of several dtypes: convert it, e.g. model.to(torch.float32)")
    if reasons:
        raise UnsupportedModelError(name, reasons)

"""A private twin of the Hugging Face model: its own modules and config, the same tensors, swapped backward passes.

Autograd runs it. Where the rule asks for a difference, an autograd function takes it; where it asks for another
attention gradient, a torch function mode takes over the softmax.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from tintformer.auxiliary.families.family import Family
from tintformer.rule.learning_rule import Gradient, LearningRule

_SOFTMAX = {functional.softmax, torch.softmax, Tensor.softmax}


class OracleMode(TorchFunctionMode):
    """Undoes the casts to float32 inside a float64 model, and takes over every softmax, all of which are attention's.

    Casts undone: RMSNorm, eager softmax, rotary modules, the query/key casts of GPT-J and GPT-Neo. Models in float32
    are left as they are.
    """

    def __init__(self, rule: LearningRule, dtype: torch.dtype):
        super().__init__()
        self.rule, self.dtype = rule, dtype
        self.pending: dict[str, Tensor] | None = None
        """Filled with the gradient of the output of the attention whose softmax ran last."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _SOFTMAX:
            return self._softmax(args[0] if args else kwargs["input"])
        # The families compute norms, softmaxes and angles in float32 whatever the model's dtype. Left alone, a float64
        # model would agree with the walk to 1e-7 only, and an error in a formula could hide below that.
        if self.dtype == torch.float64:
            if func is Tensor.float:
                return args[0].double()
            if func is Tensor.to:
                args = tuple(torch.float64 if value is torch.float32 else value for value in args)
                kwargs = {key: torch.float64 if value is torch.float32 else value for key, value in kwargs.items()}
        return func(*args, **kwargs)

    def _softmax(self, scores: Tensor) -> Tensor:
        match self.rule.attention_gradient:
            case "value":
                # The paper's "Fuzzy backpropagation via stop gradients", literally: no gradient passes the scores.
                return torch.softmax(scores, dim=-1).detach()
            case "exact":
                return torch.softmax(scores, dim=-1)
            case "perturbed":
                self.pending = {} if self.rule.epsilon_mode == "relative" else None
                return PerturbedSoftmax.apply(scores, self.rule.difference_step("perturbed"), self.pending)

    def watch_output(self, module: Any, args: tuple[Any, ...]) -> None:
        """Forward pre-hook of an output projection: its input's gradient sets the step of a relative difference."""
        # Backward runs from the output projection to the softmax, so the cell is filled by the time it is read.
        cell, self.pending = self.pending, None
        if cell is not None and args[0].requires_grad:
            args[0].register_hook(lambda gradient: cell.__setitem__("value", gradient))


def make_twin(model: Any, family: Family, rule: LearningRule, mode: OracleMode) -> Any:
    """A copy of the module tree in evaluation mode with eager attention; the original is not touched."""
    # What the memo holds counts as copied: the twin has modules of its own and the model's very tensors.
    shared = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    twin = copy.deepcopy(model, memo=shared)
    twin.eval()
    # The other implementations are one kernel, with no softmax inside that could be taken over.
    twin.set_attn_implementation("eager")
    for module in twin.modules():
        # What the user has hooked to the model is not meant for the twin's passes.
        for hooks in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks):
            hooks.clear()
        module._backward_pre_hooks.clear()
        if hasattr(module, "reorder_and_upcast_attn"):
            module.reorder_and_upcast_attn = False  # the same numbers, without its cast to float32
    for block in twin.get_submodule(family.paths.blocks):
        block.get_submodule(family.paths.output).register_forward_pre_hook(mode.watch_output)
    if rule.norm_gradient != "exact":
        for norm in _norms(twin, family):
            norm.forward = _norm_by_difference(norm, rule, mode, family.unit_offset)
    if rule.activation_gradient != "exact":
        for block in twin.get_submodule(family.paths.blocks):
            activation = block.get_submodule(family.paths.activation)
            activation.forward = by_difference(activation.forward, rule.activation_gradient, rule, mode)
    if mode.dtype == torch.float64:
        _restore_double(twin)
    return twin


def _norms(twin: nn.Module, family: Family) -> Iterator[nn.Module]:
    paths = family.paths
    for block in twin.get_submodule(paths.blocks).children():
        names = (paths.attention_norm, paths.mlp_norm, paths.query_norm, paths.key_norm)
        yield from (block.get_submodule(name) for name in names if name and _has(block, name))
    if paths.final_norm and _has(twin, paths.final_norm):
        yield twin.get_submodule(paths.final_norm)


def _has(module: nn.Module, path: str) -> bool:
    return any(name == path for name, _ in module.named_modules())


def by_difference(
    function: Callable[[Tensor], Tensor], scheme: Gradient, rule: LearningRule, mode: OracleMode
) -> Callable[[Tensor], Tensor]:
    """The function with its gradient taken as a difference."""

    def in_mode(x: Tensor) -> Tensor:
        with mode:  # autograd runs a backward outside of the modes that surround it
            return function(x)

    relative, step = rule.epsilon_mode == "relative", rule.difference_step(scheme)
    return lambda x: DifferenceFunction.apply(x, in_mode, scheme, step, relative)


def _norm_by_difference(norm: Any, rule: LearningRule, mode: OracleMode, unit_offset: bool) -> Callable[..., Tensor]:
    """The norm with its normalisation differentiated by differences; scale and bias stay with autograd."""
    # The difference is for f alone, whose Jacobian is symmetric; with a scale inside it would not be.
    bare = copy.deepcopy(norm).to(mode.dtype)
    with torch.no_grad():
        for name, parameter in bare.named_parameters():
            parameter.fill_(1.0 if name == "weight" and not unit_offset else 0.0)
    bare.requires_grad_(False)
    normalise = by_difference(bare, rule.norm_gradient, rule, mode)

    def forward(x: Tensor) -> Tensor:
        y = normalise(x)
        if norm.weight is not None:
            y = y * (norm.weight + 1 if unit_offset else norm.weight)
        bias = getattr(norm, "bias", None)
        return y if bias is None else y + bias

    return forward


def _restore_double(twin: Any) -> None:
    """Tables that the families compute in float32 once and for all, in float64: GPT-J's sines and BLOOM's ALiBi."""
    for module in twin.modules():
        if hasattr(module, "embed_positions") and hasattr(module, "pos_embd_dim"):
            dim, device = module.pos_embd_dim, module.embed_positions.device
            # Frequencies are float32's, as the model was trained with; only what is computed of them is widened.
            frequencies = (1.0 / (10000 ** (torch.arange(0, dim, 2, device=device) / dim))).double()
            angles = torch.arange(module.max_positions, device=device).double()[:, None] * frequencies
            module.embed_positions = torch.cat((angles.sin(), angles.cos()), dim=1)
        if hasattr(module, "build_alibi_tensor"):
            module.build_alibi_tensor = _double_alibi


def _double_alibi(attention_mask: Tensor, num_heads: int, dtype: torch.dtype) -> Tensor:
    """BLOOM's bias for an unpadded sequence; its slopes are powers of a base that float32 rounds."""
    closest = 1 << (num_heads.bit_length() - 1)
    base = 2.0 ** -(2.0 ** (3 - (closest.bit_length() - 1)))
    slopes = [base**power for power in range(1, closest + 1)]
    extra = 2.0 ** -(2.0 ** (2 - (closest.bit_length() - 1)))
    slopes += [extra**power for power in range(1, 2 * (num_heads - closest), 2)]
    places = torch.arange(attention_mask.shape[1], dtype=dtype, device=attention_mask.device)
    return places.new_tensor(slopes)[:, None, None] * places


# Written here again, as the differences below are: an oracle that shared code with the rule would share its errors.
def root_mean_square(x: Tensor) -> Tensor:
    return x.pow(2).mean(dim=-1, keepdim=True).add(torch.finfo(x.dtype).tiny).pow(0.5)


class DifferenceFunction(torch.autograd.Function):
    """function(x), whose Jacobian is symmetric, with J g taken as a difference along the incoming gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, function: Callable[[Tensor], Tensor], scheme: str, epsilon: float, relative: bool
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.function, ctx.scheme, ctx.epsilon, ctx.relative = function, scheme, epsilon, relative
        return function(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (x,), (gradient,) = ctx.saved_tensors, gradients
        eps = torch.full_like(x[..., :1], ctx.epsilon)
        if ctx.relative:
            # The step itself is relative here, where `rule.difference` scales the direction: the same by another way.
            eps = eps * root_mean_square(x) / root_mean_square(gradient)
        high = ctx.function(x + eps * gradient)
        if ctx.scheme == "first_order":
            return (high - ctx.function(x)) / eps, None, None, None, None
        return (high - ctx.function(x - eps * gradient)) / (2 * eps), None, None, None, None


class PerturbedSoftmax(torch.autograd.Function):
    """Softmax over the last dimension whose backward is a central difference of softmaxes."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, epsilon: float, output_gradient: dict[str, Tensor] | None) -> Tensor:
        ctx.save_for_backward(scores)
        ctx.epsilon, ctx.output_gradient = epsilon, output_gradient
        return torch.softmax(scores, dim=-1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (scores,), (gradient,) = ctx.saved_tensors, gradients
        eps = torch.full_like(scores[..., :1], ctx.epsilon)
        if ctx.output_gradient is not None:
            # Scores are [1, heads, tokens, tokens]; the gradient of the attention's output is [1, tokens, width].
            eps = eps / root_mean_square(ctx.output_gradient["value"])[:, None]
        plus, minus = torch.softmax(scores + eps * gradient, -1), torch.softmax(scores - eps * gradient, -1)
        # Autograd carries it on to queries and keys, where `rule.attention` writes the products out.
        return (plus - minus) / (2 * eps), None, None

"""A torch function mode under which a Hugging Face model keeps its precision and the rule's attention gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from tintformer.engines.oracle.difference import PerturbedSoftmax
from tintformer.rule.learning_rule import LearningRule

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
                return torch.softmax(scores, dim=-1).detach()
            case "exact":
                return torch.softmax(scores, dim=-1)
            case "perturbed":
                self.pending = {} if self.rule.epsilon_mode == "relative" else None
                return PerturbedSoftmax.apply(scores, self.rule.difference_step("perturbed"), self.pending)

    def watch_output(self, module: Any, args: tuple[Any, ...]) -> None:
        """Forward pre-hook of an output projection: its input's gradient sets the step of a relative difference."""
        cell, self.pending = self.pending, None
        if cell is not None and args[0].requires_grad:
            args[0].register_hook(lambda gradient: cell.__setitem__("value", gradient))

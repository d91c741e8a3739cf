"""Explicit fine-tuning of a whole batch at once by torch.func: vmap over the gradient and over the updated model."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from tintformer.benchmarks.explicit import token_losses


class PerSample:
    """A Hugging Face model with a copy of its moved parameters for each sequence."""

    def __init__(self, model: Any, names: Sequence[str], learning_rate: float):
        self.model, self.learning_rate = model, learning_rate
        self.moved: dict[str, Tensor] = {name: model.get_parameter(name).detach() for name in names}

    def copies_bytes(self, batch: int) -> int:
        """The size of one gradient for each sequence, the least that this way of working holds at once."""
        return batch * sum(value.numel() * value.element_size() for value in self.moved.values())

    @torch.no_grad()
    def tune_each(self, ids: Tensor, num_train: int) -> Tensor:
        """Learn from the first tokens of each sequence; the losses of the others, row by row."""

        def losses(parameters: dict[str, Tensor], row: Tensor, first: int) -> Tensor:
            # Some families look for padding among the tokens unless a mask says that there is none; vmap cannot.
            options = {"attention_mask": torch.ones(1, len(row), dtype=torch.long), "use_cache": False}
            logits = functional_call(self.model, parameters, (row[None],), options).logits
            return token_losses(logits, row[None], first)

        def training_loss(parameters: dict[str, Tensor], row: Tensor) -> Tensor:
            return losses(parameters, row, 1).sum()

        def evaluation_losses(parameters: dict[str, Tensor], row: Tensor) -> Tensor:
            return losses(parameters, row, num_train)

        with _eager_attention(self.model):
            updated: Any = vmap(grad(training_loss), in_dims=(None, 0))(self.moved, ids[:, :num_train])
            for name, gradient in updated.items():
                gradient.mul_(-self.learning_rate).add_(self.moved[name])
            return vmap(evaluation_losses)(updated, ids).flatten()


@contextmanager
def _eager_attention(model: Any) -> Generator[None]:
    """Attention written out: vmap has no rule for the fused one and would take it sequence by sequence."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)

"""The baselines: explicit fine-tuning with autograd, sequence by sequence, or a whole batch at once by torch.func.

`fine_tune` is the one that a text is compared with, at a rate of its own.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from tintformer.auxiliary.description import Auxiliary
from tintformer.learning.rate_selection import RateChoice, choose_rate
from tintformer.rule.learning_rule import LearningRule
from tintformer.rule.optimiser import trainable_weights


@dataclass(frozen=True, kw_only=True)
class FineTuned:
    """What explicit fine-tuning made of one text."""

    choice: RateChoice
    """Its own rate, chosen inside the training part."""
    steps: int
    losses: tuple[float, ...]
    """Of the tokens that are evaluated, in nats; infinite where the model has diverged."""

    @property
    def loss(self) -> float:
        return sum(self.losses) / len(self.losses)


def fine_tune(auxiliary: Auxiliary, input_ids: Tensor, num_train: int, *, steps: int = 1) -> FineTuned:
    """Train the Hugging Face model itself on the first tokens of one sequence, score the others, and put it back.

    Autograd and SGD move every weight of the blocks and the final norm, at a rate that is chosen for this way to learn.
    """
    auxiliary.require_one_device("explicit fine-tuning")
    train_mask = torch.arange(input_ids.shape[1])[None] < num_train
    choice = choose_rate(auxiliary, LearningRule.full(learning_rate=0.0, steps=steps), input_ids, train_mask)
    tuner = Explicit(auxiliary.model, block_names(auxiliary), choice.rate, steps)
    losses: list[float] = tuner.tune_each(input_ids.to(auxiliary.device), num_train).tolist()
    finite = (loss if math.isfinite(loss) else math.inf for loss in losses)
    return FineTuned(choice=choice, steps=steps, losses=tuple(finite))


class Explicit:
    """A Hugging Face model whose named parameters take steps of SGD and are put back afterwards.

    Efficient where that costs nothing in plainness: one backup for all sequences, updates in place, no gradient for
    what stays, and only the training part in the first pass.
    """

    def __init__(self, model: Any, names: Sequence[str], learning_rate: float, steps: int = 1):
        self.model, self.learning_rate, self.steps = model, learning_rate, steps
        self.moved: list[Tensor] = [model.get_parameter(name) for name in names]
        self.backup = [parameter.detach().clone() for parameter in self.moved]

    def tune_each(self, ids: Tensor, num_train: int) -> Tensor:
        """Learn from the first tokens of each sequence; the losses of the others, row by row."""
        losses: list[Tensor] = []
        with self._learning():
            for row in ids.split(1):
                self._learn(row[:, :num_train])
                losses.append(self._losses(row, num_train))
                self._restore()
        return torch.cat(losses)

    def tune_once(self, examples: Tensor, inputs: Tensor, score_batch: int) -> Tensor:
        """Learn from all examples together; the losses of the test inputs."""
        with self._learning():
            self._learn(examples)
            losses = [self._losses(rows, 1) for rows in inputs.split(score_batch)]
            self._restore()
        return torch.cat(losses)

    def _learn(self, ids: Tensor) -> None:
        for _ in range(self.steps):
            self._step(ids)

    def _step(self, ids: Tensor) -> None:
        logits = self.model(ids, use_cache=False).logits
        token_losses(logits, ids, 1).sum().backward()
        with torch.no_grad():
            for parameter in self.moved:
                assert parameter.grad is not None, "every moved parameter is behind the loss"
                parameter.add_(parameter.grad, alpha=-self.learning_rate)
                parameter.grad = None

    @torch.no_grad()
    def _losses(self, ids: Tensor, first: int) -> Tensor:
        return token_losses(self.model(ids, use_cache=False).logits, ids, first)

    @torch.no_grad()
    def _restore(self) -> None:
        for parameter, original in zip(self.moved, self.backup, strict=True):
            parameter.copy_(original)

    @contextmanager
    def _learning(self) -> Generator[None]:
        """Only the moved parameters ask for gradients, and none has changed afterwards."""
        parameters: list[Tensor] = list(self.model.parameters())
        before = [parameter.requires_grad for parameter in parameters]
        for parameter in parameters:
            parameter.requires_grad_(False)
        for parameter in self.moved:
            parameter.requires_grad_(True)
        try:
            yield
        except BaseException:
            self._restore()
            self.model.zero_grad(set_to_none=True)
            raise
        finally:
            for parameter, flag in zip(parameters, before, strict=True):
                parameter.requires_grad_(flag)


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


def token_losses(logits: Tensor, ids: Tensor, first: int) -> Tensor:
    """The negative log-likelihood of every token from number `first` on, in float32 at least, row by row."""
    predictions = logits[:, first - 1 : -1].flatten(0, 1)
    predictions = predictions.to(torch.promote_types(predictions.dtype, torch.float32))
    return functional.cross_entropy(predictions, ids[:, first:].flatten(), reduction="none")


def rule_names(auxiliary: Auxiliary, rule: LearningRule) -> list[str]:
    """Parameters that the rule moves; a fused one counts whole, because autograd cannot move a part of it."""
    return list(dict.fromkeys(weight.name for weight in trainable_weights(rule, auxiliary)))


def block_names(auxiliary: Auxiliary) -> list[str]:
    """All parameters of the blocks and the final norm: what plain SGD moves with embeddings and head frozen."""
    return rule_names(auxiliary, LearningRule.full(learning_rate=0.0))


def all_names(auxiliary: Auxiliary) -> list[str]:
    """Every parameter of the model, tied ones once."""
    return [name for name, _ in auxiliary.model.named_parameters()]

"""The frozen language-model head and the gradient of the loss at its input (paper, section "Language model head").

B batch, T tokens, D width, V vocabulary. `train_positions[b, t]` says whether t predicts a training
target, token t + 1 (`Batch.train_positions`). Targets are tokens, or the vectors of `Examples`, `[..., V]`.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.rule.learning_rule import LearningRule, Loss


def loss_of(rule: LearningRule, auxiliary: Auxiliary) -> Loss:
    """What is minimised: the rule's choice, or half the squared error, the one loss of vectors."""
    return "mse" if auxiliary.takes_examples else rule.loss


def target_rows(weight: Float[Tensor, "V D"], targets: Shaped[Tensor, ...]) -> Float[Tensor, "... D"]:
    """The head's rows of tokens; of vectors, the sums of rows that they stand for."""
    return targets.to(weight) @ weight if targets.is_floating_point() else weight[targets]


def forward(
    x: Float[Tensor, "*rows D"], weight: Float[Tensor, "V D"], bias: Float[Tensor, " V"] | None
) -> Float[Tensor, "*rows V"]:
    logits = x @ weight.mT
    return logits if bias is None else logits + bias


def softmax(logits: Float[Tensor, "*rows V"]) -> Float[Tensor, "*rows V"]:
    """Probabilities. torch's own softmax adds up a large vocabulary in float32 one by one and errs by 2e-5; a sum of
    its own is added in pairs.
    """
    # Less the largest logit, which changes nothing but keeps exp from overflowing (float32: above 88).
    weights = (logits - logits.amax(-1, keepdim=True)).exp()
    return weights / weights.sum(-1, keepdim=True)


def loss_gradient(
    x: Float[Tensor, "B T D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, " V"] | None,
    targets: Shaped[Tensor, "B T *vector"],
    train_positions: Bool[Tensor, "B T"],
    *,
    loss: Loss,
    mean: bool,
) -> Float[Tensor, "B T D"]:
    """dx, summed (or averaged) over the training targets of each sequence; exactly zero elsewhere.

    cross_entropy: E^T (softmax(E x + b) - onehot). mse: x - e. quad (Saunshi et al.): E^T E x - e; e the target's row.
    """
    # Only where a target is: with a large vocabulary these products are a third of the work of a small model.
    dx = torch.zeros_like(x)
    dx[train_positions] = gradient_at(x[train_positions], weight, bias, targets[train_positions], loss=loss)
    # Every sequence learns on its own, so a mean is over its own targets; one without any divides by 1.
    if mean:
        dx = dx / train_positions.sum(-1).clamp(min=1)[:, None, None]
    return dx


def gradient_at(
    x: Float[Tensor, "*rows D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, " V"] | None,
    targets: Shaped[Tensor, ...],
    *,
    loss: Loss,
) -> Float[Tensor, "*rows D"]:
    """dx of positions that predict a training target each."""
    # E^T onehot is a row of E, looked up. The paper takes the next token's embedding for it: the same where head and
    # embedding are tied, and the head's row is what the loss has where they are not.
    rows = target_rows(weight, targets)
    # Paper, "KL-loss gradient through auxiliary's language model head"; E itself stays frozen, as there.
    if loss == "cross_entropy":
        return softmax(forward(x, weight, bias)) @ weight - rows
    if loss == "mse":
        return x - rows
    # The paper's remark prints mean(E) - e; E^T E x - e is what the quad loss has.
    return (x @ weight.mT) @ weight - rows


def token_loss(logits: Float[Tensor, "rows V"], targets: Shaped[Tensor, ...]) -> Float[Tensor, " rows"]:
    """Negative log-likelihood of each target, in nats; the squared error of a vector."""
    if targets.is_floating_point():
        return (logits - targets).square().sum(-1)
    return torch.nn.functional.cross_entropy(logits, targets, reduction="none")

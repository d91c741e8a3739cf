"""The oracle of a perceptron: its torch modules under autograd, one sequence of examples at a time."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch.func import functional_call

from tintformer.auxiliary.description import Auxiliary
from tintformer.engines.oracle.torch_descent import TorchDescent
from tintformer.engines.oracle.twin import OracleMode, by_difference
from tintformer.errors import DivergenceError
from tintformer.execution.batch import Batch
from tintformer.execution.engine import undisturbed
from tintformer.execution.examples import ExampleBatch
from tintformer.execution.output import EngineResult, Predictions
from tintformer.rule.learning_rule import LearningRule


class ExampleOracle:
    """What autograd makes of `0.5 * (model(x) - y).pow(2).sum()`: the truth for models that take examples."""

    hooks = None  # autograd runs the pass, not the walk

    def __init__(self, auxiliary: Auxiliary, rule: LearningRule, *, statistics: Mapping[str, Tensor] | None = None):
        self.auxiliary, self.rule, self.statistics = auxiliary, rule, statistics
        self.dtype = torch.promote_types(auxiliary.dtype, torch.float32)
        self.twin = self._twin()
        self.lock = threading.Lock()
        """Held by whoever runs the twin, whose parameters are exchanged for every call of it."""

    def __reduce__(self) -> Any:
        return partial(type(self), statistics=self.statistics), (self.auxiliary, self.rule)

    def _twin(self) -> nn.Sequential:
        """Modules of its own, whose activations pass gradients as the rule says."""
        twin = copy.deepcopy(self.auxiliary.model).to(self.dtype)
        scheme = self.rule.activation_gradient
        for module in twin:
            if scheme != "exact" and not isinstance(module, nn.Linear):
                mode = OracleMode(self.rule, self.dtype)
                module.forward = by_difference(module.forward, scheme, self.rule, mode)
        return twin

    @undisturbed
    @torch.inference_mode(False)  # which autograd cannot work in
    def run(self, batch: Batch, *, logits_at: Bool[Tensor, "B T"] | None, before: bool) -> EngineResult:
        """Train every sequence on its own, then predict."""
        assert isinstance(batch, ExampleBatch), "models that take examples are given no other batch"
        # Autograd takes no tensor of inference mode, but a copy of it.
        x, y = batch.x.to(self.dtype).clone(), batch.y.to(self.dtype).clone()
        original = {name: value.detach().to(self.dtype).clone() for name, value in self._parameters()}
        rates = [self.rule.rate] * len(x) if batch.rates is None else batch.rates.tolist()
        with self.lock:
            tuned = [self._train(original, x[row], y[row], batch.train_mask[row], rates[row]) for row in range(len(x))]
            after = self._predictions(tuned, x, y, batch.score_mask, logits_at)
            if not bool(torch.isfinite(after.losses).all()):
                raise DivergenceError.at("the loss", max(rates))
            untrained = self._predictions([original] * len(x), x, y, batch.score_mask, logits_at) if before else None
        names = self._trainable()
        return EngineResult(
            after=after,
            before=untrained,
            updates=lambda row: {name: tuned[row][name] - original[name] for name in names},
        )

    def _parameters(self) -> list[tuple[str, Tensor]]:
        return list(self.auxiliary.model.named_parameters())

    def _trainable(self) -> list[str]:
        """The parameters of the top layers that learn, read off torch's own names: `4.weight` is that of module 4."""
        linears = [path for path, module in self.twin.named_children() if isinstance(module, nn.Linear)]
        learning = linears[len(linears) - (self.rule.layers or len(linears)) :]
        return [name for name, _ in self._parameters() if name.split(".")[0] in learning]

    def _train(
        self, original: dict[str, Tensor], x: Tensor, y: Tensor, train: Tensor, rate: float
    ) -> dict[str, Tensor]:
        values, names = dict(original), self._trainable()
        descent = TorchDescent(self.auxiliary, self.rule, rate, {name: values[name] for name in names}, self.statistics)
        for step in range(1, self.rule.steps + 1):
            trained = {name: values[name].clone().requires_grad_() for name in names}
            with torch.enable_grad():
                output = functional_call(self.twin, {**values, **trained}, (x[train],))
                loss = 0.5 * (output - y[train]).pow(2).sum()
                loss = loss / int(train.sum()) if self.rule.reduction == "mean" else loss
                gradients = torch.autograd.grad(loss, list(trained.values()))
            values |= descent.step(dict(zip(names, gradients, strict=True)), step)
        return values

    @torch.no_grad()
    def _predictions(
        self, values: list[dict[str, Tensor]], x: Tensor, y: Tensor, evaluated: Tensor, logits_at: Tensor | None
    ) -> Predictions:
        outputs = torch.stack([functional_call(self.twin, each, (row,)) for each, row in zip(values, x, strict=True)])
        losses = torch.nn.functional.mse_loss(outputs[evaluated], y[evaluated], reduction="none").sum(-1)
        return Predictions(losses=losses, logits=None if logits_at is None else outputs[logits_at])

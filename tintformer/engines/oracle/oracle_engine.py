"""The oracle engine: the Hugging Face model under autograd, plain SGD, one sequence and one segment at a time.

There are no masks here: padding is cut away, and every segment (behind the shared tokens) runs as a sequence of its
own, with the model's own causal mask, windows and positions. What the walk does with masks must agree with that.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from tintformer.auxiliary.description import Auxiliary
from tintformer.auxiliary.families import families
from tintformer.engines.oracle.torch_descent import TorchDescent
from tintformer.engines.oracle.twin import OracleMode, make_twin
from tintformer.errors import DivergenceError, InputError, NonFiniteError
from tintformer.execution.batch import Batch
from tintformer.execution.engine import undisturbed
from tintformer.execution.inputs import SHARED
from tintformer.execution.output import EngineResult, Predictions
from tintformer.rule.learning_rule import LearningRule


@dataclass(frozen=True)
class Segment:
    """One segment of a row, as the model sees it: no padding, no other segment."""

    tokens: Tensor
    positions: Tensor
    places: list[int]
    """Where each token stands in the row."""
    targets: list[tuple[int, int, int]]
    """(position in this segment, target token, the step that trains on it or 0) of every training target."""

    def at(self, step: int) -> list[tuple[int, int]]:
        """The targets of a step."""
        return [(place, token) for place, token, number in self.targets if number in (0, step)]


class OracleEngine:
    """The truth that the other engines are measured against: slow, simple and independent."""

    hooks = None  # autograd runs the pass, not the walk

    def __init__(self, auxiliary: Auxiliary, rule: LearningRule, *, statistics: Mapping[str, Tensor] | None = None):
        auxiliary.require_one_device("the oracle")
        self.statistics = statistics
        model = auxiliary.model
        self.auxiliary, self.rule, self.family = auxiliary, rule, families()[auxiliary.family]
        # Half-precision weights are widened: the truth for them is what exact arithmetic makes of the rounded weights.
        self.dtype = torch.promote_types(auxiliary.dtype, torch.float32)
        self.mode = OracleMode(rule, self.dtype)
        self.twin = make_twin(model, self.family, rule, self.mode)
        self.takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        original = self._original()
        # A tied head is listed once, as the embedding.
        head = f"{self.family.paths.head}.weight"
        self.head_weight = head if head in original else f"{self.family.paths.tokens}.weight"
        self.masks = self._trainable(original)
        self.lock = threading.Lock()
        """Held by whoever runs the twin, whose parameters are exchanged for every call of it."""

    def __reduce__(self) -> Any:
        # A copy makes a twin of its own: the functions that are patched into this one know only this one's modules.
        return partial(type(self), statistics=self.statistics), (self.auxiliary, self.rule)

    def _original(self) -> dict[str, Tensor]:
        """The parameters as they are now, widened."""
        parameters = self.auxiliary.model.named_parameters()
        # Autograd takes no tensor of inference mode, but a copy of it.
        return {name: value.detach().to(self.dtype, copy=value.is_inference()) for name, value in parameters}

    @undisturbed
    @torch.inference_mode(False)  # which autograd cannot work in
    def run(self, batch: Batch, *, logits_at: Bool[Tensor, "B T"] | None, before: bool) -> EngineResult:
        """Train every sequence on its own, then predict."""
        rows = [_segments(batch, row) for row in range(len(batch.input_ids))]
        if self.rule.takes_differences():
            _refuse_shared_tokens(batch, rows)
        original = self._original()
        with self.lock:
            rates = [self.rule.rate] * len(rows) if batch.rates is None else batch.rates.tolist()
            tuned = [self._train(original, row, rate) for row, rate in zip(rows, rates, strict=True)]
            after = self._predictions(tuned, rows, batch, logits_at)
            if not bool(torch.isfinite(after.losses).all()):
                self._blame(self._predictions([original] * len(rows), rows, batch, None), max(rates))
            return EngineResult(
                after=after,
                before=self._predictions([original] * len(rows), rows, batch, logits_at) if before else None,
                updates=lambda row: {name: tuned[row][name] - original[name] for name in self.masks},
            )

    def _blame(self, untrained: Predictions, rate: float) -> NoReturn:
        """Say what made a loss non-finite: the model as it came, or learning."""
        if not bool(torch.isfinite(untrained.losses).all()):
            raise NonFiniteError(
                f"{self.auxiliary.name} gives NaN or infinity before anything is learnt, so the learning rate is "
                "not the cause; check its configuration (norm epsilons, rotary settings) and its weights"
            )
        raise DivergenceError.at("the loss", rate)

    def _predictions(
        self, values: list[dict[str, Tensor]], rows: list[list[Segment]], batch: Batch, logits_at: Tensor | None
    ) -> Predictions:
        at = batch.evaluation_positions if logits_at is None else logits_at
        logits = torch.cat([self._predict(*pair, at[i]) for i, pair in enumerate(zip(values, rows, strict=True))])
        evaluated = batch.evaluation_positions
        losses = -logits[evaluated[at]].log_softmax(-1).gather(1, batch.targets[evaluated][:, None])[:, 0]
        return Predictions(losses=losses, logits=None if logits_at is None else logits)

    def _train(self, original: dict[str, Tensor], row: list[Segment], rate: float) -> dict[str, Tensor]:
        # Functional: the parameters are handed to each call, so the user's model is read and never written.
        values = dict(original)
        trainable = {name: values[name] for name in self.masks}
        descent = TorchDescent(self.auxiliary, self.rule, rate, trainable, self.statistics)
        for step in range(1, self.rule.steps + 1):
            count = sum(len(segment.at(step)) for segment in row)
            if count == 0:
                continue
            trained = {name: values[name].clone().requires_grad_() for name in self.masks}
            with torch.enable_grad(), self.mode:
                losses = [self._loss({**values, **trained}, segment, step) for segment in row if segment.at(step)]
                loss = torch.stack(losses).sum()
                loss = loss / count if self.rule.reduction == "mean" else loss
                gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True, materialize_grads=True)
            found = zip(self.masks.items(), gradients, strict=True)
            values |= descent.step({name: mask * gradient for (name, mask), gradient in found}, step)
        return values

    def _loss(self, values: dict[str, Tensor], segment: Segment, step: int) -> Tensor:
        inputs, logits = self._call(values, segment)
        places = torch.tensor([place for place, _ in segment.at(step)], device=logits.device)
        targets = torch.tensor([token for _, token in segment.at(step)], device=logits.device)
        x, matrix = inputs[places], values[self.head_weight]
        # Losses, not gradients: the formulas of `rule.head` are derived anew by autograd. For the quad loss (Saunshi
        # et al.) that settles what the paper's remark misprints: E^T E x - e.
        match self.rule.loss:
            case "cross_entropy":
                return functional.cross_entropy(logits[places], targets, reduction="sum")
            case "mse":
                return 0.5 * (x - matrix[targets]).pow(2).sum()
            case "quad":
                return 0.5 * functional.linear(x, matrix).pow(2).sum() - (x * matrix[targets]).sum()

    @torch.no_grad()
    def _predict(self, values: dict[str, Tensor], row: list[Segment], at: Tensor) -> Tensor:
        wanted = at.nonzero().flatten().tolist()
        logits: dict[int, Tensor] = {}
        with self.mode:
            for segment in row:
                _, here = self._call(values, segment)
                for place, vector in zip(segment.places, here, strict=True):
                    # Shared tokens see only each other, so every segment
                    # computes the same for them: the first will do.
                    logits.setdefault(place, vector)
        nothing = torch.zeros_like(next(iter(logits.values())))
        chosen = [logits.get(place, nothing) for place in wanted]
        return torch.stack(chosen) if chosen else nothing[None][:0]

    def _call(self, values: dict[str, Tensor], segment: Segment) -> tuple[Tensor, Tensor]:
        """The input of the head and the logits, `[tokens, width]` and `[tokens, vocabulary]`."""
        seen: list[Tensor] = []
        head = self.twin.get_submodule(self.family.paths.head)
        # Where it enters the head, whatever stands between that and the last block (a projection in OPT-350m).
        handle = head.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
        tokens = segment.tokens[None]
        # An explicit mask of ones: without it, HF takes a gap in the position ids for the start of another sequence.
        options: dict[str, Any] = {
            "input_ids": tokens,
            "attention_mask": torch.ones_like(tokens),
            "use_cache": False,
        }
        if self.takes_positions:
            options["position_ids"] = segment.positions[None]
        try:
            logits = functional_call(self.twin, values, args=(), kwargs=options).logits
        finally:
            handle.remove()
        return seen[0][0], logits[0]

    def _trainable(self, original: dict[str, Tensor]) -> dict[str, Tensor]:
        """For each parameter that is trained, what to multiply its gradient by: 1, or a mask over fused rows."""
        # Read off Hugging Face's parameter names, not off the groups of the description:
        # `rule.trainable` must come to the same by its own way.
        paths, rule = self.family.paths, self.rule
        num_blocks = len(self.twin.get_submodule(paths.blocks))
        first = num_blocks - (rule.layers or num_blocks)
        masks: dict[str, Tensor] = {}
        for name, value in original.items():
            inside = name.removeprefix(f"{paths.blocks}.")
            if inside != name:
                layer, _, inside = inside.partition(".")
                if int(layer) < first:
                    continue
            elif not (paths.final_norm and name.startswith(f"{paths.final_norm}.")):
                continue
            module, _, kind = inside.rpartition(".")
            if module in (paths.query, paths.key, paths.query_norm, paths.key_norm):
                free = rule.update_query_key
            elif module in (paths.attention_norm, paths.mlp_norm) or inside == name:
                free = kind == "bias" or rule.update_norm_scale
            else:
                free = True
            if free:
                # Autograd has one gradient for the fused parameter; with
                # frozen queries and keys their rows must not move.
                fused = module == paths.query_key_value and not rule.update_query_key
                masks[name] = self._value_rows(value) if fused else value.new_ones(())
        return masks

    def _value_rows(self, parameter: Tensor) -> Tensor:
        """1 on the outputs of a fused projection that are values, 0 on queries and keys."""
        outputs = parameter.shape[-1] if self.family.transposed else parameter.shape[0]
        heads = self.twin.config.num_attention_heads if self.family.fused_by_head else 1
        # Queries, keys, values: once in all (GPT-2), or within every head (BLOOM, GPT-NeoX).
        pattern = parameter.new_tensor([0.0, 0.0, 1.0])
        rows = pattern.repeat_interleave(outputs // (3 * heads)).repeat(heads)
        return rows if self.family.transposed or parameter.dim() == 1 else rows[:, None]


def _refuse_shared_tokens(batch: Batch, rows: list[list[Segment]]) -> None:
    """A shared token has one gradient, the sum over its segments; run apart, a difference would be taken of each."""
    for row, sequences in enumerate(rows):
        if len(sequences) > 1 and bool((batch.attention_mask[row] & (batch.segment_ids[row] == SHARED)).any()):
            raise InputError(
                f"row {row} has tokens that several segments share: the oracle runs segments apart, which is the same "
                "only if no gradient is a difference; use exact gradients, or engine='reference'"
            )


def _segments(batch: Batch, row: int) -> list[Segment]:
    """Cut a row into its segments; a pair of shared tokens is scored once, in the first of them."""
    tokens = batch.input_ids[row].tolist()
    attended, segments = batch.attention_mask[row].tolist(), batch.segment_ids[row].tolist()
    train, loss = batch.train_mask[row].tolist(), batch.loss_mask[row].tolist()
    steps = [0] * len(tokens) if batch.step_ids is None else batch.step_ids[row].tolist()
    shared = [t for t, segment in enumerate(segments) if attended[t] and segment == SHARED]
    own = sorted({segment for t, segment in enumerate(segments) if attended[t] and segment != SHARED})
    result: list[Segment] = []
    for number, segment in enumerate(own or [SHARED]):
        places = list(shared)
        if segment != SHARED:
            places += [t for t in range(len(tokens)) if attended[t] and segments[t] == segment]
        # Written out from the definition, token by token, and not read off
        # `Batch.train_positions`, which this is there to check.
        scored = [
            (index, tokens[t + 1], steps[t + 1])
            for index, t in enumerate(places)
            if t + 1 < len(tokens)
            and attended[t + 1]
            and segments[t] == segments[t + 1]
            and train[t + 1]
            and loss[t + 1]
            and (segments[t] != SHARED or number == 0)
        ]
        given = batch.position_ids
        device = batch.input_ids.device
        positions = torch.arange(len(places), device=device) if given is None else given[row, places]
        result.append(Segment(batch.input_ids[row, places], positions, places, scored))
    return result

"""`plan`: the memory and the arithmetic of a run, from the model's configuration alone."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Annotated, Any

import torch

from tintformer.auxiliary.description import Auxiliary
from tintformer.auxiliary.ops import Join, Op
from tintformer.engines.fast.fast_engine import predictions
from tintformer.engines.fast.fast_executor import FastExecutor
from tintformer.engines.reference import TensorExecutor
from tintformer.errors import InputError, TintError, brief
from tintformer.execution import walk
from tintformer.execution.batch import Batch
from tintformer.execution.output import Logits, positions_of, predict
from tintformer.rule.learning_rule import LearningRule, require_rule
from tintformer.storage.configs import meta_auxiliary, read_config
from tintformer.typed_fields import Range, checked
from tintlab.checks.plan.meter import Meter

MAX_TOKENS = 2**31
"""Of a batch: no device holds the logits of a thousandth of them."""
ENGINES = ("fast", "reference")
Count = Annotated[int, Range(at_least=1)]
PARTS = {
    "embed": "activations",
    "forward": "activations",
    "descend": "updates",
    "formed": "updates",
    "value": "updates",
    "loss_gradient": "logits",
    "losses": "logits",
    "logits": "logits",
}
"""What the methods of an executor make; gradients are all the rest."""
SLACK = 64 * 2**20
"""What the C library keeps of freed memory at most (glibc: twice its largest threshold for memory of one's own).
Without it, runs of a few hundred megabytes take a quarter more than is foreseen (`tintbench.memory_estimate`)."""
ATTENTION_PARTS = {"forward": "attention", "backward": "attention"}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run holds when it holds most, and how much it computes; bytes and floating-point operations."""

    model: str
    """What was planned for, by name."""
    engine: str
    """`fast` or `reference`."""
    dtype: str
    """Of the weights."""
    batch: int
    """Sequences."""
    tokens: int
    """Of each sequence."""
    train_tokens: int
    """Of each sequence, trained on."""
    rule: LearningRule
    """How it learns."""
    parameters: int
    """Of the model."""
    parts: dict[str, int]
    """Bytes at the moment of the peak: weights, activations, gradients, updates, attention, logits, allocator."""
    flops: int
    """Of the products: training, and the pass that predicts with what was learnt."""
    forward_flops: int
    """Of a plain forward pass over the same tokens, logits everywhere."""

    @property
    def peak(self) -> int:
        """Everything held at once, weights included."""
        return sum(self.parts.values())

    @property
    def work(self) -> int:
        """What comes on top of the weights."""
        return self.peak - self.parts["weights"]

    @property
    def passes(self) -> float:
        """The arithmetic in plain forward passes."""
        return self.flops / self.forward_flops

    def record(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {**asdict(self), "peak": self.peak, "work": self.work, "passes": self.passes}

    def require(self, memory: int) -> None:
        """Refuse what does not fit, with advice.

        Args:
            memory: Bytes that there are.
        """
        if self.peak <= memory:
            return
        if self.parts["weights"] > memory:
            remedy = "the weights alone are too large: load them in bfloat16, or spread them by a device_map"
        else:
            remedy = "take a smaller batch, fewer tokens, fewer layers or steps, bfloat16, or a device_map"
        raise TintError(
            f"{self.model} with {self.batch} x {self.tokens} tokens needs {gigabytes(self.peak)} at its peak "
            f"({gigabytes(self.parts['weights'])} of it weights), but there are {gigabytes(memory)}; {remedy}"
        )


def gigabytes(size: int) -> str:
    return f"{size / 1e9:,.2f} GB"


def plan(
    model: Any,
    *,
    tokens: int,
    batch: int = 1,
    train_tokens: int | None = None,
    rule: LearningRule | None = None,
    dtype: torch.dtype = torch.float32,
    engine: str = "fast",
    logits: Logits = "none",
) -> Plan:
    """Estimate the memory and the arithmetic of a call of `Tint`.

    No weights are read or made: the engine runs its own pass on shapes.

    Args:
        model: A name or a directory whose configuration is known without a connection, or a configuration.
        tokens: Of each sequence.
        batch: Sequences, at least 1.
        train_tokens: The first tokens of each sequence, trained on: at least 2, and less than `tokens`; None is half.
        rule: How it learns; None is `LearningRule` with its defaults.
        dtype: Of the weights: float32, bfloat16, ...
        engine: `fast` or `reference`.
        logits: Which logits the call returns: "all", "evaluation" or "none".
    """
    tokens, batch = checked("tokens", tokens, Count, InputError), checked("batch", batch, Count, InputError)
    train = tokens // 2 if train_tokens is None else checked("train_tokens", train_tokens, Count, InputError)
    checked("dtype", dtype, torch.dtype, InputError)
    _check(tokens, batch, train, engine)
    rule = LearningRule(learning_rate=1.0) if rule is None else require_rule(rule)
    if rule.is_auto:  # the choice itself is not estimated
        rule = replace(rule, learning_rate=1.0)
    named = isinstance(model, str | os.PathLike)
    config = read_config(model) if named else getattr(model, "config", model)
    name = os.fspath(model) if named else config.model_type
    auxiliary = meta_auxiliary(config, name, dtype)
    sequences = _sequences(batch, tokens, train)
    run, forward = Meter(), Meter()
    with torch.no_grad():
        _run(run, auxiliary, rule, sequences, engine, logits)
        _forward(forward, auxiliary, rule, sequences)
    names = ("weights", "activations", "gradients", "updates", "attention", "logits")
    parts = {part: run.parts_at_peak.get(part, 0) for part in names}
    return Plan(
        model=name,
        engine=engine,
        dtype=str(dtype).removeprefix("torch."),
        batch=batch,
        tokens=tokens,
        train_tokens=train,
        rule=rule,
        parameters=auxiliary.model.num_parameters(),
        parts={**parts, "allocator": SLACK},
        flops=run.flops,
        forward_flops=forward.flops,
    )


def _check(tokens: int, batch: int, train: int, engine: str) -> None:
    if engine not in ENGINES:
        raise TintError(f"engine={brief(engine)} cannot be planned; choose one of {', '.join(ENGINES)}")
    if batch * tokens > MAX_TOKENS:
        raise InputError(f"{batch} x {tokens} tokens are more than the {MAX_TOKENS} that can be planned; give fewer")
    if not 2 <= train < tokens:
        raise InputError(
            f"the training part would be {train} of {tokens} tokens; it needs at least 2, "
            "and 1 must be left to evaluate"
        )


def _sequences(batch: int, tokens: int, train: int) -> Batch:
    """Sequences of nothing, split as asked; not `Batch.of`, which would put them where the model is."""
    ids = torch.zeros(batch, tokens, dtype=torch.long)
    everywhere = torch.ones_like(ids, dtype=torch.bool)
    trained = (torch.arange(tokens) < train).expand(batch, -1)
    return Batch(
        input_ids=ids,
        attention_mask=everywhere,
        segment_ids=torch.zeros_like(ids),
        train_mask=trained,
        loss_mask=everywhere,
        score_mask=~trained,
    )


def _hold_weights(meter: Meter, auxiliary: Auxiliary) -> None:
    with meter.part("weights"):
        for tensor in chain(auxiliary.model.parameters(), auxiliary.model.buffers()):
            meter.hold(tensor)


def _run(meter: Meter, auxiliary: Auxiliary, rule: LearningRule, batch: Batch, engine: str, logits: Logits) -> None:
    """What the engine's `run` does."""
    _hold_weights(meter, auxiliary)
    executor: Any = (FastExecutor if engine == "fast" else TensorExecutor)(auxiliary, rule, batch)
    if engine == "fast":
        _watch_factors(meter, executor)
        meter.watch(executor.attention, ATTENTION_PARTS)
    meter.watch(executor, {method: part for method, part in PARTS.items() if hasattr(executor, method)})
    with meter.running(), meter.part("gradients"):
        x = walk.train_in_the_pass(executor, auxiliary, rule)
        at = positions_of(logits, batch)
        if engine == "fast":
            predictions(executor, x, at)
        else:
            predict(batch, x, at, executor.logits)


def _watch_factors(meter: Meter, executor: FastExecutor) -> None:
    """Inputs and gradients that outlive the tape as factors belong to the updates from then on."""
    descend = executor.descend

    def descend_and_claim(op: Op | Join, saved: Any, gradient: torch.Tensor) -> None:
        descend(op, saved, gradient)
        update = executor.updates.matrices.get(getattr(op, "weight", None))  # pyright: ignore[reportArgumentType]
        for factors in update.factors if update else ():
            meter.claim(factors.x)
            meter.claim(factors.g)

    executor.descend = descend_and_claim


def _forward(meter: Meter, auxiliary: Auxiliary, rule: LearningRule, batch: Batch) -> None:
    """A plain pass, with logits everywhere."""
    _hold_weights(meter, auxiliary)
    executor = FastExecutor(auxiliary, rule, batch)
    with meter.running():
        x = walk.forward_pass(executor, auxiliary)
        executor.losses(x.flatten(0, 1), batch.targets.flatten())

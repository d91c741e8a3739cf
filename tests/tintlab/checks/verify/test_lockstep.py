# pyright: basic
"""Lockstep finds what is wrong, at the op and in the phase where it happens, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from cases import covering, make_batch, make_model, make_rule
from torch import Tensor

import tintformer as tint
from tintformer.engines.fast.fast_executor import FastExecutor
from tintformer.engines.reference import TensorExecutor
from tintformer.errors import TintError
from tintformer.execution.batch import Batch
from tintformer.execution.executor import Executor, Stage
from tintlab.checks.verify.lockstep import ModuleError, compare, split_name
from tintlab.checks.verify.verified_engine import find_verified_engine

MODELS = ["gpt2", "opt-350m-kind", "llama-grouped", "qwen3", "bloom", "gptj"]


def run(
    executor: Callable[..., Executor[Any]], name: str = "gpt2", rule: str = "full", **knobs: Any
) -> list[ModuleError]:
    auxiliary = tint.load(make_model(name))
    batch = make_batch()
    checked = Batch.of(
        auxiliary, batch["input_ids"], train_mask=batch["train_mask"], attention_mask=batch["attention_mask"]
    )
    made = make_rule(rule, **knobs)
    return compare(auxiliary, made, checked, executor(auxiliary, made, checked))


def wrong(errors: list[ModuleError], tolerance: float = 1e-9) -> set[tuple[int | None, str, str]]:
    return {(error.layer, error.module, error.phase) for error in errors if not error.relative <= tolerance}


@pytest.mark.parametrize(("name", "rule"), covering(MODELS, ["default", "full"]))
def test_the_reference_agrees_with_itself_and_the_fast_engine_with_it(name: str, rule: str) -> None:
    errors = run(TensorExecutor, name, rule)
    assert all(error.absolute == error.relative == 0 for error in errors)
    assert {error.phase for error in errors} == {"forward", "backward", "descent", "updated"}
    assert {error.layer for error in errors} == {0, 1, None}
    fast = run(FastExecutor, name, rule)
    assert {(error.layer, error.module, error.phase) for error in fast} == {
        (error.layer, error.module, error.phase) for error in errors
    }
    assert max(error.relative for error in fast) < 1e-13


@pytest.mark.parametrize(
    ("engine", "name"), covering(["simulator", "network"], ["gpt2", "opt-350m-kind", "qwen3", "gptj"])
)
def test_what_is_constructed_agrees_with_the_reference(engine: str, name: str) -> None:
    errors = run(find_verified_engine(engine).executor, name, "default")
    assert max(error.relative for error in errors) < 1e-11
    reference = run(TensorExecutor, name, "default")
    assert [(e.layer, e.module, e.phase) for e in errors] == [(e.layer, e.module, e.phase) for e in reference]
    knobs: dict[str, Any] = {"stack": 3} | ({"tie_blocks": False} if engine == "simulator" else {})
    perturbed = run(find_verified_engine(engine, **knobs).executor, name, steps=2)
    assert max(error.relative for error in perturbed if not error.by_difference) < 1e-11
    assert max(error.relative for error in perturbed) < 1e-7


def test_several_steps_and_the_top_block_alone() -> None:
    errors = run(FastExecutor, steps=3, layers=1)
    assert max(error.relative for error in errors) < 1e-13
    assert not [error for error in errors if error.layer == 0 and error.phase in ("backward", "descent")]


class FourfoldBias(TensorExecutor):
    """The bias of the second feed-forward matrix moves as if each of four shards carried it."""

    def descend(self, op: Any, saved: Any, gradient: Tensor) -> None:
        super().descend(op, saved, gradient)
        if op.name == "blocks.1.down":
            self.updates[op.bias] = 4 * self.updates[op.bias]


class WrongSign(TensorExecutor):
    """One norm sends its gradient back with the sign of the paper's main text."""

    def backward(self, op: Any, saved: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        found = super().backward(op, saved, gradient)
        return (-1 * cast(Tensor, found[0]),) if op.name == "blocks.0.mlp_norm" else found


class Unscaled(TensorExecutor):
    """One attention forgets to scale its scores."""

    def forward(self, op: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Any]:
        if op.name == "blocks.1.attention":
            heads = super().forward(op, inputs)[1]
            return super().forward(op, (2 * inputs[0], *inputs[1:]))[0], heads
        return super().forward(op, inputs)


class WrongHead(TensorExecutor):
    def loss_gradient(self, x: Tensor) -> Tensor:
        return 1.01 * super().loss_gradient(x)


class WrongSum(TensorExecutor):
    """Gradients that meet at a fork of the second block are averaged; sums in the forward pass are right."""

    sums = 0

    def add(self, terms: Any) -> Tensor:
        total = super().add(terms)
        self.sums += len(terms) == 3  # queries, keys and values: the attention's own fork
        return total / 3 if len(terms) == 3 and self.sums == 1 else total


class WrongEmbedding(TensorExecutor):
    def embed(self) -> Tensor:
        return super().embed() + 1e-3


class NotANumber(TensorExecutor):
    def forward(self, op: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Any]:
        y, saved = super().forward(op, inputs)
        return (torch.full_like(y, torch.nan) if op.name == "blocks.0.up" else y), saved


@pytest.mark.parametrize(
    ("executor", "expected"),
    [
        (FourfoldBias, {(1, "down", "descent"), (1, "down", "updated")}),
        (WrongSign, {(0, "mlp_norm", "backward")}),
        (Unscaled, {(1, "attention", "forward"), (1, "attention", "updated")}),
        (WrongHead, {(None, "head", "backward")}),
        (WrongSum, {(1, "attention", "backward")}),
        (WrongEmbedding, {(None, "embedding", "forward")}),
        (NotANumber, {(0, "up", "forward"), (0, "up", "updated")}),
    ],
)
def test_an_error_is_found_where_it_is_and_goes_no_further(executor: type, expected: set[Any]) -> None:
    assert wrong(run(executor)) == expected


def test_numbers_of_an_error() -> None:
    (error,) = [error for error in run(WrongHead) if error.module == "head"]
    assert error.relative == pytest.approx(0.01) and error.absolute > 0
    (error,) = [error for error in run(NotANumber) if (error.module, error.phase, error.layer) == ("up", "forward", 0)]
    assert error.relative == error.absolute == float("inf")


def test_gradients_that_may_be_differences_are_marked() -> None:
    marked = {error.module for error in run(TensorExecutor, rule="paper") if error.by_difference}
    assert marked == {"attention_norm", "mlp_norm", "activation", "final.norm"}
    assert {error.module for error in run(TensorExecutor) if error.by_difference} == {"attention"}
    assert not [error for error in run(TensorExecutor, rule="default") if error.by_difference]


class GarbageInPadding(TensorExecutor):
    def plain(self, stream: Tensor) -> Tensor:
        return stream.masked_fill(~self.batch.attention_mask[..., None], 7.0)


def test_padding_is_not_compared() -> None:
    assert not wrong(run(GarbageInPadding))


class Boxed:
    """A stream that is no tensor."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor


class BoxedExecutor:
    """The reference behind an opaque stream, as a constructed transformer would have it."""

    def __init__(self, *arguments: Any):
        self.inner = TensorExecutor(*arguments)

    def begin(self, stage: Stage) -> None:
        self.inner.begin(stage)

    def embed(self) -> Boxed:
        return Boxed(self.inner.embed())

    def training_part(self, x: Boxed) -> Boxed:
        return Boxed(self.inner.training_part(x.tensor))

    def move(self, x: Boxed, device: Any) -> Boxed:
        return Boxed(self.inner.move(x.tensor, device))

    def forward(self, op: Any, inputs: tuple[Boxed, ...]) -> tuple[Boxed, Any]:
        y, saved = self.inner.forward(op, tuple(each.tensor for each in inputs))
        return Boxed(y), saved

    def backward(self, op: Any, saved: Any, gradient: Boxed) -> tuple[Boxed | None, ...]:
        found = self.inner.backward(op, saved, gradient.tensor)
        return tuple(None if each is None else Boxed(each) for each in found)

    def descend(self, op: Any, saved: Any, gradient: Boxed) -> None:
        self.inner.descend(op, saved, gradient.tensor)

    def add(self, terms: Any) -> Boxed:
        return Boxed(self.inner.add([each.tensor for each in terms]))

    def loss_gradient(self, x: Boxed) -> Boxed:
        return Boxed(self.inner.loss_gradient(x.tensor))

    def plain(self, stream: Boxed) -> Tensor:
        return stream.tensor

    def stream(self, tensor: Tensor, like: Boxed) -> Boxed:
        assert like.tensor.shape == tensor.shape
        return Boxed(tensor)

    def updates_of(self, op: Any, row: int | None = None) -> dict[Any, Tensor]:
        return self.inner.updates_of(op, row)


@pytest.mark.parametrize("rule", ["default", "full"])
def test_streams_may_be_of_any_kind(rule: str) -> None:
    errors = run(BoxedExecutor, "llama-grouped", rule)
    assert errors and not wrong(errors, 0.0)


def test_who_satisfies_the_protocol() -> None:
    auxiliary = tint.load(make_model("gpt2"))
    ids = torch.tensor([[3, 4, 5, 6]])
    batch = Batch.of(auxiliary, ids, train_mask=ids < 6)
    for executor in (TensorExecutor, FastExecutor, BoxedExecutor):
        assert isinstance(executor(auxiliary, make_rule("default"), batch), Executor)


def test_names() -> None:
    assert split_name("blocks.11.query") == (11, "query")
    assert split_name("final.norm") == (None, "final.norm")
    with pytest.raises(
        TintError, match="engine='oracle' cannot be verified; choose one of simulator, network, fast, reference"
    ):
        find_verified_engine("oracle")

# pyright: basic
"""The walk: the stages that it announces, what runs in each, and in which order gradients and descent come."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pytest
from cases import make_batch, make_model, make_rule
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary, forks, ops
from tintformer.auxiliary.ops import Join, Op, Step
from tintformer.engines.reference import TensorExecutor
from tintformer.execution import walk
from tintformer.execution.batch import Batch
from tintformer.execution.executor import Executor, Stage
from tintformer.execution.hooks import ObservedExecutor, rehearse
from tintformer.rule.learning_rule import LearningRule
from tintformer.rule.optimiser import trained_weights
from tintformer.storage.loading import load

STEP_STAGES = [Stage("forward", 1), Stage("backward", 1), Stage("forward", 2), Stage("backward", 2)]
"""The halves of two steps, which are counted from 1."""


class Recorder(TensorExecutor):
    """The reference executor, which writes down every call together with the stage that it fell into."""

    def __init__(self, auxiliary: Auxiliary, rule: LearningRule, batch: Batch):
        super().__init__(auxiliary, rule, batch)
        self.stages: list[Stage] = []
        self.calls: list[tuple[Stage, str, str]] = []

    def begin(self, stage: Stage) -> None:
        super().begin(stage)
        self.stages.append(stage)

    def embed(self) -> Tensor:
        self._note("embed")
        return super().embed()

    def training_part(self, x: Tensor) -> Tensor:
        self._note("training_part")
        return super().training_part(x)

    def forward(self, op: Op | Join, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Any]:
        self._note("forward", op.name)
        return super().forward(op, inputs)

    def loss_gradient(self, x: Tensor) -> Tensor:
        self._note("loss_gradient")
        return super().loss_gradient(x)

    def backward(self, op: Op | Join, saved: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        self._note("backward", op.name)
        return super().backward(op, saved, gradient)

    def descend(self, op: Op | Join, saved: Any, gradient: Tensor) -> None:
        self._note("descend", op.name)
        super().descend(op, saved, gradient)

    def _note(self, call: str, op: str = "") -> None:
        self.calls.append((self.stage, call, op))

    def during(self, stage: Stage, call: str) -> list[str]:
        """The ops of all calls of a kind in a stage, in order."""
        return [op for at, kind, op in self.calls if at == stage and kind == call]

    def kinds(self, stage: Stage) -> set[str]:
        return {kind for at, kind, _ in self.calls if at == stage}


def make_recorder(rule: str = "default", name: str = "gpt2", **knobs: Any) -> Recorder:
    auxiliary, given = load(make_model(name)), make_batch()
    return Recorder(auxiliary, make_rule(rule, **knobs), Batch.of(auxiliary, **given))


def train(recorder: Recorder, executor: Executor[Tensor] | None = None) -> Recorder:
    walk.train_in_the_pass(executor or recorder, recorder.auxiliary, recorder.rule)
    return recorder


def names(*parts: Sequence[Step]) -> list[str]:
    """Every op and every join of some parts of a model, by name."""
    steps = tuple(step for part in parts for step in part)
    return sorted([op.name for op in ops(steps)] + [fork.join.name for fork in forks(steps)])


def test_two_steps_on_the_top_block_announce_six_stages() -> None:
    recorder = train(make_recorder(steps=2, layers=1))
    assert recorder.stages == [Stage("below"), *STEP_STAGES, Stage("after")]


def test_stages_are_announced_to_what_an_observer_observes() -> None:
    recorder = make_recorder(steps=2, layers=1)
    observer = ObservedExecutor(recorder, lambda point: None, recorder.batch.num_reached)
    assert train(recorder, observer).stages == [Stage("below"), *STEP_STAGES, Stage("after")]
    assert observer.stage == Stage("after")


@pytest.mark.parametrize("name", ["gpt2", "llama", "gptj"])
def test_each_stage_runs_its_own_part_of_the_model(name: str) -> None:
    recorder = train(make_recorder(name=name, steps=2, layers=1))
    frozen, trained = recorder.auxiliary.blocks
    below, after = Stage("below"), Stage("after")
    assert recorder.during(below, "embed") == [""]
    embedding = recorder.auxiliary.embedding
    inside = [op.name for op in (embedding.projection, embedding.norm) if op is not None]
    # Frozen blocks run once for both steps and for the pass after: no later stage comes by them again.
    assert sorted(recorder.during(below, "forward")) == sorted([*inside, *names(frozen)])
    top = names(trained, recorder.auxiliary.final)
    for stage in (Stage("forward", 1), Stage("forward", 2), after):
        assert recorder.kinds(stage) == {"forward"}
        assert sorted(recorder.during(stage, "forward")) == top
    for stage in (Stage("backward", 1), Stage("backward", 2)):
        assert recorder.kinds(stage) == {"loss_gradient", "backward", "descend"}
        assert set(recorder.during(stage, "backward")) <= set(top)


@pytest.mark.parametrize("rule", ["default", "full"])
def test_descent_follows_the_backward_pass_of_the_same_op(rule: str) -> None:
    recorder = train(make_recorder(rule, steps=2, layers=1))
    auxiliary, learn = recorder.auxiliary, recorder.rule
    top = [op for steps in (auxiliary.blocks[1], auxiliary.final) for op in ops(steps)]
    trained = {op.name for op in top if trained_weights(learn, op)}
    for stage in (Stage("backward", 1), Stage("backward", 2)):
        calls = [(kind, op) for at, kind, op in recorder.calls if at == stage]
        assert calls[0] == ("loss_gradient", "")
        descended = recorder.during(stage, "descend")
        # A query's or a key's projection is met only where the rule lets a gradient reach it.
        assert set(descended) == trained
        assert len(descended) == len(trained)
        passed_on = recorder.during(stage, "backward")
        for op in trained & set(passed_on):
            assert calls.index(("backward", op)) + 1 == calls.index(("descend", op))
        # Nobody needs the gradient below the lowest trained block, so what reads its input passes none on.
        assert trained - set(passed_on) == {"blocks.1.attention_norm"}


def test_without_frozen_blocks_only_the_embedding_is_below() -> None:
    recorder = train(make_recorder(steps=1))
    assert recorder.stages == [Stage("below"), Stage("forward", 1), Stage("backward", 1), Stage("after")]
    assert recorder.kinds(Stage("below")) == {"embed", "training_part"}


def test_a_pass_before_learning_is_one_stage_that_changes_nothing() -> None:
    recorder = make_recorder(steps=2, layers=1)
    walk.forward_pass(recorder, recorder.auxiliary, "before")
    before = Stage("before")
    assert recorder.stages == [before]
    assert recorder.kinds(before) == {"embed", "forward"}
    auxiliary = recorder.auxiliary
    assert sorted(recorder.during(before, "forward")) == names(*auxiliary.blocks, auxiliary.final)
    assert recorder.updates == {}
    train(recorder)
    assert recorder.stages == [before, Stage("below"), *STEP_STAGES, Stage("after")]


def test_with_nothing_to_learn_from_there_is_the_last_pass_alone() -> None:
    auxiliary = load(make_model("gpt2"))
    batch = Batch.to_score(auxiliary, make_batch()["input_ids"])
    recorder = Recorder(auxiliary, make_rule("default", steps=2), batch)
    walk.learn_and_read(recorder, auxiliary, recorder.rule, batch)
    assert recorder.stages == [Stage("after")]
    assert recorder.kinds(Stage("after")) == {"embed", "forward"}


def test_a_rehearsal_comes_by_the_same_stages() -> None:
    auxiliary = load(make_model("gpt2"))
    rule = make_rule("default", steps=2, layers=1)
    passes = [when for when, _ in groupby(rehearse(auxiliary, rule, learns=True), key=lambda point: point.when)]
    assert passes == ["before", "below", 1, 2, "after"]
    assert {point.when for point in rehearse(auxiliary, rule, learns=False)} == {"after"}

"""The cases that are timed: sequences that learn each on its own, and one adaptation used for many inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class SequenceCase:
    """A batch whose sequences learn from their first tokens, each on its own, and predict the rest."""

    batch: int
    tokens: int
    num_train: int
    contestants: tuple[str, ...] | None = None
    """The only contestants that take part; None: all."""
    model: str | None = None
    """The only model that the case is meant for; None: every model of the run."""
    max_repetitions: int | None = None

    @property
    def num_tokens(self) -> int:
        return self.batch * self.tokens

    def describe(self) -> str:
        return f"{self.batch} x {self.tokens} tokens, {self.num_train / self.tokens:.0%} trained"


@dataclass(frozen=True, kw_only=True)
class FewShotCase:
    """One adaptation to training examples, then many test inputs."""

    num_examples: int
    num_inputs: int
    tokens: int
    score_batch: int
    """Test inputs that are scored in one call."""
    num_repeated: int = 2
    """Test inputs for which the training is really repeated; the time is scaled to all of them."""
    contestants: tuple[str, ...] | None = None
    model: str | None = None
    max_repetitions: int | None = None

    @property
    def num_tokens(self) -> int:
        return (self.num_examples + self.num_inputs) * self.tokens

    def describe(self) -> str:
        return f"{self.num_examples} examples, then {self.num_inputs} inputs, {self.tokens} tokens each"


Case = SequenceCase | FewShotCase

CASES: dict[str, Case] = {
    "8x64": SequenceCase(batch=8, tokens=64, num_train=48),
    "4x256": SequenceCase(batch=4, tokens=256, num_train=128),
    "2x1024": SequenceCase(batch=2, tokens=1024, num_train=512),
    "few_shot": FewShotCase(num_examples=32, num_inputs=200, tokens=48, score_batch=25),
    # Whether it fits in memory is the question, so once is enough.
    "long": SequenceCase(
        batch=1, tokens=4096, num_train=2048, contestants=("fast",), model="smollm2-135m", max_repetitions=1
    ),
    "simulator": SequenceCase(
        batch=1,
        tokens=256,
        num_train=128,
        contestants=("forward", "explicit_rule", "explicit_block", "fast", "simulator", "simulator_paper"),
    ),
    "tiny": SequenceCase(batch=2, tokens=16, num_train=8),
    "tiny_few_shot": FewShotCase(num_examples=3, num_inputs=4, tokens=8, score_batch=2),
}
"""Cases by name; the tiny ones are for trying the command out."""


def random_tokens(shape: tuple[int, int], vocabulary_size: int, *, seed: int) -> Tensor:
    """Token ids that depend on nothing but the seed."""
    return torch.randint(vocabulary_size, shape, generator=torch.Generator().manual_seed(seed))

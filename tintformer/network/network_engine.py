"""The compiled network as an engine: behind the same call and output as every other one."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn import functional

from tintformer.auxiliary.description import Auxiliary
from tintformer.engines.reference import check_stream
from tintformer.errors import InputError
from tintformer.execution.batch import Batch
from tintformer.execution.engine import undisturbed
from tintformer.execution.output import EngineResult, predict
from tintformer.network.network import Network
from tintformer.rule.learning_rule import LearningRule, require_built


class NetworkEngine:
    """Runs batches through compiled networks: one of `max_tokens` tokens, or one for each length that it meets."""

    hooks = None

    def __init__(self, auxiliary: Auxiliary, rule: LearningRule, *, max_tokens: int | None = None, **options: Any):
        self.auxiliary, self.rule = auxiliary, require_built(rule, "a network")
        self.max_tokens, self.options = max_tokens, options
        self.networks: dict[tuple[int, bool], Network] = {}
        """By number of tokens, and whether they keep what the model predicts before learning."""
        if max_tokens is not None:
            self.network(max_tokens, before=False)

    def network(self, num_tokens: int, *, before: bool) -> Network:
        """The network for so many tokens, compiled when it is first asked for."""
        key = num_tokens, before
        if key not in self.networks:
            self.networks[key] = Network(
                self.auxiliary, self.rule, max_tokens=num_tokens, before=before, **self.options
            )
        return self.networks[key]

    @undisturbed
    @torch.no_grad()
    def run(self, batch: Batch, *, logits_at: Bool[Tensor, "B T"] | None, before: bool) -> EngineResult:
        """Train every sequence on its own, then predict."""
        length = batch.input_ids.shape[1]
        num_tokens = self.max_tokens or length
        if length > num_tokens:
            raise InputError(
                f"a sequence has {length} tokens but the network holds {num_tokens}; compile it with "
                f"max_tokens={length}, or shorten the text"
            )
        network = self.network(num_tokens, before=before)
        network.require_current()
        padded = batch.padded(num_tokens)
        if logits_at is not None:
            logits_at = functional.pad(logits_at, (0, num_tokens - length))
        e = network.run(padded.inputs, network.flags(padded))
        after = network.head.read(e)
        check_stream(after, self.auxiliary, self.rule, padded)
        return EngineResult(
            after=predict(padded, after, logits_at, network.head.unit),
            before=None
            if network.head_before is None
            else predict(padded, network.head_before.read(e), logits_at, network.head.unit),
            updates=lambda row: network.updates(e, row),
        )

"""Streams as `tint bench` times them: documents that are read chunk by chunk, scored and learnt from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache

from tintbench.cases import StreamCase
from tintbench.setup import Setup, TimedMethod, plain_forward
from tintformer.learning.tint import Tint
from tintlab.methods.fine_tuning import Explicit, block_names, rule_names


class ExplicitReader(Explicit):
    """Dynamic evaluation as it is written by hand: one document at a time, autograd, keys and values carried on."""

    def read_each(self, ids: Tensor, chunk: int) -> Tensor:
        """Score, then learn from, every chunk of every document; the losses of all tokens but the first, row by row."""
        losses: list[Tensor] = []
        with self._learning():
            for row in ids:
                losses += self._read(row, chunk)
                self._restore()
        return torch.cat(losses)

    def _read(self, ids: Tensor, chunk: int) -> list[Tensor]:
        losses: list[Tensor] = []
        cache = DynamicCache()
        for start in range(0, len(ids), chunk):
            end = min(start + chunk, len(ids))
            first = max(start - 1, 0)  # the token that predicts the chunk's first
            positions = torch.arange(first, end - 1, device=ids.device)[None]
            logits = self.model(
                ids[None, first : end - 1], past_key_values=cache, use_cache=True, position_ids=positions
            ).logits[0]
            found = functional.cross_entropy(logits.float(), ids[first + 1 : end], reduction="none")
            # One forward pass for both: what is scored is what is then learnt from.
            losses.append(found.detach())
            found.sum().backward()
            layers: list[Any] = cache.layers
            for layer in layers:
                layer.keys, layer.values = layer.keys.detach(), layer.values.detach()
            with torch.no_grad():
                for parameter in self.moved:
                    assert parameter.grad is not None, "every moved parameter is behind the loss"
                    parameter.add_(parameter.grad, alpha=-self.learning_rate)
                    parameter.grad = None
        return losses


def _documents(setup: Setup, case: StreamCase) -> Tensor:
    return setup.tokens(case.documents, case.tokens)


def _explicit(setup: Setup, case: StreamCase, names: list[str]) -> TimedMethod:
    ids, reader = _documents(setup, case), ExplicitReader(setup.model, names, setup.rule.rate)
    return TimedMethod(
        run=lambda: reader.read_each(ids, case.chunk),
        multiply_adds=case.documents * setup.count.explicit_training(case.tokens - 1, names),
    )


def _stream(setup: Setup, case: StreamCase, **knobs: Any) -> TimedMethod:
    """The engine, by the rule with some knobs turned."""
    rule = replace(setup.rule, **knobs)
    ids, tint = _documents(setup, case), Tint(setup.auxiliary, rule, engine=setup.engine)

    def run() -> Tensor:
        pieces = tint.stream(ids, chunk=case.chunk, window=case.window)
        return torch.cat([piece.token_loss for piece in pieces], dim=1)[:, 1:].flatten()

    work = setup.count.training(case.tokens - 1) + setup.count.update(case.tokens - 1)
    return TimedMethod(run=run, multiply_adds=case.documents * work)


STREAM_METHODS: dict[str, Callable[[Setup, StreamCase], TimedMethod]] = {
    "forward": lambda setup, case: plain_forward(setup, [_documents(setup, case)]),
    "explicit_rule": lambda setup, case: _explicit(setup, case, rule_names(setup.auxiliary, setup.rule)),
    "explicit_block": lambda setup, case: _explicit(setup, case, block_names(setup.auxiliary)),
    "fast": _stream,
    "top_quarter": lambda setup, case: _stream(setup, case, layers=max(1, len(setup.auxiliary.blocks) // 4)),
    "decay": lambda setup, case: _stream(setup, case, decay=0.01),
    # Half the blocks at half the rate.
    "rates": lambda setup, case: _stream(setup, case, rates=(("blocks.*[02468].*", 0.5),)),
    "momentum": lambda setup, case: _stream(setup, case, momentum=0.9),
    "muon": lambda setup, case: _stream(setup, case, optimizer="muon"),
}

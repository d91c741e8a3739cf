# pyright: basic
"""A stream as its definition says, written for reading: one document, the Hugging Face model, autograd, torch.optim."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from transformers import DynamicCache

from tintformer.engines.oracle import OracleEngine
from tintformer.engines.oracle.torch_descent import TorchDescent
from tintformer.rule.learning_rule import LearningRule
from tintformer.storage.loading import load


def read_document(
    model: Any,
    rule: LearningRule,
    ids: Tensor,
    *,
    chunk: int,
    window: int,
    carry: str,
    loss_mask: Tensor | None = None,
    statistics: dict[str, Tensor] | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Losses of all tokens, 0 for the first, and what has been learnt in the end."""
    oracle = OracleEngine(load(model), rule, statistics=statistics)
    original = oracle._original()
    values = dict(original)
    descent = TorchDescent(oracle.auxiliary, rule, rule.rate, {name: values[name] for name in oracle.masks}, statistics)
    losses, cache, steps_made = torch.zeros(len(ids), dtype=torch.float64), None, 0
    learns = torch.ones(len(ids), dtype=torch.bool) if loss_mask is None else loss_mask
    for start in range(0, len(ids), chunk):
        end = min(start + chunk, len(ids))
        targets = list(range(max(start, 1), end))
        if not targets:
            continue
        first = max(0, start - (max(1, window - chunk) if carry == "recompute" else 1))
        for step in range(rule.steps):
            trained = {name: values[name].clone().requires_grad_() for name in oracle.masks}
            with torch.enable_grad(), oracle.mode:
                logits, read = _read(oracle, {**values, **trained}, ids[first : end - 1], first, carry, cache)
                found = torch.stack([-logits[t - 1 - first].log_softmax(-1)[ids[t]] for t in targets])
                taught = found[learns[targets]]
                total = taught.mean() if rule.reduction == "mean" and len(taught) else taught.sum()
            if step == 0:
                losses[targets] = found.detach()
                kept = read
            if len(taught):
                gradients = torch.autograd.grad(
                    total, list(trained.values()), allow_unused=True, materialize_grads=True
                )
                pairs = zip(oracle.masks.items(), gradients, strict=True)
                steps_made += 1
                values |= descent.step({name: mask * gradient for (name, mask), gradient in pairs}, steps_made)
        cache = (
            [(key[..., -limit:, :], value[..., -limit:, :]) for key, value in kept]
            if (limit := window - chunk)
            else None
        )
    return losses, {name: values[name] - original[name] for name in oracle.masks}


def _read(
    oracle: OracleEngine, values: dict[str, Tensor], ids: Tensor, first: int, carry: str, cache: Any
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Logits of a chunk, and the keys and values that it leaves behind."""
    past = DynamicCache()
    if carry == "cache" and cache is not None:
        for layer, (key, value) in enumerate(cache):
            past.update(key, value, layer)
    options: dict[str, Any] = {"past_key_values": past, "use_cache": True} if carry == "cache" else {"use_cache": False}
    seen = past.get_seq_length() + len(ids)
    options["attention_mask"] = torch.ones(1, seen, dtype=torch.long)
    if oracle.takes_positions:
        start = first if carry == "cache" else 0
        options["position_ids"] = torch.arange(start, start + len(ids))[None]
    logits = functional_call(oracle.twin, values, args=(ids[None],), kwargs=options).logits[0]
    layers: list[Any] = past.layers
    return logits, [(layer.keys.detach(), layer.values.detach()) for layer in layers]

"""LoRA while reading: adapters by `peft` that are trained by Adam, chunk by chunk, each document on its own.

Written for comparison with streams: the same chunks behind the same windows, every token scored before it is learnt
from. What attention keeps of the past are keys and values as they were read, without a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tintlab.methods.adapters import AdapterMethod, Adapters

if TYPE_CHECKING:
    from torch import Tensor

    from tintformer.auxiliary.description import Auxiliary
    from tintformer.learning.streams import StreamSettings

Past = list[tuple[Any, Any]]
"""Keys and values of every layer."""


def stream_lora(
    auxiliary: Auxiliary,
    method: AdapterMethod,
    documents: Sequence[Sequence[int]],
    settings: StreamSettings,
    kept: list[Tensor] | None = None,
) -> list[list[tuple[float, int]]]:
    """Of each document the losses of its chunks, summed, and how many tokens they are of.

    To `kept` the logits `[T, V]` of each document are added, NaN at its first token.
    """
    import torch

    adapters, found = Adapters(auxiliary, method), list[list[tuple[float, int]]]()
    for ids in documents:
        logits: list[Tensor] | None = None if kept is None else []
        found.append(_read(adapters, auxiliary, ids, settings, logits))
        if kept is not None and logits is not None:
            rows = torch.cat(logits)
            kept.append(torch.cat((torch.full_like(rows[:1], torch.nan), rows)))
    return found


def _read(
    adapters: Adapters,
    auxiliary: Auxiliary,
    ids: Sequence[int],
    settings: StreamSettings,
    kept: list[Tensor] | None,
) -> list[tuple[float, int]]:
    import torch

    from tintformer.rule.head import token_loss

    adam, past = adapters.restart(), Past()
    tokens, found = torch.tensor(ids, device=auxiliary.device), list[tuple[float, int]]()
    for start in range(0, len(ids), settings.chunk):
        end = min(start + settings.chunk, len(ids))
        count = end - max(start, 1)  # nothing predicts the first token
        if not count:
            found.append((0.0, 0))
            continue
        first = max(0, start - settings.num_reread)
        read = as_read = Past()
        for step in range(adapters.method.steps):
            with torch.enable_grad():
                logits, read = _logits(adapters, tokens[first:end], count, first, past, settings)
                losses = token_loss(logits, tokens[end - count : end])
            total = losses.sum()
            if not math.isfinite(total.item()):
                raise adapters.divergence(f"the loss of tokens {start} to {end}", step)
            if step == 0:
                found.append((float(losses.detach().double().sum()), count))
                as_read = read
                if kept is not None:
                    kept.append(logits.detach())
            adam.zero_grad()
            total.backward()
            adam.step()
        past = _trimmed(as_read, settings.num_kept)
    return found


def _logits(
    adapters: Adapters, ids: Tensor, count: int, first: int, past: Past, settings: StreamSettings
) -> tuple[Tensor, Past]:
    """What predicts the last `count` tokens, and all keys and values that were seen; the last token is not read."""
    import torch
    from transformers import DynamicCache

    cache: Any = DynamicCache()
    for layer, (key, value) in enumerate(past):
        cache.update(key, value, layer)
    carried = settings.carry == "cache"
    seen = cache.get_seq_length() + len(ids) - 1
    options: dict[str, Any] = {"past_key_values": cache, "use_cache": True} if carried else {"use_cache": False}
    if adapters.takes_positions:
        start = first if carried else 0
        options["position_ids"] = torch.arange(start, start + len(ids) - 1, device=ids.device)[None]
    # The head sees no other position, because logits of a whole window would be large.
    head = adapters.model.get_output_embeddings()
    handle = head.register_forward_pre_hook(lambda module, inputs: (inputs[0][:, -count:],))
    try:
        attended = torch.ones(1, seen, dtype=torch.long, device=ids.device)
        logits = adapters.model(input_ids=ids[None, :-1], attention_mask=attended, **options).logits[0]
    finally:
        handle.remove()
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return wide, [(layer.keys.detach(), layer.values.detach()) for layer in cache.layers] if carried else []


def _trimmed(past: Past, limit: int) -> Past:
    return [(key[..., -limit:, :], value[..., -limit:, :]) for key, value in past] if limit else []

"""LoRA: low-rank matrices beside every linear, learnt from a text or while reading.

While reading: adapters by `peft` that are trained by Adam, chunk by chunk, each document on its own.

Written for comparison with streams: the same chunks behind the same windows, every token scored before it is learnt
from. What attention keeps of the past are keys and values as they were read, without a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from tintformer.typed_fields import Range
from tintlab.methods.adapters import ADAPTER, AdapterMethod, Adapters, pattern_of

if TYPE_CHECKING:
    from torch import Tensor

    from tintformer.auxiliary.description import Auxiliary
    from tintformer.auxiliary.ops import Linear
    from tintformer.engines.fast.updates import MatrixUpdate
    from tintformer.learning.streams import StreamSettings


@dataclass(frozen=True, kw_only=True)
class Lora(AdapterMethod):
    """Adapters on all linears of the top blocks: W + alpha / rank * B A, where B starts at zero and A at random.

    The first step of Adam moves B alone, because A gets no gradient while B is zero.
    """

    rank: Annotated[int, Range(at_least=1)] = 8
    """Rows of A. More can learn more, and cost more."""
    alpha: Annotated[int, Range(at_least=1)] = 16
    """The change is scaled by alpha / rank, so that a rate suits several ranks."""
    seed: Annotated[int, Range(at_least=0)] = 0
    """Draws A, the same for every sequence."""

    @property
    def initial_seed(self) -> int:
        return self.seed

    def targets(self, linears: Sequence[Linear]) -> list[Linear]:
        return list(linears)

    def config(self, linears: Sequence[Linear]) -> Any:
        from peft import LoraConfig

        return LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha,
            target_modules=pattern_of(linears),
            fan_in_fan_out=linears[0].weight.transposed,
        )

    def learnt(self, linear: Linear, layer: Any, dtype: Any) -> tuple[MatrixUpdate, None]:
        """B A as factors; the parts of a fused weight have A in common, and rows of B each."""
        from tintformer.engines.fast.updates import Factors, MatrixUpdate

        first, second = (matrices[ADAPTER].weight.detach() for matrices in (layer.lora_A, layer.lora_B))
        # Adapters are linears `[out, in]` whatever the orientation of the weight.
        rows = replace(linear.weight, source=second, transposed=False).read()
        x, g = (factor[None].to(dtype, copy=True) for factor in (first, rows.mT))
        factors = Factors(x, g, -layer.scaling[ADAPTER])
        return MatrixUpdate(dual=True, keep=True, factors=[factors]), None


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

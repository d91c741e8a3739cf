# pyright: basic
"""Held-out loss: every token of a text once, in windows of the full context."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional


@torch.no_grad()
def score(model: Any, tokens: np.ndarray, context: int, *, num_windows: int | None = None) -> tuple[float, int]:
    """The summed loss in nats of all tokens but the first, and their number; the first `num_windows` windows if given.

    Windows do not overlap: the first tokens of each see little, so the loss is an upper bound of what the model can do.
    """
    training = model.training
    model.eval()
    nats, count = 0.0, 0
    starts = range(0, len(tokens) - 1, context)[:num_windows]
    for start in starts:
        window = torch.from_numpy(tokens[start : start + context + 1])[None]
        logits = model(input_ids=window[:, :-1], use_cache=False).logits
        nats += functional.cross_entropy(logits[0].double(), window[0, 1:], reduction="sum").item()
        count += window.shape[1] - 1
    model.train(training)
    return nats, count

"""A smaller model to verify in place of a large one: its first blocks, and the same model in float64."""

from __future__ import annotations

import copy
from itertools import chain
from typing import Any

import torch

from tintformer.auxiliary.describe import describe
from tintformer.auxiliary.description import Auxiliary
from tintformer.auxiliary.families import families
from tintformer.errors import InputError

LARGE = 20_000_000
"""Parameters in blocks that are verified without asking; of a larger model as many blocks as come to this."""


def num_blocks_to_keep(auxiliary: Auxiliary, asked: int | None) -> int:
    """As many blocks as asked for; without that all of them, or a few if the model is large."""
    total = len(auxiliary.blocks)
    if asked is None:
        blocks = auxiliary.model.get_submodule(families()[auxiliary.family].paths.blocks)
        size = sum(parameter.numel() for parameter in blocks.parameters())
        return total if size <= LARGE else max(1, LARGE * total // size)
    if not 1 <= asked <= total:
        raise InputError(f"layers={asked} but {auxiliary.name} has {total} blocks; keep at least 1 and at most {total}")
    return asked


def keep_first_blocks(auxiliary: Auxiliary, num_blocks: int) -> Auxiliary:
    """The model without its later blocks: the first ones, then the final norm and the head.

    The Hugging Face model is cut in the same way, in a copy of its module tree that shares every tensor, so that the
    oracle and the description go on meaning one and the same model.
    """
    if num_blocks == len(auxiliary.blocks):
        return auxiliary
    shared = {id(tensor): tensor for tensor in chain(auxiliary.model.parameters(), auxiliary.model.buffers())}
    model = copy.deepcopy(auxiliary.model, memo=shared)
    family = families()[auxiliary.family]
    parent, _, name = family.paths.blocks.rpartition(".")
    setattr(model.get_submodule(parent), name, model.get_submodule(family.paths.blocks)[:num_blocks])
    _shorten(model.config, num_blocks)
    return describe(model, family, auxiliary.name)


def _shorten(config: Any, num_blocks: int) -> None:
    """Say in the configuration that there are fewer blocks; lists with an entry a block lose their tail first."""
    for name in ("layer_types", "attention_layers"):
        entries = getattr(config, name, None)
        if entries is not None:
            setattr(config, name, entries[:num_blocks])
    config.num_hidden_layers = num_blocks


def in_float64(auxiliary: Auxiliary) -> Auxiliary:
    """The same model with exact copies of its weights in float64, in which the truth is computed."""
    if auxiliary.dtype == torch.float64:
        return auxiliary
    model = copy.deepcopy(auxiliary.model).double()
    return describe(model, families()[auxiliary.family], auxiliary.name)

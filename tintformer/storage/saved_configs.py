"""Configurations as they are saved: all of their keys, in a form from which the same model is made again.

transformers writes a configuration for itself: it may leave out what equals a default, and every family's class
completes, renames and corrects what it is given. What is saved here is all that the configuration holds, private keys
included (OPT's `_remove_final_layer_norm` takes a norm away). Before it is written the model is described anew from it,
without data, and anything that would come back as another model is refused.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.errors import TintError, cause
from tintformer.storage.configs import meta_auxiliary
from tintformer.storage.untrusted import build_config

_OF_THE_FILE = ("_name_or_path", "quantization_config")
"""Where a model was read from, which is nobody's business, and how it was packed there: a GGUF file is unpacked."""

_LEFT_OUT = ("model", "record", "device", "embedding.scale", "open_tokenizer")
"""Of a description: the model and what was noted of it, where its tensors are, Gemma's scale, a buffer that is saved
with the weights, and where its tokenizer is."""


def plain_settings(config: Any) -> dict[str, Any]:
    """All that a configuration holds, as JSON has it and in one order."""
    settings = {key: value for key, value in config.to_dict().items() if key not in _OF_THE_FILE}
    try:
        # Twice: keys become texts first, which can be sorted whatever they were.
        return json.loads(json.dumps(json.loads(json.dumps(settings, default=_plain)), sort_keys=True))
    except (TypeError, ValueError, RecursionError) as error:
        raise TintError(f"the configuration of {config.model_type} cannot be saved: {cause(error)}") from error


def _plain(value: Any) -> Any:
    """What JSON has no form for: a number of numpy or torch, a dtype, whatever else somebody put there."""
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return value.item() if callable(getattr(value, "item", None)) else str(value)


def checked_settings(auxiliary: Auxiliary) -> dict[str, Any]:
    """The configuration of a model as it is saved; one that would come back as another model is refused."""
    config = copy.copy(auxiliary.model.config)
    config.dtype = auxiliary.dtype
    settings = plain_settings(config)
    again = build_config(copy.deepcopy(settings), "its configuration", auxiliary.name)
    if auxiliary.dispatched:  # a description with moves in it, which no configuration asks for
        return settings
    twin = meta_auxiliary(again, auxiliary.name, auxiliary.dtype)
    found, expected = ({**_parameters(each), **dict(_outline(each))} for each in (twin, auxiliary))
    for place in expected | found:
        if place not in found or place not in expected or found[place] != expected[place]:
            raise TintError(
                f"{auxiliary.name} cannot be saved: its configuration gives {found.get(place)!r} for {place}, and the "
                f"model has {expected.get(place)!r}; it was changed after the model was made, so make the model anew"
            )
    return settings


def _parameters(auxiliary: Auxiliary) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in auxiliary.model.named_parameters()}


def _outline(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """All that a description says but the numbers in its tensors, by its place in the description."""
    if isinstance(value, Tensor):
        yield place, tuple(value.shape)
    elif is_dataclass(value):
        for name in (field.name for field in fields(value)):
            inside = f"{place}.{name}" if place else name
            if name not in _LEFT_OUT and inside not in _LEFT_OUT:
                yield from _outline(getattr(value, name), inside)
    elif isinstance(value, tuple):
        yield place, len(value)
        for index, each in enumerate(value):
            yield from _outline(each, f"{place}[{index}]")
    else:
        yield place, value

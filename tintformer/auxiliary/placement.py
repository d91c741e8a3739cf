"""Where the parameters of a Hugging Face model are kept, and where they are computed with.

accelerate keeps what does not fit elsewhere: such a parameter is empty (device `meta`), and a hook of its module holds
the data and brings it in for a forward pass. We read parameters without one, so we ask the hook.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class PlacedParameter(NamedTuple):
    """A parameter's data, and the device that computes with it."""

    data: Tensor
    device: torch.device


def placed(model: Any) -> dict[str, PlacedParameter]:
    """Every parameter by name, tied ones under each of their names."""
    found: dict[str, PlacedParameter] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        hook = _offloading_hook(module)
        for key, parameter in module.named_parameters(recurse=False):
            data, device = parameter.detach(), parameter.device
            if parameter.is_meta and hook is not None:
                data, device = hook.weights_map[key], torch.device(hook.execution_device)
            found[f"{path}.{key}" if path else key] = PlacedParameter(data, device)
    return found


def _offloading_hook(module: Any) -> Any:
    hook = getattr(module, "_hf_hook", None)
    return next((each for each in getattr(hook, "hooks", (hook,)) if getattr(each, "offload", False)), None)

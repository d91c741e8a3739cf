# pyright: basic
"""Checkpoints: one safetensors file with weights, optimiser state and, as JSON in its header, where the run stands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tintformer.errors import InputError
from tintformer.files import whole_file

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def save_checkpoint(path: Path, model: Any, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Write everything a run needs to go on as if it had never stopped; one file, so that its parts always match."""
    tensors: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        tensors[f"model.{name}"] = parameter.detach()
        for moment in _MOMENTS:
            tensors[f"{moment}.{name}"] = optimizer.state[parameter][moment]
    with whole_file(path) as temporary:
        save_file(tensors, temporary, metadata={"state": json.dumps(state)})


def read_state(path: Path) -> dict[str, Any] | None:
    """Where the run stands, or nothing if it has not written a checkpoint."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            return json.loads(file.metadata()["state"])
    except Exception as error:  # a foreign or damaged file, whatever its reader says about it
        raise InputError(f"{path} is no checkpoint of this recipe; remove it or choose another --run folder") from error


@torch.no_grad()
def load_weights(path: Path, model: Any) -> None:
    """Put the weights of a checkpoint into a model."""
    with safe_open(path, framework="pt") as file:
        for name, parameter in model.named_parameters():
            parameter.copy_(file.get_tensor(f"model.{name}"))


def load_checkpoint(path: Path, model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Put the weights and the optimiser's moments of a checkpoint where they were."""
    load_weights(path, model)
    with safe_open(path, framework="pt") as file:
        for name, parameter in model.named_parameters():
            optimizer.state[parameter] = {moment: file.get_tensor(f"{moment}.{name}") for moment in _MOMENTS}

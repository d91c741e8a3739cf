# pyright: basic
"""Checkpoints: one safetensors file with weights, optimisers' state and, in its header, where the run stands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tintformer.errors import InputError
from tintformer.storage.whole_files import whole_file

Optimizers = Sequence[torch.optim.Optimizer]


def save_checkpoint(path: Path, model: Any, optimizers: Optimizers, state: dict[str, Any]) -> None:
    """Write everything a run needs to go on as if it had never stopped; one file, so that its parts always match."""
    tensors: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        tensors[f"model.{name}"] = parameter.detach()
        for optimizer in optimizers:
            for key, moment in optimizer.state.get(parameter, {}).items():
                tensors[f"{key}.{name}"] = moment
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


def load_checkpoint(path: Path, model: Any, optimizers: Optimizers) -> None:
    """Put the weights and the optimisers' moments of a checkpoint where they were."""
    load_weights(path, model)
    owners = {
        id(parameter): optimizer
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    parameters = dict(model.named_parameters())
    with safe_open(path, framework="pt") as file:
        for entry in file.keys():  # noqa: SIM118
            key, name = entry.split(".", maxsplit=1)
            if key != "model":
                owners[id(parameters[name])].state[parameters[name]][key] = file.get_tensor(entry)

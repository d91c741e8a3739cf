"""Simulators on disk: the auxiliary's weights and a configuration, from which the structure is rebuilt.

    config.json         model_type "tint": the auxiliary's own configuration, the learning rule, the construction
    model.safetensors   the auxiliary's parameters and buffers under their Hugging Face names, behind "auxiliary.";
                        with `full` every constructed tensor too, behind "simulator.", which loading compares with
                        what it rebuilds

Both files take their places together; the weights name the configuration that they belong to, and a checksum over them
and their names tells whether they have changed since (`storage/checksums.py`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tintformer.auxiliary.describe import describe
from tintformer.auxiliary.description import Auxiliary
from tintformer.auxiliary.validation import check_model
from tintformer.errors import LoadError, TintError, cause
from tintformer.rule.learning_rule import LearningRule
from tintformer.simulator.construction import Construction
from tintformer.storage.checksums import read_tensors, write_tensors
from tintformer.storage.loading import SIMULATOR_FORMAT
from tintformer.storage.saved_configs import checked_settings
from tintformer.storage.untrusted import build_config, build_on_meta, is_finite, read_dtype
from tintformer.storage.untrusted_files import check_model_files, given_path, read_foreign_json
from tintformer.storage.whole_files import check_settled, whole_files
from tintformer.version import __version__

if TYPE_CHECKING:
    from tintformer.simulator.simulator import Simulator

CONFIG, WEIGHTS = "config.json", "model.safetensors"
AUXILIARY, STRUCTURE = "auxiliary.", "simulator."


def save(simulator: Simulator, directory: str | os.PathLike[str], *, full: bool = False) -> Path:
    """Write a simulator; `full` adds the constructed tensors, which others may want to read without this package."""
    more = {f"{STRUCTURE}{name}": tensor for name, tensor in _constructed(simulator).items()} if full else {}
    settings = {"construction": asdict(simulator.construction), "full": full}
    return write(given_path(directory), simulator.auxiliary, simulator.rule, settings, more)


def write(
    target: Path, auxiliary: Auxiliary, rule: LearningRule, settings: dict[str, Any], more: dict[str, Tensor]
) -> Path:
    """Write an auxiliary with its rule, how it is built upon, and further tensors."""
    from safetensors import SafetensorError

    auxiliary.require_language_model("save_pretrained")
    config = {
        "model_type": "tint",
        "format": SIMULATOR_FORMAT,
        "version": __version__,
        "name": auxiliary.name,
        "dtype": str(auxiliary.dtype).removeprefix("torch."),
        "auxiliary": checked_settings(auxiliary),
        "learning_rule": asdict(rule),
        **settings,
    }
    tensors = {f"{AUXILIARY}{name}": tensor for name, tensor in _state(auxiliary.model).items()} | more
    try:
        with whole_files(target, (WEIGHTS, CONFIG)) as folder:
            metadata = {"format": SIMULATOR_FORMAT, "config": _hash(config), "version": __version__}
            write_tensors(folder / WEIGHTS, tensors, metadata)
            (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    except (OSError, SafetensorError) as error:
        raise TintError(f"cannot write {target}: {error}") from error
    return target


def load(directory: str | os.PathLike[str]) -> Simulator:
    """Read a simulator that `save` wrote: the same bits, whatever process wrote them."""
    from tintformer.simulator.simulator import Simulator

    path = given_path(directory, LoadError)
    config, auxiliary, rule, tensors = read(path, ("construction", "full"))
    if not isinstance(config["full"], bool):
        raise LoadError(f"{path / CONFIG} has full={config['full']!r:.40}, which must be a bool")
    stored = {name[len(STRUCTURE) :]: tensor for name, tensor in tensors.items() if name.startswith(STRUCTURE)}
    if stored and not config["full"]:
        raise LoadError(f"{path / WEIGHTS} holds constructed tensors, of which its {CONFIG} says nothing")
    try:
        simulator = Simulator(auxiliary, rule, Construction.of(config["construction"]))
    except TintError as error:
        raise LoadError(f"{path / CONFIG} describes a simulator that cannot be built here: {error}") from error
    if config["full"]:
        _check_structure(stored, _constructed(simulator), path / WEIGHTS)
    return simulator


def read(path: Path, settings: tuple[str, ...]) -> tuple[dict[str, Any], Auxiliary, LearningRule, dict[str, Tensor]]:
    """What `write` wrote: the configuration, which must have these settings, the auxiliary, its rule, all tensors."""
    check_settled(path)
    config = _read_config(path, settings)
    metadata, tensors = read_tensors(path / WEIGHTS, "simulator", _check_metadata)
    if metadata.get("config") != _hash(config):
        raise LoadError(f"{path / WEIGHTS} was written with another {CONFIG}: the two files do not belong together")
    if odd := [name for name in tensors if not name.startswith((AUXILIARY, STRUCTURE))]:
        raise LoadError(f"{path / WEIGHTS} holds {odd[0]!r:.80}, which is no part of what its {CONFIG} describes")
    auxiliary = _rebuild_auxiliary(config, tensors, path)
    try:
        return config, auxiliary, LearningRule.of(config["learning_rule"]), tensors
    except TintError as error:
        raise LoadError(f"{path / CONFIG} describes a rule that cannot be followed here: {error}") from error


def _hash(config: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def _parameters(module: torch.nn.Module) -> dict[str, Tensor]:
    """Every parameter once, under its first name; parameters that share memory are one."""
    return {name: parameter.detach().cpu() for name, parameter in module.named_parameters()}


def _state(model: torch.nn.Module) -> dict[str, Tensor]:
    """Parameters and floating-point buffers: rotary frequencies and embedding scales have bits of their own."""
    buffers = {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point()}
    return {**dict(model.named_parameters()), **buffers}


def _constructed(simulator: Simulator) -> dict[str, Tensor]:
    """Every tensor that building made: the structure and the prefix tokens, not the tables that it only points to."""
    tables = ("embedding.", "positions.", "head.", "loss_gradient.feed_forward.", "loss_gradient.targets.")
    return {name: tensor for name, tensor in _parameters(simulator).items() if not name.startswith(tables)}


def _read_config(path: Path, settings: tuple[str, ...]) -> dict[str, Any]:
    if not path.is_dir():
        raise LoadError(f"no directory {path}; `tint build MODEL -o DIR` writes one")
    if not (path / CONFIG).exists():
        raise LoadError(f"{path} holds no {CONFIG}; `tint build MODEL -o DIR` writes one")
    check_model_files(path)
    config = read_foreign_json(path / CONFIG)
    if not isinstance(config, dict) or config.get("format") != SIMULATOR_FORMAT:
        found = config.get("model_type") if isinstance(config, dict) else type(config).__name__
        raise LoadError(f"{path / CONFIG} describes no simulator (model_type {found!r}); build one with `tint build`")
    if "network" in config and "network" not in settings:
        raise LoadError(f"{path} holds a compiled network; open it with tintformer.Network.from_pretrained")
    missing = sorted({"auxiliary", "learning_rule", "dtype", "name", *settings} - set(config))
    if missing:
        raise LoadError(f"{path / CONFIG} lacks {', '.join(missing)}")
    if not isinstance(config["name"], str):
        raise LoadError(f"{path / CONFIG} has name={config['name']!r:.40}, which must be a str")
    return config


def _check_metadata(metadata: Mapping[str, str], file: Path) -> None:
    if metadata.get("format") != SIMULATOR_FORMAT:
        raise LoadError(f"{file} holds no simulator (format {metadata.get('format')!r:.80})")


def _rebuild_auxiliary(config: dict[str, Any], tensors: dict[str, Tensor], path: Path) -> Auxiliary:
    from transformers import AutoModelForCausalLM

    stored = {name[len(AUXILIARY) :]: tensor for name, tensor in tensors.items() if name.startswith(AUXILIARY)}
    try:
        dtype = read_dtype(config["dtype"], "dtype")
        auxiliary_config = build_config(config["auxiliary"], "auxiliary", config["name"])
        _check_state(_state(build_on_meta(auxiliary_config, len(stored), "auxiliary")), stored, path / WEIGHTS)
        with torch.random.fork_rng(devices=[]):
            model: Any = AutoModelForCausalLM.from_config(auxiliary_config, dtype=dtype)
    except TintError as error:
        raise LoadError(f"cannot rebuild the auxiliary of {path}: {cause(error)}") from error
    for name, tensor in _state(model).items():
        tensor.data = stored[name]  # with its own dtype, which a conversion may have given a buffer
    model.eval()
    return describe(model, check_model(model, config["name"]), config["name"])


def _check_state(wanted: dict[str, Tensor], stored: dict[str, Tensor], file: Path) -> None:
    if stored.keys() != wanted.keys():
        odd = sorted(stored.keys() ^ wanted.keys())
        raise LoadError(f"{file} does not hold the parameters of its auxiliary; the first odd one is {odd[0]}")
    for name, tensor in wanted.items():
        if tensor.shape != stored[name].shape:
            shapes = f"{tuple(stored[name].shape)} instead of {tuple(tensor.shape)}"
            raise LoadError(f"{file} holds {name} as {shapes}")
        read_dtype(stored[name].dtype, f"{file}: the dtype of {name}")
        if not is_finite(stored[name]):
            raise LoadError(f"{file}: {name} contains NaN or infinity; the file is damaged")


def _check_structure(stored: dict[str, Tensor], rebuilt: dict[str, Tensor], file: Path) -> None:
    if stored.keys() != rebuilt.keys():
        odd = sorted(stored.keys() ^ rebuilt.keys())
        raise LoadError(
            f"{file} holds another structure than its configuration gives; the first odd tensor is {odd[0]}"
        )
    for name, tensor in stored.items():
        if not torch.equal(tensor, rebuilt[name]):
            raise LoadError(f"{file} holds other values of {name} than its {CONFIG} gives")

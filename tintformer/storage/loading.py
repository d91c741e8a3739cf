"""`load`: a hub id, a local directory, a bundled or fetched name or a Hugging Face object becomes an auxiliary."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from tintformer.auxiliary.describe import describe
from tintformer.auxiliary.description import Auxiliary
from tintformer.auxiliary.validation import check_model, find_family
from tintformer.errors import LoadError, TintError, cause
from tintformer.storage.foreign_text import user_path
from tintformer.storage.packages import model_directory
from tintformer.storage.safetensors_headers import INDEX, read_headers, refuse_adapters
from tintformer.storage.untrusted import check_config_matches_weights, check_shapes, refuse_code_and_huge_sizes

SIMULATOR_FORMAT = "tintformer simulator"
"""What the config.json of a saved simulator says of itself: such a directory holds no auxiliary of its own."""
DeviceMap = str | Mapping[str, int | str | torch.device]


def load(
    model: Any,
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device | None = None,
    device_map: DeviceMap | None = None,
) -> Auxiliary:
    """Describe a model: a hub id, a directory (safetensors, or one GGUF file), a bundled or fetched name, an HF object.

    Names and paths load in float32 unless `dtype` says otherwise; an object keeps its dtype and device, shares its
    tensors and is never modified. Nothing is fetched unless a name needs the hub; no remote code, no pickles.

    `device_map` spreads a model that is larger than one device, as in transformers: "auto", or devices by module. What
    it leaves on the CPU beside other devices is brought to them whenever it is read. An object that accelerate has
    dispatched stays as it is.
    """
    if isinstance(model, Auxiliary):
        return model
    if not isinstance(model, str | os.PathLike):
        return _load_object(model, dtype, device if device_map is None else device_map)
    return _load_name(os.fspath(model), dtype or torch.float32, device, _check_device_map(device, device_map))


def _load_object(model: Any, dtype: torch.dtype | None, device: Any) -> Auxiliary:
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise LoadError(f"cannot load a {type(model).__name__}; pass a name, a directory or a transformers model")
    if dtype is not None or device is not None:
        raise LoadError("a model object keeps its dtype and device; convert it before, e.g. model.to(torch.float32)")
    name = getattr(model, "name_or_path", "") or type(model).__name__
    return describe(model, check_model(model, name), name)


def _check_device_map(device: Any, device_map: DeviceMap | None) -> Any:
    """The map as transformers takes it."""
    if device_map is None:
        return None
    if device is not None:
        raise LoadError("device and device_map say the same thing; give one of them")
    if find_spec("accelerate") is None:
        raise LoadError("device_map needs the package accelerate: pip install accelerate")
    if isinstance(device_map, Mapping) and "disk" in device_map.values():
        raise LoadError("device_map puts parts on disk, from where every step would read them; leave them on the cpu")
    return device_map if isinstance(device_map, str) else dict(device_map)


def _load_name(name: str, dtype: torch.dtype, device: Any, device_map: Any) -> Auxiliary:
    if not dtype.is_floating_point:
        raise LoadError(f"dtype={dtype} is not a floating-point type; use torch.float32")
    given = user_path(name)
    # What exists on disk comes before every name, so that a name never hides the user's own directory.
    if directory := given if given.exists() else model_directory(name):
        model = _read_model(str(directory), dtype, _directory_options(directory), device_map)
    elif name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise LoadError(f"no directory {name}; give a directory with config.json, or a hub id such as gpt2")
    else:
        model = _read_from_hub(name, dtype, device_map)
    if device is not None:
        model.to(device)
    return describe(model, check_model(model, name), name)


def _read_model(name: str, dtype: torch.dtype, options: dict[str, Any], device_map: Any = None) -> Any:
    """The model in evaluation mode, checked from the cheapest to the dearest: settings, headers of files, weights."""
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

    # A model's own code may do anything, and compute something else than the family that is described here.
    options = {"trust_remote_code": False, **options}
    try:
        if "gguf_file" not in options:
            # As plain values first: a configuration's class may allocate what its numbers ask for when it is made.
            settings = PreTrainedConfig.get_config_dict(name, **options)[0]
            refuse_code_and_huge_sizes(settings, f"{name}: its config.json")
        config = AutoConfig.from_pretrained(name, **options)
        find_family(config, name)
        # Before a tensor is read: transformers allocates what the configuration asks for, not what the files hold.
        if Path(name).is_dir() and "gguf_file" not in options:
            check_config_matches_weights(config, read_headers(Path(name)), name)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            name,
            dtype=dtype,
            device_map=device_map,
            use_safetensors=True,  # never pickles, which can run anything when they are opened
            output_loading_info=True,
            # Otherwise transformers raises an error that refers to a table in its log; `_check_complete` is plainer.
            ignore_mismatched_sizes=True,
            **options,
        )
    except TintError:
        raise
    except Exception as error:  # transformers raises whatever its file readers raise
        raise LoadError(
            f"cannot read {name}: {cause(error)}; if its files are damaged or incomplete, copy or download them again"
        ) from error
    model, report = loaded
    _check_complete(name, report)
    return model.eval()


def _check_complete(name: str, report: dict[str, Any]) -> None:
    """Refuse a checkpoint whose gaps transformers would fill with random numbers."""
    stored = {key: tuple(shape) for key, shape, _ in report["mismatched_keys"]}
    check_shapes({key: tuple(shape) for key, _, shape in report["mismatched_keys"]}, stored, name)
    if missing := sorted(report["missing_keys"]):
        raise LoadError(
            f"{name} lacks {len(missing)} parameters of its model, the first of them {missing[0]}; "
            "put all files of the model there"
        )


def _directory_options(directory: Path) -> dict[str, Any]:
    """The options with which transformers reads a directory: offline, from safetensors or from its one GGUF file."""
    if not directory.is_dir():
        raise LoadError(f"{directory} is a file; give the directory that holds it")
    if is_simulator(directory):
        raise LoadError(
            f"{directory} holds a simulator, not a model; open it with tintformer.Simulator.from_pretrained"
        )
    refuse_adapters(directory)
    files = sorted(path.name for path in directory.iterdir())
    quantised = [file for file in files if file.endswith(".gguf")]
    if any(file.endswith((".safetensors", INDEX)) for file in files):
        return {"local_files_only": True}
    if len(quantised) == 1:
        if find_spec("gguf") is None:
            raise LoadError(f"{directory} holds a GGUF file; install the package gguf: pip install 'tintformer[eval]'")
        return {"local_files_only": True, "gguf_file": quantised[0]}
    if quantised:
        raise LoadError(f"{directory} holds {len(quantised)} GGUF files ({', '.join(quantised)}); keep one")
    raise LoadError(f"{directory} holds no safetensors and no GGUF file (pickled weights are not read)")


def _read_from_hub(name: str, dtype: torch.dtype, device_map: Any) -> Any:
    """From the local cache if it is there; otherwise the hub is asked once, without retries."""
    from huggingface_hub import HfApi

    try:
        return _read_model(name, dtype, {"local_files_only": True}, device_map)
    except LoadError:
        try:
            HfApi().model_info(name, timeout=10)
        except Exception as error:  # the hub's client raises its own errors, those of httpx and plain OSErrors
            raise LoadError(
                f"cannot load {name!r}: it is no local directory, it is not in the local cache, and the hub does not "
                f"give it ({cause(error)}); check the name and the connection, or give a directory"
            ) from error
    return _read_model(name, dtype, {}, device_map)


def is_simulator(directory: Path) -> bool:
    """Whether a directory holds a simulator, by its configuration alone."""
    try:
        config = json.loads((directory / "config.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("format") == SIMULATOR_FORMAT

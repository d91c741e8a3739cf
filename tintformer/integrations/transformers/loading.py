"""Reading a Tint model: the options of `from_pretrained`, and the numbers of a directory put into their places."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig
from transformers.modeling_utils import PreTrainedModel

from tintformer.errors import LoadError, TintError, cause
from tintformer.integrations.transformers import files
from tintformer.integrations.transformers.config import TintConfig
from tintformer.storage.safetensors_headers import SafetensorsHeaders

_HUB = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
_WITHOUT_EFFECT = (
    "_commit_hash",
    "_from_auto",
    "_from_pipeline",
    "adapter_kwargs",
    "attn_implementation",
    "code_revision",
    "low_cpu_mem_usage",
    "trust_remote_code",
    "use_safetensors",
    "variant",
    "weights_only",
)
"""What transformers hands to every model: no code is run, safetensors are all that is read, whatever they say."""
_REPLACED = ("engine", "learning_rule", "construction", "train_fraction")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options of `from_pretrained`, sorted."""

    hub: dict[str, Any]
    config: Any
    replaced: dict[str, Any]
    """Keys of the configuration, in place of those of the file."""
    generation: GenerationConfig | None
    dtype: torch.dtype | None
    """None: as it is stored."""
    device: Any
    report: bool
    """Return transformers' loading report as well."""

    @classmethod
    def of(cls, options: dict[str, Any]) -> Asked:
        left = {key: value for key, value in options.items() if key not in _WITHOUT_EFFECT}
        result = cls(
            hub={key: left.pop(key) for key in _HUB if key in left},
            config=left.pop("config", None),
            replaced={key: left.pop(key) for key in _REPLACED if key in left},
            generation=left.pop("generation_config", None),
            dtype=_number_format(left.pop("dtype", left.pop("torch_dtype", None))),
            device=_one_device(left.pop("device_map", None)),
            report=bool(left.pop("output_loading_info", False)),
        )
        if left:
            raise LoadError(f"{', '.join(sorted(left))}: not an option of from_pretrained here")
        return result


def _number_format(found: Any) -> torch.dtype | None:
    dtype = getattr(torch, found, found) if isinstance(found, str) and found != "auto" else found
    if dtype is None or dtype == "auto":
        return None
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise LoadError(f"dtype={found!r} is not a floating-point type; use torch.float32")
    return dtype


def read_config(directory: Path, asked: Asked) -> TintConfig:
    """The configuration of a directory, or the caller's, with the keys that the caller replaces."""
    given = asked.config
    if given is None:
        try:
            given = TintConfig.from_pretrained(directory, local_files_only=True)
        except TintError:
            raise
        except Exception as error:  # transformers raises whatever its file readers raise
            raise LoadError(f"cannot read {directory / files.CONFIG}: {cause(error)}") from error
    if not isinstance(given, TintConfig):
        raise LoadError(f"config is a {type(given).__name__}; give a TintConfig, or none")
    config = copy.deepcopy(given)
    for key, value in asked.replaced.items():
        setattr(config, key, value)
    config.check()
    return config


def read_generation(directory: Path) -> GenerationConfig | None:
    if not (directory / files.GENERATION).is_file():
        return None
    try:
        return GenerationConfig.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # transformers raises whatever its file readers raise
        raise LoadError(f"cannot read {directory / files.GENERATION}: {cause(error)}") from error


def fill(model: PreTrainedModel, stored: SafetensorsHeaders) -> None:
    """Give a model the stored numbers, in their own format."""
    places = {files.PARAMETERS + name: parameter for name, parameter in model.named_parameters()}
    places |= {files.BUFFERS + name: buffer for name, buffer in buffers(model).items()}
    for name, tensor in stored.tensors():
        if name not in places:  # a table of another version of transformers, which this one makes itself
            continue
        if not bool(torch.isfinite(tensor).all()):
            raise LoadError(f"{stored.files[name]}: {name} contains NaN or infinity; the file is damaged")
        places[name].data = tensor


def convert(model: PreTrainedModel, dtype: torch.dtype | None) -> torch.dtype:
    """Change the number format of the weights, which is then returned; tables of positions keep theirs."""
    if dtype is not None:
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
    return model.dtype


def _one_device(found: Any) -> Any:
    """The device of a device map, which names one."""
    device = found.get("") if isinstance(found, dict) and len(found) == 1 else found
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if isinstance(device, dict):
        raise LoadError(f"device_map={found!r}: a Tint model stands on one device")
    return device


def nothing_odd() -> dict[str, Any]:
    """The loading report of transformers; whatever it could list has been refused."""
    return {"missing_keys": set(), "unexpected_keys": set(), "mismatched_keys": set(), "error_msgs": []}


def buffers(model: nn.Module) -> dict[str, Tensor]:
    """Rotary frequencies, embedding scales: floating-point tables, which have bits of their own."""
    return {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point()}

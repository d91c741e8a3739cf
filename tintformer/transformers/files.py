"""Tint models on disk: what a directory may hold, read without trusting it and written whole or not at all.

    config.json                      the base model's own configuration, the learning rule, the engine
    model.safetensors                the base model's parameters, once, behind "auxiliary."; its floating-point buffers,
                                     whose bits a conversion may have changed, behind "buffers."
    model-00001-of-0000N.safetensors with model.safetensors.index.json in its place, above the largest size of a file
    generation_config.json           how it generates by default
    README.md                        the model card

Every file of weights has a checksum over its content in its metadata, which is compared where it is there.
Everything is checked on configuration and headers before a tensor is read. Pickles and code are refused, not skipped.
"""

from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig
from transformers.modeling_utils import PreTrainedModel

from tintformer.errors import LoadError, TintError, cause
from tintformer.storage.checksums import write_tensors
from tintformer.storage.fit import DTYPES, check_shapes, check_tables
from tintformer.storage.safetensors_headers import INDEX, WEIGHTS, SafetensorsHeaders, refuse_adapters
from tintformer.storage.untrusted import build_on_meta, is_finite, read_dtype, refuse_huge_generation
from tintformer.storage.untrusted_files import check_model_files, read_foreign_json, user_path
from tintformer.storage.whole_files import check_directory, check_settled, whole_files
from tintformer.transformers.config import TintConfig

CONFIG, GENERATION, CARD = "config.json", "generation_config.json", "README.md"
PARAMETERS, BUFFERS = "auxiliary.", "buffers."
CARD_MARK = "<!-- Written by tintformer; take this line away to keep your own text. -->"
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".npy", ".npz")

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
class PretrainedOptions:
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
    def of(cls, options: dict[str, Any]) -> PretrainedOptions:
        left = {key: value for key, value in options.items() if key not in _WITHOUT_EFFECT}
        result = cls(
            hub={key: left.pop(key) for key in _HUB if key in left},
            config=left.pop("config", None),
            replaced={key: left.pop(key) for key in _REPLACED if key in left},
            generation=left.pop("generation_config", None),
            dtype=_read_dtype(left.pop("dtype", left.pop("torch_dtype", None))),
            device=_one_device(left.pop("device_map", None)),
            report=bool(left.pop("output_loading_info", False)),
        )
        if left:
            raise LoadError(f"{', '.join(sorted(left))}: not an option of from_pretrained here")
        return result


def _read_dtype(found: Any) -> torch.dtype | None:
    return None if found is None or found == "auto" else read_dtype(found, "dtype")


def read_config(directory: Path, asked: PretrainedOptions) -> TintConfig:
    """The configuration of a directory, or the caller's, with the keys that the caller replaces."""
    given = asked.config
    if given is None:
        if (directory / CONFIG).exists():
            read_foreign_json(directory / CONFIG)
        try:
            given = TintConfig.from_pretrained(directory, local_files_only=True)
        except TintError:
            raise
        except Exception as error:  # transformers raises whatever its file readers raise
            raise LoadError(f"cannot read {directory / CONFIG}: {cause(error)}") from error
    if not isinstance(given, TintConfig):
        raise LoadError(f"config is a {type(given).__name__}; give a TintConfig, or none")
    config = copy.deepcopy(given)
    for key, value in asked.replaced.items():
        setattr(config, key, value)
    config.check()
    return config


def read_generation(directory: Path) -> GenerationConfig | None:
    if not (directory / GENERATION).exists():
        return None
    refuse_huge_generation(read_foreign_json(directory / GENERATION), str(directory / GENERATION))
    try:
        return GenerationConfig.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # transformers raises whatever its file readers raise
        raise LoadError(f"cannot read {directory / GENERATION}: {cause(error)}") from error


def fill(model: PreTrainedModel, stored: SafetensorsHeaders) -> None:
    """Give a model the stored numbers, in their own dtype."""
    places = {PARAMETERS + name: parameter for name, parameter in model.named_parameters()}
    places |= {BUFFERS + name: buffer for name, buffer in buffers(model).items()}
    for name, tensor in stored.tensors():
        if name not in places:  # a table of another version of transformers, which this one makes itself
            continue
        read_dtype(tensor.dtype, f"{stored.files[name]}: the dtype of {name}")
        if not is_finite(tensor):
            raise LoadError(f"{stored.files[name]}: {name} contains NaN or infinity; the file is damaged")
        places[name].data = tensor


def convert(model: PreTrainedModel, dtype: torch.dtype | None) -> torch.dtype:
    """Change the dtype of the weights, which is then returned; tables of positions keep theirs."""
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


def loading_report() -> dict[str, Any]:
    """The loading report of transformers; whatever it could list has been refused."""
    return {"missing_keys": set(), "unexpected_keys": set(), "mismatched_keys": set(), "error_msgs": []}


def buffers(model: nn.Module) -> dict[str, Tensor]:
    """Rotary frequencies, embedding scales: floating-point tables, which have bits of their own."""
    return {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point()}


def find_directory(name: str, **hub: Any) -> Path:
    """The directory itself, or a copy of what the hub has under this name: safetensors, JSON and no more."""
    subfolder = hub.pop("subfolder", None) or ""
    path = user_path(name)
    if not path.exists():
        if name.startswith((".", "/", "~")) or name.count("/") > 1:
            raise LoadError(f"no directory {name}; give one that TintForCausalLM.save_pretrained wrote, or a hub id")
        path = _from_hub(name, {key: value for key, value in hub.items() if value is not None and key != "proxies"})
    if ".." in Path(subfolder).parts or Path(subfolder).is_absolute():
        raise LoadError(f"subfolder={subfolder!r} leads out of {name}")
    path = path / subfolder
    if not path.is_dir():
        raise LoadError(f"{path} is no directory; give the one that holds {CONFIG}")
    check_settled(path)
    return path


def _from_hub(name: str, options: dict[str, Any]) -> Path:
    from huggingface_hub import snapshot_download

    from tintformer.storage.hub_models import PATTERNS

    try:
        return Path(snapshot_download(name, allow_patterns=PATTERNS, **options))
    except Exception as error:  # whatever keeps the hub from answering, the user is told the same
        raise LoadError(
            f"cannot load {name!r}: it is no local directory, and neither the local cache nor the hub gives it "
            f"({cause(error)}); check the name and the connection, or give a directory"
        ) from error


def check_files(directory: Path) -> None:
    """Refuse what could run something when it is opened, and weights that would be put on top."""
    for file in sorted(directory.iterdir()):
        if file.suffix.lower() in _PICKLES:
            raise LoadError(f"{file} may be pickled, and opening it could run anything; only safetensors are read")
    check_model_files(directory)
    refuse_adapters(directory)


def check_fit(config: TintConfig, stored: SafetensorsHeaders, directory: Path) -> None:
    """Compare what the configuration asks for with what is there, on a model without data."""
    model = build_on_meta(config.auxiliary, len(stored.shapes), str(directory / CONFIG))
    asked = {PARAMETERS + name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    found = {name: shape for name, shape in stored.shapes.items() if not name.startswith(BUFFERS)}
    if odd := sorted(asked.keys() ^ found.keys()):
        kind = "lacks" if odd[0] in asked else "holds"
        raise LoadError(f"{directory} {kind} {odd[0]}, unlike the model that its {CONFIG} describes")
    buffers = {BUFFERS + name: tuple(buffer.shape) for name, buffer in model.named_buffers()}
    check_shapes(asked | buffers, stored.shapes, str(directory))
    if odd := sorted(name for name, dtype in stored.dtypes.items() if dtype not in DTYPES):
        raise LoadError(f"{directory} holds {odd[0]} as {stored.dtypes[odd[0]]}, which is no floating-point weight")
    check_tables(model, stored.num_bytes, str(directory / CONFIG))


def write(
    directory: Path,
    *,
    config: TintConfig,
    generation: GenerationConfig,
    tensors: dict[str, Tensor],
    card: str,
    max_shard_size: int | str,
) -> None:
    """Write a model; an earlier one in the same place is replaced whole, or left as it was."""
    from huggingface_hub import split_torch_state_dict_into_shards
    from safetensors import SafetensorError

    check_directory(directory, [WEIGHTS, INDEX, GENERATION, CONFIG, CARD])
    split = split_torch_state_dict_into_shards(tensors, max_shard_size=max_shard_size)
    shards = {file.name for file in directory.glob("model-*.safetensors") if _SHARD.fullmatch(file.name)}
    shards |= set(split.filename_to_tensors)
    names = [*sorted(shards | {WEIGHTS}), INDEX, GENERATION, CONFIG]  # what people open comes last
    if _may_write_card(directory / CARD):
        names.append(CARD)
    try:
        with whole_files(directory, names) as new:
            for file, held in split.filename_to_tensors.items():
                write_tensors(new / file, {name: tensors[name] for name in held}, {"format": "pt"})
            if split.is_sharded:
                index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
                (new / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")
            generation.save_pretrained(new)
            config.to_json_file(new / CONFIG)
            if CARD in names:  # whatever is written there takes its place
                (new / CARD).write_text(card, encoding="utf-8")
    except (OSError, SafetensorError) as error:
        raise TintError(f"cannot write {directory}: {error}") from error


def _may_write_card(card: Path) -> bool:
    """Whether there is none, or one of ours; a user's own text stays."""
    return not card.exists() or CARD_MARK in card.read_text(encoding="utf-8", errors="replace")

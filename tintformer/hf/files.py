"""Tint models on disk: what a directory may hold, read without trusting it and written whole or not at all.

    config.json                      the base model's own configuration, the learning rule, the engine
    model.safetensors                the base model's parameters, once, behind "auxiliary."; its floating-point buffers,
                                     whose bits a conversion may have changed, behind "buffers."
    model-00001-of-0000N.safetensors with model.safetensors.index.json in its place, above the largest size of a file
    generation_config.json           how it generates by default
    README.md                        the model card

Everything is checked on configuration and headers before a tensor is read. Pickles and code are refused, not skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tintformer.errors import LoadError, TintError, cause
from tintformer.files import check_directory, whole_files

if TYPE_CHECKING:
    from transformers import GenerationConfig

    from tintformer.hf.config import TintConfig

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
GENERATION, CARD = "generation_config.json", "README.md"
PARAMETERS, BUFFERS = "auxiliary.", "buffers."
CARD_MARK = "<!-- Written by tintformer; take this line away to keep your own text. -->"
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".npy", ".npz")
_MOST_BUFFERS = 2**30
"""Bytes of buffers that a configuration may ask for without weights of that size beside it."""

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Stored:
    """The weights of a directory by their headers: which file holds a tensor, and its shape."""

    files: dict[str, Path]
    shapes: Shapes
    num_bytes: int

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """One tensor after the other."""
        for file in sorted(set(self.files.values())):
            with _opened(file) as opened:
                yield from ((name, opened.get_tensor(name)) for name in opened.keys())  # noqa: SIM118 (not a dict)


def find_directory(name: str, **hub: Any) -> Path:
    """The directory itself, or a copy of what the hub has under this name: safetensors, JSON and no more."""
    subfolder = hub.pop("subfolder", None) or ""
    path = Path(name).expanduser()
    if not path.exists():
        if name.startswith((".", "/", "~")) or name.count("/") > 1:
            raise LoadError(f"no directory {name}; give one that TintForCausalLM.save_pretrained wrote, or a hub id")
        path = _from_hub(name, {key: value for key, value in hub.items() if value is not None and key != "proxies"})
    if ".." in Path(subfolder).parts or Path(subfolder).is_absolute():
        raise LoadError(f"subfolder={subfolder!r} leads out of {name}")
    path = path / subfolder
    if not path.is_dir():
        raise LoadError(f"{path} is no directory; give the one that holds {CONFIG}")
    return path


def _from_hub(name: str, options: dict[str, Any]) -> Path:
    from huggingface_hub import snapshot_download

    from tintformer.fetch.hub_models import PATTERNS

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
        if file.name.startswith("adapter_"):
            raise LoadError(f"{file} belongs to an adapter; merge it into the base model, then make the model anew")


def read_headers(directory: Path) -> Stored:
    """Which tensors there are, from the headers of the files alone."""
    single, index = directory / WEIGHTS, directory / INDEX
    if not single.is_file() and not index.is_file():
        raise LoadError(f"{directory} holds neither {WEIGHTS} nor {INDEX}")
    files: dict[str, Path] = {}
    shapes: Shapes = {}
    num_bytes = 0
    for file in [single] if single.is_file() else _shards(index):
        num_bytes += file.stat().st_size
        with _opened(file) as opened:
            for name in opened.keys():  # noqa: SIM118 (not a dict)
                if name in files:
                    raise LoadError(f"{file} holds {name}, which is in {files[name].name} already")
                files[name], shapes[name] = file, tuple(opened.get_slice(name).get_shape())
    return Stored(files, shapes, num_bytes)


def _shards(index: Path) -> list[Path]:
    """The files that an index names, all of them beside it."""
    content = _json(index)
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(places, dict) or not places:
        raise LoadError(f"{index} has no weight_map, which says where the tensors are")
    for name in places.values():
        if not isinstance(name, str) or not _SHARD.fullmatch(name):
            raise LoadError(f"{index} names {name!r}; only files such as model-00001-of-00002.safetensors are read")
    files = [index.parent / name for name in sorted(set(places.values()))]
    if missing := [file.name for file in files if not file.is_file()]:
        raise LoadError(f"{index.parent} lacks {', '.join(missing)}, which {index.name} names")
    return files


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise LoadError(f"cannot read {file}: {error}") from error


class _opened:
    """A safetensors file; whatever is wrong with it is told in our words."""

    def __init__(self, file: Path):
        self.file = file

    def __enter__(self) -> Any:
        from safetensors import SafetensorError, safe_open

        try:
            self.opened: Any = safe_open(self.file, framework="pt")
            return self.opened.__enter__()
        except (OSError, SafetensorError) as error:
            raise LoadError(f"cannot read {self.file}: {error}") from error

    def __exit__(self, *error: object) -> None:
        self.opened.__exit__(*error)


def check_fit(config: TintConfig, stored: Stored, directory: Path) -> None:
    """Compare what the configuration asks for with what is there, on a model without data."""
    from transformers import AutoModelForCausalLM

    layers = config.auxiliary.num_hidden_layers
    if layers > len(stored.shapes):
        raise LoadError(f"{directory / CONFIG} asks for {layers} layers, but {len(stored.shapes)} tensors are there")
    try:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config.auxiliary, dtype=torch.float32)
    except Exception as error:  # every family's code finds other faults in other ways
        raise LoadError(f"{directory / CONFIG} describes no model that can be built: {cause(error)}") from error
    asked = {PARAMETERS + name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    found = {name: shape for name, shape in stored.shapes.items() if not name.startswith(BUFFERS)}
    if odd := sorted(asked.keys() ^ found.keys()):
        kind = "lacks" if odd[0] in asked else "holds"
        raise LoadError(f"{directory} {kind} {odd[0]}, unlike the model that its {CONFIG} describes")
    buffers = {BUFFERS + name: tuple(buffer.shape) for name, buffer in model.named_buffers()}
    for name, shape in stored.shapes.items():
        wanted = (asked | buffers).get(name, shape)
        if shape != wanted:
            raise LoadError(f"{directory} holds {name} as {shape} instead of {wanted}")
    size = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    if size > max(_MOST_BUFFERS, stored.num_bytes):
        raise LoadError(f"{directory / CONFIG} asks for {size} bytes of tables besides its weights")


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
    from safetensors.torch import save_file

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
                save_file({name: tensors[name].contiguous() for name in held}, new / file, metadata={"format": "pt"})
            if split.is_sharded:
                index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
                (new / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")
            generation.save_pretrained(new)
            config.to_json_file(new / CONFIG)
            (new / CARD).write_text(card, encoding="utf-8")
    except (OSError, SafetensorError) as error:
        raise TintError(f"cannot write {directory}: {error}") from error


def _may_write_card(card: Path) -> bool:
    """Whether there is none, or one of ours; a user's own text stays."""
    return not card.exists() or CARD_MARK in card.read_text(encoding="utf-8", errors="replace")

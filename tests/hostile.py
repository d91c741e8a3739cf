# pyright: basic
"""Damage to a model's directory, as somebody might do it on purpose."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"


class Payload:
    """What a pickle runs when it is opened."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def edit(change: Callable[[dict[str, Any]], Any], name: str = CONFIG) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        content = json.loads((directory / name).read_text())
        change(content)
        (directory / name).write_text(json.dumps(content))

    return apply


def edit_tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        tensors = load_file(directory / WEIGHTS)
        change(tensors)
        save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})

    return apply


def write(name: str, content: bytes | str) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        (directory / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return apply


def pickled(name: str, *, alone: bool = False) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        (directory / name).write_bytes(pickle.dumps(Payload(directory / "it-ran")))
        if alone:
            (directory / WEIGHTS).unlink()

    return apply


def index(place: Any) -> Callable[[Path], None]:
    """Weights in another file, which an index names."""

    def apply(directory: Path) -> None:
        tensors = load_file(directory / WEIGHTS)
        (directory / WEIGHTS).rename(directory.parent / "outside.safetensors")
        (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(tensors, place)}))

    return apply


def code(directory: Path) -> None:
    (directory / "evil.py").write_text(f"open({str(directory / 'it-ran')!r}, 'w')\nclass C: ...\n")
    where = {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.C"}
    edit(lambda config: config.update(auto_map=where))(directory)


def custom_generate(directory: Path) -> None:
    folder = directory / "custom_generate"
    folder.mkdir()
    (folder / "generate.py").write_text(f"open({str(directory / 'it-ran')!r}, 'w')\ndef generate(): ...\n")

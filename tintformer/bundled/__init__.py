"""The small pretrained models and texts that ship with the package; `training/` has the recipe of the models."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

BUNDLED = ("nano-gpt2", "nano-llama")
"""Names that `load` and `find_tokenizer` know without a hub; a local directory of the same name wins."""

TEXTS = ("address", "visit")
"""What the demo reads: texts that were written for it, with names that come back."""


def bundled_directory(name: str) -> Path | None:
    """The directory of a bundled model; None for any other name."""
    return Path(str(files(__name__) / name)) if name in BUNDLED else None


def read_text(name: str) -> str:
    """One of the texts that the demo reads."""
    return (Path(str(files(__name__))) / "texts" / f"{name}.txt").read_text(encoding="utf-8").rstrip()

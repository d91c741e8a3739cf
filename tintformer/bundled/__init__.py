"""The small pretrained models and texts that ship with the package; `training/` has the recipe of the models."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

BUNDLED = ("nano-gpt2", "nano-llama")
"""Names that `load` and `find_tokenizer` know without a hub; a local directory of the same name wins."""

TEXTS = ("address", "visit")
"""What the demo reads: texts that were written for it, with names that come back."""

RATE_TEXTS = ("address", "visit", "ferry", "salt", "minutes", "opinions")
"""What `tint rates` measures on where no texts are given, besides code: written for it, too."""
_CODE = ("tuned.py", "batch.py", "reference.py", "attention.py")
"""Code of an early version of the package, as copies of their own: a change of the package moves no measured rate."""


def bundled_directory(name: str) -> Path | None:
    """The directory of a bundled model; None for any other name."""
    return Path(str(files(__name__) / name)) if name in BUNDLED else None


def read_text(name: str) -> str:
    """One of the texts that the demo reads."""
    return _file(name).rstrip()


def rate_texts() -> list[str]:
    """The texts that rates are measured on: stories, an article, minutes, opinions, and code."""
    return [*map(read_text, RATE_TEXTS), *map(_file, _CODE)]


def _file(name: str) -> str:
    return (Path(str(files(__name__))) / "texts" / f"{name}.txt").read_text(encoding="utf-8")


def rates_directory() -> Path:
    """Where the rates of models that are known to many are kept, measured on these texts."""
    return Path(str(files(__name__))) / "rates"


def probe_directory() -> Path:
    """Where the contexts, prompts and demonstrations lie that `tint probe` takes; they were written for it."""
    return Path(str(files(__name__))) / "probe"

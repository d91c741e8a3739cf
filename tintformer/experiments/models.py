"""Models of an experiment: loaded once a process, whatever is done with them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tintformer.auxiliary.description import Auxiliary


@dataclass(frozen=True, eq=False, kw_only=True)
class OpenModel:
    """A model, its tokenizer, and what of them decides numbers."""

    auxiliary: Auxiliary
    tokenizer: Any
    identity: dict[str, str]


def short_name(model: str) -> str:
    """What tables call a model: the last part of its path or id."""
    return Path(model).name


@lru_cache(maxsize=2)
def open_model(name: str, dtype: str) -> OpenModel:
    """Load a model; two stay in memory, for comparisons."""
    import torch

    from tintformer.experiments.identity import model_identity
    from tintformer.learning.text import find_tokenizer
    from tintformer.storage.loading import load

    auxiliary, tokenizer = load(name, dtype=getattr(torch, dtype)), find_tokenizer(name)
    return OpenModel(auxiliary=auxiliary, tokenizer=tokenizer, identity=model_identity(auxiliary.model, tokenizer))

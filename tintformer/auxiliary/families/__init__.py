"""Families of decoders, registered by Hugging Face's `model_type`; third parties add theirs by an entry point.

A package adds a family by an entry point of the group `tintformer.families` whose value is a `Family`.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from tintformer.auxiliary.families.family import Family, Paths
from tintformer.errors import TintError

__all__ = ["Family", "Paths", "families"]

ENTRY_POINTS = "tintformer.families"

_OWN = (
    "gpt2",
    "opt",
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "bloom",
    "gptj",
    "gpt_neox",
    "gpt_neo",
    "phi",
    "gemma",
)


@cache
def families() -> dict[str, Family]:
    """All known families by `model_type`; a third party may replace one of ours."""
    # Later ones win, so that a third party can correct a family without waiting for a release of ours.
    found = [import_module(f"{__name__}.{name}").FAMILY for name in _OWN]
    for entry in entry_points(group=ENTRY_POINTS):
        family = entry.load()
        if not isinstance(family, Family):
            raise TintError(f"entry point {entry.name!r} of {ENTRY_POINTS} is a {type(family).__name__}, not a Family")
        found.append(family)
    return {family.model_type: family for family in found}

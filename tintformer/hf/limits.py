"""What a base model's configuration may ask for, checked on its plain values before any class is built from them.

A configuration is a few lines that anyone may have written; some families make a list as long as its number of layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tintformer.errors import LoadError

MOST = 2**24
"""Of anything that is counted. The largest of the supported families stay a hundredfold below."""
MOST_REPEATED = 4096
"""Of what is built or listed one by one: layers and heads."""
_REPEATED = ("layer", "head", "attention_types")
_FREQUENCIES = ("rope_parameters", "rope_scaling", "rope_theta", "rotary_emb_base")
"""Base frequencies are written as whole numbers too, and nothing is as large as they are."""
_CODE = ("auto_map", "custom_pipelines", "trust_remote_code")


def check_settings(settings: dict[str, Any], place: str = "auxiliary.") -> None:
    """Refuse code and sizes that no supported model has; `place` says where they stand."""
    for key in _CODE:
        if key in settings:
            raise LoadError(f"{place}{key} asks for code out of the model's directory; none is run: remove it")
    for key, value in settings.items():
        if key in _FREQUENCIES:
            continue
        repeated = any(part in str(key) for part in _REPEATED) and not str(key).endswith(("_dim", "_eps", "_epsilon"))
        most = MOST_REPEATED if repeated else MOST
        numbers = [abs(number) for number in _numbers(value)]
        largest = sum(numbers) if repeated else max(numbers, default=0)
        if largest > most:
            raise LoadError(f"{place}{key} asks for {largest}: more than {most} is no model of these families")


def _numbers(value: Any) -> Iterator[int]:
    """Every whole number in a value, at any depth."""
    if isinstance(value, int) and not isinstance(value, bool):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _numbers(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _numbers(each)

"""Generation as the harness asks for it: options by its names, and texts that end before a stop sequence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tintformer.errors import InputError

TOKENS = 256
"""Tokens to generate where a task does not say."""
_COUNTS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a task asks for, in the words of transformers."""

    max_new_tokens: int
    until: tuple[str, ...]
    options: dict[str, Any]

    @classmethod
    def of(cls, given: dict[str, Any]) -> Wanted:
        """Greedy unless a temperature above 0 or `do_sample` says otherwise."""
        options = dict(given)
        counts = [value for name in _COUNTS if (value := options.pop(name, None)) is not None]
        until = options.pop("until", None) or []
        temperature = options.pop("temperature", None)
        sample = options.pop("do_sample", None)
        if sample is None:
            sample = bool(temperature)
        if sample and temperature == 0:
            raise InputError("do_sample=True with temperature=0; leave one of them out")
        if sample and temperature is not None:
            options["temperature"] = float(temperature)
        return cls(
            max_new_tokens=int(counts[0] if counts else TOKENS),
            until=tuple(text for text in ([until] if isinstance(until, str) else until) if text),
            options=options | {"do_sample": bool(sample)},
        )

    def cut(self, text: str) -> str:
        """The text before the first stop sequence."""
        for stop in self.until:
            text = text.partition(stop)[0]
        return text


def alike(requests: Sequence[tuple[str, dict[str, Any]]]) -> list[list[int]]:
    """The numbers of requests that want the same options."""
    groups: dict[str, list[int]] = {}
    for number, (_, options) in enumerate(requests):
        groups.setdefault(json.dumps(options, sort_keys=True, default=str), []).append(number)
    return list(groups.values())

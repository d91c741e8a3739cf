"""What the harness hands over: model args, every one checked before a model is loaded, and options of generation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

import torch

from tintformer.errors import InputError, RuleError
from tintformer.learning.engine_registry import engines_that
from tintformer.rule.learning_rule import PRESETS, LearningRule, require_number
from tintformer.typed_fields import Range, check_fields

TOKENS = 256
"""Tokens to generate where a task does not say."""
_COUNTS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


@dataclass(frozen=True, kw_only=True)
class ModelArguments:
    """What `--model_args` may hold, besides the knobs of a learning rule and `preset`."""

    pretrained: str
    """A hub id, a directory, or a bundled or fetched name."""
    rule: LearningRule
    """How it learns from a context; with the rate 0 nothing is learnt, and it is the model as it is."""
    engine: str = "fast"
    """`fast`, or `simulator`: the constructed simulator, the same numbers at many times the cost."""
    dtype: str = "float32"
    max_length: Annotated[int | None, Range(at_least=1)] = None
    """Tokens of a context with its continuation; None: as many as the model was built for."""
    batch_size: Annotated[int, Range(at_least=1)] = 8
    """Contexts that run together, each with an update of its own. More want more memory."""
    device: str | None = None

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    @classmethod
    def of(cls, given: dict[str, Any]) -> ModelArguments:
        """What the harness hands over: numbers as numbers, the rest as text."""
        knobs = [field.name for field in fields(LearningRule)]
        own = [field.name for field in fields(cls) if field.name != "rule"]
        known = [*own, "preset", *knobs]
        if unknown := sorted(set(given) - set(known)):
            raise InputError(f"unknown model args of tint: {', '.join(unknown)}; known are {', '.join(known)}")
        if not given.get("pretrained"):
            raise InputError("there is no model; give --model_args pretrained=MODEL,learning_rate=RATE")
        if "learning_rate" not in given:
            raise RuleError("learning_rate is missing in the model args; give one, or 0 for the model as it is")
        preset = given.get("preset", "default")
        if preset not in PRESETS:
            raise RuleError(f"preset={preset!r} is unknown; choose one of {', '.join(PRESETS)}")
        rule = PRESETS[preset](**{name: given[name] for name in knobs if name in given})
        require_number(rule, "an evaluation of the harness")
        chosen: dict[str, Any] = {name: given[name] for name in own if given.get(name) is not None}
        for name, value in chosen.items():
            chosen[name] = _count(name, value) if name in ("max_length", "batch_size") else str(value)
        return cls(rule=rule, **chosen)

    def __post_init__(self) -> None:
        check_fields(self, InputError)
        if self.engine not in (known := engines_that("continues")):
            raise InputError(f"engine={self.engine!r} is unknown here; choose one of {', '.join(known)}")
        dtype = getattr(torch, self.dtype, None)
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise InputError(f"dtype={self.dtype!r} is unknown; choose float32, float64 or bfloat16")

    def available_device(self) -> str | None:
        """The harness asks for its default, CUDA, wherever it runs; without one the CPU does it."""
        wants_cuda = self.device is not None and self.device.startswith("cuda")
        return "cpu" if wants_cuda and not torch.cuda.is_available() else self.device


def _count(name: str, value: Any) -> int:
    """A number of at least 1; the harness hands over its batch size as text."""
    if isinstance(value, bool) or not str(value).isdecimal() or int(value) < 1:
        raise InputError(f"{name}={value!r} must be a whole number of at least 1")
    return int(value)


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """What a task asks for, in the words of transformers."""

    max_new_tokens: int
    until: tuple[str, ...]
    extra: dict[str, Any]
    """All others, for `generate`."""

    @classmethod
    def of(cls, given: dict[str, Any]) -> GenerationOptions:
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
            extra=options | {"do_sample": bool(sample)},
        )

    def cut(self, text: str) -> str:
        """The text before the first stop sequence."""
        for stop in self.until:
            text = text.partition(stop)[0]
        return text


def group_by_options(requests: Sequence[tuple[str, dict[str, Any]]]) -> list[list[int]]:
    """The numbers of requests that want the same options."""
    groups: dict[str, list[int]] = {}
    for number, (_, options) in enumerate(requests):
        groups.setdefault(json.dumps(options, sort_keys=True, default=str), []).append(number)
    return list(groups.values())

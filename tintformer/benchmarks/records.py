"""Records: one flat dictionary a contestant and case, with all that is needed to judge the number."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from torch import Tensor

from tintformer.benchmarks.cases import CASES
from tintformer.benchmarks.contestant import Contestant
from tintformer.benchmarks.memory import Peak
from tintformer.benchmarks.settings import Settings
from tintformer.version import __version__

VARIABLES = ("OMP_WAIT_POLICY", "OMP_NUM_THREADS", "GOMP_SPINCOUNT")
"""Environment variables that change speed, besides those of the C library's allocator."""
MEASURES = (
    "contestant",
    "seconds",
    "repetitions",
    "times",
    "ratio_to_fast",
    "ratio_to_forward",
    "tokens_per_second",
    "peak_memory_bytes",
    "multiply_adds",
    "share_of_peak",
    "evaluation_loss",
    "relative_error",
    "note",
)
"""What a record says of a contestant, in this order; None where it was not measured."""


@dataclass(frozen=True, eq=False)
class Measured:
    """A contestant with what was measured of it."""

    contestant: Contestant
    seconds: list[float]
    losses: Tensor | None
    peak: Peak


def make_records(
    settings: Settings,
    model: str,
    case: str,
    measured: Mapping[str, Measured],
    skipped: Mapping[str, str],
    peak: float,
) -> list[dict[str, Any]]:
    """Everything about one model and case; those who were skipped have a reason instead of times."""
    medians = {name: median(each.seconds) for name, each in measured.items()}
    shared = {"model": model, "case": case, "description": CASES[case].describe()}
    setting = _setting(settings) | {"peak_multiply_adds_per_second": peak}
    found = [
        {
            "contestant": name,
            "seconds": medians[name],
            "repetitions": len(each.seconds),
            "times": each.seconds,
            "ratio_to_fast": _ratio(medians, name, "fast"),
            "ratio_to_forward": _ratio(medians, name, "forward"),
            "tokens_per_second": CASES[case].num_tokens / medians[name],
            "peak_memory_bytes": each.peak.size,
            "multiply_adds": each.contestant.multiply_adds,
            "share_of_peak": each.contestant.multiply_adds / medians[name] / peak,
            "evaluation_loss": None if each.losses is None else float(each.losses.double().mean()),
            "relative_error": _relative_error(name, measured),
            "note": "; ".join(filter(None, (each.contestant.note, each.peak.why_not))),
        }
        for name, each in measured.items()
    ]
    found += [
        dict.fromkeys(MEASURES) | {"contestant": name, "note": f"skipped: {reason}"} for name, reason in skipped.items()
    ]
    return [shared | record | setting for record in found]


def _ratio(medians: Mapping[str, float], name: str, base: str) -> float | None:
    return medians[name] / medians[base] if base in medians else None


def _relative_error(name: str, measured: Mapping[str, Measured]) -> float | None:
    """How far a lower precision is from float32 in the losses of the evaluated tokens, as vectors."""
    if "fast_float32" not in measured or not name.startswith("fast"):
        return None
    losses, truth = measured[name].losses, measured["fast_float32"].losses
    assert losses is not None and truth is not None, "an engine always predicts"
    return float((losses.double() - truth.double()).norm() / truth.double().norm())


def _setting(settings: Settings) -> dict[str, Any]:
    """Where and how it was measured."""
    names = [name for name in sorted(os.environ) if name in VARIABLES or name.startswith("MALLOC_")]
    return {
        "engine": settings.engine,
        "dtype": settings.dtype,
        "threads": settings.threads,
        "processor": _processor(),
        "tintformer": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "environment": {name: os.environ[name] for name in names},
    }


def _processor() -> str:
    """The processor's own name, where the system tells it."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())

"""`measure`: every case of every model, one list of records a case, with all that is needed to judge a number.

Run as a module it is the process of its own in which `measure` has the peak memory of one method measured.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from torch import Tensor

from tintbench.cases import CASES, Case, FewShotCase, SequenceCase, Settings, StreamCase, check_models
from tintbench.measuring import Peak, Seconds, in_a_fresh_process, multiply_add_peak, peak_of, take_turns, threads
from tintbench.setup import Setup, TimedMethod
from tintbench.timed_methods import methods_of, prepare
from tintformer.console import Progress
from tintformer.errors import TintError
from tintformer.version import __version__

VARIABLES = ("OMP_WAIT_POLICY", "OMP_NUM_THREADS", "GOMP_SPINCOUNT")
"""Environment variables that change speed, besides those of the C library's allocator."""
TIMES = (
    *("method", "seconds", "repetitions", "times", "ratio_to_fast", "ratio_to_forward", "tokens_per_second"),
    *("processor_seconds", "processor_ratio_to_fast", "processor_ratio_to_forward"),
)
OTHERS = ("peak_memory_bytes", "multiply_adds", "share_of_peak", "evaluation_loss", "relative_error", "note")
"""What a record says of a method, after its times, in this order; None where it was not measured."""


@dataclass(frozen=True, eq=False)
class Measured:
    """A method with what was measured of it."""

    method: TimedMethod
    seconds: list[Seconds]
    losses: Tensor | None
    peak: Peak


def measure(settings: Settings, progress: Progress = lambda text, share: None) -> Iterator[list[dict[str, Any]]]:
    """Records of one model and case after the other, as they are measured."""
    check_models(settings.models)
    pairs = _pairs(settings)
    with threads(settings.threads):
        setup: Setup | None = None
        for index, (model, case) in enumerate(pairs):
            if setup is None or model != pairs[index - 1][0]:
                progress(f"{model}: making the model", index / len(pairs))
                setup = None  # frees one model before the next is made
                setup = Setup.of(settings, model)
            yield _measure_case(settings, setup, model, case, _within(progress, index, len(pairs), f"{model}, {case}"))


def _pairs(settings: Settings) -> list[tuple[str, str]]:
    """Models and cases, grouped by model; a case that is meant for one model runs once, with it."""
    pairs = [(model, case) for model in settings.models for case in settings.cases if CASES[case].model is None]
    own = [(CASES[case].model, case) for case in settings.cases]
    return pairs + [(model, case) for model, case in own if model is not None]


def _measure_case(settings: Settings, setup: Setup, model: str, case: str, progress: Progress) -> list[dict[str, Any]]:
    names = methods_of(CASES[case], settings)
    repetitions = min(settings.repetitions, CASES[case].max_repetitions or settings.repetitions)
    num_turns = len(names) * (1 + repetitions + settings.memory)
    turns = iter(range(num_turns))

    def on_turn(text: str) -> None:
        progress(text, next(turns) / num_turns)

    memory: dict[str, Peak] = {}
    if settings.memory:  # before anything is prepared here: two processes at their peak might not fit
        for name in names:
            on_turn(f"{name}: memory")
            memory[name] = measure_peak(settings, model, case, name)
    methods: dict[str, TimedMethod] = {}
    losses: dict[str, Tensor | None] = {}
    skipped: dict[str, str] = {}
    for name in names:
        on_turn(f"{name}: warm-up")
        try:
            methods[name] = prepare(name, setup, CASES[case])
            losses[name] = methods[name].run()
        except TintError as error:  # one that cannot do this case must not end hours of measuring
            methods.pop(name, None)
            skipped[name] = str(error)
    seconds = take_turns(methods, repetitions, on_turn)
    measured = {
        name: Measured(methods[name], seconds[name], losses[name], memory.get(name, Peak())) for name in methods
    }
    peak = multiply_add_peak(setup.auxiliary.dtype, settings.device)
    return make_records(settings, model, case, measured, skipped, peak)


def _within(progress: Progress, index: int, count: int, title: str) -> Progress:
    """Progress of one of `count` equal parts, as progress of the whole."""
    return lambda text, share: progress(f"{title}, {text}", (index + share) / count)


# Peak memory.


def measure_peak(settings: Settings, model: str, case: str, method: str) -> Peak:
    """Run one method once in a process of its own."""
    asked = replace(settings, models=(model,), cases=(case,), methods=(method,))
    return in_a_fresh_process("-m", "tintbench.speed", json.dumps(asdict(asked)))


def peak_in_this_process(settings: Settings) -> int:
    """The child's part: one model, one case, one method."""
    name, case = settings.methods[0], CASES[settings.cases[0]]
    with threads(settings.threads):
        setup = Setup.of(settings, settings.models[0])
        prepare(name, setup, _small(case)).run()
        return peak_of(lambda: prepare(name, setup, case).run())


def _small(case: Case) -> Case:
    """One of the same kind, after which libraries hold what they keep."""
    match case:
        case SequenceCase():
            return SequenceCase(batch=1, tokens=8, num_train=4)
        case FewShotCase():
            return FewShotCase(num_examples=1, num_inputs=1, tokens=8, score_batch=1)
        case StreamCase():
            return StreamCase(documents=1, tokens=8, chunk=4)


# Records.


def make_records(
    settings: Settings,
    model: str,
    case: str,
    measured: Mapping[str, Measured],
    skipped: Mapping[str, str],
    peak: float,
) -> list[dict[str, Any]]:
    """Everything about one model and case; those who were skipped have a reason instead of times."""
    medians = {name: median(run.clock for run in each.seconds) for name, each in measured.items()}
    processor = {name: median(run.processor for run in each.seconds) for name, each in measured.items()}
    shared = {"model": model, "case": case, "description": CASES[case].describe()}
    setting = _setting(settings) | {"peak_multiply_adds_per_second": peak}
    found = [
        {
            "method": name,
            "seconds": medians[name],
            "repetitions": len(each.seconds),
            "times": [run.clock for run in each.seconds],
            "ratio_to_fast": _ratio(medians, name, "fast"),
            "ratio_to_forward": _ratio(medians, name, "forward"),
            "tokens_per_second": CASES[case].num_tokens / medians[name],
            "processor_seconds": processor[name],
            "processor_ratio_to_fast": _ratio(processor, name, "fast"),
            "processor_ratio_to_forward": _ratio(processor, name, "forward"),
            "peak_memory_bytes": each.peak.size,
            "multiply_adds": each.method.multiply_adds,
            "share_of_peak": each.method.multiply_adds / medians[name] / peak,
            "evaluation_loss": None if each.losses is None else float(each.losses.double().mean()),
            "relative_error": _relative_error(name, measured),
            "note": "; ".join(filter(None, (each.method.note, each.peak.why_not))),
        }
        for name, each in measured.items()
    ]
    nothing = dict.fromkeys((*TIMES, *OTHERS))
    found += [nothing | {"method": name, "note": f"skipped: {reason}"} for name, reason in skipped.items()]
    return [shared | record | setting for record in found]


def _ratio(medians: Mapping[str, float], name: str, base: str) -> float | None:
    return medians[name] / medians[base] if medians.get(base) else None


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


if __name__ == "__main__":
    given: dict[str, Any] = json.loads(sys.argv[1])
    print(peak_in_this_process(Settings(**given)))

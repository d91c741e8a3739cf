# pyright: basic
"""Small experiments of every kind on the bundled models, whose numbers must not move while a kind's version stays.

    python tests/golden_units.py

records the numbers of kinds whose `version` was raised, and of units that are new. Do not change a case, add one:
`golden/records_by_code` has records of these.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from praise import save_task

from tintformer.bundled import read_text
from tintformer.learning.text import find_tokenizer
from tintformer.rule.learning_rule import LearningRule
from tintlab.data.models import open_model
from tintlab.kinds.comparison import Comparison
from tintlab.kinds.document_streams import DocumentStreams
from tintlab.kinds.icl import InContextLearning
from tintlab.kinds.lm import LanguageModelling
from tintlab.kinds.probe_study import ProbeStudy, ask, prepare
from tintlab.kinds.regression import InContextRegression
from tintlab.kinds.sweep import text_sweep
from tintlab.study.experiment import Experiment
from tintlab.study.runner import Runner
from tintlab.study.store import to_json
from tintlab.study.tuning import run_experiment

GOLDEN = Path(__file__).with_name("golden")
NUMBERS = GOLDEN / "units.json"
COMMAND = "python tests/golden_units.py"
TOLERANCE = 1e-9
"""Absolute or relative: processors differ by 1e-11 in these units, and what is learnt changes them by 1e-3 and more."""
COUNTED = ("flops",)
"""Left out: what attention counts as depends on the kernel that a processor has."""
RATES = (1e-4, 1e-3)
OWN = "My dear Charlotte, I am delighted with your letter, and I shall answer it before the post goes out."
CALM = "The road goes down to the village between two rows of old trees, and the church stands at the end of it."
PROBES: list[Any] = [
    "I have the honour to be, with great respect.",
    {"prompt": "He was", "labels": ["blamed", "happy"]},
]


@dataclass(frozen=True, kw_only=True)
class Case:
    """An experiment that takes a second or two, and those of its units whose numbers are kept."""

    experiment: Any
    units: Mapping[str, Any]

    def results(self, runner: Runner) -> Any:
        """What comes out of all of it: the summaries of its methods, or the results of its units."""
        if isinstance(self.experiment, Experiment):
            return run_experiment(self.experiment, runner)
        return runner.complete(self.experiment, list(self.units.values()))


def cases(place: Path, dtype: str = "float64") -> dict[str, Case]:
    """By name; their data are written to `place`."""
    place.mkdir(parents=True, exist_ok=True)
    texts, task = place / "texts.txt", save_task(place / "praise")
    texts.write_text("\n".join(read_text(name) for name in ("visit", "address")) + "\n", encoding="utf-8")
    demonstrations: dict[str, Any] = {"model": "nano-llama", "task": str(task), "dtype": dtype, "seeds": (0,)}
    language = LanguageModelling(
        model="nano-gpt2",
        data=str(texts),
        dtype=dtype,
        methods=("auxiliary", "tint", "tint-paper", "lora"),
        rates=RATES,
        shares=(0.5,),
        length=64,
        blocks=2,
        tuning=1,
        steps=2,
    )
    shown = InContextLearning(
        **demonstrations, methods=("auxiliary", "tint"), rates=RATES, shots=2, loss="label", tests=4, tuning=2
    )
    alone = InContextLearning(**demonstrations, methods=("tint", "ia3"), rates=(1e-4,), tests=2)
    streams = DocumentStreams(
        model="nano-gpt2",
        data=str(texts),
        dtype=dtype,
        methods=("auxiliary", "momentum", "rms", "tint"),
        rates=(1e-4,),
        documents="blocks",
        length=48,
        chunk=16,
        window=32,
        scored=1,
        tuning=1,
    )
    regression = InContextRegression(
        model="perceptron",
        dtype=dtype,
        methods=("one-step", "many-steps", "least-squares", "perceptron"),
        rates=(0.05,),
        steps=3,
        inputs=3,
        examples=(6,),
        queries=2,
        functions=3,
        hidden=6,
    )
    comparison = Comparison(
        **demonstrations, rates=RATES, shots=(2,), tests=2, tuning=2, orders=2, controls=("shuffled",)
    )
    compared = comparison.units(("pretrained", 2), "tint", 1e-3, "test")
    sweep, probe = _sweep(dtype), _probe(dtype)
    return {
        "lm": Case(experiment=language, units=_tests(language, tint=1e-4, **{"tint-paper": 1e-4, "lora": 1e-5})),
        "icl, demonstrations": Case(experiment=shown, units=_tests(shown, auxiliary=0.0, tint=1e-3)),
        "icl, test inputs": Case(experiment=alone, units=_tests(alone, tint=1e-4, ia3=1e-4)),
        "stream": Case(experiment=streams, units=_tests(streams, momentum=1e-4, rms=1e-4, tint=1e-4)),
        "regression": Case(
            experiment=regression,
            units=_tests(regression, **{"many-steps": 0.05, "least-squares": 0.0, "perceptron": 0.05}),
        ),
        "compare": Case(experiment=comparison, units=dict(zip(COMPARED, compared, strict=True))),
        "probe": Case(experiment=probe.experiment, units=dict(zip(PROBED, probe.units(), strict=True))),
        "sweep": Case(experiment=sweep, units=SWEPT),
    }


SWEPT = {
    "nothing": None,
    "default": LearningRule(learning_rate=1e-4, steps=2),
    "muon": LearningRule(learning_rate=1e-3, optimizer="muon", layers=1),
}
COMPARED = ("true labels", "shuffled labels")
PROBED = ("nothing", "control read", "own read", "control learnt", "own learnt")


def _tests(experiment: Experiment, **rates: float) -> dict[str, Any]:
    """The first unit that is scored, of these methods at these rates."""
    setting = experiment.settings()[0]
    return {method: experiment.units(setting, method, rate, "test")[0] for method, rate in rates.items()}


def _sweep(dtype: str) -> Any:
    auxiliary = open_model("nano-gpt2", dtype).auxiliary
    ids = tuple(find_tokenizer("nano-gpt2")(read_text("visit"))["input_ids"][:48])
    return text_sweep(auxiliary, "nano-gpt2", ids, 24, engine="fast", threads=1)


def _probe(dtype: str) -> ProbeStudy:
    auxiliary = open_model("nano-llama", dtype).auxiliary
    asked = ask({"innocuous": [CALM], "own": [OWN]}, PROBES, 1e-3, "default", None, None, {}, tokens=None, quick=False)
    return prepare(asked, auxiliary, "nano-llama", threads=1)


def by_kind(found: Mapping[str, Case]) -> dict[str, dict[str, Case]]:
    """The cases of each kind."""
    kinds: dict[str, dict[str, Case]] = {}
    for name, case in found.items():
        kinds.setdefault(case.experiment.kind, {})[name] = case
    return kinds


def numbers(found: Mapping[str, Case]) -> dict[str, Any]:
    """What the units of these cases give, as JSON has it."""
    return {
        f"{name}: {unit}": {
            key: to_json(value) for key, value in case.experiment.run(asked).items() if key not in COUNTED
        }
        for name, case in found.items()
        for unit, asked in case.units.items()
    }


def moved(found: Any, expected: Any, where: str = "") -> Iterator[str]:
    """Where two results differ, as sentences; what `found` has besides is no difference."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key, value in expected.items():
            yield from moved(found.get(key), value, f"{where}/{key}")
    elif isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        for number, value in enumerate(expected):
            yield from moved(found[number], value, f"{where}[{number}]")
    elif isinstance(expected, float) and isinstance(found, float):
        if not math.isclose(found, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            yield f"{where} is {found!r} and was {expected!r}"
    elif found != expected:
        yield f"{where} is {found!r} and was {expected!r}"


def check(experiment: Any, found: Any, expected: Any) -> None:
    """Fail if a number of an experiment's kind has moved."""
    first = next(moved(found, expected), None)
    assert first is None, (
        f"{first}; if that is meant, raise `version` of {type(experiment).__name__} and record anew by {COMMAND}"
    )


def record(experiment: Any, found: dict[str, Any], known: dict[str, Any]) -> None:
    """Put the numbers of an experiment's kind among those that are known, if its version or the unit is new."""
    of_kind = known.get(experiment.kind, {})
    if of_kind.get("version") == experiment.version:
        check(experiment, found, of_kind["units"])
        found = found | of_kind["units"]  # the last digits of this processor say nothing new
    known[experiment.kind] = {"version": experiment.version, "units": found}


def main() -> None:
    known = json.loads(NUMBERS.read_text()) if NUMBERS.exists() else {}
    with TemporaryDirectory() as place:
        for found in by_kind(cases(Path(place))).values():
            record(next(iter(found.values())).experiment, numbers(found), known)
    NUMBERS.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except AssertionError as error:
        sys.exit(str(error))

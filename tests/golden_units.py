# pyright: basic
"""Small experiments of every kind on the bundled models, whose numbers must not move while a kind's version stays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
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
from tintlab.study.tuning import run_experiment

GOLDEN = Path(__file__).with_name("golden")
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
        "compare": Case(experiment=comparison, units=_tests(comparison, tint=1e-3)),
        "probe": Case(experiment=probe.experiment, units=dict(zip(PROBED, probe.units(), strict=True))),
        "sweep": Case(experiment=sweep, units=SWEPT),
    }


SWEPT = {
    "nothing": None,
    "default": LearningRule(learning_rate=1e-4, steps=2),
    "muon": LearningRule(learning_rate=1e-3, optimizer="muon", layers=1),
}
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

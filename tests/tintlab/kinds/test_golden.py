# pyright: basic
"""Numbers of the bundled models that must not change unless weights, prompts or the rule do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from cases import some
from golden_units import COMMAND, NUMBERS, Case, by_kind, cases, check, numbers, record
from places import ROOT
from praise import save_task

from tintformer.bundled import read_text
from tintlab.kinds.icl import InContextLearning
from tintlab.kinds.lm import LanguageModelling
from tintlab.study.runner import Runner
from tintlab.study.store import RecordStore
from tintlab.study.tuning import run_experiment

NATS = {
    "nano-gpt2": {"auxiliary": 4.13364, "fine-tuning": 3.93310, "tint": 3.96260, "tint-paper": 3.96256},
    "nano-llama": {"auxiliary": 4.00750, "fine-tuning": 3.97573, "tint": 3.97953, "tint-paper": 3.97955},
}
"""Per token of the second halves of four blocks of 128 tokens, at rate 1e-4."""
CROSS_ENTROPY = {
    "nano-gpt2": {"auxiliary": 1.37533, "fine-tuning": 1.26346, "tint": 1.26723},
    "nano-llama": {"auxiliary": 1.19770, "fine-tuning": 1.13272, "tint": 1.13355},
}
"""Of the right label, 8-shot single, label loss, the top 2 blocks in 4 steps at rate 1e-4, ten examples, two seeds."""


GOLDEN: dict[str, Any] = json.loads(NUMBERS.read_text())
"""By kind: its version, and what units gave in float64 when that was new."""


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Case]]:
    return by_kind(cases(tmp_path_factory.mktemp("golden")))


@pytest.mark.parametrize("kind", list(GOLDEN))
def test_no_number_moves_while_its_version_stays(golden: dict[str, dict[str, Case]], kind: str) -> None:
    experiment = next(iter(golden[kind].values())).experiment
    if experiment.version == GOLDEN[kind]["version"]:  # a raised one is asked for its numbers below
        found = numbers(golden[kind])
        assert found.keys() == GOLDEN[kind]["units"].keys() and len(found) >= 2, f"record them anew by {COMMAND}"
        check(experiment, found, GOLDEN[kind]["units"])


def test_every_kind_has_numbers_of_its_version() -> None:
    """Kinds are found in the sources, so that none is forgotten."""
    declared = re.compile(r'^    kind: ClassVar\[str\] = "(\w+)"\n    version: ClassVar\[int\] = (\d+)$', re.MULTILINE)
    sources = [path.read_text(encoding="utf-8") for path in ROOT.glob("tint*/**/*.py")]
    versions = {kind: int(version) for source in sources for kind, version in declared.findall(source)}
    assert versions == {kind: each["version"] for kind, each in GOLDEN.items()}, f"record their numbers by {COMMAND}"
    assert len(versions) >= 7 and sum(source.count("    version: ClassVar[int] = ") for source in sources) == len(
        versions
    )


@pytest.mark.parametrize("change", [1e-8, 1e-11])
def test_a_moved_number_wants_another_version(golden: dict[str, dict[str, Case]], change: float) -> None:
    experiment = golden["regression"]["regression"].experiment
    known = {"regression": {"version": experiment.version, "units": {"one": {"errors": [0.5, {"$float": "nan"}]}}}}
    found = {"one": {"errors": [0.5 + change, {"$float": "nan"}]}, "two": {"errors": [0.25]}}
    if change > 1e-9:
        meant = (
            r"^/one/errors\[0\] is 0\.50000001 and was 0\.5; if that is meant, raise `version` of InContextRegression"
        )
        with pytest.raises(AssertionError, match=meant):
            record(experiment, found, known)
        known["regression"]["version"] -= 1
        record(experiment, found, known)
        assert known == {"regression": {"version": experiment.version, "units": found}}
    else:
        record(experiment, found, known)
        assert known["regression"]["units"] == {"one": {"errors": [0.5, {"$float": "nan"}]}, "two": {"errors": [0.25]}}


@pytest.mark.parametrize("model", some(list(NATS)))
def test_language_modelling(model: str, tmp_path: Path) -> None:
    text = tmp_path / "texts.txt"
    text.write_text("\n".join(read_text(name) for name in ("visit", "address")) + "\n", encoding="utf-8")
    experiment = LanguageModelling(
        model=model, data=str(text), shares=(0.5,), length=128, blocks=4, rates=(1e-4,), methods=tuple(NATS[model])
    )
    with Runner(RecordStore(tmp_path / "records")) as runner:
        found = {each.method: fmean(each.nats) / each.tokens for each in run_experiment(experiment, runner)}
    assert found == pytest.approx(NATS[model], abs=5e-4)


@pytest.mark.parametrize("model", some(list(CROSS_ENTROPY)))
def test_in_context_learning(model: str, tmp_path: Path) -> None:
    experiment = InContextLearning(
        model=model,
        task=str(save_task(tmp_path / "praise")),
        methods=tuple(CROSS_ENTROPY[model]),
        shots=8,
        loss="label",
        layers=2,
        steps=4,
        rates=(1e-4,),
        seeds=(0, 1),
        tests=10,
    )
    with Runner(RecordStore(tmp_path / "records")) as runner:
        results = run_experiment(experiment, runner)
    found = {each.method: fmean(v for answers in each.answers for v in answers.cross_entropy()) for each in results}
    assert found == pytest.approx(CROSS_ENTROPY[model], abs=5e-4)

# pyright: basic
"""Numbers of the bundled models that must not change unless weights, prompts or the rule do."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest
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


@pytest.mark.parametrize("model", list(NATS))
def test_language_modelling(model: str, tmp_path: Path) -> None:
    text = tmp_path / "texts.txt"
    text.write_text("\n".join(read_text(name) for name in ("visit", "address")) + "\n", encoding="utf-8")
    experiment = LanguageModelling(
        model=model, data=str(text), shares=(0.5,), length=128, blocks=4, rates=(1e-4,), methods=tuple(NATS[model])
    )
    with Runner(RecordStore(tmp_path / "records")) as runner:
        found = {each.method: fmean(each.nats) / each.tokens for each in run_experiment(experiment, runner)}
    assert found == pytest.approx(NATS[model], abs=5e-4)


@pytest.mark.parametrize("model", list(CROSS_ENTROPY))
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

# pyright: basic
"""Real pretrained models in float32: Hugging Face's logits, and the oracle's loss after one step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

import tintformer as tint

pytestmark = pytest.mark.real


def encode(directory: Path, text: str, num_tokens: int) -> torch.Tensor:
    gguf = [path.name for path in directory.glob("*.gguf")]
    tokenizer = AutoTokenizer.from_pretrained(directory, **({"gguf_file": gguf[0]} if gguf else {}))
    return torch.tensor([tokenizer(text[: 12 * num_tokens])["input_ids"][:num_tokens]])


def check(model: tint.Auxiliary, ids: torch.Tensor, rate: float) -> None:
    train = torch.zeros_like(ids, dtype=torch.bool)
    train[:, : ids.shape[1] // 2] = True
    results: dict[str, Any] = {}
    for engine in ("reference", "oracle"):
        sim = tint.Tint(model, tint.LearningRule(learning_rate=rate), engine=engine)
        results[engine] = sim(ids, train_mask=train, before=True)
    with torch.no_grad():
        expected = model.model(input_ids=ids).logits
    ours, truth = results["reference"], results["oracle"]
    torch.testing.assert_close(ours.logits_before, expected, rtol=0, atol=2e-3)
    assert abs(float(ours.loss) - float(truth.loss)) < 1e-4
    assert abs(float(ours.loss) - float(ours.loss_before)) > 1e-3, "nothing was learnt, so nothing was compared"


def test_stories15m(stories15m: Path, stories_text: str) -> None:
    model = tint.load(stories15m)
    check(model, encode(stories15m, stories_text, 192), rate=6e-6)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_smollm2_135m(smollm2: Path, wikitext: str) -> None:
    model = tint.load(smollm2)
    check(model, encode(smollm2, wikitext, 192), rate=1.2e-4)

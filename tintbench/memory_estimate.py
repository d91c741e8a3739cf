"""How far the memory that `tint plan` foresees is from what a run really takes, on random models of several shapes.

Each run is measured in a process of its own, above the weights.
`python -m tintbench.memory_estimate` prints a table, with names of cases only those. Linux only.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tintbench.measuring import in_a_fresh_process, peak_of
from tintbench.results import markdown_table
from tintformer import LearningRule, Tint, load
from tintlab import plan


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A shape, and what is done with it."""

    config: dict[str, Any]
    batch: int
    tokens: int
    rule: dict[str, Any] = field(default_factory=dict[str, Any])
    dtype: torch.dtype = torch.float32
    engine: str = "fast"

    def options(self) -> dict[str, Any]:
        return {"rule": LearningRule(learning_rate=1e-6, **self.rule), "engine": self.engine}


def _gpt2(width: int, layers: int, vocabulary: int = 4096) -> dict[str, Any]:
    return dict(model_type="gpt2", n_embd=width, n_layer=layers, n_head=width // 64, vocab_size=vocabulary)


def _llama(width: int, layers: int, heads: int, shared: int, vocabulary: int = 4096) -> dict[str, Any]:
    sizes = {"hidden_size": width, "intermediate_size": width * 8 // 3, "num_hidden_layers": layers}
    attention = {"num_attention_heads": heads, "num_key_value_heads": shared}
    return {"model_type": "llama", **sizes, **attention, "vocab_size": vocabulary}


CASES = {
    "gpt2, short": PlannedRun(config=_gpt2(768, 6), batch=16, tokens=64),
    "gpt2, long": PlannedRun(config=_gpt2(512, 6), batch=1, tokens=1024),
    "gpt2, 4 steps": PlannedRun(config=_gpt2(512, 8), batch=8, tokens=128, rule={"steps": 4}),
    "llama, grouped": PlannedRun(config=_llama(576, 10, 9, 3), batch=4, tokens=256),
    "llama, large vocabulary": PlannedRun(config=_llama(512, 4, 8, 8, 49152), batch=8, tokens=128),
    "llama, top 3 layers, bfloat16": PlannedRun(
        config=_llama(768, 12, 12, 4), batch=8, tokens=256, rule={"layers": 3}, dtype=torch.bfloat16
    ),
    "bloom": PlannedRun(
        config=dict(model_type="bloom", hidden_size=512, n_layer=6, n_head=8, vocab_size=4096), batch=4, tokens=256
    ),
    "gpt2, full gradient": PlannedRun(
        config=_gpt2(512, 6),
        batch=4,
        tokens=256,
        rule={"attention_gradient": "exact", "update_norm_scale": True, "update_query_key": True},
    ),
    "gpt2, reference engine": PlannedRun(config=_gpt2(512, 4), batch=4, tokens=128, engine="reference"),
}


def measured(case: PlannedRun) -> int:
    """The child's part: a model of that shape, a small run (libraries allocate what they keep), then the real one."""
    torch.set_num_threads(1)
    config = AutoConfig.for_model(**case.config)
    model = load(AutoModelForCausalLM.from_config(config, dtype=case.dtype).eval())
    tint = Tint(model, **case.options())

    def run(batch: int, tokens: int) -> None:
        ids = torch.randint(model.vocabulary_size, (batch, tokens))
        tint(ids, train_mask=(torch.arange(tokens) < tokens // 2).expand(batch, -1), logits="none")

    run(1, 8)
    return peak_of(lambda: run(case.batch, case.tokens))


def compare(name: str) -> tuple[int, int]:
    """Bytes above the weights: foreseen, and measured."""
    case = CASES[name]
    foreseen = plan(
        AutoConfig.for_model(**case.config), batch=case.batch, tokens=case.tokens, dtype=case.dtype, **case.options()
    )
    peak = in_a_fresh_process("-m", "tintbench.memory_estimate", "--measure", name)
    assert peak.size is not None, peak.why_not
    return foreseen.work, peak.size


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(measured(CASES[sys.argv[2]]))
    else:
        headings = ("run", "foreseen, MB", "measured, MB", "foreseen / measured")
        pairs = {name: compare(name) for name in sys.argv[1:] or CASES}
        rows = [(name, f"{a / 1e6:.0f}", f"{b / 1e6:.0f}", f"{a / b:.2f}") for name, (a, b) in pairs.items()]
        print(markdown_table([dict(zip(headings, row, strict=True)) for row in rows]))

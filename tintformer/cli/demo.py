"""`tint demo`: see a model learn inside its own forward pass, offline."""

from __future__ import annotations

from typing import Any

from tintformer.cli.output import Json, print_json, print_table

TEXT = (
    "The lamp in the harbour is red. The boat in the harbour is blue. "
    "The keeper of the lamp is Ada. The keeper of the boat is Ben. "
    "Ada lights the red lamp. Ben sails the blue boat. "
    "The lamp in the harbour is red. The boat in the harbour is blue. "
    "Ada keeps the lamp. Ben keeps the boat."
)


def demo(json: Json = False) -> None:
    """Train a tiny, randomly initialised model inside one forward pass and score the rest of a text.

    The model has random weights: what it shows is that the pass learns, and that the engines agree with plain
    autograd (the oracle) on what it learns. It knows no language.
    """
    results = run_demo()
    if json:
        print_json(results)
        return
    print_table(results["engines"], title=f"{results['model']}, {results['tokens']} tokens (bytes), {results['rule']}")
    print(f"largest difference of an engine's update from the oracle's: {results['update_difference']:.1e}")
    print("note: random weights; the loss falls because the first part of the text is learnt inside the pass")


def run_demo() -> dict[str, Any]:
    """All engines on the demo's text: loss in nats before and after, and how far their updates differ."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from tintformer import LearningRule, Tint

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=256, n_positions=512, n_embd=64, n_layer=4, n_head=4, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).double().eval()
    ids = torch.tensor([list(TEXT.encode())])
    train = torch.zeros_like(ids, dtype=torch.bool)
    train[:, : 2 * ids.shape[1] // 3] = True
    rule = LearningRule(learning_rate=0.02, steps=4)

    rows: list[dict[str, Any]] = []
    updates: list[dict[str, torch.Tensor]] = []
    for engine in ("fast", "reference", "oracle"):
        out = Tint(model, rule, engine=engine)(ids, train_mask=train, before=True, logits="none")
        assert out.loss is not None and out.loss_before is not None
        rows.append({"engine": engine, "loss_before": float(out.loss_before), "loss_after": float(out.loss)})
        updates.append(out.updates())
    *ours, truth = updates
    difference = max(float((update[name] - truth[name]).abs().max()) for update in ours for name in truth)
    return {
        "model": "tiny GPT-2 with random weights (not a trained model)",
        "tokens": ids.shape[1],
        "rule": f"{rule.steps} steps, rate {rule.learning_rate}, all layers",
        "engines": rows,
        "update_difference": difference,
    }

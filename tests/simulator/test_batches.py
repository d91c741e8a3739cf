# pyright: basic
"""Every sequence has a prefix of its own: a batch is its sequences one by one, however they are packed and padded."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import pytest
import torch
import transformers
from cases import TOKENS, VOCABULARY, alone, build_model, call, covering, make_batch, make_model, make_rule, some
from torch import nn

import tintformer as tint

CLOSE = {"rtol": 0, "atol": 1e-12}
BUILT = [{"layout": "lean"}, {"layout": "paper", "stack": 3, "tie_blocks": False}]


def assert_each_alone(simulator: Any, batch: dict[str, Any], *, tolerance: float = 1e-12) -> None:
    """Logits, losses and updates of every row of a batch are those of the row without its padding."""
    together = call(simulator, batch)
    for row in range(len(batch["input_ids"])):
        single, keep = call(simulator, alone(batch, row)), batch["attention_mask"][row].bool()
        for name in ("logits", "token_loss"):
            found, expected = getattr(together, name)[row][keep], getattr(single, name)[0]
            torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
        updates = together.updates(row)
        assert sum(float(update.abs().sum()) for update in updates.values()) > 1e-3
        for name, update in single.updates().items():
            torch.testing.assert_close(updates[name], update, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("case", "built"),
    covering([("gpt2", "default"), ("gpt2", "full"), ("mistral", "full"), ("bloom", "paper")], range(len(BUILT))),
)
@pytest.mark.parametrize("padding", some(["left", "right"]))
def test_a_padded_batch_equals_each_sequence_alone(case: tuple[str, str], built: int, padding: str) -> None:
    name, rule = case
    simulator = tint.build(make_model(name), make_rule(rule), **BUILT[built])
    # The exact attention gradient is a difference with a small step, which brings out the last digits.
    assert_each_alone(simulator, make_batch(padding=padding), tolerance=1e-9 if rule == "full" else 1e-11)


def packed(*, shared: bool) -> dict[str, Any]:
    """Two segments a row, behind a BOS that both see or not, one row padded."""
    batch = make_batch(lengths=(12, 10))
    batch["segment_ids"] = torch.zeros_like(batch["input_ids"])
    batch["segment_ids"][:, 5:] = 7
    if shared:
        batch["segment_ids"][:, 0] = -1
    batch["train_mask"][:, 7] = False
    return batch


@pytest.mark.parametrize(("name", "shared"), covering(["gpt2", "qwen3", "bloom", "gpt_neo"], [False, True]))
def test_packed_segments(name: str, shared: bool) -> None:
    simulator, batch = tint.build(make_model(name), make_rule("default", steps=2)), packed(shared=shared)
    assert_each_alone(simulator, batch)
    truth = call(tint.Tint(make_model(name), make_rule("default", steps=2), engine="oracle"), batch)
    found = call(simulator, batch)
    for row in range(2):
        updates = found.updates(row)
        for parameter, update in truth.updates(row).items():
            torch.testing.assert_close(updates[parameter], update, rtol=0, atol=1e-8)


def test_two_segments_learn_together_what_two_sequences_learn_apart() -> None:
    """One step on a packed row is the sum of the steps on its segments: the loss is summed."""
    simulator = tint.build(make_model("llama"), make_rule("default"))
    batch = packed(shared=False)
    row = {key: value[:1] for key, value in batch.items()}
    together = call(simulator, row).updates()
    parts = []
    for segment in (0, 7):
        own = row["segment_ids"][0] == segment
        piece = {key: value[:, own] for key, value in row.items() if key != "segment_ids"}
        parts.append(call(simulator, piece).updates())
    for name, update in together.items():
        torch.testing.assert_close(parts[0][name] + parts[1][name], update, **CLOSE)


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped"])
def test_label_loss(name: str) -> None:
    batch = make_batch(padding="left")
    batch["loss_mask"] = torch.zeros_like(batch["train_mask"])
    batch["loss_mask"][:, 5:7] = True
    simulator = tint.build(make_model(name), make_rule("default"))
    assert_each_alone(simulator, batch)
    without = call(simulator, {key: value for key, value in batch.items() if key != "loss_mask"})
    assert not torch.equal(call(simulator, batch).logits, without.logits)


@pytest.mark.parametrize("layers", [None, 1], ids=["all-layers", "top-layer"])
@pytest.mark.parametrize("steps", some([3, 1, 2]))
@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
def test_several_steps_and_the_top_layers_alone(name: str, steps: int, layers: int | None) -> None:
    rule = make_rule("default", steps=steps, layers=layers)
    simulator, batch = tint.build(make_model(name), rule), make_batch(lengths=(9, 7))
    assert_each_alone(simulator, batch)
    truth, found = call(tint.Tint(make_model(name), rule, engine="oracle"), batch), call(simulator, batch)
    for row in range(2):
        updates, expected = found.updates(row), truth.updates(row)
        assert updates.keys() == expected.keys()
        for parameter, update in expected.items():
            torch.testing.assert_close(updates[parameter], update, rtol=0, atol=1e-8)


def test_untrained_layers_have_no_backward_modules() -> None:
    """Untied, the layers below the trained ones are forward modules alone."""
    simulator: Any = tint.build(make_model("gpt2"), make_rule("default", layers=1), tie_blocks=False)
    backward = {key for key, modules in simulator.structure.items() if modules.backward_module is not None}
    descent = {key for key, modules in simulator.structure.items() if modules.descent_module is not None}
    assert backward and descent and not any(key.startswith("blocks/0") for key in backward | descent)
    everything: Any = tint.build(make_model("gpt2"), make_rule("default"), tie_blocks=False)
    assert any(
        modules.backward_module is not None
        for key, modules in everything.structure.items()
        if key.startswith("blocks/0")
    )


@pytest.mark.parametrize("knobs", BUILT, ids=["lean", "paper"])
def test_the_order_of_a_batch_does_not_matter(knobs: dict[str, Any]) -> None:
    simulator = tint.build(make_model("llama-grouped"), make_rule("default"), **knobs)
    batch, order = make_batch(), torch.tensor([2, 0, 1])
    straight, turned = call(simulator, batch), call(simulator, {key: value[order] for key, value in batch.items()})
    torch.testing.assert_close(turned.logits, straight.logits[order], **CLOSE)
    for row in range(3):
        updates = straight.updates(int(order[row]))
        for name, update in turned.updates(row).items():
            torch.testing.assert_close(updates[name], update, **CLOSE)


def test_two_passes_are_bit_identical_and_do_not_meet() -> None:
    """A pass keeps nothing: the next one starts from the same prefix, whatever ran in between."""
    simulator = tint.build(make_model("qwen3", torch.float32), make_rule("full"))
    first = call(simulator, make_batch())
    call(simulator, make_batch(seed=5, lengths=(7,)))
    assert torch.equal(call(simulator, make_batch()).logits, first.logits)


def test_logits_as_asked_and_no_evaluation_part() -> None:
    simulator, batch = tint.build(make_model("gpt2"), make_rule("default")), make_batch(padding="left")
    everything, evaluated = call(simulator, batch), call(simulator, batch, logits="evaluation")
    predicting = everything.evaluation_mask.roll(-1, dims=1)
    torch.testing.assert_close(evaluated.logits, everything.logits[predicting], **CLOSE)
    assert call(simulator, batch, logits="none").logits is None
    batch["train_mask"][:] = True
    assert call(simulator, batch).loss is None


def test_the_engine_and_the_module_are_one() -> None:
    model, rule, batch = make_model("gpt2"), make_rule("default"), make_batch()
    module = tint.build(model, rule, stack=2)
    assert isinstance(module, nn.Module) and isinstance(module, tint.Simulator)
    as_engine = call(tint.Tint(model, rule, engine="simulator", stack=2), batch)
    assert torch.equal(as_engine.logits, call(module, batch).logits)
    assert torch.equal(as_engine.loss, call(module, batch).loss)


def fingerprint(model: nn.Module) -> str:
    digest = hashlib.sha256(str(model.config).encode())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        digest.update(f"{name} {tensor.dtype} {tensor.requires_grad} {tensor.grad} {tensor.data_ptr()}".encode())
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    for name, module in model.named_modules():
        hooks = len(module._forward_hooks) + len(module._forward_pre_hooks)
        digest.update(f"{name} {module.training} {hooks} {type(module.forward)}".encode())
    return digest.hexdigest()


@pytest.mark.parametrize("knobs", some(BUILT), ids=["lean", "paper"])
@pytest.mark.parametrize("name", ["gpt2", "gemma", "llama-yarn", "bloom", "opt-350m-kind"])
def test_the_model_is_never_modified(name: str, knobs: dict[str, Any]) -> None:
    model = copy.deepcopy(make_model(name)).train()
    model.register_full_backward_hook(lambda *args: pytest.fail("the user's own hook ran"))
    before = fingerprint(model)
    simulator = tint.build(model, make_rule("full", steps=2), **knobs)
    call(simulator, make_batch(), before=True)
    assert fingerprint(model) == before
    assert all(parameter.requires_grad for parameter in model.parameters())


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown knob": ({"heads": 4}, "unknown knobs of a simulator: heads; known are layout, stack, tie_blocks"),
    "two unknown knobs": ({"width": 4, "heads": 4}, "unknown knobs of a simulator: heads, width"),
    "layout": ({"layout": "wide"}, "layout='wide' is unknown; choose one of lean, paper"),
    "stack of nothing": ({"stack": 0}, "stack=0 must be a whole number of at least 1"),
    "negative stack": ({"stack": -3}, "stack=-3 must be a whole number of at least 1"),
    "half a stack": ({"stack": 2.5}, "stack=2.5 must be a whole number of at least 1"),
    "true stack": ({"stack": True}, "stack=True must be a whole number of at least 1"),
    "stack in words": ({"stack": "4"}, "stack='4' must be a whole number of at least 1"),
    "too large a stack": (
        {"stack": 13},
        "stack=13 is more than the 12 rows of the auxiliary's matrices; use at most 12",
    ),
    "attention": ({"attention": "hard"}, "attention='hard' is unknown; choose one of linear, softmax"),
    "form": ({"softmax_form": "triple"}, "softmax_form='triple' is unknown; choose one of pair, printed"),
    "transposition": ({"transposition": "x"}, "transposition='x' is unknown; choose one of scores, stored"),
    "step of nothing": ({"softmax_epsilon": 0.0}, "softmax_epsilon=0.0 must be a finite number above 0 and below 1"),
    "step of one": ({"softmax_epsilon": 1}, "softmax_epsilon=1 must be a finite number above 0 and below 1"),
    "step in words": ({"softmax_epsilon": "small"}, "softmax_epsilon='small' must be a finite number above 0"),
    "tie in words": ({"tie_blocks": "no"}, "tie_blocks='no' "),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_constructions_are_refused(bad: str) -> None:
    knobs, message = BAD[bad]
    for make in (tint.build, lambda model, rule, **how: tint.Tint(model, rule, engine="simulator", **how)):
        with pytest.raises(tint.InputError, match=message):
            make(make_model("gpt2"), make_rule("default"), **knobs)


@pytest.mark.parametrize("engine", ["fast", "reference", "oracle"])
def test_constructions_belong_to_the_simulator(engine: str) -> None:
    message = f"layout, stack: knobs of the simulator; leave them out with engine='{engine}'"
    with pytest.raises(tint.TintError, match=message):
        tint.Tint(make_model("gpt2"), make_rule("default"), engine=engine, layout="lean", stack=2)


def test_what_belongs_to_other_engines() -> None:
    model, rule = make_model("gpt2"), make_rule("default")
    with pytest.raises(tint.TintError, match="dual: knobs of the fast engine"):
        tint.Tint(model, rule, engine="simulator", dual=True)
    with pytest.raises(tint.TintError, match=r"adapt\(\) needs engine='fast'"):
        tint.Tint(model, rule, engine="simulator").adapt(make_batch()["input_ids"])
    with pytest.raises(tint.RuleError, match="layers=3 but the model has 2 blocks"):
        tint.build(model, make_rule("default", layers=3))
    with pytest.raises(tint.InputError, match="outside of the vocabulary"):
        call(tint.build(model, rule), {**make_batch(), "input_ids": make_batch()["input_ids"] + 20})


def test_a_head_that_is_wider_than_the_stream() -> None:
    """OPT may project its embeddings, and so the head's input, to any width."""
    heads: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 2}
    shape: dict[str, Any] = {"hidden_size": 6, "ffn_dim": 9, "word_embed_proj_dim": 8, **heads}
    config = transformers.OPTConfig(vocab_size=VOCABULARY, max_position_embeddings=64, **TOKENS, **shape)
    model, rule, batch = build_model("OPT", config), make_rule("full", steps=2), make_batch()
    truth = call(tint.Tint(model, rule, engine="oracle"), batch)
    for engine in ("fast", "simulator", "network"):
        found = call(tint.Tint(model, rule, engine=engine), batch)
        torch.testing.assert_close(found.token_loss, truth.token_loss, rtol=0, atol=1e-6)

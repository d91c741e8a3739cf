# pyright: basic
"""Exported passes: what onnxruntime makes of them, what they are made of, and that they stand alone."""

from __future__ import annotations

import json
import subprocess
import sys
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from cases import DESCENTS, FIRST, make_batch, make_model, make_rule, some
from patience import PATIENCE

import tintformer as tint
from tintformer.network.export import INPUTS, Exported, PortableFast, PortableNetwork, export, run_exported
from tintformer.network.network import compile
from tintformer.network.operators import check_operators, count_operators
from tintformer.storage.loading import load

pytest.importorskip("onnxruntime", reason="pip install 'tintformer[export]'")
EXAMPLE = Path(__file__).parents[2] / "examples" / "run_onnx.py"


def exported(*arguments: Any, **knobs: Any) -> Exported:
    """A graph of its own, to be changed at will: making one takes seconds."""
    return deepcopy(_exported(*arguments, **knobs))


@cache
def _exported(engine: str, name: str, rule: Any, num_tokens: int, *, updates: bool = False, **knobs: Any) -> Exported:
    auxiliary = load(make_model(name, torch.float32))
    if engine == "fast":
        return export(PortableFast(auxiliary, rule, updates=updates), num_tokens, **knobs)
    network = compile(auxiliary, rule, max_tokens=num_tokens)
    return export(PortableNetwork(network, updates=updates), num_tokens, **knobs)


def tensors(batch: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    return tuple(batch[name].long() for name in INPUTS)


def check_against_fast(found: Exported, name: str, rule: Any, batch: dict[str, Any], tolerance: float = 1e-4) -> None:
    fast = tint.Tint(make_model(name, torch.float32), rule)(**batch)
    attended = batch["attention_mask"].bool()
    assert fast.logits is not None
    logits = torch.from_numpy(run_exported(found.model, tensors(batch))[0])
    torch.testing.assert_close(logits[attended], fast.logits[attended], rtol=0, atol=tolerance)


@pytest.mark.parametrize("engine", some(["fast", "network"]))
def test_a_graph_learns_as_the_fast_engine_does_with_padding_on_either_side(engine: str) -> None:
    rule = make_rule("mean", steps=2, layers=1)
    found = exported(engine, "llama", rule, 7, dynamic_batch=True)
    for padding in ("left", "right"):
        check_against_fast(found, "llama", rule, make_batch(lengths=(7, 5, 6), padding=padding))


@pytest.mark.parametrize("engine", ["fast", pytest.param("network", marks=pytest.mark.sweep)])
def test_a_graph_descends_with_momentum_decay_rates_and_schedule(engine: str) -> None:
    rule = make_rule("default", steps=2, **DESCENTS["all"])
    check_against_fast(exported(engine, "gpt2", rule, 6), "gpt2", rule, make_batch(lengths=(6,)))


@pytest.mark.parametrize("optimizer", ["rms", "adam", "muon"])
def test_dense_optimisers_are_no_part_of_an_export(optimizer: str) -> None:
    with pytest.raises(tint.RuleError, match=f"optimizer='{optimizer}' cannot be part of an export"):
        PortableFast(load(make_model("gpt2")), make_rule("default", optimizer=optimizer))


@pytest.mark.sweep
@pytest.mark.parametrize("engine", ["network", "fast"])
@pytest.mark.parametrize("rule", ["default", "full", "paper"])
@pytest.mark.parametrize("name", FIRST)
def test_every_family_can_be_exported(name: str, rule: str, engine: str) -> None:
    settled = make_rule(rule)
    found = exported(engine, name, settled, 7)
    # What divides by a difference step loses digits of float32, in whichever order it is added.
    check_against_fast(found, name, settled, make_batch(lengths=(7,)), 5e-2 if rule == "paper" else 1e-3)


@pytest.mark.parametrize("engine", ["network", "fast"])
@pytest.mark.sweep
def test_updated_weights_come_out_by_name_and_nothing_is_learnt_from_nothing(engine: str) -> None:
    rule = make_rule("default")
    model, batch = make_model("gpt2", torch.float32), make_batch(lengths=(6,))
    found = exported(engine, "gpt2", rule, 6, updates=True)
    names = [output.name for output in found.model.graph.output]
    parameters = dict(model.named_parameters())
    learnt = tint.Tint(model, rule)(**batch).updates()
    assert names[0] == "logits" and set(names[1:]) == set(learnt)
    ids, attended, trains = tensors(batch)
    after = run_exported(found.model, (ids, attended, trains))
    for name, value in zip(names[1:], after[1:], strict=True):
        torch.testing.assert_close(torch.from_numpy(value), parameters[name].detach() + learnt[name], rtol=0, atol=1e-6)
    before = run_exported(found.model, (ids, attended, torch.zeros_like(trains)))
    for name, value in zip(names[1:], before[1:], strict=True):
        assert numpy.array_equal(value, parameters[name].detach().numpy()), f"{name} has moved"
    plain = model(ids).logits.detach()
    torch.testing.assert_close(torch.from_numpy(before[0]), plain, rtol=0, atol=1e-5)


@pytest.mark.sweep
def test_constants_are_stored_once_and_parts_are_told_apart() -> None:
    found = exported("network", "llama", make_rule("default"), 6)
    stored = [(tensor.dims, tensor.data_type, tensor.raw_data) for tensor in found.model.graph.initializer]
    assert len(stored) == len({repr(each) for each in stored})
    counts = {count.operator: count for count in found.operators}
    assert counts["Softmax"].layers == 4 and counts["Softmax"].embed == 0
    assert counts["CumSum"].embed == 1 and counts["CumSum"].layers == 0
    assert all(count.group for count in found.operators)
    assert sum(count.embed + count.layers for count in found.operators) == len(found.model.graph.node)


@pytest.mark.parametrize(
    "kind", ["NonZero", *(pytest.param(kind, marks=pytest.mark.sweep) for kind in ("ScatterND", "CumSum"))]
)
def test_an_operator_that_is_no_part_of_a_transformer_is_refused(kind: str) -> None:
    found = exported("network", "gpt2", make_rule("default", layers=1), 4)
    found.model.graph.node[-2].op_type = kind
    with pytest.raises(tint.TintError, match=f"no part of a transformer: {kind}; "):
        check_operators(found.model)


def test_a_layer_may_not_choose_by_what_it_computes() -> None:
    found = exported("network", "gpt2", make_rule("default", layers=1), 4)
    nodes = found.model.graph.node
    computed = next(node for node in nodes if node.op_type == "MatMul").output[0]
    for kind in ("Gather", "Slice", "Reshape", "Pad"):
        chosen = next(node for node in nodes if node.op_type == kind and "layers" in node.name)
        chosen.input[1], constant = computed, chosen.input[1]
        with pytest.raises(tint.TintError, match=f"no part of a transformer: {kind}; "):
            check_operators(found.model)
        chosen.input[1] = constant
        assert any(count.operator == kind for count in count_operators(found.model))
    check_operators(found.model)


@pytest.mark.parametrize("engine", some(["fast", "network"]))
def test_padding_may_hold_any_number(engine: str) -> None:
    found = exported(engine, "llama", make_rule("mean", steps=2, layers=1), 7, dynamic_batch=True)
    batch = make_batch(lengths=(7, 5), padding="left")
    ids, attended, trains = (tensor[1:] for tensor in tensors(batch))
    first, second = (
        run_exported(found.model, (torch.where(attended == 1, ids, number), attended, trains))[0]
        for number in (0, 999_999)
    )
    seen = attended.bool().numpy()
    assert numpy.isfinite(second).all() and numpy.array_equal(first[seen], second[seen])


def run_alone(graph: Path, text: Path, logits: Path) -> list[float]:
    """The example in a process of its own, which must import neither torch nor tintformer."""
    code = (
        "import runpy, sys, numpy, json, onnxruntime\n"
        "example, graph, text, logits = sys.argv[1:]\n"
        "runpy.run_path(example)['main'](graph, text)\n"
        "content = json.load(open(text, encoding='utf-8'))\n"
        f"feed = {{name: numpy.array(content[name]) for name in {INPUTS}}}\n"
        "session = onnxruntime.InferenceSession(graph, providers=['CPUExecutionProvider'])\n"
        "numpy.save(logits, session.run(['logits'], feed)[0])\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'torch', 'tintformer', 'transformers'}, loaded\n"
    )
    command = [sys.executable, "-c", code, *map(str, (EXAMPLE, graph, text, logits))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return [float(line.rpartition(" ")[2]) for line in done.stdout.splitlines()]


def test_the_example_needs_neither_torch_nor_this_package(tmp_path: Path) -> None:
    rule, model = make_rule("default", layers=1), make_model("llama", torch.float32)
    batch = make_batch(lengths=(8,), padding="left")
    graph, text = tmp_path / "model.onnx", tmp_path / "model.json"
    graph.write_bytes(exported("network", "llama", rule, 8).model.SerializeToString())
    text.write_text(json.dumps({name: batch[name].long().tolist() for name in INPUTS}))
    before, after = run_alone(graph, text, tmp_path / "logits.npy")
    out: Any = tint.Tint(model, rule)(**batch, before=True)
    assert before == pytest.approx(float(out.loss_before.exp()), rel=1e-3)
    assert after == pytest.approx(float(out.loss.exp()), rel=1e-3)
    numpy.testing.assert_allclose(numpy.load(tmp_path / "logits.npy"), out.logits.numpy(), atol=1e-4)


@pytest.mark.sweep
def test_nano_llama_learns_in_a_runtime_without_torch(tmp_path: Path) -> None:
    from tintformer.learning.text import encode, find_tokenizer

    auxiliary, rule = load("nano-llama"), tint.LearningRule(learning_rate=3e-4)
    story = "Once upon a time there was a little fox named Pim. Pim loved to run in the forest with his red ball. " * 4
    ids = torch.tensor([encode(find_tokenizer("nano-llama"), story).input_ids[:64]])
    trains = (torch.arange(64) < 32).long()[None]
    network = PortableNetwork(compile(auxiliary, rule, max_tokens=64))
    graph, text = tmp_path / "model.onnx", tmp_path / "model.json"
    graph.write_bytes(export(network, 64).model.SerializeToString())
    inputs = (ids, torch.ones_like(ids), trains)
    text.write_text(json.dumps(dict(zip(INPUTS, (each.tolist() for each in inputs), strict=True))))
    before, after = run_alone(graph, text, tmp_path / "logits.npy")
    assert after < before
    with torch.no_grad():
        expected = network(*inputs)[0].numpy()
    numpy.testing.assert_allclose(numpy.load(tmp_path / "logits.npy"), expected, atol=1e-3)
    fast = run_exported(export(PortableFast(auxiliary, rule), 64).model, inputs)[0]
    wanted: Any = tint.Tint(auxiliary, rule)(ids, train_mask=trains.bool()).logits
    numpy.testing.assert_allclose(fast, wanted.numpy(), atol=1e-4)


@pytest.mark.sweep
def test_the_perplexity_falls_as_in_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tintformer.bundled import read_text
    from tintformer.cli import main
    from tintformer.learning.text import find_tokenizer
    from tintlab.cli.demo import show

    demo = show(load("nano-llama"), find_tokenizer("nano-llama"), "visit", None, lambda _: None)
    (tmp_path / "visit.txt").write_text(read_text("visit"), encoding="utf-8")
    graph = tmp_path / "model.onnx"
    options = {"tokens": demo["tokens"], "train-tokens": demo["train_tokens"], "learning-rate": demo["learning_rate"]}
    words = [f"--{name}={value}" for name, value in {"file": tmp_path / "visit.txt", **options}.items()]
    monkeypatch.setattr(sys, "argv", ["tint", "export", "nano-llama", *words, "-o", str(graph)])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    text = graph.with_suffix(".json")
    assert sum(json.loads(text.read_text(encoding="utf-8"))["train_mask"][0]) == demo["train_tokens"]
    before, after = run_alone(graph, text, tmp_path / "logits.npy")
    as_it_is, _, fast, simulator = demo["perplexities"].values()
    assert before == pytest.approx(as_it_is, rel=1e-3)
    assert after == pytest.approx(fast, rel=1e-3) and after == pytest.approx(simulator, rel=1e-3)
    assert after < before / 2


def test_what_cannot_be_exported_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    auxiliary, rule = load(make_model("gpt2", torch.float32)), make_rule("default")
    with pytest.raises(tint.InputError, match=r"65 tokens are to be exported, but .* was built for 64 positions"):
        export(PortableFast(auxiliary, rule), 65)
    with pytest.raises(tint.InputError, match="at least 2, a token and the next one"):
        export(PortableFast(auxiliary, rule), 1)
    with pytest.raises(tint.InputError, match="without a dynamic batch"):
        export(PortableFast(auxiliary, rule, updates=True), 4, dynamic_batch=True)
    monkeypatch.setattr("tintformer.network.export.LARGEST", 1000)
    with pytest.raises(tint.InputError, match=r"0\.0 GB but an ONNX file holds 2 GB"):
        export(PortableFast(auxiliary, rule), 4)
    monkeypatch.setattr("tintformer.network.export.find_spec", lambda name: None)
    with pytest.raises(tint.InputError, match=r"needs onnx and onnxruntime; pip install 'tintformer\[export\]'"):
        export(PortableFast(auxiliary, rule), 4)

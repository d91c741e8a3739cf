# pyright: basic
"""Hooks: the same values by the same names on every engine, true gradients, and replacements that take effect."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases import call, make_batch, make_model, make_rule
from torch import Tensor

import tintformer as tint
from tintformer.engines.fast.fast_executor import FastExecutor
from tintformer.execution.batch import Batch
from tintformer.execution.hooks import HookPoint

CASES = [
    ("gpt2", "default", None),
    ("gpt2", "full", 1),
    ("llama-grouped", "full", None),
    ("llama-grouped", "default", 1),
    ("gptj", "default", None),
    ("opt-350m-kind", "full", None),
    ("qwen3", "query-key", None),
]


def watched(name: str, rule: tint.LearningRule, engine: str, batch: dict[str, Any]) -> tuple[dict[Any, Tensor], Any]:
    """Everything that there is to see in one pass, and copies of it as it was then."""
    sim, copies = tint.Tint(make_model(name), rule, engine=engine), {}

    def copy(value: Tensor, point: HookPoint) -> None:
        copies[point] = value.clone()

    with sim.watch("*") as seen, sim.hook("*", copy):
        out = call(sim, batch, before=True)
    assert list(seen) == sim.points()
    for point, value in seen.items():
        assert torch.equal(value, copies[point]), f"{point} was changed after it was seen"
    return seen, out


@pytest.mark.parametrize(("name", "rule", "layers"), CASES)
def test_every_point_is_the_same_on_every_engine(name: str, rule: str, layers: int | None) -> None:
    batch, learn = make_batch(padding="left"), make_rule(rule, steps=2, layers=layers)
    attended = batch["attention_mask"].bool()
    expected, truth = watched(name, learn, "reference", batch)
    for engine in ("fast", "simulator"):
        seen, out = watched(name, learn, engine, batch)
        torch.testing.assert_close(out.logits[attended], truth.logits[attended], rtol=0, atol=1e-8)
        for point, value in expected.items():
            assert seen[point].shape == value.shape, point
            kept = slice(None) if ".update." in point.name else attended[:, : value.shape[1]]
            difference = (seen[point][kept] - value[kept]).abs().max()
            assert float(difference) < 1e-8 * (1 + float(value[kept].abs().max())), (engine, point)


@pytest.mark.parametrize("dual", [True, False], ids=["dual", "dense"])
def test_the_updates_of_all_steps_make_up_what_has_been_learnt(dual: bool) -> None:
    sim, batch = tint.Tint(make_model("gpt2"), make_rule("full", steps=3), dual=dual), make_batch()
    with sim.watch("blocks.1.*.update.*", "final.*.update.*") as seen:
        out = call(sim, batch)
    for row in range(3):
        learnt = out.updates(row)

        def total(name: str, row: int = row) -> Tensor:
            return torch.stack([seen[step, name][row] for step in (1, 2, 3)]).sum(0)

        fused = [total(f"blocks.1.{part}.update.weight").mT for part in ("query", "key", "value")]
        pairs = {
            "transformer.h.1.attn.c_attn.weight": torch.cat(fused, dim=1),
            "transformer.h.1.mlp.c_proj.weight": total("blocks.1.down.update.weight").mT,
            "transformer.h.1.mlp.c_proj.bias": total("blocks.1.down.update.bias"),
            "transformer.ln_f.weight": total("final.norm.update.scale"),
        }
        for name, change in pairs.items():
            torch.testing.assert_close(change, learnt[name], rtol=0, atol=1e-12)


GPT2 = {
    "attention_norm": "ln_1",
    "output": "attn.c_proj",
    "mlp_norm": "ln_2",
    "up": "mlp.c_fc",
    "activation": "mlp.act",
    "down": "mlp.c_proj",
}
LLAMA = {
    "attention_norm": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "activation": "mlp.act_fn",
    "down": "mlp.down_proj",
}


@pytest.mark.parametrize(
    ("name", "blocks", "final", "modules"),
    [
        ("gpt2", "transformer.h", "transformer.ln_f", GPT2),
        ("llama-grouped", "model.layers", "model.norm", LLAMA),
    ],
)
@pytest.mark.parametrize("engine", ["fast", "simulator"])
def test_gradients_are_those_of_autograd(
    name: str, blocks: str, final: str, modules: dict[str, str], engine: str
) -> None:
    """Against the Hugging Face model itself, which works in float32 in places (RMSNorm, softmax, rotary)."""
    model, ids = make_model(name), make_batch(lengths=(9,))["input_ids"]
    paths = {f"blocks.{i}.{op}": f"{blocks}.{i}.{path}" for i in range(2) for op, path in modules.items()}
    paths["final.norm"] = final
    outputs: dict[str, Tensor] = {}

    def keep(op: str) -> Any:
        def note(module: Any, inputs: Any, output: Tensor) -> None:
            output.retain_grad()
            outputs[op] = output

        return note

    handles = [model.get_submodule(path).register_forward_hook(keep(op)) for op, path in paths.items()]
    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="sum").backward()
    for handle in handles:
        handle.remove()
    model.zero_grad(set_to_none=True)
    sim = tint.Tint(model, make_rule("full"), engine=engine)
    with sim.watch("*.output", "*.gradient", when=1) as seen:
        sim(ids, train_mask=torch.ones_like(ids))
    assert len(outputs) == 2 * len(modules) + 1
    for op, output in outputs.items():
        assert output.grad is not None and float(output.grad.abs().max()) > 1e-3, op
        torch.testing.assert_close(seen[1, f"{op}.output"], output.detach()[:, :-1], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(seen[1, f"{op}.gradient"], output.grad[:, :-1], rtol=1e-4, atol=1e-4)


def test_the_pass_before_put_into_the_pass_after_unlearns() -> None:
    """Activation patching, by the names of the points alone."""
    batch = make_batch()
    for engine in ("fast", "reference", "simulator"):
        sim = tint.Tint(make_model("llama-grouped"), make_rule("default"), engine=engine)
        with sim.watch("final.norm.output", when="before") as seen:
            out = call(sim, batch, before=True)
        (old,) = seen.values()
        with sim.hook("final.norm.output", lambda value, point, old=old: old, when="after"):
            patched = call(sim, batch)
        assert torch.equal(patched.logits, out.logits_before)
        assert not torch.equal(patched.logits, out.logits)
        for name, change in out.updates(0).items():
            assert torch.equal(change, patched.updates(0)[name]), "what was learnt did not depend on the last pass"


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped"])
@pytest.mark.parametrize("point", ["blocks.0.value.input", "blocks.1.activation.output", "blocks.1.mlp_norm.gradient"])
def test_replacements_mean_the_same_on_every_engine(name: str, point: str) -> None:
    batch, logits = make_batch(), []
    attended = batch["attention_mask"].bool()
    for engine in ("reference", "fast", "simulator"):
        sim = tint.Tint(make_model(name), make_rule("default", steps=2), engine=engine)
        untouched = call(sim, batch).logits
        with sim.hook(point, lambda value, point: 0.5 * value):
            logits.append(call(sim, batch).logits)
        assert float((logits[-1] - untouched)[attended].abs().max()) > 1e-4
        assert torch.equal(call(sim, batch).logits, untouched), "the hook is gone with its context"
    for other in logits[1:]:
        torch.testing.assert_close(other[attended], logits[0][attended], rtol=0, atol=1e-8)


@pytest.mark.parametrize("engine", ["fast", "simulator"])
def test_a_gradient_that_is_stopped_teaches_nothing_behind_it(engine: str) -> None:
    sim, batch = tint.Tint(make_model("gpt2"), make_rule("default"), engine=engine), make_batch()
    with sim.hook("blocks.1.mlp_residual.gradient", lambda value, point: torch.zeros_like(value)):
        updates = call(sim, batch).updates(0)
    moved = {name for name, change in updates.items() if float(change.abs().max()) > 0}
    assert moved == {"transformer.ln_f.bias"}


@pytest.mark.parametrize("engine", ["fast", "simulator"])
def test_a_gradient_is_told_once_and_moves_what_it_is_replaced_by(engine: str) -> None:
    """Backward and descent of an op work from the same answer."""
    sim = tint.Tint(make_model("gpt2"), make_rule("default", steps=2), engine=engine)
    batch, told = make_batch(), []

    def stop(value: Tensor, point: HookPoint) -> Tensor:
        told.append(point)
        return torch.zeros_like(value)

    with sim.hook("blocks.1.down.gradient", stop), sim.watch("blocks.1.*.update.*", "blocks.1.up.gradient") as seen:
        call(sim, batch)
    assert told == [(1, "blocks.1.down.gradient"), (2, "blocks.1.down.gradient")]
    for step in (1, 2):
        assert not seen[step, "blocks.1.up.gradient"].any()
        for name in ("down.update.weight", "down.update.bias", "up.update.weight"):
            assert not seen[step, f"blocks.1.{name}"].any(), name
        assert seen[step, "blocks.1.output.update.weight"].any(), "the attention learns by the residual"


def test_hooks_at_one_point_are_called_in_order() -> None:
    sim, batch = tint.Tint(make_model("gpt2"), make_rule("default")), make_batch()
    with (
        sim.hook("embedding.output", lambda value, point: value + 1),
        sim.hook("embedding.output", lambda value, point: value * 2),
        sim.watch("embedding.output", "blocks.0.attention_norm.input", when="before") as seen,
    ):
        call(sim, batch, before=True)
        changed = seen["before", "embedding.output"]
        assert torch.equal(seen["before", "blocks.0.attention_norm.input"], changed)
    with sim.watch("embedding.output", when="before") as seen:
        call(sim, batch, before=True)
    torch.testing.assert_close(changed, 2 * (seen["before", "embedding.output"] + 1))


def test_a_tuned_model_is_watched_as_the_pass_after() -> None:
    sim, batch = tint.Tint(make_model("llama"), make_rule("full")), make_batch(lengths=(9,))
    with sim.watch("blocks.*", "final.*", when="after") as expected:
        call(sim, batch)
    with sim.watch("*.update.weight", "blocks.1.*.gradient") as learnt:
        tuned = sim.adapt(batch["input_ids"], train_mask=batch["train_mask"])
    torch.testing.assert_close(
        learnt[1, "blocks.0.up.update.weight"], tuned.updates()["model.layers.0.mlp.up_proj.weight"][None]
    )
    with tuned.watch("*") as seen:
        tuned.score(batch["input_ids"])
    assert list(seen) == tuned.points()
    for point, value in expected.items():
        torch.testing.assert_close(seen[point], value, rtol=0, atol=1e-10)


def test_the_simulator_itself_is_watched() -> None:
    simulator, batch = tint.build(make_model("gpt2"), make_rule("default")), make_batch()
    with simulator.watch("blocks.0.attention.input.query", when="after") as seen:
        call(simulator, batch)
    assert seen["after", "blocks.0.attention.input.query"].shape == (3, 11, 12)


def test_without_hooks_nothing_stands_between_the_walk_and_the_executor() -> None:
    sim, inputs = tint.Tint(make_model("gpt2"), make_rule("default")), make_batch()
    batch = Batch.of(sim.auxiliary, inputs.pop("input_ids"), **inputs)
    executor = FastExecutor(sim.auxiliary, sim.rule, batch)
    assert sim.hooks.observed(executor, batch) is executor
    with pytest.raises(ZeroDivisionError), sim.watch("*"):
        assert sim.hooks.observed(executor, batch) is not executor
        raise ZeroDivisionError
    assert sim.hooks.observed(executor, batch) is executor


def test_names_are_told_apart() -> None:
    for name in ("gpt2", "gptj", "gpt_neox", "bloom-normed-residual", "opt-350m-kind", "phi-grouped"):
        points = tint.Tint(make_model(name), make_rule("full")).points()
        assert len(points) == len(set(points)), name


def test_what_was_not_seen_is_told_with_what_is_near() -> None:
    sim, batch = tint.Tint(make_model("gpt2"), make_rule("default", layers=1)), make_batch()
    with sim.watch("*.gradient") as seen:
        with pytest.raises(KeyError, match=r"^nothing was seen at .*: run a pass inside"):
            seen[1, "blocks.1.down.gradient"]
        call(sim, batch)
    near = r"a block that does not learn has no gradients; did you mean \(1, 'blocks\.1\.down\.gradient'\)\?$"
    with pytest.raises(tint.InputError, match=near):
        seen[1, "blocks.0.down.gradient"]
    assert seen.get((1, "blocks.0.down.gradient")) is None and (1, "blocks.1.down.gradient") in seen


def test_mistakes_are_told() -> None:
    sim, batch = tint.Tint(make_model("gpt2"), make_rule("default", layers=1)), make_batch()
    nowhere = r"no hook point fits 'blocks.7.\*'; points\(\) lists"
    with pytest.raises(tint.InputError, match=nowhere), sim.watch("blocks.7.*"):
        pass
    near = r"lists them all; did you mean blocks\.\d\.down\.output\?$"
    with pytest.raises(tint.InputError, match=near), sim.watch("blocks.0.dwon.output"):
        pass
    with pytest.raises(tint.InputError, match=r"no hook point fits .* with when=2"), sim.watch("final.*", when=2):
        pass
    with (  # a block that is not trained has no gradient
        pytest.raises(tint.InputError, match="no hook point fits"),
        sim.hook("blocks.0.down.gradient", print),
    ):
        pass
    with (
        pytest.raises(tint.InputError, match=r"shape \(3, 11\) to blocks.0.down.output, which has \(3, 11, 12\)"),
        sim.hook("blocks.0.down.output", lambda value, point: value[..., 0]),
    ):
        call(sim, batch)
    with (
        pytest.raises(tint.InputError, match="can be looked at, not replaced"),
        sim.hook("*.update.*", lambda value, point: value),
    ):
        call(sim, batch)
    oracle = tint.Tint(make_model("gpt2"), make_rule("default"), engine="oracle")
    with pytest.raises(tint.TintError, match="the oracle has no hook points"):
        oracle.watch("*")

# pyright: basic
"""The fast engine beyond parity: random shapes, chunks, precisions, threads, divergence, and its choice of form."""

from __future__ import annotations

import copy
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from cases import MODELS, RULES, VOCABULARY, call, make_batch, make_model, make_rule, some
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel

import tintformer as tint
from tintformer.engines.fast import FastEngine, update_costs
from tintformer.engines.fast.fast_executor import FastExecutor
from tintformer.engines.fast.update_costs import UpdateUse, dual_cost, prefers_dual, smaller_as_factors
from tintformer.engines.fast.updates import MatrixUpdate
from tintformer.execution import walk
from tintformer.execution.batch import Batch
from tintformer.rule.optimiser import StepSize


@st.composite
def random_inputs(draw: st.DrawFn) -> dict[str, Any]:
    """A batch of random width with padding on either side, a shared BOS or not, runs of segments, random masks."""
    rows, tokens = draw(st.integers(1, 3)), draw(st.integers(3, 10))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    shape = (rows, tokens)
    attended = torch.ones(shape, dtype=torch.bool)
    for row in range(rows):
        pad = draw(st.integers(0, tokens - 3))
        if draw(st.booleans()):
            attended[row, :pad] = False
        else:
            attended[row, tokens - pad :] = False
    batch: dict[str, Any] = {
        "input_ids": torch.randint(0, VOCABULARY, shape, generator=generator),
        "attention_mask": attended,
        "train_mask": (torch.rand(shape, generator=generator) < 0.7) | (attended.cumsum(1) == 1),
    }
    if draw(st.booleans()):
        batch["loss_mask"] = torch.rand(shape, generator=generator) < 0.6
    if draw(st.booleans()):
        batch["segment_ids"] = (torch.rand(shape, generator=generator) < 0.3).cumsum(1)
        if draw(st.booleans()):
            batch["segment_ids"][attended & (attended.cumsum(1) == 1)] = -1
    return batch


@settings(max_examples=60, deadline=None)
@given(
    batch=random_inputs(),
    model=st.sampled_from(sorted(MODELS)),
    rule=st.sampled_from(sorted(RULES)),
    steps=st.integers(1, 3),
    layers=st.sampled_from([None, 1]),
    dual=st.sampled_from([None, True, False]),
)
def test_any_input_agrees_with_the_reference(
    batch: dict[str, Any], model: str, rule: str, steps: int, layers: int | None, dual: bool | None
) -> None:
    learn = make_rule(rule, steps=steps, layers=layers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tint.TintWarning)
        ours = call(tint.Tint(make_model(model), learn, dual=dual), batch)
        truth = call(tint.Tint(make_model(model), learn, engine="reference"), batch)
    seen = batch["attention_mask"]
    torch.testing.assert_close(ours.logits[seen], truth.logits[seen], rtol=0, atol=1e-8)
    for row in range(len(seen)):
        for name, update in ours.updates(row).items():
            torch.testing.assert_close(update, truth.updates(row)[name], rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", ["gpt2", "bloom", "mistral", "llama-grouped"])
@pytest.mark.parametrize("rule", ["default", "full", "perturbed-relative"])
def test_chunks_change_nothing(name: str, rule: str) -> None:
    """With a budget of a few bytes every query and every position is a chunk of its own."""
    auxiliary, learn = tint.load(make_model(name)), make_rule(rule, steps=2)
    inputs = make_batch(padding="left")
    batch = Batch.of(auxiliary, inputs.pop("input_ids"), **inputs)
    results = []
    for budget in (1, 2**26):
        executor = FastExecutor(auxiliary, learn, batch, budget=budget)
        with torch.no_grad():
            x = walk.train_in_the_pass(executor, auxiliary, learn)
            results.append(
                (
                    x[batch.attention_mask],
                    executor.losses(x[batch.evaluation_positions], batch.targets[batch.evaluation_positions]),
                )
            )
    for small, large in zip(*results, strict=True):
        torch.testing.assert_close(small, large, rtol=0, atol=1e-11)


def test_losses_without_logits_are_those_with_logits() -> None:
    sim = tint.Tint(make_model("phi"), make_rule("default"))
    batch = make_batch()
    with_logits, without = call(sim, batch, before=True), call(sim, batch, before=True, logits="none")
    torch.testing.assert_close(without.token_loss, with_logits.token_loss, rtol=0, atol=1e-12)
    torch.testing.assert_close(without.loss_before, with_logits.loss_before, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bloom", "gemma"])
@pytest.mark.parametrize("rule", ["default", "paper", "full"])
@pytest.mark.parametrize("dual", [True, False], ids=["dual", "dense"])
def test_bfloat16(name: str, rule: str, dual: bool) -> None:
    """Norms, softmax and differences in float32: the loss stays within what the rounding of weights explains."""
    wide = copy.deepcopy(make_model(name, torch.float32))
    half = copy.deepcopy(wide).to(torch.bfloat16)
    wide.load_state_dict(half.state_dict())  # the same, rounded, weights
    batch, learn = make_batch(), make_rule(rule)
    rounded, exact = call(tint.Tint(half, learn, dual=dual), batch), call(tint.Tint(wide, learn), batch)
    assert rounded.logits.dtype == torch.float32
    assert abs(float(rounded.loss) - float(exact.loss)) < 0.05
    for parameter, update in rounded.updates(0).items():
        true = exact.updates(0)[parameter]
        if float(true.norm()) > 0:
            cosine = torch.nn.functional.cosine_similarity(update.float().flatten(), true.flatten(), dim=0)
            assert float(cosine) > 0.98, parameter


def test_threads_change_nothing_but_rounding() -> None:
    """On a model wide enough for products to be shared out; the same number of threads gives the same bits."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=500, n_positions=128, n_embd=512, n_layer=2, n_head=8, bos_token_id=0, eos_token_id=0
    )
    sim = tint.Tint(GPT2LMHeadModel(config), make_rule("default", learning_rate=1e-3))
    ids = torch.randint(0, 500, (4, 96), generator=torch.Generator().manual_seed(0))
    train, threads = torch.arange(96).expand(4, 96) < 60, torch.get_num_threads()
    runs: list[Any] = []
    try:
        for count in (1, 2, 2):
            torch.set_num_threads(count)
            runs.append(sim(ids, train_mask=train).logits)
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(runs[0], runs[1], rtol=0, atol=1e-4)
    assert torch.equal(runs[1], runs[2])  # two identical passes over the same tensors


def difference_when_compiled(engine: str) -> float:
    sim, batch = tint.Tint(make_model("gpt2"), make_rule("default", layers=1), engine=engine), make_batch()

    def logits(ids: torch.Tensor, train: torch.Tensor, attended: torch.Tensor) -> Any:
        return sim(ids, train_mask=train, attention_mask=attended).logits

    inputs = batch["input_ids"], batch["train_mask"], batch["attention_mask"]
    return float((torch.compile(logits, backend="eager")(*inputs) - logits(*inputs)).abs().max())


@pytest.mark.parametrize("engine", some(["fast", "reference", "simulator"]))
def test_torch_compile_around_a_call_changes_nothing(engine: str) -> None:
    """In a process of its own; a fresh one where shapes are checked, which is no code that users compile."""
    checked = any("jaxtyping" in type(finder).__module__ for finder in sys.meta_path)
    assert forked.result_of(difference_when_compiled, engine, fresh=checked) < 1e-10


@pytest.mark.parametrize("steps", [1, 2])
def test_divergence_names_the_place_and_suggests_a_rate(steps: int) -> None:
    sim = tint.Tint(make_model("gpt2", torch.float32), make_rule("default", learning_rate=1e38, steps=steps))
    with pytest.raises(
        tint.DivergenceError, match=r"blocks\.\d\.\w+ contains NaN or infinity after step 1.*try 2\.5e\+37"
    ):
        call(sim, make_batch())


def test_an_update_that_diverges_is_never_handed_out() -> None:
    sim = tint.Tint(make_model("gpt2", torch.float32), make_rule("default", learning_rate=1e38))
    with pytest.raises(tint.DivergenceError, match=r"the update of transformer\.\S+ contains NaN or infinity"):
        sim.adapt(make_batch()["input_ids"])


def test_a_gradient_that_diverges_names_its_op() -> None:
    """A head whose logits overflow: the stream below it is fine, and the way back is not."""
    model = copy.deepcopy(make_model("gpt2-odd", torch.float32))
    with torch.no_grad():
        model.lm_head.weight.mul_(1e38)
    with pytest.raises(
        tint.DivergenceError, match=r"the gradient at final\.norm contains NaN or infinity in the first step"
    ):
        call(tint.Tint(model, make_rule("default")), make_batch())


def test_other_engines_neither_adapt_nor_choose_a_form() -> None:
    with pytest.raises(tint.TintError, match="needs engine='fast'"):
        tint.Tint(make_model("gpt2"), make_rule("default"), engine="reference").adapt(make_batch()["input_ids"])
    with pytest.raises(tint.TintError, match="dual: knobs of the fast engine"):
        tint.Tint(make_model("gpt2"), make_rule("default"), engine="oracle", dual=True)


def test_no_autograd_graph_and_no_copy_of_the_model() -> None:
    model = copy.deepcopy(make_model("gpt2")).requires_grad_(True)
    out = call(tint.Tint(model, make_rule("full")), make_batch())
    assert not out.logits.requires_grad and out.logits.grad_fn is None
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("rows", [1, 3], ids=["shared", "own"])
def test_factors_and_formed_matrices_are_the_same_update(rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x, g, weight, signal = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((rows, 5, 4), (rows, 5, 6), (6, 4), (3, 7, 4))
    )
    dual, dense, kept = MatrixUpdate(dual=True), MatrixUpdate(dual=False), MatrixUpdate(dual=False, keep=True)
    for update in (dual, dense, kept):
        for rate in (0.1, 0.3):
            rule = tint.LearningRule(learning_rate=rate)
            update.step(x, g, rule, StepSize.of(rule, "blocks.0.up", (1,)))
    expected = signal @ (weight - 0.4 * g.mT @ x).mT
    factored = signal @ weight.mT
    for factors in dual.factors:
        factored = factors.add_forward(factored, signal, with_bias=False)
    torch.testing.assert_close(factored, expected)
    torch.testing.assert_close((signal @ dense.matrix(weight).mT), expected)
    torch.testing.assert_close((signal @ kept.matrix(weight).mT), expected)
    torch.testing.assert_close(kept.row(0), dual.row(0))


def test_the_choice_of_form_follows_the_cost() -> None:
    """Few tokens: factors. Many: the matrix. The turning point for one step is near I O / (I + O) tokens."""
    for inputs, outputs in ((768, 768), (768, 3072)):
        turning = inputs * outputs // (inputs + outputs)
        assert prefers_dual(inputs, outputs, UpdateUse(trained=turning // 2, tokens=turning // 2))
        assert not prefers_dual(inputs, outputs, UpdateUse(trained=2 * turning, tokens=4 * turning))
        work = UpdateUse(trained=512, tokens=1024)
        assert dual_cost(inputs, outputs, work) == 512 * 1024 * (inputs + outputs)
    assert smaller_as_factors(768, 768, 300) and not smaller_as_factors(768, 768, 400)
    several = UpdateUse(trained=64, tokens=128, steps=4)
    assert dual_cost(10, 10, several) == 20 * (2 * 64 * 64 * (1 + 2 + 3) + 4 * 64 * 128)


def test_the_choice_is_right_where_it_was_measured() -> None:
    """The records of `tint bench --forms` in docs/results: the chosen form is as fast as the better of the two."""
    records = json.loads((Path(__file__).parents[2] / "docs" / "results" / "speed.json").read_text(encoding="utf-8"))
    times: dict[tuple[str, str], dict[str, float]] = {}
    for record in records:
        times.setdefault((record["model"], record["case"]), {})[record["method"]] = record["seconds"]
    compared = [case for case in times.values() if "fast_dual" in case]
    assert len(compared) >= 3
    for case in compared:
        assert case["fast"] <= 1.1 * min(case["fast_dual"], case["fast_materialised"])


@pytest.mark.parametrize(("tokens", "dual"), [(6, True), (60, False)])
def test_both_forms_are_chosen(tokens: int, dual: bool) -> None:
    auxiliary, rule = tint.load(make_model("gpt2")), make_rule("default")
    ids = torch.randint(3, VOCABULARY, (1, tokens), generator=torch.Generator().manual_seed(0))
    batch = Batch.of(auxiliary, ids, train_mask=torch.ones_like(ids))
    executor = FastExecutor(auxiliary, rule, batch)
    original, update_costs.TRAFFIC = update_costs.TRAFFIC, 0.0  # tiny matrices: let the products alone decide
    try:
        with torch.no_grad():
            walk.train_in_the_pass(executor, auxiliary, rule)
    finally:
        update_costs.TRAFFIC = original
    assert {update.dual for update in executor.updates.matrices.values()} == {dual}


@pytest.mark.parametrize("dual", [True, False])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_row_without_a_target_in_a_step_keeps_what_it_has_learnt(dual: bool, momentum: float) -> None:
    rule, batch = make_rule("default", steps=3, decay=0.1, momentum=momentum), make_batch()
    batch["step_ids"] = torch.zeros_like(batch["input_ids"])
    batch["step_ids"][0] = 1  # the first row learns in the first step alone
    fast, reference = (
        call(tint.Tint(make_model("gpt2"), rule, **engine), batch)
        for engine in ({"engine": "fast", "dual": dual}, {"engine": "reference"})
    )
    for row in range(3):
        for name, update in reference.updates(row).items():
            torch.testing.assert_close(fast.updates(row)[name], update, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_updates_to_rescale_predict_the_same_formed_or_not(name: str) -> None:
    """At one rate after the other; formed while the budget lasts, and only where a pass gains by it."""
    auxiliary, rule = tint.load(make_model(name)), make_rule("default")
    given = make_batch(lengths=(9, 12))
    batch = Batch.of(auxiliary, given["input_ids"], train_mask=torch.arange(12)[None] < torch.tensor([[5], [8]]))
    engine = FastEngine(auxiliary, rule, dual=True)
    factors = engine.learn(batch)
    size = max(2 * update.full()[0].nbytes for update in factors.matrices.values())
    forms = {budget: factors.to_rescale(10**6, budget) for budget in (0, size, 10**9)}
    formed = [sum(each.dense is not None for each in form.matrices.values()) for form in forms.values()]
    assert formed[0] == 0 < formed[1] < formed[2] == len(factors.matrices)
    assert all(each.dense is None for each in factors.to_rescale(1, 10**9).matrices.values())
    for scale in (1.0, 0.3):
        losses = [
            engine.score(batch, each.scaled(scale), logits_at=None).after.losses for each in (factors, *forms.values())
        ]
        for each in losses[1:]:
            torch.testing.assert_close(each, losses[0])

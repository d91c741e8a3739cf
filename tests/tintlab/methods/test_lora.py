# pyright: basic
"""LoRA at test time: adapters of peft against peft itself, and everything else against one sequence at a time."""

from __future__ import annotations

import copy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from adapted import close, in_double, learn, learn_each, token_losses, trained_loss
from cases import FIRST, MODELS, alone, assert_same, every, make_batch, make_model, some
from patience import PATIENCE
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers.pytorch_utils import Conv1D

import tintformer as tint
from tintformer.auxiliary.families import families
from tintformer.learning.rate_search import default_grid
from tintlab.methods import adapters as module
from tintlab.methods.lora import Lora

LORA = Lora(learning_rate=1e-2, steps=2, rank=4)


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No padding in training: ALiBi in double precision is there for single sequences only."""
    monkeypatch.setattr(module, "TOKENS", 1)


def by_peft(model: Any, lora: Lora, sequences: list[dict[str, torch.Tensor]]) -> Any:
    """The shortest way to the same adapters: peft's own choice of linears, and a plain loop."""
    conv = any(isinstance(each, Conv1D) for each in model.modules())
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules="all-linear", fan_in_fan_out=conv)
    with torch.random.fork_rng():
        torch.manual_seed(lora.seed)
        result = get_peft_model(copy.deepcopy(model), config).eval()
    adam = torch.optim.Adam([each for each in result.parameters() if each.requires_grad], lr=lora.learning_rate)
    for _ in range(lora.steps):
        adam.zero_grad()
        for sequence in sequences:
            losses = token_losses(result, sequence["input_ids"], position_ids=sequence.get("position_ids"))
            (losses * sequence["train_mask"][0, 1:]).sum().backward()
        adam.step()
    return result


@pytest.mark.parametrize("name", every(2, FIRST))
def test_peft_learns_and_predicts_the_same(name: str, one_at_a_time: None) -> None:
    batch, fresh = make_batch(), make_batch(lengths=(12,), seed=5)["input_ids"]
    with in_double(name) as auxiliary:
        tuned = learn(auxiliary, LORA, **batch)
        expected = by_peft(auxiliary.model, LORA, [alone(batch, row) for row in range(3)])
        with torch.no_grad():
            losses = token_losses(expected, fresh)
            merged = dict(expected.merge_and_unload().named_parameters())
    torch.testing.assert_close(tuned.score(fresh).token_loss[0, 1:], losses, rtol=0, atol=1e-9)
    base = dict(make_model(name).named_parameters())
    updates = tuned.updates()
    close(updates, {each: (merged[each] - base[each]).detach() for each in updates})
    moved = {each for each in merged if not torch.equal(merged[each], base[each])}
    assert moved == {each for each, update in updates.items() if update.any()}
    full = tuned.to_hf()
    close({each: full.get_parameter(each).detach() for each in moved}, {each: merged[each].detach() for each in moved})


@pytest.mark.parametrize("name", every(3, sorted(set(MODELS) - set(FIRST))))
def test_variants_of_the_families(name: str) -> None:
    """What it has learnt, put into the Hugging Face model, predicts as the engine does."""
    batch, fresh = make_batch(), make_batch(seed=5)["input_ids"]
    auxiliary = tint.load(make_model(name))
    tuned = learn(auxiliary, LORA, **batch)
    frozen = tint.LearningRule(learning_rate=0.0)
    expected = tint.Tint(tuned.to_hf(), frozen, engine="oracle")(fresh, train_mask=torch.ones_like(fresh)).logits
    torch.testing.assert_close(tuned.score(fresh, logits="all").logits, expected, rtol=0, atol=1e-9)
    assert trained_loss(tuned, batch) < trained_loss(tint.Tuned.untrained(auxiliary), batch) - 0.1


@pytest.mark.parametrize("name", some(FIRST, 2))
def test_the_training_loss_falls(name: str) -> None:
    auxiliary, batch = tint.load(make_model(name, torch.float32)), make_batch()
    by_steps = [trained_loss(learn(auxiliary, Lora(learning_rate=1e-2, steps=n), **batch), batch) for n in (1, 6)]
    losses = [trained_loss(tint.Tuned.untrained(auxiliary), batch), *by_steps]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0] - 0.3


@pytest.mark.parametrize("name", some(FIRST, 2))
def test_a_rate_of_zero_is_the_model_as_it_is(name: str) -> None:
    auxiliary, batch = tint.load(make_model(name)), make_batch()
    still = Lora(learning_rate=0.0, steps=2)
    tuned, plain = learn(auxiliary, still, **batch), tint.Tuned.untrained(auxiliary)
    assert not any(update.any() for update in tuned.updates().values())
    options: Any = {"attention_mask": batch["attention_mask"], "logits": "all"}
    expected = plain.score(batch["input_ids"], **options)
    assert torch.equal(tuned.score(batch["input_ids"], **options).token_loss, expected.token_loss)
    each = learn_each(auxiliary, still, **batch)
    torch.testing.assert_close(each.logits, expected.logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", some(FIRST, 2))
def test_only_linears_of_the_top_blocks_move(name: str) -> None:
    auxiliary = tint.load(make_model(name))
    top = f"{families()[auxiliary.family].paths.blocks}.1."
    linears = {
        f"{path}.weight"
        for path, each in auxiliary.model.named_modules()
        if path.startswith(top) and isinstance(each, nn.Linear | Conv1D)
    }
    tuned = learn(auxiliary, Lora(learning_rate=1e-2, layers=1), **make_batch())
    assert {each for each, update in tuned.updates().items() if update.any()} == linears
    changed = dict(tuned.to_hf().named_parameters())
    base = dict(auxiliary.model.named_parameters())
    assert {each for each in changed if not torch.equal(changed[each], base[each])} == linears


@pytest.mark.parametrize(
    ("name", "padding"),
    [("gpt2", "left"), ("llama", "left"), ("bloom", "left"), *some([(name, "right") for name in FIRST[::-1]], 3)],
)
def test_each_row_learns_on_its_own(name: str, padding: str) -> None:
    auxiliary, batch = tint.load(make_model(name)), make_batch(padding=padding)
    out = learn_each(auxiliary, LORA, **batch, logits="evaluation")
    like = tint.Tint(auxiliary, LORA.rule)(**batch, logits="evaluation")
    assert torch.equal(out.evaluation_mask, like.evaluation_mask) and out.token_loss.shape == like.token_loss.shape
    assert out.logits is not None and like.logits is not None and out.logits.shape == like.logits.shape
    logits = []
    for row in range(3):
        one = alone(batch, row)
        tuned = learn(auxiliary, LORA, **one)
        kept, scored = batch["attention_mask"][row].bool(), ~one["train_mask"]
        expected = tuned.score(one["input_ids"], score_mask=scored, logits="evaluation")
        torch.testing.assert_close(out.token_loss[row, kept], expected.token_loss[0], rtol=0, atol=1e-9)
        assert not out.token_loss[row, ~kept].any()
        close(out.updates(row), tuned.updates())
        logits.append(expected.logits)
    torch.testing.assert_close(out.logits, torch.cat(logits), rtol=0, atol=1e-9)
    torch.testing.assert_close(out.loss, out.token_loss[out.evaluation_mask].mean())


@pytest.mark.parametrize("name", some(["gpt_neo", "opt-350m-kind", "gpt2", "gpt2-unscaled", "opt"], 2))
def test_padding_teaches_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In families without casts to float32, of which every other batch would have its own last digits."""
    auxiliary, batch = tint.load(make_model(name)), make_batch(lengths=(11, 4, 9, 7))
    together = learn(auxiliary, LORA, **batch).updates()
    for tokens in (1, 18):
        monkeypatch.setattr(module, "TOKENS", tokens)
        close(learn(auxiliary, LORA, **batch).updates(), together)
    other = {**batch, "input_ids": torch.where(batch["attention_mask"] == 1, batch["input_ids"], 7)}
    close(learn(auxiliary, LORA, **other).updates(), together)


@pytest.mark.parametrize("name", every(3, FIRST, 1))
def test_segments_learn_as_sequences_of_their_own(name: str, one_at_a_time: None) -> None:
    """Two shared tokens, of which the second is a target, and counts once."""
    auxiliary, ids = tint.load(make_model(name)), make_batch(lengths=(13,), seed=3)["input_ids"]
    segments = torch.tensor([[-1, -1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2]])
    train = torch.tensor([[1] * 11 + [0] * 2])
    loss_mask = torch.tensor([[0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1]])
    packed = learn(auxiliary, LORA, ids, train_mask=train, loss_mask=loss_mask, segment_ids=segments)

    places = [[0, 1, 2, 3, 4, 5, 5], [0, 1, 6, 7, 8, 9, 10]]
    targets = torch.tensor([[0, 1, 0, 1, 0, 1, 0], [0, 0, 0, 1, 1, 1, 1]])  # none is predicted across a border
    attended = torch.tensor([[1] * 6 + [0], [1] * 7])
    rows = torch.stack([ids[0, at] for at in places])
    apart = learn(auxiliary, LORA, rows, train_mask=torch.ones_like(rows), loss_mask=targets, attention_mask=attended)
    close(packed.updates(), apart.updates())

    each = learn_each(auxiliary, LORA, ids, train_mask=train, loss_mask=loss_mask, segment_ids=segments)
    last = packed.score(ids[:, [0, 1, 11, 12]], score_mask=torch.tensor([[0, 0, 0, 1]]))
    torch.testing.assert_close(each.token_loss[0, 12], last.token_loss[0, 3], rtol=0, atol=1e-9)
    assert each.evaluation_mask.nonzero().tolist() == [[0, 12]]


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
def test_positions_of_ones_own(name: str) -> None:
    one = alone(make_batch(lengths=(9,)), 0) | {"position_ids": torch.tensor([[0, 1, 2, 3, 9, 10, 11, 12, 13]])}
    with in_double(name) as auxiliary:
        tuned = learn(auxiliary, LORA, **one)
        merged = dict(by_peft(auxiliary.model, LORA, [one]).merge_and_unload().named_parameters())
    base = dict(make_model(name).named_parameters())
    close(tuned.updates(), {each: (merged[each] - base[each]).detach() for each in tuned.updates()})


@pytest.mark.parametrize("name", some(FIRST, 2))
def test_the_auxiliary_is_not_touched(name: str) -> None:
    model, batch = copy.deepcopy(make_model(name)).train(), make_batch()
    for number, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(number % 2 == 0)

    def state() -> list[Any]:
        parameters = [(each, id(value), value.requires_grad, value.grad) for each, value in model.named_parameters()]
        modules = [
            (path, type(each), each.training, len(each._forward_pre_hooks)) for path, each in model.named_modules()
        ]
        return [parameters, modules, sorted(vars(model)), model.config.to_dict(), torch.get_rng_state().tolist()]

    before, weights = state(), {key: value.clone() for key, value in model.state_dict().items()}
    auxiliary = tint.load(model)
    first, again = (learn(auxiliary, LORA, **batch) for _ in "ab")
    each = [learn_each(auxiliary, LORA, **batch) for _ in "ab"]
    assert state() == before
    for key, value in model.state_dict().items():
        assert torch.equal(value, weights[key]), key
    assert all(torch.equal(update, again.updates()[key]) for key, update in first.updates().items())
    assert torch.equal(each[0].token_loss, each[1].token_loss)
    other = learn(auxiliary, replace(LORA, seed=1), **batch)
    assert any(not torch.equal(update, other.updates()[key]) for key, update in first.updates().items())


def test_the_update_is_saved_and_loaded(tmp_path: Path) -> None:
    model, batch = make_model("gpt_neox"), make_batch()
    tuned = learn(tint.load(model), LORA, **batch)
    tuned.save(tmp_path / "update.safetensors")
    back = tint.Tuned.load(tmp_path / "update.safetensors", model)
    assert_same(back.score(batch["input_ids"]).token_loss, tuned.score(batch["input_ids"]).token_loss)
    for key, update in tuned.updates().items():
        assert_same(back.updates()[key], update)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bloom"])
def test_half_precision(name: str) -> None:
    """Adapters train in float32, so what they learn is that of the wide model up to the model's own rounding."""
    batch, few = make_batch(), Lora(learning_rate=3e-2, steps=2)
    half, wide = (
        learn_each(tint.load(make_model(name, dtype)), few, **batch) for dtype in (torch.bfloat16, torch.float32)
    )
    torch.testing.assert_close(half.token_loss.float(), wide.token_loss, rtol=0.05, atol=0.3)


def test_divergence_is_reported() -> None:
    auxiliary, batch = tint.load(make_model("llama", torch.float32)), make_batch()
    with pytest.raises(tint.DivergenceError, match=r"the training loss .* after step 1 of 3: learning_rate=1e\+37"):
        learn(auxiliary, Lora(learning_rate=1e37, steps=3), **batch)
    with pytest.raises(tint.DivergenceError, match="contains NaN or infinity"):
        learn_each(auxiliary, Lora(learning_rate=1e37), **batch)
    adapters = module.Adapters(auxiliary, LORA)
    adapters.initial[0][0, 0] = torch.nan
    with pytest.raises(tint.DivergenceError, match=r"the update of model\.layers\.0\S+ .* after step 2 of 2"):
        adapters.train([])


def test_nothing_to_learn_from() -> None:
    auxiliary, batch = tint.load(make_model("llama")), make_batch()
    with pytest.warns(tint.TintWarning, match="no training target"):
        tuned = learn(auxiliary, LORA, **batch, loss_mask=torch.zeros_like(batch["input_ids"]))
    assert not any(update.any() for update in tuned.updates().values())


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"learning_rate": -1.0}, "learning_rate=-1.0 must be"),
        ({"steps": 0}, "steps=0 must be"),
        ({"layers": 0}, "layers=0 must be"),
        ({"rank": 0}, "rank=0 must be a whole number of at least 1"),
        ({"alpha": 0.5}, "alpha=0.5 must be"),
        ({"seed": -1}, "seed=-1 must be"),
    ],
)
def test_bad_knobs(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(tint.RuleError, match=message):
        Lora(**{"learning_rate": 1e-3, **knobs})


def test_more_layers_than_there_are() -> None:
    assert Lora(learning_rate=1e-3).num_trained(2) == 2 and Lora(learning_rate=1e-3, layers=1).num_trained(2) == 1
    with pytest.raises(tint.RuleError, match="layers=3 but the model has 2 blocks"):
        learn(tint.load(make_model("llama")), Lora(learning_rate=1e-3, layers=3), **make_batch())


def test_the_number_of_targets_scales_no_rate() -> None:
    rule: Any = Lora(learning_rate=0.0)
    assert default_grid(rule, 100) == default_grid(rule, 1)


def test_without_peft(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(tint.InputError) as caught:
        learn(tint.load(make_model("llama")), LORA, **make_batch())
    assert str(caught.value) == "method lora needs the package peft; install it (pip install 'tintformer[eval]')"


def test_methods_and_their_knobs_need_no_torch() -> None:
    """The command line lists them before it computes anything."""
    code = (
        "import sys; from tintlab.kinds.regression import InContextRegression\n"
        "from tintlab.methods.methods import STREAM_METHODS\n"
        "STREAM_METHODS['lora'].preset(learning_rate=1); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.strip() == "False"

# pyright: basic
"""`Tuned.adapt`: a further update on top of another is what an optimiser makes of the texts one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases import FIRST, assert_same, covering, every, make_batch, make_model, make_rule, some
from torch import Tensor
from torch.func import functional_call

import tintformer as tint
from tintformer.engines.oracle import OracleEngine
from tintformer.engines.oracle.torch_descent import TorchDescent

OPTIMISERS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "momentum": {"momentum": 0.9},
    "decay": {"decay": 0.1, "momentum": 0.5, "nesterov": True},
    "rates": {"rates": {"blocks.0.*": 0.5, "*.value": 2.0}},
    "schedule": {"schedule": (1.0, 0.5, 0.25)},
    "rms": {"optimizer": "rms"},
    "adam": {"optimizer": "adam", "learning_rate": 1e-3},
    "muon": {"optimizer": "muon"},
    "muon-momentum": {"optimizer": "muon", "momentum": 0.9},
}


def texts(*lengths: int, count: int = 3) -> list[dict[str, Tensor]]:
    """Batches of several sequences each, padded."""
    batches = [make_batch(lengths=lengths, seed=seed) for seed in range(count)]
    return [{name: batch[name] for name in ("input_ids", "attention_mask")} for batch in batches]


def statistics_of(model: Any, rule: tint.LearningRule) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(5)
    named = {n: 0.1 + torch.rand(p.shape, generator=generator, dtype=p.dtype) for n, p in model.named_parameters()}
    return {"statistics": named} if rule.optimizer == "rms" else {}


def descended(model: Any, rule: tint.LearningRule, batches: list[dict[str, Tensor]], **options: Any) -> Any:
    """One optimiser of torch over all batches: `rule.steps` steps on the summed loss of each."""
    oracle = OracleEngine(tint.load(model), rule, **options)
    original = oracle._original()
    values = dict(original)
    descent = TorchDescent(
        oracle.auxiliary, rule, rule.rate, {n: values[n] for n in oracle.masks}, options.get("statistics")
    )
    number = 0
    for batch in batches:
        for _ in range(rule.steps):
            trained = {name: values[name].clone().requires_grad_() for name in oracle.masks}
            total = torch.zeros((), dtype=torch.float64)
            with torch.enable_grad(), oracle.mode:
                for ids, attended in zip(batch["input_ids"], batch["attention_mask"].bool(), strict=True):
                    here = ids[attended]
                    known = {"position_ids": torch.arange(len(here))[None]} if oracle.takes_positions else {}
                    found = functional_call(
                        oracle.twin, {**values, **trained}, args=(here[None],), kwargs={"use_cache": False, **known}
                    )
                    total = total - found.logits[0, :-1].log_softmax(-1).gather(1, here[1:, None]).sum()
            gradients = torch.autograd.grad(total, list(trained.values()), allow_unused=True, materialize_grads=True)
            number += 1
            pairs = zip(oracle.masks.items(), gradients, strict=True)
            values |= descent.step({name: mask * gradient for (name, mask), gradient in pairs}, number)
    return {name: values[name] - original[name] for name in oracle.masks}


def gone_on(model: Any, rule: tint.LearningRule, batches: list[dict[str, Tensor]], **options: Any) -> tint.Tuned:
    first, *others = batches
    tuned = tint.Tint(model, rule, **options).adapt(**first)
    for batch in others:
        tuned = tuned.adapt(**batch)
    return tuned


def assert_updates(tuned: tint.Tuned, expected: dict[str, Tensor]) -> None:
    found = tuned.updates()
    assert found.keys() == expected.keys()
    for name, update in expected.items():
        torch.testing.assert_close(found[name], update, rtol=0, atol=1e-9, msg=lambda text, name=name: f"{name} {text}")


@pytest.mark.parametrize("name", every(2, FIRST))
def test_every_family_goes_on_as_autograd_does(name: str) -> None:
    rule = make_rule("full", steps=2)
    assert_updates(gone_on(make_model(name), rule, texts(7, 5)), descended(make_model(name), rule, texts(7, 5)))


LEARNERS = [(name, lengths) for name in ("gpt2", "llama-grouped") for lengths in ((2,), (9, 4))]
"""Of changes that stay factors, and of some that become matrices."""


@pytest.mark.parametrize(("optimiser", "learner"), covering(list(OPTIMISERS), LEARNERS))
def test_every_optimiser_goes_on(optimiser: str, learner: tuple[str, tuple[int, ...]]) -> None:
    name, lengths = learner
    model, rule = make_model(name), make_rule("full", **OPTIMISERS[optimiser])
    options = statistics_of(model, rule)
    tuned = gone_on(model, rule, texts(*lengths), **options)
    assert_updates(tuned, descended(model, rule, texts(*lengths), **options))


@pytest.mark.parametrize("optimiser", ["sgd", "rates", "rms", "muon"])
def test_a_saved_update_goes_on(optimiser: str, tmp_path: Path) -> None:
    model, rule = make_model("gpt2"), make_rule("default", decay=0.1, **OPTIMISERS[optimiser])
    options, (first, second, _) = statistics_of(model, rule), texts(4)
    tuned = tint.Tint(model, rule, **options).adapt(**first)
    tuned.save(tmp_path / "update")
    back = tint.Tuned.load(tmp_path / "update", model, **options)
    expected = tuned.adapt(**second)
    assert_updates(back.adapt(**second), expected.updates())
    found, true = (each.score(second["input_ids"], logits="all").logits for each in (back.adapt(**second), expected))
    assert found is not None and true is not None
    assert_same(found, true)


@pytest.mark.parametrize("optimiser", some(list(OPTIMISERS)))
def test_what_it_goes_on_from_is_left_as_it_is(optimiser: str) -> None:
    model, rule = make_model("gpt2"), make_rule("full", **OPTIMISERS[optimiser])
    for lengths in ((2,), (9, 4)):
        first, second, third = texts(*lengths)
        tuned = gone_on(model, rule, [first, second], **statistics_of(model, rule))
        before = {name: update.clone() for name, update in tuned.updates().items()}
        once = tuned.adapt(**third).updates()
        assert all(torch.equal(tuned.updates()[name], update) for name, update in before.items())
        assert all(torch.equal(tuned.adapt(**third).updates()[name], update) for name, update in once.items())


def test_parts_and_streams_go_on() -> None:
    model, rule = make_model("gpt2"), make_rule("default")
    first, second, _ = texts(3)
    # Where the update of a bias was taken away, it is learnt anew, and what factors imply of the old one is no part.
    alone = tint.Tint(model, rule).adapt(**first).only("*.weight")
    hf = alone.to_hf()
    expected = tint.Tint(hf, rule).adapt(**second).updates()
    before = alone.updates()
    assert_updates(alone.adapt(**second), {name: before[name] + update for name, update in expected.items()})
    *_, piece = tint.Tint(model, rule).stream(first["input_ids"], chunk=2, window=4)
    learnt = piece.state.tuned(0)
    expected = tint.Tint(learnt.to_hf(), rule).adapt(**second).updates()
    before = learnt.updates()
    assert_updates(learnt.adapt(**second), {name: before[name] + update for name, update in expected.items()})


def test_an_automatic_rate_is_a_number_from_the_first_text_on() -> None:
    ids = torch.arange(3, 27).repeat(1, 2)
    tuned = tint.Tint(make_model("llama"), tint.LearningRule(learning_rate="auto")).adapt(ids)
    assert tuned.adapt(ids).rule == tuned.rule and not tuned.rule.is_auto


@pytest.mark.parametrize("knobs", [{"momentum": 0.9}, {"optimizer": "adam"}, {"schedule": (1.0, 0.5)}])
def test_what_is_not_known_any_more_is_refused(knobs: dict[str, Any], tmp_path: Path) -> None:
    model, (first, second, _) = make_model("gpt2"), texts(4)
    tuned = tint.Tint(model, make_rule("default", **knobs)).adapt(**first)
    tuned.save(tmp_path / "update")
    for cut in (tint.Tuned.load(tmp_path / "update", model), tuned.only("*.weight")):
        with pytest.raises(tint.TintError, match="go on from what the optimiser remembers"):
            cut.adapt(**second)


def test_rms_needs_its_statistics(tmp_path: Path) -> None:
    model, rule, (first, second, _) = make_model("gpt2"), make_rule("default", optimizer="rms"), texts(4)
    tint.Tint(model, rule, **statistics_of(model, rule)).adapt(**first).save(tmp_path / "update")
    with pytest.raises(tint.TintError, match="give statistics="):
        tint.Tuned.load(tmp_path / "update", model).adapt(**second)


def test_bad_input_is_one_line() -> None:
    tuned = tint.Tint(make_model("gpt2"), make_rule("default")).adapt(texts(4)[0]["input_ids"])
    with pytest.raises(tint.InputError, match="train_mask"):
        tuned.adapt(torch.ones(1, 4, dtype=torch.long), train_mask=[[1, 1]])
    with pytest.raises(tint.InputError):
        tuned.adapt([[1, 2, 10_000]])

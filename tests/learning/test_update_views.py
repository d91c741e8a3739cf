# pyright: basic
"""What an update consists of, and what its parts bring about."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from cases import covering, make_batch, make_model, make_rule

import tintformer as tint

LENGTHS = {"factors": (3,), "deltas": (30,)}


def adapt(name: str, form: str = "deltas", rule: str = "full", **knobs: Any) -> tint.Tuned:
    """One update: few tokens leave it as factors, many make the full change the smaller form."""
    sim = tint.Tint(make_model(name), make_rule(rule, **knobs))
    tuned = sim.adapt(make_batch(lengths=LENGTHS[form])["input_ids"])
    assert {update.dual for update in tuned._updates.matrices.values()} == {form == "factors"}
    return tuned


@pytest.mark.parametrize(("name", "form"), covering(["gpt2", "bloom", "llama-grouped", "gemma"], list(LENGTHS)))
def test_norms_and_spectra_are_those_of_the_change(name: str, form: str) -> None:
    views = adapt(name, form, steps=1).update_views()
    for view in views.values():
        delta = view.delta
        assert delta.shape == view.weight.read().shape
        matrix = delta if delta.dim() == 2 else delta[:, None]
        expected = torch.linalg.svdvals(matrix)
        found = view.singular_values
        torch.testing.assert_close(found, expected[: len(found)], rtol=1e-9, atol=1e-12)
        assert float(expected[len(found) :].norm()) < 1e-12
        assert view.norm == pytest.approx(float(delta.norm()), rel=1e-9, abs=1e-15)
        assert view.relative_norm == pytest.approx(float(delta.norm() / view.weight.read().norm()), rel=1e-9, abs=1e-15)
        if view.norm > 1e-9:  # a key's bias moves by rounding alone: a softmax does not see it
            assert view.rank == int(torch.linalg.matrix_rank(matrix))
            assert view.rank <= LENGTHS[form][0] - 1
            assert 1 <= view.stable_rank <= view.rank + 1e-9
    assert len(views["blocks.0.up.weight"].singular_values) == (2 if form == "factors" else 12)


@pytest.mark.parametrize("form", LENGTHS)
def test_parts_of_a_fused_parameter_are_updates_of_their_own(form: str) -> None:
    tuned = adapt("gpt2", form)
    views, whole = tuned.update_views(), tuned.updates()
    parts = [views[f"blocks.1.{part}.weight"] for part in ("query", "key", "value")]
    assert {part.parameter for part in parts} == {"transformer.h.1.attn.c_attn.weight"}
    together = torch.cat([part.delta for part in parts]).mT
    torch.testing.assert_close(together, whole["transformer.h.1.attn.c_attn.weight"], rtol=0, atol=0)
    assert {view.parameter for view in views.values()} == whole.keys()


def test_an_update_in_half_precision_has_a_spectrum() -> None:
    model = copy.deepcopy(make_model("llama", torch.float32)).to(torch.bfloat16)
    tuned = tint.Tint(model, make_rule("default")).adapt(make_batch(lengths=(3,))["input_ids"])
    view = tuned.update_views()["blocks.0.up.weight"]
    assert view.singular_values.dtype == torch.float32
    torch.testing.assert_close(view.singular_values.norm(), view.delta.float().norm(), rtol=1e-2, atol=0)


def test_nothing_learnt_is_nothing() -> None:
    view = adapt("gpt2", learning_rate=0.0).update_views()["blocks.0.up.weight"]
    assert (view.norm, view.rank, view.stable_rank) == (0.0, 0, 0.0)
    assert tint.Tuned.untrained(tint.load(make_model("gpt2"))).update_views() == {}


def logits(tuned: tint.Tuned, ids: torch.Tensor) -> torch.Tensor:
    found = tuned.score(ids, logits="all").logits
    assert found is not None
    return found


def with_only(tuned: tint.Tuned, kept: set[str], ids: torch.Tensor) -> torch.Tensor:
    """The logits of the Hugging Face model with some changes written into it."""
    model = copy.deepcopy(tuned.auxiliary.model)
    with torch.no_grad():
        for name, view in tuned.update_views().items():
            if name in kept:
                view.weight.write(view.weight.read() + view.delta, into=model.get_parameter(view.parameter).data)
    frozen = make_rule("default", learning_rate=0.0)
    found = tint.Tint(model, frozen, engine="oracle")(ids, train_mask=torch.ones_like(ids)).logits
    assert found is not None
    return found


LEARNERS = [(name, form) for name in ("gpt2", "bloom", "llama-grouped") for form in LENGTHS]


@pytest.mark.parametrize(
    ("learner", "pattern"), covering(LEARNERS, ["blocks.1.*", "*.value.*", "*.bias", "*.weight", "final.norm.*"])
)
def test_single_updates_are_switched_on_and_off(learner: tuple[str, str], pattern: str) -> None:
    """Biases without their matrices and the reverse, parts of fused parameters, whole blocks."""
    name, form = learner
    tuned, ids = adapt(name, form), make_batch(lengths=(8, 8), seed=5)["input_ids"]
    names = set(tuned.update_views())
    on = set(tuned.only(pattern).update_views())
    assert on and on < names
    assert set(tuned.without(pattern).update_views()) == names - on
    for chosen, kept in ((tuned.only(pattern), on), (tuned.without(pattern), names - on)):
        torch.testing.assert_close(logits(chosen, ids), with_only(tuned, kept, ids), rtol=0, atol=1e-9)
    assert set(tuned.update_views()) == names, "the model itself is as it was"


def test_switched_updates_share_their_tensors() -> None:
    tuned = adapt("gpt2")
    for part in (tuned.only("blocks.0.*"), tuned.without("blocks.1.*")):
        for weight, update in part._updates.matrices.items():
            assert update is tuned._updates.matrices[weight]


def test_effects_are_differences_of_scores() -> None:
    tuned, ids = adapt("llama"), make_batch(lengths=(9, 9), seed=7)["input_ids"]
    mask = torch.zeros_like(ids, dtype=torch.bool)
    mask[:, 4:] = True

    def log_probability(model: tint.Tuned) -> torch.Tensor:
        return -model.score(ids, score_mask=mask).token_loss

    untrained = log_probability(tint.Tuned.untrained(tuned.auxiliary))
    found = tuned.effects(ids, score_mask=mask)
    assert list(found.parts) == ["blocks.0", "blocks.1", "final"]
    torch.testing.assert_close(found.total, log_probability(tuned) - untrained)
    assert not found.total[~mask].any() and float(found.total.abs().max()) > 1e-3
    for part, effect in found.parts.items():
        torch.testing.assert_close(effect.alone, log_probability(tuned.only(f"{part}.*")) - untrained)
        expected = log_probability(tuned) - log_probability(tuned.without(f"{part}.*"))
        torch.testing.assert_close(effect.on_top, expected)


def test_small_updates_add_up() -> None:
    """To first order the whole is the sum of its parts: as the rate halves, what is left over falls fourfold."""
    ids = make_batch(lengths=(9,), seed=7)["input_ids"]
    left: list[float] = []
    for rate in (2e-5, 1e-5):
        found = adapt("gpt2", learning_rate=rate).effects(ids, by="op")
        assert "blocks.0.value" in found.parts and "final.norm" in found.parts
        left.append(float((found.total - sum(effect.alone for effect in found.parts.values())).norm()))
    assert left[0] / left[1] == pytest.approx(4, rel=0.1)


def test_mistakes_are_told() -> None:
    tuned, ids = adapt("gpt2", rule="default"), make_batch(lengths=(6,))["input_ids"]
    for choose in (tuned.only, tuned.without):
        with pytest.raises(tint.InputError, match=r"no update fits 'blocks.9.\*'; update_views\(\) lists them all"):
            choose("blocks.0.*", "blocks.9.*")
    with pytest.raises(tint.InputError, match="by='layer' is unknown; choose one of block, op, parameter"):
        tuned.effects(ids, by="layer")  # type: ignore[arg-type]
    assert set(tuned.effects(ids, by="parameter").parts) == set(tuned.update_views())

# pyright: basic
"""The registry of engines: what it refuses, and that what it says of each engine is so."""

from __future__ import annotations

from importlib import import_module
from typing import Any, get_args

import pytest
import torch
from cases import make_batch, make_model, make_rule

import tintformer as tint
from tintformer.execution.batch import Batch
from tintformer.execution.engine import Adapts, Continues, Engine
from tintformer.learning.engine_registry import ENGINES, Capability, check_options, engines_that, make_engine
from tintformer.storage.loading import load

PROTOCOLS: dict[Capability, type] = {"adapts": Adapts, "continues": Continues}
NAMED = pytest.mark.parametrize("name", ENGINES)


def make(name: str, **options: Any) -> Any:
    return make_engine(name, load(make_model("gpt2")), make_rule("default"), **options)


def test_an_unknown_engine_is_refused_with_the_known_ones() -> None:
    with pytest.raises(tint.TintError, match=r"engine='slow' is unknown; choose one of " + ", ".join(ENGINES)):
        make("slow")


@NAMED
def test_an_option_of_no_engine_is_refused(name: str) -> None:
    own = ENGINES[name].options()
    known = f"known are {', '.join(own)}" if own else "it has none"
    with pytest.raises(tint.InputError) as refused:
        make(name, stak=2, duel=True)
    assert str(refused.value) == f"unknown knobs of a {ENGINES[name].title}: duel, stak; {known}"


@pytest.mark.parametrize("name", [name for name in ENGINES if name != "fast"])
def test_the_fast_engines_option_belongs_to_no_other(name: str) -> None:
    with pytest.raises(tint.TintError) as refused:
        make(name, dual=True)
    assert str(refused.value) == f"dual: knobs of the fast engine; leave them out with engine='{name}'"


@pytest.mark.parametrize("name", [name for name in ENGINES if name != "simulator"])
def test_the_simulators_options_belong_to_no_other(name: str) -> None:
    with pytest.raises(tint.TintError) as refused:
        make(name, layout="lean", transposition="scores")
    assert str(refused.value) == f"layout, transposition: knobs of the simulator; leave them out with engine='{name}'"


@NAMED
def test_every_option_that_an_engine_names_is_its_own(name: str) -> None:
    check_options(name, dict.fromkeys(ENGINES[name].options()))


def test_no_two_engines_share_an_option() -> None:
    """Otherwise a message could not say whose option it is; the network is a simulator's, and has some of its knobs."""
    options = [option for entry in ENGINES.values() for option in entry.options()]
    shared = {"attention", "softmax_epsilon", "softmax_form", "stack", "statistics"}
    assert {option for option in options if options.count(option) > 1} == shared


@NAMED
def test_every_engine_can_be_imported(name: str) -> None:
    module, _, factory = ENGINES[name].factory.rpartition(".")
    assert callable(getattr(import_module(module), factory))


@NAMED
def test_capabilities_are_the_protocols_that_an_engine_implements(name: str) -> None:
    engine = make(name)
    assert isinstance(engine, Engine)
    found = {capability for capability, protocol in PROTOCOLS.items() if isinstance(engine, protocol)}
    assert found == ENGINES[name].capabilities - {"takes_rates"}  # of which test_row_rates.py tells


def test_every_capability_has_a_protocol_and_an_engine() -> None:
    assert {*PROTOCOLS, "takes_rates"} == set(get_args(Capability))
    for capability in PROTOCOLS:
        assert set(engines_that(capability)) == {
            name for name, entry in ENGINES.items() if capability in entry.capabilities
        }
        assert engines_that(capability)


@NAMED
def test_every_engine_runs_a_batch_to_the_same_losses(name: str) -> None:
    engine, truth = make(name), make("reference")
    batch = Batch.of(engine.auxiliary, **make_batch())
    found, expected = (it.run(batch, logits_at=None, before=True) for it in (engine, truth))
    for after in ("after", "before"):
        losses, true_losses = getattr(found, after).losses, getattr(expected, after).losses
        assert len(losses) == int(batch.evaluation_positions.sum())
        torch.testing.assert_close(losses, true_losses, rtol=0, atol=1e-8)
    assert found.updates(0).keys() == expected.updates(0).keys()


@pytest.mark.parametrize("name", engines_that("adapts"))
def test_what_adapts_scores_with_what_it_has_learnt(name: str) -> None:
    engine = make(name)
    batch = Batch.of(engine.auxiliary, **make_batch(lengths=(9,)))
    learnt, alone = engine.adapt(batch), engine.run(batch, logits_at=None, before=True)
    scored = engine.score(batch, learnt, logits_at=None)
    # Of one sequence alone the pooled update is its own, so both ways of using it agree.
    torch.testing.assert_close(scored.after.losses, alone.after.losses, rtol=0, atol=1e-10)
    assert not torch.equal(scored.after.losses, alone.before.losses)


@pytest.mark.parametrize("name", engines_that("continues"))
def test_what_continues_goes_on_as_if_it_had_read_all_at_once(name: str) -> None:
    engine = make(name)
    ids = make_batch(lengths=(9,))["input_ids"]
    trained = torch.arange(9)[None] < 6
    batch = Batch.of(engine.auxiliary, ids[:, :7], train_mask=trained[:, :7])
    going_on = engine.begin(batch, keep_cache=True)
    going_on.extend(ids[:, 7:])
    whole = Batch.of(engine.auxiliary, ids, train_mask=trained)
    everywhere = torch.ones_like(ids, dtype=torch.bool)
    expected = engine.run(whole, logits_at=everywhere, before=False).after.logits[-2:]
    torch.testing.assert_close(going_on.logits()[0], expected, rtol=0, atol=1e-8)

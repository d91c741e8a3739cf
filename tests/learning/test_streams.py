# pyright: basic
"""Streams: equal to a loop of autograd and torch.optim over each document, whatever stands beside it in the batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import FIRST, VOCABULARY, assert_same, covering, make_model, make_rule
from stream_truth import read_document
from torch import Tensor

import tintformer as tint
from tintformer.learning.streams import Piece, StreamState

LENGTH, CHUNK, WINDOW = 46, 6, 14
CARRIES = ["none", "recompute", "cache"]
OPTIMISERS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.8, "nesterov": True},
    "decay": {"decay": 0.1, "momentum": 0.5},
    "rates": {"rates": {"blocks.0.*": 0.5, "*.value": 2.0}},
    "schedule": {"schedule": (1.0, 0.5, 0.25)},
    "rms": {"optimizer": "rms"},
    "adam": {"optimizer": "adam"},
    "muon": {"optimizer": "muon"},
    "muon-momentum": {"optimizer": "muon", "momentum": 0.9, "nesterov": True},
}


def tokens(*shape: int, seed: int = 3) -> Tensor:
    return torch.randint(3, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def side_by_side(pieces: list[Piece], length: int = LENGTH) -> Tensor:
    """The losses at the columns of the batch."""
    losses = torch.zeros(len(pieces[0].columns), length, dtype=pieces[0].token_loss.dtype)
    for piece in pieces:
        for row, columns in enumerate(piece.columns):
            losses[row, columns[columns >= 0]] = piece.token_loss[row, columns >= 0]
    return losses


def statistics_of(model: Any) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {name: 0.1 + torch.rand(p.shape, generator=generator, dtype=p.dtype) for name, p in model.named_parameters()}


def assert_true(name: str, carry: Any, rule: tint.LearningRule, ids: Tensor, **knobs: Any) -> None:
    model = make_model(name)
    options: dict[str, Any] = {"statistics": statistics_of(model)} if rule.optimizer == "rms" else {}
    pieces = list(tint.Tint(model, rule, **options).stream(ids, chunk=CHUNK, window=WINDOW, carry=carry, **knobs))
    found = side_by_side(pieces, ids.shape[1])
    for row in range(len(ids)):
        masks = {key: value[row] for key, value in knobs.items()}
        losses, updates = read_document(
            model, rule, ids[row], chunk=CHUNK, window=WINDOW, carry=carry, **masks, **options
        )
        torch.testing.assert_close(found[row], losses, rtol=0, atol=1e-8)
        learnt = pieces[-1].state.updates(row)
        assert learnt.keys() == updates.keys()
        for parameter, update in updates.items():
            torch.testing.assert_close(learnt[parameter], update, rtol=0, atol=1e-8)


@pytest.mark.parametrize(("name", "carry"), covering(FIRST, CARRIES))
def test_every_family_is_read_as_autograd_reads_it(name: str, carry: str) -> None:
    assert_true(name, carry, make_rule("full", learning_rate=2e-3), tokens(1, 2 * WINDOW))


READERS = [(name, carry) for name in ("gpt2", "llama-grouped", "qwen3") for carry in ("cache", "recompute")]


@pytest.mark.parametrize(("optimiser", "reader"), covering(list(OPTIMISERS), READERS))
def test_every_optimiser(optimiser: str, reader: tuple[str, str]) -> None:
    assert_true(*reader, make_rule("full", learning_rate=2e-3, **OPTIMISERS[optimiser]), tokens(1, 34))


@pytest.mark.parametrize("rule", ["default", "paper", "mean"])
def test_rules_steps_and_top_layers(rule: str) -> None:
    assert_true("llama", "cache", make_rule(rule, steps=2, layers=1), tokens(2, 25))


def test_a_loss_mask_restricts_what_is_learnt_and_not_what_is_scored() -> None:
    mask = torch.zeros(2, LENGTH, dtype=torch.bool)
    mask[0, 8:20], mask[1, 3] = True, True
    for knobs in ({"momentum": 0.9, "decay": 0.1}, {"optimizer": "adam"}):
        assert_true("gpt2", "cache", make_rule("default", **knobs), tokens(2, LENGTH), loss_mask=mask)


@pytest.mark.parametrize("optimiser", ["muon", "sgd", "nesterov"])
def test_decay_spares_rows_that_make_no_step(optimiser: str) -> None:
    """Long enough for updates to be matrices: a chunk without a target moves nothing, and a step decays once."""
    mask = torch.zeros(2, 48, dtype=torch.bool)
    mask[0, 8:38], mask[1, 3:9] = True, True
    rule = make_rule("default", **OPTIMISERS[optimiser], decay=0.3)
    assert_true("llama", "cache", rule, tokens(2, 48), loss_mask=mask)


DOCUMENTS = torch.tensor([[0] * 20 + [1] * 26, [0] * 33 + [4] * 13, [2] * 46])


@pytest.mark.parametrize(("carry", "optimiser"), covering(CARRIES, ["sgd", "decay", "schedule", "adam", "muon"]))
def test_a_batch_of_documents_equals_each_alone(carry: str, optimiser: str) -> None:
    rule = make_rule("full", **OPTIMISERS[optimiser])
    sim, ids = tint.Tint(make_model("gpt2"), rule), tokens(3, LENGTH)
    how: dict[str, Any] = {"chunk": CHUNK, "window": WINDOW, "carry": carry}
    together = side_by_side(list(sim.stream(ids, document_ids=DOCUMENTS, **how)))
    for row in range(3):
        for number in DOCUMENTS[row].unique():
            here = DOCUMENTS[row] == number
            alone = torch.cat([piece.token_loss for piece in sim.stream(ids[row, here][None], **how)], dim=1)
            torch.testing.assert_close(together[row, here], alone[0], rtol=0, atol=1e-9)


def test_pieces_side_by_side_are_the_batch() -> None:
    ids = tokens(2, 20)
    pieces = list(tint.Tint(make_model("llama"), make_rule("default")).stream(ids, chunk=8, window=16))
    assert [tuple(piece.token_loss.shape) for piece in pieces] == [(2, 8), (2, 8), (2, 4)]
    assert torch.equal(torch.cat([piece.columns for piece in pieces], 1), torch.arange(20).expand(2, -1))
    assert torch.cat([piece.scored for piece in pieces], 1).sum(1).tolist() == [19, 19]
    assert pieces[0].loss is not None


def test_rotary_positions_go_on_as_far_as_a_document_does() -> None:
    """Distances alone count, and the window bounds them: nothing to warn of, and warnings are errors here."""
    sim = tint.Tint(make_model("llama"), make_rule("default"))
    assert sim.auxiliary.max_positions == 64
    *_, last = sim.stream(tokens(1, 140), chunk=32, window=64)
    assert bool(torch.isfinite(last.token_loss).all())


def test_padding_stands_anywhere() -> None:
    ids, sim = tokens(2, 30), tint.Tint(make_model("gpt2"), make_rule("default"))
    attended = torch.ones_like(ids)
    attended[0, :7], attended[1, 22:] = 0, 0
    found = side_by_side(list(sim.stream(ids, chunk=CHUNK, window=WINDOW, attention_mask=attended)), 30)
    for row in range(2):
        here = attended[row] == 1
        alone = torch.cat([p.token_loss for p in sim.stream(ids[row, here][None], chunk=CHUNK, window=WINDOW)], 1)
        assert_same(found[row, here], alone[0])
        assert not found[row, ~here].any()


@pytest.mark.parametrize(
    ("dtype", "optimiser"), covering([torch.float32, torch.float64], ["sgd", "decay", "adam", "muon", "schedule"])
)
def test_a_state_goes_on_to_the_bit(optimiser: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model, rule = tint.load(make_model("llama-grouped", dtype)), make_rule("full", **OPTIMISERS[optimiser])
    sim, ids = tint.Tint(model, rule), tokens(2, LENGTH)
    how: dict[str, Any] = {"chunk": CHUNK, "window": WINDOW}
    whole = list(sim.stream(ids, **how))
    for stop in (2,):
        for number, piece in enumerate(sim.stream(ids, **how), 1):
            if number == stop:
                piece.state.save(tmp_path / "state.safetensors")
                break
        state = StreamState.load(tmp_path / "state.safetensors", model)
        rest = list(sim.stream(ids[:, stop * CHUNK :], **how, state=state))
        assert len(rest) == len(whole) - stop
        for again, before in zip(rest, whole[stop:], strict=True):
            assert torch.equal(again.token_loss, before.token_loss)
    for row in range(2):
        found, expected = rest[-1].state.updates(row), whole[-1].state.updates(row)
        assert all(torch.equal(found[name], update) for name, update in expected.items())


def test_a_state_goes_on_with_its_own_statistics_only(tmp_path: Path) -> None:
    model, rule, ids = tint.load(make_model("gpt2")), make_rule("full", optimizer="rms"), tokens(1, 20)
    given, file = statistics_of(model.model), tmp_path / "state"
    other = {name: 2 * values for name, values in given.items()}
    how: dict[str, Any] = {"chunk": 8, "window": 16}
    whole = [piece.token_loss for piece in tint.Tint(model, rule, statistics=given).stream(ids, **how)]

    def first() -> StreamState:
        return next(tint.Tint(model, rule, statistics=given).stream(ids, **how)).state

    def go_on(state: StreamState, statistics: dict[str, Tensor]) -> list[Tensor]:
        sim = tint.Tint(model, rule, statistics=statistics)
        return [piece.token_loss for piece in sim.stream(ids[:, 8:], **how, state=state)]

    first().save(file)
    for state in (first(), StreamState.load(file, model)):
        with pytest.raises(tint.InputError, match="a stream with other statistics; go on with the same"):
            go_on(state, other)
        copies = {name: values.clone() for name, values in given.items()}
        assert all(map(torch.equal, go_on(state, copies), whole[1:]))
    # Of another rule there are none to compare.
    *_, last = tint.Tint(model, make_rule("full")).stream(ids, **how)
    assert last.state.statistics_hash() is None


def test_what_a_row_has_learnt_is_a_model() -> None:
    ids = tokens(2, 30)
    sim = tint.Tint(make_model("gpt2"), make_rule("full"))
    *_, last = sim.stream(ids, chunk=10, window=20)
    for row in range(2):
        tuned, plain = last.state.tuned(row), last.state.to_hf(row)
        found = tuned.score(ids, logits="all").logits
        assert found is not None
        assert_same(found, plain(ids).logits.detach())
    with torch.no_grad():
        assert float((last.state.to_hf(0)(ids).logits - last.state.to_hf(1)(ids).logits).abs().max()) > 1e-4


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    model = tint.load(make_model("gpt2"))
    sim, ids = tint.Tint(model, make_rule("default")), tokens(1, 20)
    with pytest.raises(tint.InputError, match="window=4 is smaller than chunk=8"):
        sim.stream(ids, chunk=8, window=4)
    with pytest.raises(tint.InputError, match="document_ids go back from 3 to 1"):
        sim.stream(ids, document_ids=torch.tensor([[3] * 10 + [1] * 10]))
    with pytest.raises(tint.InputError, match="carry='all' is unknown"):
        sim.stream(ids, carry="all")  # type: ignore[arg-type]
    with pytest.raises(tint.InputError, match="learned positions; use carry='recompute'"):
        sim.stream(tokens(1, 70), chunk=8)
    with pytest.raises(tint.TintError, match="stream\\(\\) needs engine='fast'"):
        tint.Tint(model, make_rule("default"), engine="reference").stream(ids)
    *_, last = sim.stream(ids, chunk=8, window=16)
    last.state.save(tmp_path / "state")
    with pytest.raises(tint.InputError, match="another rule"):
        tint.Tint(model, replace(make_rule("default"), momentum=0.5)).stream(ids, chunk=8, window=16, state=last.state)
    with pytest.raises(tint.LoadError, match="other weights"):
        StreamState.load(tmp_path / "state", make_model("gpt2", seed=1))
    (tmp_path / "state").write_bytes((tmp_path / "state").read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(tint.LoadError, match="damaged or changed"):
        StreamState.load(tmp_path / "state", model)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_logits_are_those_that_tokens_were_scored_by(loss: Any) -> None:
    sim, ids = tint.Tint(make_model("gpt2"), make_rule("full", loss=loss)), tokens(2, 20)
    attended = torch.ones_like(ids)
    attended[0, 15:] = 0
    how: dict[str, Any] = {"chunk": CHUNK, "window": WINDOW, "attention_mask": attended}
    pairs = zip(sim.stream(ids, **how), sim.stream(ids, **how, logits=True), strict=True)
    for plain, piece in pairs:
        assert plain.logits is None and piece.logits is not None and torch.equal(plain.token_loss, piece.token_loss)
        targets = ids.gather(1, piece.columns.clamp(min=0))
        again = -piece.logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
        torch.testing.assert_close(again[piece.scored], piece.token_loss[piece.scored], rtol=0, atol=1e-12)
        assert not piece.logits[~piece.scored].any()
    with pytest.raises(tint.InputError, match="logits"):
        sim.stream(ids, logits="all")  # type: ignore[arg-type]

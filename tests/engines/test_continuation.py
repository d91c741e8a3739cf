# pyright: basic
"""Sequences that go on after learning: token by token with a memory is the same as all at once without one."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from cases import FIRST, MODELS, covering, make_batch, make_model, make_rule, swept

import tintformer as tint
from tintformer.execution.batch import Batch
from tintformer.execution.continuation import Continuation

PROMPT = 8
ENGINES = ["fast", "simulator"]


def whole(padding: str = "left") -> dict[str, Any]:
    """Sequences of which the last tokens are read later; the part before the prompt's end trains."""
    batch = make_batch(lengths=(12, 9, 10), padding="left")
    batch["train_mask"][:, PROMPT - 1 :] = False
    if padding == "none":
        batch["attention_mask"][:] = 1
    return batch


def begin(sim: tint.Tint, batch: dict[str, Any], tokens: int = PROMPT) -> Continuation:
    part = {key: value[:, :tokens] for key, value in batch.items()}
    prompt = Batch.of(sim.auxiliary, **part)
    engine: Any = sim.engine
    return engine.begin(prompt, keep_cache=True)


def all_at_once(sim: tint.Tint, batch: dict[str, Any]) -> torch.Tensor:
    logits = sim(**batch).logits
    assert logits is not None
    return logits


def token_by_token(sim: tint.Tint, batch: dict[str, Any], sizes: tuple[int, ...] = (1, 2, 1)) -> torch.Tensor:
    continuation = begin(sim, batch)
    found = [continuation.logits()]
    for size in sizes:
        start = continuation.length
        continuation.extend(batch["input_ids"][:, start : start + size], batch["attention_mask"][:, : start + size])
        found.append(continuation.logits())
    return torch.cat(found, dim=1)


def assert_same(batch: dict[str, Any], found: torch.Tensor, expected: torch.Tensor) -> None:
    kept = batch["attention_mask"].bool()
    torch.testing.assert_close(found[kept], expected[kept], rtol=0, atol=1e-9)


VARIANTS = swept(itertools.product([name for name in MODELS if name not in FIRST], ENGINES))


@pytest.mark.parametrize(("name", "engine"), covering(FIRST, ENGINES) + VARIANTS)
def test_a_continuation_is_the_whole_pass(name: str, engine: str) -> None:
    sim = tint.Tint(make_model(name), make_rule("default"), engine=engine)
    for padding in ("left", "none"):
        batch = whole(padding)
        assert_same(batch, token_by_token(sim, batch), all_at_once(sim, batch))


@pytest.mark.parametrize(
    ("name", "how"),
    covering(
        ["gpt2", "llama-grouped", "bloom", "qwen3"],
        list(itertools.product(["default", "full"], [1, 2], [None, True, False])),
    ),
)
def test_every_form_of_an_update_goes_on(name: str, how: tuple[str, int, bool | None]) -> None:
    rule, steps, dual = how
    sim, batch = tint.Tint(make_model(name), make_rule(rule, steps=steps), dual=dual), whole()
    assert_same(batch, token_by_token(sim, batch), all_at_once(sim, batch))


@pytest.mark.parametrize("tokens", [3, 12], ids=["factors", "formed"])
def test_updates_are_kept_in_the_smaller_form(tokens: int) -> None:
    sim, batch = tint.Tint(make_model("gpt2"), make_rule("default")), whole("none")
    batch["train_mask"][:] = True
    continuation: Any = begin(sim, batch, tokens)
    assert {update.dual for update in continuation.updates.matrices.values()} == {tokens == 3}


@pytest.mark.parametrize("engine", ENGINES)
def test_fewer_blocks_learn(engine: str) -> None:
    sim, batch = tint.Tint(make_model("mistral"), make_rule("full", layers=1), engine=engine), whole()
    assert_same(batch, token_by_token(sim, batch, (4,)), all_at_once(sim, batch))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dual", [True, False])
def test_sequences_in_another_order(engine: str, dual: bool) -> None:
    knobs = {"dual": dual} if engine == "fast" else {}
    sim, batch = tint.Tint(make_model("llama"), make_rule("full"), engine=engine, **knobs), whole()
    continuation, rows = begin(sim, batch), torch.tensor([2, 0, 0])
    continuation.reorder(rows)
    moved = {key: value[rows] for key, value in batch.items()}
    expected = all_at_once(sim, moved)
    torch.testing.assert_close(continuation.logits(1)[:, 0], expected[:, PROMPT - 1], rtol=0, atol=1e-9)
    continuation.extend(moved["input_ids"][:, PROMPT:])
    torch.testing.assert_close(continuation.logits(), expected[:, PROMPT:], rtol=0, atol=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
def test_tokens_can_be_taken_back(engine: str) -> None:
    sim, batch = tint.Tint(make_model("gpt_neo"), make_rule("default"), engine=engine), whole()
    continuation = begin(sim, batch)
    continuation.extend(torch.full((3, 2), 5))
    continuation.crop(PROMPT)
    continuation.extend(batch["input_ids"][:, PROMPT:])
    torch.testing.assert_close(continuation.logits(), all_at_once(sim, batch)[:, PROMPT:], rtol=0, atol=1e-9)


def test_given_positions_and_segments_go_on() -> None:
    sim, batch = tint.Tint(make_model("llama"), make_rule("default")), whole("none")
    batch["position_ids"] = torch.arange(12).expand(3, -1) + torch.tensor([[3], [0], [7]])
    batch["segment_ids"] = (torch.arange(12) > 3).long().expand(3, -1)
    assert_same(batch, token_by_token(sim, batch), all_at_once(sim, batch))


def test_what_cannot_go_on() -> None:
    sim, batch = tint.Tint(make_model("gpt2"), make_rule("default")), whole()
    continuation = begin(sim, batch)
    with pytest.raises(tint.InputError, match="2 sequences cannot continue 3"):
        continuation.extend(torch.ones(2, 1, dtype=torch.long))
    with pytest.raises(tint.InputError, match="says otherwise of tokens that have been read"):
        continuation.extend(torch.ones(3, 1, dtype=torch.long), torch.ones(3, PROMPT + 1, dtype=torch.long))
    with pytest.raises(tint.InputError, match="attention_mask has shape"):
        continuation.extend(torch.ones(3, 1, dtype=torch.long), torch.ones(3, 1, dtype=torch.long))
    with pytest.raises(tint.InputError, match="has learned positions"):
        continuation.extend(torch.ones(3, 60, dtype=torch.long))
    engine: Any = sim.engine
    forgetful = engine.begin(continuation.batch, keep_cache=False)
    with pytest.raises(tint.InputError, match="keep_cache=True"):
        forgetful.extend(torch.ones(3, 1, dtype=torch.long))

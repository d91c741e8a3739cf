# pyright: basic
"""Requests of the harness against `Tint` itself, one sequence at a time, and against the harness's own model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch
from cases import some
from films import request
from lm_eval.models.huggingface import HFLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

import tintformer as tint
from tintformer.errors import InputError
from tintformer.learning.text import find_tokenizer
from tintlab.harness import TintLM
from tintlab.harness.scoring import LOGITS

RATE = 1e-3
CONTEXT = "She had been a widow for many years, and was much respected by her"
PAIRS = [
    (CONTEXT, " neighbours"),
    (CONTEXT, " neighbours, who had known her family"),
    (CONTEXT, " a"),
    ("The King", " is dead"),
    ("The King", " lives"),
    ("", "The King is dead"),
    (CONTEXT, " a"),
]
LONG = " ".join([CONTEXT, "neighbours. He was a single man of large fortune, and she had four daughters."] * 3)


def make(model: str = "nano-llama", rate: float = RATE, **options: Any) -> TintLM:
    return TintLM(pretrained=model, learning_rate=rate, dtype="float64", **options)


def ask(lm: Any, pairs: Sequence[tuple[str, str]] = tuple(PAIRS)) -> list[tuple[float, bool]]:
    return lm.loglikelihood([request("loglikelihood", *pair) for pair in pairs], disable_tqdm=True)


def by_hand(lm: TintLM, context: Sequence[int], continuation: Sequence[int]) -> tuple[float, bool]:
    """Learnt from and scored in one pass, alone."""
    ids = torch.tensor([[*context, *continuation]])
    train = torch.arange(ids.shape[1])[None] < len(context)
    sim = tint.Tint(lm.model.auxiliary, lm.arguments.rule)
    out = (
        sim(ids, train_mask=train) if len(context) > 1 else tint.Tuned.untrained(sim.auxiliary).score(ids, logits="all")
    )
    assert out.logits is not None
    greedy = out.logits[0, len(context) - 1 : -1].argmax(-1).tolist() == list(continuation)
    return float(out.log_probability), greedy


def close(found: Sequence[tuple[float, bool]], expected: Sequence[tuple[float, bool]], tolerance: float = 1e-9) -> None:
    assert [score for score, _ in found] == pytest.approx([score for score, _ in expected], abs=tolerance, rel=0)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]


@pytest.mark.parametrize("model", some(["nano-llama", "nano-gpt2"]))
def test_a_continuation_is_scored_after_learning_from_its_context(model: str) -> None:
    lm, tokenizer = make(model), find_tokenizer(model)
    expected = []
    for context, continuation in PAIRS:
        before = lm.tok_encode(context) if context else [lm.prefix_token_id]
        whole = lm.tok_encode(context + continuation) if context else [*before, *tokenizer(continuation).input_ids]
        expected.append(by_hand(lm, before, whole[len(before) :]))
    close(ask(lm), expected)
    assert ask(lm)[0][0] != ask(make(model, 0))[0][0]


@pytest.mark.parametrize("size", some([2, 1]))
def test_batches_change_nothing(size: int) -> None:
    close(ask(make(batch_size=size)), ask(make(batch_size=8)))


def test_the_simulator_is_the_same_model() -> None:
    pairs = PAIRS[3:5]
    close(ask(make("nano-gpt2", engine="simulator"), pairs), ask(make("nano-gpt2"), pairs), 1e-7)


@pytest.mark.parametrize("model", some(["nano-gpt2", "nano-llama"]))
def test_with_nothing_learnt_it_is_the_model_of_the_harness(model: str) -> None:
    lm = make(model, 0)
    theirs: Any = cast(Any, HFLM)(
        pretrained=tint.load(model, dtype=torch.float64).model, tokenizer=find_tokenizer(model), batch_size=2
    )
    close(ask(lm), ask(theirs), 1e-5)
    text = [request("loglikelihood_rolling", CONTEXT)]
    assert lm.loglikelihood_rolling(text) == pytest.approx(theirs.loglikelihood_rolling(text), abs=1e-5)


def test_what_follows_one_context_follows_the_same_tokens() -> None:
    lm = make()
    pairs = lm.encoding.pairs("The King", ["dom", " is dead"])
    assert pairs[0][0] == pairs[1][0]
    assert [list(context + rest) for context, rest in pairs] == [
        lm.tok_encode("The Kingdom"),
        lm.tok_encode("The King is dead"),
    ]


def test_a_context_that_is_too_long_loses_its_beginning(caplog: pytest.LogCaptureFixture) -> None:
    lm = make(max_length=12)
    context, continuation = lm.encoding.pairs(CONTEXT, [" neighbours"])[0]
    assert len(context) > 12
    close(ask(lm, PAIRS[:1]), [by_hand(lm, (context + continuation)[-13 : -len(continuation)], continuation)])
    assert "1 of 1 contexts were too long" in caplog.text
    alone = ask(make(max_length=len(continuation)), PAIRS[:1])
    close(alone, [by_hand(lm, context[-1:], continuation)])
    with pytest.raises(InputError, match="but max_length is 2"):
        ask(make(max_length=2), PAIRS[1:2])


def test_rolling_learns_from_what_the_window_before_has_scored() -> None:
    lm = make(max_length=32)
    tokens = lm.tok_encode(LONG, add_special_tokens=False)
    windows = [
        make_disjoint_window(window)
        for window in get_rolling_token_windows(tokens, lm.prefix_token_id, max_seq_len=32, context_len=16)
    ]
    assert len(windows) > 2 and [len(context) for context, _ in windows[:2]] == [1, 16]
    expected = sum(by_hand(lm, context, rest)[0] for context, rest in windows)
    found = lm.loglikelihood_rolling([request("loglikelihood_rolling", text) for text in (LONG, "", CONTEXT)])
    assert found == pytest.approx([expected, 0.0, lm.loglikelihood_rolling([request("x", CONTEXT)])[0]], abs=1e-9)


def test_long_continuations_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(CONTEXT, LONG), (CONTEXT, " a"), ("The King", LONG[:60])]
    expected = ask(make(), pairs)
    assert LOGITS > 100
    monkeypatch.setattr("tintlab.harness.scoring.LOGITS", 7)
    close(ask(make(), pairs), expected)


def test_an_empty_continuation_is_refused() -> None:
    with pytest.raises(InputError, match="no token for ''"):
        ask(make(), [("The King", "")])

# pyright: basic
"""Texts as streams: beside the model as it is with equal context, and after a kill on from what was saved last."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import VOCABULARY, covering, make_model, make_rule

import tintformer as tint
from tintformer.learning.streams import StreamSettings
from tintformer.study.text_stream import Document, TextStream

SETTINGS = StreamSettings(chunk=6, window=14)
CARRIES = ["none", "recompute", "cache"]


class Killed(Exception):
    pass


def document(name: str, length: int, seed: int) -> Document:
    ids = torch.randint(3, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed))
    return Document(name=name, input_ids=tuple(ids.tolist()))


DOCUMENTS = [document("a", 40, 1), document("b", 13, 2), document("c", 24, 3)]


@pytest.fixture(scope="module")
def model() -> Any:
    return tint.load(make_model("llama-grouped", torch.float32))


def losses(reading: TextStream) -> list[Any]:
    return [(each.name, each.before, each.after) for each in reading.scores()]


CHUNKS = 7 + 3 + 4


@pytest.mark.parametrize(("carry", "kills"), covering(CARRIES, [(1, 8), (7, CHUNKS)]))
def test_it_goes_on_to_the_bit_wherever_it_was_killed(
    model: Any, carry: str, kills: tuple[int, ...], tmp_path: Path
) -> None:
    rule, settings = make_rule("full", momentum=0.9, decay=0.01), replace(SETTINGS, carry=carry)
    whole = TextStream(model, rule, DOCUMENTS, settings)
    whole.read()
    for killed_at in kills:
        file = tmp_path / f"state-{killed_at}"
        seen: list[int] = []

        def strike(now: TextStream, seen: list[int] = seen, killed_at: int = killed_at) -> None:
            seen.append(now.tokens_read)
            if len(seen) == killed_at:
                raise Killed

        with pytest.raises(Killed):
            TextStream(model, rule, DOCUMENTS, settings, file=file, every=2).read(strike)
        again = TextStream(model, rule, DOCUMENTS, settings, file=file, every=2)
        # Whole chunks behind the last even one are read again.
        assert again.resumed_at == (0 if killed_at == 1 else seen[killed_at // 2 * 2 - 1])
        again.read()
        assert losses(again) == losses(whole) and again.losses() == pytest.approx(whole.losses(), rel=1e-12)
        done = TextStream(model, rule, DOCUMENTS, settings, file=file)
        assert done.tokens_read == done.num_tokens
        done.read(lambda _: pytest.fail("there was nothing left to read"))
        assert losses(done) == losses(whole)
    # What is on disk is a state like any other.
    state = tint.StreamState.load(file, model)
    assert state.tuned().updates().keys() == state.updates().keys()


def test_both_read_the_same_windows(model: Any) -> None:
    """With a rate of 0 the stream is the model as it is, and that is Hugging Face's own pass."""
    reading = TextStream(model, make_rule("full", learning_rate=0.0), DOCUMENTS[:1], StreamSettings(chunk=6, window=64))
    reading.read()
    scores = reading.scores()[0]
    assert scores.before == scores.after and len(scores.after) == 39
    ids = torch.tensor([DOCUMENTS[0].input_ids])
    with torch.no_grad():
        expected = -model.model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(scores.before), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("carry", CARRIES)
def test_the_model_as_it_is_reads_as_a_stream_that_moves_nothing(model: Any, carry: str) -> None:
    ids = torch.tensor([DOCUMENTS[0].input_ids])
    how: dict[str, Any] = {"chunk": 6, "window": 14, "carry": carry}
    still, barely = (
        torch.cat(
            [piece.token_loss for piece in tint.Tint(model, make_rule("full", learning_rate=rate)).stream(ids, **how)],
            1,
        )
        for rate in (0.0, 1e-30)
    )
    torch.testing.assert_close(still, barely, rtol=1e-5, atol=1e-6)


def test_a_file_of_something_else_is_refused(model: Any, tmp_path: Path) -> None:
    file, rule = tmp_path / "state", make_rule("default")
    TextStream(model, rule, DOCUMENTS, SETTINGS, file=file).read()
    before = file.read_bytes()

    def refused(
        message: str, rule: Any = rule, documents: Any = DOCUMENTS, settings: Any = SETTINGS, **more: Any
    ) -> None:
        with pytest.raises(tint.TintError, match=message):
            TextStream(model, rule, documents, settings, file=file, **more)

    refused("another rule", rule=replace(rule, momentum=0.5))
    refused("another chunk, window or carry", settings=replace(SETTINGS, chunk=7))
    refused("another text", documents=DOCUMENTS[:2])
    assert file.read_bytes() == before
    *_, last = tint.Tint(model, rule).stream(torch.tensor([DOCUMENTS[0].input_ids]), chunk=6, window=14)
    last.state.save(file)
    refused("a state without a text")
    file.write_bytes(before[:-3])
    refused("cannot read the state")
    rms = replace(rule, optimizer="rms")
    given = tint.collect_statistics(model, rule, torch.tensor([DOCUMENTS[1].input_ids]), chunk=6)
    file.unlink()
    TextStream(model, rms, DOCUMENTS[:1], SETTINGS, file=file, statistics=given).read()
    twice = {name: 2 * values for name, values in given.tensors.items()}
    refused("another statistics", rule=rms, documents=DOCUMENTS[:1], statistics=twice)
    with pytest.raises(tint.InputError, match="2 are the least"):
        TextStream(model, rule, [document("short", 1, 0)], SETTINGS)

# pyright: basic
"""Rows and masks: accepted by Tint, and meaning what "single", "multi" and both losses say."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from cases import build_model, covering
from torch.nn import functional

from tintformer import LearningRule, Tint
from tintformer.errors import InputError
from tintformer.execution.inputs import SHARED as SHARED_BY_TINT
from tintformer.learning.text import find_tokenizer
from tintlab.data.packing import (
    SHARED,
    Packed,
    after_shared,
    dense,
    loss_by_segment,
    multi,
    separate,
    single,
    to_learn,
    to_score,
)
from tintlab.data.prompts import Encoder, Role
from tintlab.data.tasks import Example, Prompt

PROMPT = Prompt(template="Review: {text}\nSentiment:", words=("Negative", "Positive"))
SHOWN = (
    Example("a dull and lifeless letter .", 0),
    Example("she was delighted with the visit !", 1),
    Example("it gave no pleasure", 0),
    Example("a charming house , and very good company", 1),
)
TEXT = "the evening was long and nobody spoke"


@cache
def model_of(name: str) -> Any:
    """Two narrow blocks for the tokenizer of a bundled model, with positions of either kind."""
    from transformers import GPT2Config, LlamaConfig

    words = len(find_tokenizer(name))
    if name == "nano-gpt2":
        return build_model("GPT2", GPT2Config(vocab_size=words, n_positions=512, n_embd=24, n_layer=2, n_head=2))
    shape: dict[str, Any] = {
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    return build_model("Llama", LlamaConfig(vocab_size=words, max_position_embeddings=512, **shape))


def encoder_of(name: str, *, bos: bool = True, context: int = 512) -> Encoder:
    return Encoder(tokenizer=find_tokenizer(name), prompt=PROMPT, context=context, bos=bos)


def rule(**knobs: Any) -> LearningRule:
    return LearningRule(learning_rate=1e-3, **knobs)


def gap(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


NAMES = ["nano-gpt2", "nano-llama"]
BOTH_LOSSES = [("label", True), ("full", False), ("full", True), ("label", False)]
"""Each with a BOS and without."""


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def roles_of(sequence: Packed, *roles: Role) -> list[int]:
    return [number for number, role in enumerate(sequence.roles) if role in roles]


@pytest.mark.parametrize("bos", [True, False])
def test_single_is_segments_after_one_shared_bos(bos: bool) -> None:
    encoder = encoder_of("nano-gpt2", bos=bos)
    prompted = single(encoder, SHOWN, TEXT)
    assert (prompted.num_demonstrations, prompted.num_cut) == (4, 0) and SHARED == SHARED_BY_TINT
    for sequence, answer in zip(prompted.sequences, prompted.answers, strict=True):
        assert sequence.segments[:2] == ((SHARED, 0) if bos else (0, 0))
        assert sorted(set(sequence.segments)) == [*([SHARED] if bos else []), 0, 1, 2, 3, 4]
        assert sequence.ids.count(encoder.tokenizer.bos_token_id) == bos
        assert tuple(sequence.ids[number] for number in roles_of(sequence, Role.ANSWER)) == answer
        test = roles_of(sequence, Role.TEST, Role.ANSWER)
        assert [sequence.segments[number] for number in test] == [4] * len(test)
        assert test == list(range(test[0], len(sequence)))
        assert sequence.training().ids == sequence.ids[: test[0]]
    assert tuple(sequence.alone() for sequence in prompted.sequences) == single(encoder, (), TEXT).sequences
    for sequence in prompted.sequences:
        for segment, example in enumerate(SHOWN):
            own = [number for number, at in enumerate(sequence.segments) if at == segment]
            scored, _ = encoder.demonstration(example)
            assert (tuple(sequence.ids[n] for n in own), tuple(sequence.roles[n] for n in own)) == (
                scored.ids,
                scored.roles,
            )


def test_multi_is_one_text_of_as_many_as_fit() -> None:
    encoder = encoder_of("nano-gpt2")
    whole = multi(encoder, SHOWN, TEXT)
    assert whole.num_demonstrations == 4
    for word, sequence in zip(PROMPT.words, whole.sequences, strict=True):
        pieces = [f"{PROMPT.filled(e.text)} {PROMPT.words[e.label]}" for e in SHOWN]
        expected = "\n\n".join([*pieces, f"{PROMPT.filled(TEXT)} {word}"])
        assert encoder.tokenizer.decode(sequence.ids[1:]) == expected
        assert set(sequence.segments) == {0} and sequence.roles[0] == Role.FIRST
    longest = max(map(len, whole.sequences))
    lengths = [max(map(len, multi(encoder, SHOWN[:count], TEXT).sequences)) for count in range(5)]
    assert lengths == sorted(lengths) and lengths[-1] == longest
    around = {length + more for length in lengths for more in (-1, 0, 1)}
    for context in sorted({lengths[0] - 3, *around}):
        prompted = multi(encoder_of("nano-gpt2", context=context), SHOWN, TEXT)
        assert prompted.num_demonstrations == max((c for c in range(5) if lengths[c] <= context), default=0)
        assert max(map(len, prompted.sequences)) <= context
        assert prompted.num_cut == (lengths[0] > context)


def test_zero_shot_and_calibration() -> None:
    encoder = encoder_of("nano-gpt2")
    for build in (single, multi):
        assert build(encoder, (), TEXT).num_demonstrations == 0
        decoded = [encoder.tokenizer.decode(s.ids[1:]) for s in build(encoder, (), None).sequences]
        assert decoded == ["\nSentiment: Negative", "\nSentiment: Positive"]
        few = build(encoder, SHOWN, None)
        assert few.num_demonstrations == 4 and encoder.tokenizer.decode(few.sequences[0].ids).endswith(decoded[0])


def test_long_texts_are_cut_and_counted() -> None:
    encoder = encoder_of("nano-gpt2", context=40)
    prompted = single(encoder, (*SHOWN, Example("very " * 60, 1)), "long " * 60)
    assert prompted.num_cut == 2
    lengths = [prompted.sequences[0].segments.count(segment) for segment in range(6)]
    assert max(lengths) <= 39


def test_masks() -> None:
    encoder = encoder_of("nano-gpt2")
    prompted = single(encoder, SHOWN, TEXT)
    label = to_learn(prompted.sequences, loss="label")
    full = to_learn(prompted.sequences, loss="full")
    without = to_learn(prompted.sequences, loss="full", test_text=False)
    for row, sequence in enumerate(prompted.sequences):
        answer = roles_of(sequence, Role.ANSWER)
        end = len(sequence)
        for keywords in (label, full, without):
            assert keywords["attention_mask"][row].sum() == end
            assert (~keywords["train_mask"][row, :end]).nonzero().flatten().tolist() == answer
            assert keywords["input_ids"][row, :end].tolist() == list(sequence.ids)
        assert label["loss_mask"][row].nonzero().flatten().tolist() == roles_of(sequence, Role.LABEL)
        everything = roles_of(sequence, Role.CONTEXT, Role.LABEL, Role.TEST)
        assert full["loss_mask"][row].nonzero().flatten().tolist() == everything
        shown = roles_of(sequence, Role.CONTEXT, Role.LABEL)
        assert without["loss_mask"][row].nonzero().flatten().tolist() == shown
        assert to_score(prompted.sequences)["score_mask"][row].nonzero().flatten().tolist() == answer


def test_nothing_to_learn_from_is_an_error() -> None:
    alone = multi(encoder_of("nano-gpt2"), (), TEXT).sequences
    to_learn(alone, loss="full")
    for knobs in ({"loss": "label"}, {"loss": "full", "test_text": False}):
        with pytest.raises(InputError, match="has nothing to learn from without demonstrations; give some"):
            to_learn(alone, **knobs)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="loss='both' is unknown; choose one of label, full"):
        to_learn(alone, loss="both")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="there are no sequences; give at least one"):
        to_score([])


@pytest.mark.parametrize(
    ("name", "how"), covering(NAMES, [("single", "label"), ("multi", "full"), ("single", "full"), ("multi", "label")])
)
def test_tint_takes_the_rows_and_a_padded_batch_equals_one_by_one(name: str, how: tuple[str, Any]) -> None:
    build, loss = {"single": single, "multi": multi}[how[0]], how[1]
    encoder = encoder_of(name)
    sim = Tint(model_of(name), rule(steps=2, layers=2))
    sequences = [sequence for text in (TEXT, "no") for sequence in build(encoder, SHOWN[:2], text).sequences[::-1][:1]]
    assert len(set(map(len, sequences))) > 1
    together = sim(**to_learn(sequences, loss=loss), logits="none")
    for row, sequence in enumerate(sequences):
        alone = sim(**to_learn([sequence], loss=loss), logits="none")
        assert alone.evaluation_mask[0].nonzero().flatten().tolist() == roles_of(sequence, Role.ANSWER)
        torch.testing.assert_close(together.token_loss[row, : len(sequence)], alone.token_loss[0], atol=1e-10, rtol=0)
        assert not together.token_loss[row, len(sequence) :].any()


@pytest.mark.parametrize(("name", "how"), covering(NAMES, BOTH_LOSSES))
def test_segments_learn_what_separate_rows_learn(name: str, how: tuple[Any, bool]) -> None:
    loss, bos = how
    encoder = encoder_of(name, bos=bos)
    sim = Tint(model_of(name), rule(steps=2, layers=2))
    packed = single(encoder, SHOWN, TEXT).sequences[:1]
    rows = sim.adapt(**to_learn(separate(encoder, SHOWN), loss=loss))
    segments = sim.adapt(**to_learn([packed[0].training()], loss=loss))
    assert max(float(change.abs().max()) for change in rows.updates().values()) > 1e-4
    assert gap(rows.updates(), segments.updates()) < 1e-10
    with_test = sim(**to_learn(packed, loss=loss, test_text=False), logits="none")
    assert gap(rows.updates(), with_test.updates()) < 1e-10
    # Learning once and scoring the test input alone gives what the packed row gives.
    alone = rows.score(**to_score([packed[0].alone()]))
    assert float(abs(alone.token_loss.sum() - with_test.token_loss.sum())) < 1e-9


@pytest.mark.parametrize(("name", "how"), covering(NAMES, BOTH_LOSSES))
def test_fewer_rows_learn_what_separate_rows_learn(name: str, how: tuple[Any, bool]) -> None:
    loss, bos = how
    encoder = encoder_of(name, bos=bos)
    sim = Tint(model_of(name), rule(steps=2, layers=2))
    shown = (Example("no", 0), Example("yes", 1), *SHOWN, Example("a long letter , " * 8, 1))
    rows, fewer = separate(encoder, shown), dense(encoder, shown)
    assert len(fewer) < len(rows) and max(map(len, fewer)) == max(map(len, rows))
    assert sum(map(len, fewer)) == sum(map(len, rows)) - (len(rows) - len(fewer)) * bos
    one, other = (sim.adapt(**to_learn(each, loss=loss)).updates() for each in (rows, fewer))
    assert gap(one, other) < 1e-10


def test_adapting_once_on_multi_equals_the_whole_row(name: str) -> None:
    encoder = encoder_of(name)
    sim = Tint(model_of(name), rule())
    prompted = multi(encoder, SHOWN, TEXT)
    whole = sim(**to_learn(prompted.sequences, loss="full", test_text=False), logits="none")
    tuned = sim.adapt(**to_learn([prompted.sequences[0].training()], loss="full"))
    scored = tuned.score(**to_score(prompted.sequences))
    torch.testing.assert_close(scored.token_loss, whole.token_loss, atol=1e-9, rtol=0)


def test_inputs_behind_one_context_read_as_they_do_alone(name: str) -> None:
    """In float64, words of several tokens and the calibration prompt among them."""
    encoder = encoder_of(name)
    asked = [multi(encoder, SHOWN, text) for text in (TEXT, "no", None)]
    sequences = [sequence for each in asked for sequence in each.sequences]
    (row,) = after_shared(sequences)
    shared = row.segments.count(SHARED)
    assert shared > 40 and len(row) == shared + sum(len(sequence) - shared for sequence in sequences)
    tuned = Tint(model_of(name), rule()).adapt(**to_learn([sequences[0].training()], loss="label"))
    together = loss_by_segment([row], tuned.score(**to_score([row])).token_loss)
    alone = tuned.score(**to_score(sequences)).token_loss.sum(1)
    torch.testing.assert_close(together, alone, atol=1e-9, rtol=0)


def test_a_context_that_is_all_that_inputs_have_leaves_them_a_token() -> None:
    """The token that predicts the answer stays behind the border of the segment."""
    roles = (Role.FIRST, Role.CONTEXT, Role.TEST, Role.ANSWER)
    sequences = [Packed(ids=(0, 1, 2, answer), roles=roles, segments=(0,) * 4) for answer in (7, 8)]
    (row,) = after_shared(sequences)
    assert row.ids == (0, 1, 2, 7, 2, 8) and row.segments == (SHARED, SHARED, 0, 0, 1, 1)


@pytest.mark.parametrize("loss", ["label", "full"])
def test_the_update_is_the_gradient_at_the_targets_alone(loss: Any) -> None:
    """Against autograd through the Hugging Face model, the targets picked by hand."""
    model = model_of("nano-gpt2")
    encoder = encoder_of("nano-gpt2")
    sequence = multi(encoder, SHOWN[:2], TEXT).sequences[0]
    wanted = [Role.LABEL] if loss == "label" else [Role.CONTEXT, Role.LABEL, Role.TEST]
    ids = torch.tensor([sequence.ids])
    targets = torch.tensor(roles_of(sequence, *wanted))
    model.zero_grad()
    logits = model(input_ids=ids).logits[0]
    functional.cross_entropy(logits[targets - 1], ids[0, targets], reduction="sum").backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    sim = Tint(model, LearningRule.full(learning_rate=1e-3))
    updates = sim(**to_learn([sequence], loss=loss), logits="none").updates()
    assert any(float(gradients[name].abs().max()) > 1e-3 for name in updates)
    assert gap(updates, {name: -1e-3 * gradients[name] for name in updates}) < 1e-10

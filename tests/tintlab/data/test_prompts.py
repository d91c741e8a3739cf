# pyright: basic
"""Prompts as tokens: the tokens of a label are those that spell it, for real tokenizers."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import make_tokenizer

from tintformer.errors import InputError
from tintformer.learning.text import find_tokenizer
from tintlab.data.prompts import Encoder, Role, Scored, TokenizedText, tokenise
from tintlab.data.tasks import Example, Prompt, read_task_description

SENTIMENT = Prompt(template="Review: {text}\nSentiment:", words=("Negative", "Positive"))
PROMPTS = {
    "sentiment": SENTIMENT,
    "space": Prompt(template="Review: {text} Sentiment: ", words=("Negative", "Positive")),
    "newline": Prompt(template="{text}\nAnswer:\n", words=("no", "yes, it is")),
    "symbols": Prompt(template="{text} It was", words=("@", "#")),
    "letters": Prompt(template="{text}", words=("naïve", "你好 🙂")),
}


@cache
def tokenizer_of(name: str) -> Any:
    return make_tokenizer() if name == "tiny" else find_tokenizer(name)


@pytest.fixture(
    params=[
        "tiny",
        "nano-gpt2",
        "nano-llama",
        "stories15m",
        pytest.param("smollm2", marks=[pytest.mark.slow, pytest.mark.real]),
    ]
)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    if request.param in ("stories15m", "smollm2"):
        return tokenizer_of(str(request.getfixturevalue(request.param)))
    return tokenizer_of(request.param)


def spelled(tokenizer: Any, text: str, scored: Scored, *roles: Role) -> str:
    """The characters of a text that the tokens of these roles stand for."""
    (tokens,) = tokenise(tokenizer, [text])
    assert tokens.ids == scored.ids
    held = {at for span, role in zip(tokens.spans, scored.roles, strict=True) if role in roles for at in range(*span)}
    return "".join(text[at] for at in sorted(held))


@pytest.mark.parametrize("name", PROMPTS)
def test_the_answer_is_the_word_and_what_comes_before_is_the_same(tokenizer: Any, name: str) -> None:
    prompt = PROMPTS[name]
    encoder = Encoder(tokenizer=tokenizer, prompt=prompt, context=256)
    for text in ("A fine film.", "Ünïcode 你好 🙂", "ends in a space ", "two\n\nlines"):
        question = encoder.question(text)
        assert not question.cut and len(question.scored) == 2
        contexts = set()
        for word, scored, answer in zip(prompt.words, question.scored, question.answers, strict=True):
            filled = prompt.filled(text)
            whole = filled + word if filled[-1].isspace() else f"{filled} {word}"
            assert spelled(tokenizer, whole, scored, Role.ANSWER).lstrip() == word
            assert (
                scored.ids[-len(answer) :] == answer
                and sum(role in (Role.LABEL, Role.ANSWER) for role in scored.roles) == len(answer) > 0
            )
            assert all(role == Role.TEST for role in scored.roles[: -len(answer)])
            contexts.add(scored.ids[: -len(answer)])
        assert len(contexts) == 1


def test_a_prompt_that_ends_in_a_space_has_the_tokens_of_one_that_does_not(tokenizer: Any) -> None:
    with_space = Encoder(tokenizer=tokenizer, prompt=PROMPTS["space"], context=256).question("Good.")
    plain = Prompt(template="Review: {text} Sentiment:", words=("Negative", "Positive"))
    assert with_space.scored == Encoder(tokenizer=tokenizer, prompt=plain, context=256).question("Good.").scored


@pytest.mark.parametrize("name", PROMPTS)
def test_labels_of_demonstrations(tokenizer: Any, name: str) -> None:
    prompt = PROMPTS[name]
    encoder = Encoder(tokenizer=tokenizer, prompt=prompt, context=256)
    shown = [Example("Dull, 你好.", 0), Example("Good one.", 1), Example("Best.", 1)]
    front = ""
    for example in shown:
        scored, cut = encoder.demonstration(example)
        whole, _, _ = prompt.continued(prompt.filled(example.text), example.label)
        word = prompt.words[example.label]
        assert not cut and spelled(tokenizer, whole, scored, Role.LABEL).lstrip() == word
        assert set(scored.roles) <= {Role.CONTEXT, Role.LABEL}
        front += whole + prompt.separator
    for word, scored in zip(prompt.words, encoder.question_after(shown, "Last one").scored, strict=True):
        whole, _, _ = prompt.continued(prompt.filled("Last one"), prompt.words.index(word))
        labels = spelled(tokenizer, front + whole, scored, Role.LABEL)
        assert [part for example in shown for part in [prompt.words[example.label]] if part not in labels] == []
        assert len("".join(labels.split())) == sum(len("".join(prompt.words[e.label].split())) for e in shown)
        assert spelled(tokenizer, front + whole, scored, Role.ANSWER).lstrip() == word
        test = spelled(tokenizer, front + whole, scored, Role.TEST, Role.ANSWER)
        assert test.strip() == (prompt.filled("Last one").rstrip() + whole[len(prompt.filled("Last one").rstrip()) :])


def test_every_shipped_prompt(tokenizer: Any) -> None:
    for name in ("sst2", "mr", "cr", "mpqa", "amazon", "yelp", "subj", "agnews"):
        described, _ = read_task_description(name)
        for prompt in (described.own_prompt(), *described.variants.values()):
            encoder = Encoder(tokenizer=tokenizer, prompt=prompt, context=128)
            for text in ("It works well .", None):
                question = encoder.question(text)
                decoded = [tokenizer.decode(list(answer)).strip() for answer in question.answers]
                assert decoded == list(prompt.words)


def test_too_long_texts_lose_their_end_and_keep_the_prompt(tokenizer: Any) -> None:
    text = "It was a long and winding 你好 story of lamps, boats and harbours. " * 30

    @settings(max_examples=25, deadline=None)
    @given(st.integers(40, 90), st.booleans())
    def check(context: int, bos: bool) -> None:
        encoder = Encoder(tokenizer=tokenizer, prompt=SENTIMENT, context=context, bos=bos)
        question = encoder.question(text)
        assert question.cut and encoder.room - 8 <= question.longest <= encoder.room == context - bos
        scored, cut = encoder.demonstration(Example(text, 1))
        assert cut and len(scored) <= encoder.room
        for decoded in (tokenizer.decode(list(each.ids)) for each in (*question.scored, scored)):
            assert decoded.strip().startswith("Review: It was a") and "\nSentiment: " in decoded
            assert decoded.endswith(SENTIMENT.words)

    check()
    encoder = Encoder(tokenizer=tokenizer, prompt=SENTIMENT, context=3, bos=False)
    with pytest.raises(InputError, match=r"^the prompt has \d+ tokens without any text, but the context 3; take fewer"):
        encoder.question(text)
    with pytest.raises(InputError, match=r"^the calibration prompt has \d+ tokens, but the context 3"):
        encoder.question(None)


def test_calibration_asks_with_the_prompt_alone(tokenizer: Any) -> None:
    encoder = Encoder(tokenizer=tokenizer, prompt=SENTIMENT, context=64)
    question = encoder.question(None)
    assert [tokenizer.decode(list(each.ids)).strip() for each in question.scored] == [
        f"Sentiment: {word}" for word in SENTIMENT.words
    ]


def test_the_bos_is_the_tokenizers_own_unless_asked_otherwise(tokenizer: Any) -> None:
    own = tokenizer("Review")["input_ids"][0] == tokenizer.bos_token_id
    for bos, expected in ((None, own), (True, True), (False, False)):
        encoder = Encoder(tokenizer=tokenizer, prompt=SENTIMENT, context=64, bos=bos)
        assert encoder.first == ((tokenizer.bos_token_id,) if expected else ())
        assert encoder.room == 64 - expected
        assert encoder.question("Fine.").scored[0].ids[0] != tokenizer.bos_token_id


def test_a_bos_that_the_prompt_spells_is_not_doubled() -> None:
    prompt = Prompt(template="<s>{text} is", words=("red", "blue"))
    encoder = Encoder(tokenizer=tokenizer_of("tiny"), prompt=prompt, context=64)
    bare = Prompt(template="{text} is", words=("red", "blue"))
    assert (
        encoder.question("Ada").scored
        == Encoder(tokenizer=tokenizer_of("tiny"), prompt=bare, context=64).question("Ada").scored
    )


def test_an_answer_that_nothing_predicts_is_an_error() -> None:
    prompt = Prompt(template="{text}", words=("red", "blue"))
    encoder = Encoder(tokenizer=tokenizer_of("tiny"), prompt=prompt, context=64)
    with pytest.raises(InputError, match="nothing stands before the answer, so nothing predicts it; write a longer"):
        encoder.question(None)


class Merging:
    """A tokenizer whose tokens before the word depend on the word: it merges ":" with " P" and nothing else."""

    is_fast = True
    bos_token_id = None

    def __call__(self, texts: list[str], **_: Any) -> dict[str, Any]:
        spans = []
        for text in texts:
            at, found = 0, []
            while at < len(text):
                size = 3 if text.startswith(": P", at) else 1
                found.append((at, at + size))
                at += size
            spans.append(found)
        ids = [[sum(map(ord, t[s:e])) for s, e in found] for t, found in zip(texts, spans, strict=True)]
        return {"input_ids": ids, "offset_mapping": spans}


def test_answers_begin_where_their_tokens_begin_to_differ() -> None:
    prompt = Prompt(template="{text}:", words=("No", "Pa"))
    question = Encoder(tokenizer=Merging(), prompt=prompt, context=64, bos=False).question("ab")
    assert [len(each) for each in question.scored] == [6, 4]
    assert [len(answer) for answer in question.answers] == [4, 2]  # ":", " ", "N", "o" and ": P", "a"
    assert {each.ids[:2] for each in question.scored} == {(97, 98)}


def test_tokenizers_that_cannot_tell_are_refused() -> None:
    slow = type("Slow", (), {"is_fast": False, "bos_token_id": None})()
    with pytest.raises(InputError, match="does not say which characters a token stands for; give a model with a fast"):
        Encoder(tokenizer=slow, prompt=SENTIMENT, context=64, bos=False).question("a")
    assert TokenizedText((1, 2), ((0, 2), (2, 4))).touching([(1, 3)]) == [0, 1]
    assert TokenizedText((1, 2), ((0, 0), (0, 2))).touching([(0, 9), (5, 6)]) == [1]

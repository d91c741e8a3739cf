# pyright: basic
"""Texts as blocks: every token once and in order, every word and byte counted once, for real tokenizers."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny import make_tokenizer

from tintformer.errors import InputError
from tintformer.experiments.blocks import Block, Layout, completed, lines_of
from tintformer.experiments.texts import TextSet, load_texts
from tintformer.experiments.tokens import Tokens, first_token, tokenise
from tintformer.learning.text import find_tokenizer

ODD = "Zoë\u2019s café — naïve\n\n\n 你好 世界\u3000\uff01🙂👩‍👩‍👧 x\r\n\tعربي \x1c\u2028 e\u0301 <unk> </s> \n \n end"
TEXTS = st.lists(
    st.text(st.sampled_from("ab é你🙂 \n\t\r\u2028\xa0.,'") | st.characters(exclude_categories=["Cs"]), max_size=40),
    min_size=1,
    max_size=4,
)


@cache
def tokenizer_of(name: str) -> Any:
    return make_tokenizer() if name == "tiny" else find_tokenizer(name)


@pytest.fixture(params=["tiny", "nano-gpt2", "stories15M"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    stories = request.param == "stories15M"
    return tokenizer_of(str(request.getfixturevalue("stories15m")) if stories else request.param)


def totals(blocks: list[Block]) -> tuple[int, int]:
    return sum(sum(block.num_words) for block in blocks), sum(sum(block.num_bytes) for block in blocks)


def check_counts(tokenizer: Any, texts: list[str]) -> None:
    text_set = TextSet(name="odd", texts=tuple(texts))
    for layout in ("lines", "whole"):
        for length, bos in ((2, False), (7, True), (64, None)):
            blocks = list(text_set.blocks(tokenizer, length, layout, bos=bos))
            assert all(len(b.ids) == len(b.num_words) == len(b.num_bytes) <= length for b in blocks)
            if blocks:
                assert totals(blocks) == (text_set.counts.words, text_set.counts.bytes)
            assert all(len(block) == length for block in blocks[:-1])


def test_words_and_bytes_add_up(tokenizer: Any) -> None:
    check_counts(tokenizer, [ODD, "", " \n", "plain words", ODD + ODD])

    @settings(max_examples=60, deadline=None)
    @given(TEXTS)
    @example([" "])
    @example(["🙂\n", "\n", "\n"])
    def check(texts: list[str]) -> None:
        check_counts(tokenizer, texts)

    check()


def test_each_token_completes_what_it_is_the_last_to_hold(tokenizer: Any) -> None:
    """Against a slow count that asks for every character which token holds a part of it last."""
    for text in (ODD, " lead", "a  b", "🙂🙂", "word"):
        (tokens,) = tokenise(tokenizer, [text])
        words, sizes = [0] * len(tokens.ids), [0] * len(tokens.ids)
        done = 0  # characters behind the last complete token, so that a gap counts with the next one
        for number in range(len(tokens.ids)):
            later = [start for start, _ in tokens.spans[number + 1 :]]
            reached = min(max(end for _, end in tokens.spans[: number + 1]), *later, len(text))
            reached = len(text) if not later else max(reached, done)
            for at in range(done, reached):
                sizes[number] += len(text[at].encode())
                words[number] += not text[at].isspace() and (at + 1 == len(text) or text[at + 1].isspace())
            done = reached
        assert completed(text, tokens) == (words, sizes)
        assert sum(words) == len(text.split()) and sum(sizes) == len(text.encode())


def test_a_character_of_several_tokens_is_complete_with_the_last() -> None:
    tokens = Tokens((5, 6, 7, 8), ((0, 1), (0, 1), (1, 3), (3, 5)))
    assert completed("🙂 ab ", tokens) == ([0, 1, 0, 1], [0, 4, 2, 2])  # the space at the end counts with "b"
    assert completed("", Tokens((), ())) == ([], [])


def test_blocks_hold_every_token_in_order(tokenizer: Any) -> None:
    text_set = TextSet(name="odd", texts=(ODD, "\n", "Second text.\nIts line."))
    lines = [line for text in text_set.texts for line in lines_of(text) if line.strip()]
    pieces_of: dict[Layout, list[str]] = {"lines": lines, "whole": list(text_set.documents())}
    for layout, pieces in pieces_of.items():
        ids = [token for tokens in tokenise(tokenizer, pieces) for token in tokens.ids]
        blocks = list(text_set.blocks(tokenizer, 16, layout, bos=False))
        assert [token for block in blocks for token in block.ids] == ids
        full = list(text_set.blocks(tokenizer, 16, layout, bos=False, keep_rest=False))
        assert full == [block for block in blocks if len(block) == 16]


def test_a_block_begins_with_one_bos_or_none(tokenizer: Any) -> None:
    bos = tokenizer.bos_token_id
    text_set = TextSet(name="odd", texts=(ODD,))
    plain = [token for block in text_set.blocks(tokenizer, 9, "whole", bos=False) for token in block.ids]
    blocks = list(text_set.blocks(tokenizer, 9, "whole", bos=True))
    assert all(block.ids[0] == bos and block.num_bytes[0] == block.num_words[0] == 0 for block in blocks)
    assert [token for block in blocks for token in block.ids[1:]] == plain
    own = tokenizer(ODD)["input_ids"]
    by_itself = next(iter(text_set.blocks(tokenizer, 9, "whole")))
    assert list(by_itself.ids) == list(own[:9]) and (first_token(tokenizer, None) is None) == (own[0] != bos)


def test_a_bos_that_the_text_spells_is_not_doubled() -> None:
    tokenizer = tokenizer_of("tiny")
    text_set = TextSet(name="marked", texts=("<s>The lamp is red.",))
    (block,) = text_set.blocks(tokenizer, 64, "whole", bos=True)
    assert block.ids.count(tokenizer.bos_token_id) == 1
    assert sum(block.num_bytes) == text_set.counts.bytes


def test_bad_knobs() -> None:
    text_set = TextSet(name="odd", texts=("a b",))
    with pytest.raises(InputError, match="layout='words' is unknown; choose one of lines, whole"):
        list(text_set.blocks(tokenizer_of("tiny"), 8, "words"))  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="length=1; a block needs at least 2 tokens"):
        list(text_set.blocks(tokenizer_of("tiny"), 1))
    without = make_tokenizer(bos=False)
    without.bos_token = None
    with pytest.raises(InputError, match="bos=True, but the tokenizer has no BOS token"):
        list(text_set.blocks(without, 8, bos=True))


def test_lines_keep_their_breaks_and_nothing_else_breaks_them() -> None:
    assert lines_of("a\r\n\nb\u2028c\x0bd") == ["a\r\n", "\n", "b\u2028c\x0bd"]
    assert lines_of("a\n") == ["a\n"] and lines_of("") == []


@pytest.mark.slow
def test_wikitext_as_the_paper_cuts_it(tokenizer: Any, request: pytest.FixtureRequest) -> None:
    from conftest import SHARED

    file = SHARED / "data" / "wikitext" / "wikitext103.valid.tokens.txt"
    if not file.exists():
        pytest.skip("WikiText-103 is not here; put it into ../shared/data/wikitext")
    text_set = load_texts("wikitext-103", file)
    assert (text_set.counts.words, text_set.counts.lines) == (213_886, 3_760)
    assert text_set.counts.bytes == Path(file).stat().st_size
    blocks = list(text_set.blocks(tokenizer, 1024))
    assert totals(blocks) == (text_set.counts.words, text_set.counts.bytes)

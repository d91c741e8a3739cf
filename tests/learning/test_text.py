# pyright: basic
"""Text from every source, the tokenizer of a model, and the tokens as people see them."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hostile import edit
from tiny import BOS, TEXT, make_tokenizer, save_model
from transformers import GPT2Config, LlamaConfig

from tintformer.errors import InputError, LoadError
from tintformer.learning.text import decode, decode_continuation, encode, find_tokenizer, given_text, read_text


def test_text_comes_from_the_argument_a_file_or_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "text.txt"
    file.write_bytes("\ufeffZoë reads.\r\n\n".encode())
    assert read_text("Zoë reads.\n") == given_text("Zoë reads.\n") == "Zoë reads."
    assert read_text(file=file) == given_text(file) == given_text(file.read_bytes().decode()) == "Zoë reads.\r\n"
    for text, name in (("-", None), (None, Path("-"))):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"piped in\n")))
        assert read_text(text, name) == "piped in"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"caf\xe9", r"no UTF-8 text \(byte 3 is 0xe9\)"),
        (b"PK\0\0", "is a binary file"),
        (None, "No such file"),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "text.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_text(file=file)


def test_bad_sources(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a text and a --file"):
        read_text("some", tmp_path / "other.txt")
    with pytest.raises(InputError, match="there is no text"):
        read_text()
    with pytest.raises(InputError, match="the text is empty"):
        read_text("  ")
    with pytest.raises(InputError, match="directory"):
        read_text(file=tmp_path)


def test_the_name_of_a_file_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("story").write_text("The lamp is red.")
    for name in ("story", str(tmp_path / "story")):
        with pytest.raises(InputError, match="story' is the name of a file; read it with --file, or give -"):
            read_text(name)
        with pytest.raises(InputError, match=r"story' is the name of a file; give a pathlib\.Path"):
            given_text(name)
    assert given_text("story\n") == "story" and given_text(Path("story")) == "The lamp is red."
    # Neither a directory nor what no path can be is a file.
    for text in (str(tmp_path), "no such story", "long " * 2000, "two\nlines"):
        assert read_text(text) == given_text(text) == text


def test_tokens_join_to_the_text_and_bos_stands_there_once() -> None:
    tokenizer = make_tokenizer()
    encoded = encode(tokenizer, TEXT)
    assert encoded.tokens[0] == BOS and encoded.input_ids[0] == tokenizer.bos_token_id
    assert "".join(encoded.tokens[1:]) == TEXT
    again = encode(tokenizer, BOS + TEXT)
    assert (again.input_ids, again.tokens) == (encoded.input_ids, encoded.tokens)
    assert encoded.first(9).of(TEXT) == "".join(encoded.tokens[1:9]) and encoded.of(TEXT) == TEXT
    bare = encode(make_tokenizer(bos=False), TEXT)
    assert bare.input_ids == encoded.input_ids[1:] and bare.tokens == encoded.tokens[1:]


def test_a_character_of_several_tokens_is_shown_with_each() -> None:
    encoded = encode(make_tokenizer(bos=False), "猫 猫")
    assert encoded.tokens[:3] == ("猫",) * 3


def test_too_few_tokens() -> None:
    with pytest.raises(InputError, match="the text has 2 tokens; at least 4 are needed"):
        encode(make_tokenizer(), "T")


def test_a_continuation_keeps_its_space() -> None:
    tokenizer = make_tokenizer(bos=False)
    ids = list(encode(tokenizer, "The lamp is red").input_ids)
    start = len(encode(tokenizer, "The lamp", at_least=1).input_ids)
    assert decode_continuation(tokenizer, ids, start) == " is red"
    assert decode(tokenizer, ids) == "The lamp is red"


def test_the_tokenizer_of_a_directory(tmp_path: Path) -> None:
    tokenizer = find_tokenizer(str(save_model(tmp_path)))
    assert encode(tokenizer, TEXT) == encode(make_tokenizer(), TEXT)


@pytest.mark.parametrize("config", [GPT2Config(), LlamaConfig()], ids=["gpt2", "llama"])
def test_a_directory_without_a_tokenizer(tmp_path: Path, config: GPT2Config | LlamaConfig) -> None:
    config.save_pretrained(tmp_path)
    with pytest.raises(LoadError, match="holds no tokenizer"):
        find_tokenizer(str(tmp_path))


def test_a_broken_tokenizer(tmp_path: Path) -> None:
    GPT2Config().save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(LoadError, match=r"cannot read .*tokenizer\.json as JSON: .+") as caught:
        find_tokenizer(str(tmp_path))
    assert "\n" not in str(caught.value)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(LoadError, match=r"cannot read the tokenizer of .*: .+"):
        find_tokenizer(str(tmp_path))


@pytest.mark.real
def test_sentencepiece_tokens_keep_their_space(stories15m: Path) -> None:
    tokenizer = find_tokenizer(str(stories15m))
    encoded = encode(tokenizer, "Once upon a time")
    assert encoded.tokens == ("<s>", "Once", " upon", " a", " time")
    assert decode_continuation(tokenizer, list(encoded.input_ids), 3) == " a time"


@pytest.mark.real
@pytest.mark.slow
def test_the_tokenizer_inside_a_gguf_file(smollm2: Path) -> None:
    encoded = encode(find_tokenizer(str(smollm2)), "Once upon a time")
    assert encoded.tokens == ("Once", " upon", " a", " time")


def test_a_longest_text_that_is_no_number(tmp_path: Path) -> None:
    make_tokenizer().save_pretrained(tmp_path)
    edit(lambda config: config.update(model_max_length=[1]), "tokenizer_config.json")(tmp_path)
    with pytest.raises(LoadError, match="has a model_max_length that is a list; make it a number"):
        find_tokenizer(str(tmp_path))

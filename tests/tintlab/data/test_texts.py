# pyright: basic
"""Language-modelling sets: files, directories, tables and descriptions, and what is wrong with bad ones."""

from __future__ import annotations

import hashlib
import json
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny import make_tokenizer

from tintformer.errors import InputError
from tintformer.learning.text import find_tokenizer
from tintlab.data import sources
from tintlab.data.prompts import TokenizedText, first_token, tokenise
from tintlab.data.texts import Block, BlockLayout, TextSet, completed, lines_of, load_texts


def spoken(found: TextSet) -> tuple[str, ...]:
    """The documents that are not blank."""
    return tuple(text for text in found.texts if text.strip())


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_a_file_is_a_document_and_keeps_every_byte(tmp_path: Path) -> None:
    file = write(tmp_path / "novel", "\ufeffZoë reads.\r\n\nThe end.\n")
    found = load_texts(str(file))
    assert found.name == "novel" and found.texts == ("Zoë reads.\r\n\nThe end.\n",)
    assert len("".join(found.texts).encode()) == file.stat().st_size - 3


def test_a_directory_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b/c.txt", "a.txt", "b.md", "picture.png", "b/.hidden"):
        write(tmp_path / name, f"text of {name}\n")
    found = load_texts(str(tmp_path))
    assert spoken(found) == ("text of a.txt\n", "text of b.md\n", "text of b/c.txt\n")


def test_descriptions_say_what_a_document_is(tmp_path: Path) -> None:
    write(tmp_path / "data.txt", "one\n\ntwo\n")
    write(tmp_path / "set.yaml", "kind: text\ntitle: Mine\npath: data.txt\ndocuments: lines\n")
    found = load_texts(str(tmp_path / "set.yaml"))
    assert found.name == "set" and found.texts == ("one\n", "\n", "two\n") and spoken(found) == ("one\n", "two\n")
    write(tmp_path / "set.yaml", f"kind: text\ntitle: Mine\npath: {tmp_path / 'data.txt'}\nlimit: 1\n")
    assert load_texts(str(tmp_path / "set.yaml")).texts == ("one\n\ntwo\n",)


@pytest.mark.parametrize("name", ["wikitext-103", "wikitext-2", "c4"])
def test_a_path_replaces_a_shipped_location(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / "rows.jsonl", "".join(json.dumps({"text": t}) + "\n" for t in ("one two", "", " \n", "3")))
    found = load_texts(name, file)
    assert found.name == name and spoken(found) == ("one two", "3")
    plain = write(tmp_path / "plain.txt", "one\ntwo\n")
    assert spoken(load_texts(name, plain)) == (("one\ntwo\n",) if name == "c4" else ("one\n", "two\n"))


def test_a_shipped_name_is_not_taken_for_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "c4", "a file of that name")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match="the data set allenai/c4 needs the package datasets"):
        load_texts("c4")
    assert load_texts("./c4").texts == ("a file of that name",)


def test_the_identity_is_of_the_content(tmp_path: Path) -> None:
    one = load_texts(str(write(tmp_path / "a.txt", "same"))).identity
    assert one == {"name": "a.txt", "sha256": hashlib.sha256(b"4\nsame").hexdigest()}
    (tmp_path / "b").mkdir()
    parts = [load_texts(str(tmp_path / "b")).identity for _ in [write(tmp_path / "b/1.txt", "sa")]]
    write(tmp_path / "b/2.txt", "me")
    assert load_texts(str(tmp_path / "b")).identity["sha256"] not in (one["sha256"], parts[0]["sha256"])


BAD: list[tuple[dict[str, str | bytes], str, str]] = [
    ({}, "absent.txt", "'/"),  # a long path is cut
    ({}, "absent.yaml", "cannot read {}/absent.yaml: No such file or directory; give the path of a YAML file"),
    ({"a.txt": ""}, "a.txt", "{}/a.txt is empty; give a few paragraphs"),
    ({"a.txt": "ok\ncaf\xe9".encode("latin-1")}, "a.txt", "{}/a.txt line 2: byte 0xe9 is no UTF-8; save the file in"),
    ({"a.txt": b"ok\nPK\0"}, "a.txt", "{}/a.txt line 2: there is a zero byte, so this is a binary file; give text"),
    ({"d/a.png": "x"}, "d", "{}/d holds no texts; put files there that end in .txt, .text, .md, .raw, .tokens, "),
    ({"a.jsonl": '{"body": "x"}\n'}, "a.jsonl", "{}/a.jsonl line 1: there is no column 'text', only 'body'"),
    ({"a.jsonl": '{"text": 3}\n'}, "a.jsonl", "{}/a.jsonl line 1: the text is 3; it must be a string"),
    ({"s.yaml": "kind: text\n"}, "s.yaml", "{}/s.yaml: the key 'title' is missing; add it"),
    ({"s.yaml": "kind: text\ntitle: T\n"}, "s.yaml", "{}/s.yaml names neither a path nor a data set of the hub; give"),
    ({"s.yaml": "kind: text\ntitle: T\nfile: x\n"}, "s.yaml", "{}/s.yaml: the key 'file' is unknown; known are kind, "),
    ({"s.yaml": "kind: text\ntitle: T\npath: x\n"}, "s.yaml", "{}/x is not there; give the path of a file or a"),
    ({"s.yaml": "kind: text\ntitle: T\nlimit: 0\n"}, "s.yaml", "{}/s.yaml: limit is 0; it must be a whole number of"),
    ({"s.yaml": "kind: text\ntitle: 7\n"}, "s.yaml", "{}/s.yaml: title is 7, which is no text; put it in quotes"),
    ({"s.yaml": "kind: text\ntitle: T\ndocuments: words\n"}, "s.yaml", "{}/s.yaml: documents is 'words'; it must be"),
    (
        {"s.yaml": "kind: text\ntitle: T\nhub: {name: x}\n"},
        "s.yaml",
        "{}/s.yaml: hub: the key 'name' is unknown; known",
    ),
    ({"s.yaml": "kind: classification\n"}, "s.yaml", "{}/s.yaml describes no text (its kind is 'classification'); the"),
]


@pytest.mark.parametrize(("files", "name", "message"), BAD)
def test_bad_sets_get_one_clear_line(tmp_path: Path, files: dict[str, str | bytes], name: str, message: str) -> None:
    for file, content in files.items():
        write(tmp_path / file, content)
    with pytest.raises(InputError) as error:
        load_texts(str(tmp_path / name))
    assert str(error.value).startswith(message.replace("{}", str(tmp_path))) and "\n" not in str(error.value)


def test_the_hub_needs_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError) as error:
        load_texts("wikitext-103")
    assert str(error.value) == (
        "the data set Salesforce/wikitext needs the package datasets; "
        "install it (pip install 'tintformer[eval]') or give local files with --data"
    )


def test_a_hub_that_cannot_be_reached_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach the Hub\nlong explanation")

    monkeypatch.setitem(
        sys.modules,
        "datasets",
        SimpleNamespace(load_dataset=load_dataset, config=SimpleNamespace(HF_HUB_OFFLINE=False)),
    )
    with pytest.raises(InputError) as error:
        load_texts("c4")
    assert str(error.value) == (
        "cannot load the data set allenai/c4 (validation): Couldn't reach the Hub; "
        "check the name and the network, or give local files with --data"
    )


def test_without_a_network_the_cache_is_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "hub_is_found", lambda: False)
    offline: list[bool] = []

    def load_dataset(*_: Any, **__: Any) -> None:
        offline.append(config.HF_HUB_OFFLINE)
        raise ConnectionError("not in the cache")

    config = SimpleNamespace(HF_HUB_OFFLINE=False)
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset, config=config))
    with pytest.raises(InputError, match="not in the cache; check the name and the network"):
        load_texts("c4")
    assert offline == [True] and config.HF_HUB_OFFLINE is False


def test_rows_of_the_hub_are_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def load_dataset(*arguments: Any, **keywords: Any) -> Any:
        calls.append((arguments, keywords))
        return iter([{"text": ""}, {"text": " = Title = \n"}] * 1500)

    monkeypatch.setitem(
        sys.modules,
        "datasets",
        SimpleNamespace(load_dataset=load_dataset, config=SimpleNamespace(HF_HUB_OFFLINE=False)),
    )
    assert len(spoken(load_texts("wikitext-103"))) == 1500
    assert len(load_texts("c4").texts) == 2000  # its limit
    assert calls[0] == (
        ("Salesforce/wikitext", "wikitext-103-v1"),
        {"split": "validation", "revision": None, "streaming": False},
    )
    assert calls[1][1]["streaming"] is True


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


def size_of(text_set: TextSet) -> tuple[int, int]:
    """Words and UTF-8 bytes of all documents."""
    return sum(len(text.split()) for text in text_set.texts), sum(len(text.encode()) for text in text_set.texts)


def check_counts(tokenizer: Any, texts: list[str]) -> None:
    text_set = TextSet(name="odd", texts=tuple(texts))
    for layout in ("lines", "whole"):
        for length, bos in ((2, False), (7, True), (64, None)):
            blocks = list(text_set.blocks(tokenizer, length, layout, bos=bos))
            assert all(len(b.ids) == len(b.num_words) == len(b.num_bytes) <= length for b in blocks)
            if blocks:
                assert totals(blocks) == size_of(text_set)
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
    tokens = TokenizedText((5, 6, 7, 8), ((0, 1), (0, 1), (1, 3), (3, 5)))
    assert completed("🙂 ab ", tokens) == ([0, 1, 0, 1], [0, 4, 2, 2])  # the space at the end counts with "b"
    assert completed("", TokenizedText((), ())) == ([], [])


def test_blocks_hold_every_token_in_order(tokenizer: Any) -> None:
    text_set = TextSet(name="odd", texts=(ODD, "\n", "Second text.\nIts line."))
    lines = [line for text in text_set.texts for line in lines_of(text) if line.strip()]
    pieces_of: dict[BlockLayout, list[str]] = {
        "lines": lines,
        "whole": [text for text in text_set.texts if text.strip()],
    }
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
    assert sum(block.num_bytes) == size_of(text_set)[1]


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
    from places import SHARED

    file = SHARED / "data" / "wikitext" / "wikitext103.valid.tokens.txt"
    if not file.exists():
        pytest.skip("WikiText-103 is not here; put it into ../shared/data/wikitext")
    text_set = load_texts("wikitext-103", file)
    assert size_of(text_set) == (213_886, Path(file).stat().st_size)
    assert sum(len(lines_of(text)) for text in text_set.texts) == 3_760
    blocks = list(text_set.blocks(tokenizer, 1024))
    assert totals(blocks) == size_of(text_set)

# pyright: basic
"""Language-modelling sets: files, directories, tables and descriptions, and what is wrong with bad ones."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tintformer.errors import InputError
from tintformer.experiments.texts import Counts, load_texts


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_a_file_is_a_document_and_keeps_every_byte(tmp_path: Path) -> None:
    file = write(tmp_path / "novel", "\ufeffZoë reads.\r\n\nThe end.\n")
    found = load_texts(str(file))
    assert found.name == "novel" and found.texts == ("Zoë reads.\r\n\nThe end.\n",)
    assert found.counts == Counts(words=4, bytes=file.stat().st_size - 3, lines=3)


def test_a_directory_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b/c.txt", "a.txt", "b.md", "picture.png", "b/.hidden"):
        write(tmp_path / name, f"text of {name}\n")
    found = load_texts(str(tmp_path))
    assert found.documents() == ("text of a.txt\n", "text of b.md\n", "text of b/c.txt\n")


def test_descriptions_say_what_a_document_is(tmp_path: Path) -> None:
    write(tmp_path / "data.txt", "one\n\ntwo\n")
    write(tmp_path / "set.yaml", "kind: text\ntitle: Mine\npath: data.txt\ndocuments: lines\n")
    found = load_texts(str(tmp_path / "set.yaml"))
    assert found.name == "set" and found.texts == ("one\n", "\n", "two\n") and found.documents() == ("one\n", "two\n")
    write(tmp_path / "set.yaml", f"kind: text\ntitle: Mine\npath: {tmp_path / 'data.txt'}\nlimit: 1\n")
    assert load_texts(str(tmp_path / "set.yaml")).texts == ("one\n\ntwo\n",)


@pytest.mark.parametrize("name", ["wikitext-103", "wikitext-2", "c4"])
def test_a_path_replaces_a_shipped_location(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / "rows.jsonl", "".join(json.dumps({"text": t}) + "\n" for t in ("one two", "", " \n", "3")))
    found = load_texts(name, file)
    assert found.name == name and found.documents() == ("one two", "3") and found.counts.words == 3
    plain = write(tmp_path / "plain.txt", "one\ntwo\n")
    assert load_texts(name, plain).documents() == (("one\ntwo\n",) if name == "c4" else ("one\n", "two\n"))


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
    ({}, "absent.txt", "'{}/absent.txt' is unknown; give the path of a YAML file or one of agnews, amazon, c4, cr, "),
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

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(InputError) as error:
        load_texts("c4")
    assert str(error.value) == (
        "cannot load the data set allenai/c4 (validation): Couldn't reach the Hub; "
        "check the name and the network, or give local files with --data"
    )


def test_rows_of_the_hub_are_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def load_dataset(*arguments: Any, **keywords: Any) -> Any:
        calls.append((arguments, keywords))
        return iter([{"text": ""}, {"text": " = Title = \n"}] * 1500)

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    assert len(load_texts("wikitext-103").documents()) == 1500
    assert len(load_texts("c4").texts) == 2000  # its limit
    assert calls[0] == (
        ("Salesforce/wikitext", "wikitext-103-v1"),
        {"split": "validation", "revision": None, "streaming": False},
    )
    assert calls[1][1]["streaming"] is True

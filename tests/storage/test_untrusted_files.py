# pyright: basic
"""Files and names of others: what is read of them, what is refused, and that it is refused in one line."""

from __future__ import annotations

import io
import json
import os
import socket
import tracemalloc
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from tintformer.errors import InputError, LoadError
from tintformer.storage.untrusted_files import (
    LONGEST_NAME,
    MAX_DEPTH,
    MAX_JSON,
    MAX_NODES,
    MAX_YAML,
    check_characters,
    check_file_name,
    check_regular,
    given_path,
    parse_foreign_json,
    parse_foreign_yaml,
    read_bytes,
    read_foreign_json,
    read_stream,
    same_file_name,
    to_file_name,
    user_path,
)


def _socket(path: Path) -> None:
    # The path of a socket is bounded to a hundred bytes, so it is bound from inside its folder.
    before = os.open(".", os.O_RDONLY)
    try:
        os.chdir(path.parent)
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.fchdir(before)
        os.close(before)


def _sparse(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(MAX_JSON + 1)


ODD_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda path: None, "there is no"),
    "a folder": (Path.mkdir, "is a directory, and only regular files are read"),
    "a pipe": (os.mkfifo, "is a pipe"),
    "a socket": (_socket, "is a socket"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "is a device"),
    "a link to itself": (lambda path: path.symlink_to(path), "cannot read"),
    "a link to nothing": (lambda path: path.symlink_to("nowhere"), "there is no"),
    "too large": (_sparse, "at most"),
    "what the kernel calls empty": (lambda path: path.symlink_to("/proc/self/environ"), "as JSON"),
}


@pytest.mark.parametrize("case", ODD_FILES)
def test_only_regular_files_of_a_bounded_size_are_read(case: str, tmp_path: Path) -> None:
    make, message = ODD_FILES[case]
    make(tmp_path / "x.json")
    with pytest.raises(LoadError, match=message) as caught:
        read_foreign_json(tmp_path / "x.json")
    assert len(str(caught.value).splitlines()) == 1


NO_PATHS = {
    "too long a name": ("n" * 300, "File name too long; choose a shorter name"),
    "too long a path": ("n/" * 3000, "File name too long; choose a shorter name"),
    "a zero byte": ("a\0b", "null byte; give the path"),
    "half a character": ("\ud800", "surrogates not allowed; give the path"),
    "nothing": (None, "None cannot be a path"),
    "a number": (3, "3 cannot be a path"),
    "bytes": (b"x", "b'x' cannot be a path"),
}


@pytest.mark.parametrize("case", NO_PATHS)
def test_what_can_be_no_path(case: str) -> None:
    path, message = NO_PATHS[case]
    for error in (InputError, LoadError):
        with pytest.raises(error, match=message) as caught:
            given_path(path, error)  # type: ignore[arg-type]
        assert len(str(caught.value).splitlines()) == 1 and len(str(caught.value)) < 300


def test_a_path_need_not_be_there(tmp_path: Path) -> None:
    assert given_path(str(tmp_path / "nowhere" / "x")) == tmp_path / "nowhere" / "x"


ODD_JSON: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "as JSON"),
    "nested arrays": (b"[" * 100_000, "nested too deeply"),
    "nested objects": (b'{"a":' * 100_000, "nested too deeply"),
    "a long integer": (b'{"a": ' + b"9" * 5000 + b"}", "integer of 5000 digits"),
    "an integer that Python would read": (b"-" + b"9" * 4000, "integer of 4001 digits"),
    "latin-1": ('{"a": "é"}'.encode("latin-1"), "byte 7 is no UTF-8"),
    "utf-16": ('{"a": 1}'.encode("utf-16"), "no UTF-8"),
    "half a character": (rb'{"a": "\ud800"}', "half a character"),
    "half a character as a key": (rb'{"\uDFFF": 1}', "half a character"),
    "millions of arrays": (b"[" + b"[]," * 2**22 + b"1]", "arrays and objects"),
    "cut": (b'{"a": ', "as JSON"),
}


@pytest.mark.parametrize("case", ODD_JSON)
def test_odd_json_is_one_line(case: str, tmp_path: Path) -> None:
    data, message = ODD_JSON[case]
    (tmp_path / "x.json").write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        read_foreign_json(tmp_path / "x.json", error=InputError)
    assert len(str(caught.value).splitlines()) == 1 and len(str(caught.value)) < 300


def test_what_is_json_is_read(tmp_path: Path) -> None:
    value = {"a": [1, -2.5, None, True, "é 😀"], "b": {"c": 10**40}}
    for ascii_alone in (True, False):  # an emoji is a pair of surrogates in the first
        (tmp_path / "x.json").write_text(json.dumps(value, ensure_ascii=ascii_alone), encoding="utf-8")
        assert read_foreign_json(tmp_path / "x.json") == value
    assert parse_foreign_json("[1]", "here") == [1]
    assert check_regular(tmp_path / "x.json") == (tmp_path / "x.json").stat().st_size


def test_only_what_has_an_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "zero").symlink_to("/dev/zero")
    with (tmp_path / "huge").open("wb") as huge:
        huge.truncate(10_000)
    with socket.socket(socket.AF_UNIX) as bound:
        monkeypatch.chdir(tmp_path)  # the path of a socket is bounded to a hundred bytes
        bound.bind("socket")
    expected = {
        "fifo": "is a pipe, and only regular files",
        "link": "No such file",
        "loop": "cannot read .*levels of symbolic links",
        "zero": "is a device, and only regular files",
        "huge": "10000 bytes, and at most 9999",
        "socket": "is a socket, and only regular files",
        ".": "Is a directory; give the path of a text file",
        "a\0b": "no path holds a zero byte",
        "x" * 300: "File name too long",
    }
    for name, message in expected.items():
        with pytest.raises(InputError, match=message) as caught:
            read_bytes(tmp_path / name, 9_999, "a text file")
        assert len(str(caught.value).splitlines()) == 1
    assert len(read_bytes(tmp_path / "huge", 10_000)) == 10_000


def test_a_pipe_of_the_shell_is_read(tmp_path: Path) -> None:
    """`--file <(command)` is a pipe behind /dev/fd."""
    if not Path("/dev/fd").exists():
        pytest.skip("there is no /dev/fd; the test is for Linux and macOS")
    end, start = os.pipe()
    os.write(start, b"a text")
    os.close(start)
    assert read_bytes(Path(f"/dev/fd/{end}")) == b"a text"
    os.close(end)


def test_an_endless_stream_is_not_kept() -> None:
    with open("/dev/zero", "rb") as zero, pytest.raises(InputError, match="it holds more than the 10 bytes"):
        read_stream(zero, "it", 10)
    assert read_stream(io.BytesIO(b"0123456789"), "it", 10) == b"0123456789"


def test_paths_of_users_that_are_not_there_are_paths() -> None:
    assert str(user_path("~no-such-user-here/x")) == "~no-such-user-here/x"
    assert user_path("~/x") == Path.home() / "x"


def test_half_a_character_is_no_text() -> None:
    assert check_characters("é😀", "it", "repair it") == "é😀"
    with pytest.raises(InputError, match="it holds half a character; repair it"):
        check_characters("a\udcff", "it", "repair it")


def laughs(levels: int, each: int = 10, form: str = "[{}]") -> str:
    """Aliases of aliases: a line a level, ten to the power of the levels when written out."""
    lines = ["a0: &a0 x" if form == "[{}]" else "a0: &a0 {k: x}"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level} {form.format(', '.join([f'*a{level - 1}'] * each))}")
    return "\n".join(lines) + f"\ntitle: *a{levels - 1}\n"


BAD_YAML = {
    "aliases of aliases": (laughs(12), f"more than {MAX_NODES} keys and values, aliases written out"),
    "merged aliases of aliases": (laughs(12, form="{{<<: [{}]}}"), f"more than {MAX_NODES} keys and values"),
    "an alias of itself": ("a: &a [*a]", "an alias stands inside of what it repeats"),
    "a mapping in itself": ("a: &a {b: *a}", "an alias stands inside of what it repeats"),
    "an alias of nothing": ("a: *b", "undefined alias"),
    "nested lists": ("a: " + "[" * 100_000, f"nested more than {MAX_DEPTH} deep"),
    "nested mappings": ("{a: " * 5_000, f"nested more than {MAX_DEPTH} deep"),
    "nested blocks": ("\n".join(" " * depth + "-" for depth in range(300)), f"nested more than {MAX_DEPTH} deep"),
    "many values": ("a: [" + "1," * (MAX_NODES + 5) + "]", f"more than {MAX_NODES} keys and values"),
    "too many bytes": ("a: " + "x" * MAX_YAML, f"at most {MAX_YAML} are read"),
    "no such day": ("a: 2024-13-45", "line|month must be in"),
    "no such hour": ("a: 2024-01-01 99:00:00", "hour must be in"),
    "a number of many digits": ("a: " + "9" * 5_000, "a value is not what it says it is .* put it in quotes"),
    "a date by its tag": ("a: !!timestamp x", "a value is not what it says it is"),
    "an integer by its tag": ("a: !!int x", "a value is not what it says it is"),
    "an empty integer": ('a: !!int ""', "a value is not what it says it is"),
    "a truth by its tag": ("a: !!bool x", "a value is not what it says it is"),
    "a character out of range": ('a: "\\U00110000"', "a value is not what it says it is"),
    "half a character": ('a: "\\ud800"', "holds half a character"),
    "half a character as a key": ('"\\ud800": a', "holds half a character"),
    "an object of Python": ("a: !!python/object/apply:os.system [touch it-ran]", "could not determine a constructor"),
    "a name of Python": ("a: !!python/name:os.system", "could not determine a constructor"),
    "a tag of its own": ("a: !mine x", "could not determine a constructor"),
    "a key that is a list": ("? [a, b]\n: c", "unhashable key"),
    "a merge of a scalar": ("<<: 5", "expected a mapping"),
    "two equal keys": ("a: 1\nb: 2\na: 3", "line 3: .*the key 'a' is there twice"),
    "two documents": ("a: 1\n---\nb: 2", "found another document"),
    "a zero byte": ("a: \0", "special characters are not allowed"),
    "latin-1": ("a: é".encode("latin-1"), "line 1: byte 0xe9 is no UTF-8"),
    "binary by its tag": ("a: !!binary é", "failed to convert base64"),
}


@pytest.mark.parametrize("case", BAD_YAML)
def test_what_is_bad_is_one_line(case: str) -> None:
    text, message = BAD_YAML[case]
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=message) as caught:
            parse_foreign_yaml(text if isinstance(text, bytes) else text.encode(), "x.yaml")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(str(caught.value).splitlines()) == 1 and len(str(caught.value)) < 400
    assert peak < 60e6


def test_what_is_good_is_read() -> None:
    text = "a: &a {x: 1, y: [2.5, null, true]}\nb: {<<: *a, x: 3}\nc: {<<: [*a, {z: 1}]}\nd: *a\n1: 'one'\n"
    a = {"x": 1, "y": [2.5, None, True]}
    read = parse_foreign_yaml(b"\xef\xbb\xbf" + text.encode(), "x.yaml")
    assert read == {"a": a, "b": a | {"x": 3}, "c": a | {"z": 1}, "d": a, 1: "one"}
    assert parse_foreign_yaml(b"", "x.yaml") is None


def test_keys_that_a_merge_brings_again_are_no_mistake() -> None:
    """A base that merges another is itself merged before it is made."""
    text = "a: &a {x: 1}\nb: &b {<<: *a, x: 2}\nc: {<<: *b, x: 3}\n"
    assert parse_foreign_yaml(text.encode(), "x.yaml")["c"] == {"x": 3}


BAD_NAMES = {
    "nothing": "",
    "a number": 5,
    "null": None,
    "a list": ["x"],
    "the parent": "..",
    "the directory": ".",
    "a way up": "../../x",
    "a way up on Windows": "..\\..\\x",
    "absolute": "/etc/passwd",
    "a drive": "C:x",
    "a stream": "x:y",
    "hidden": ".x",
    "a dot at the end": "x.",
    "a space at the end": "x ",
    "a zero byte": "a\0b",
    "a line break": "a\nb",
    "an escape sequence": "a\x1b[31mb",
    "a control character of C1": "a\x9b31mb",
    "turned writing": "a\u202eb",
    "half a character": "a\ud800",
    "a device": "CON",
    "a device with an ending": "nul.txt",
    "a port": "Com1.tar.gz",
    "too long": "x" * (LONGEST_NAME + 1),
    "too long in bytes": "\u00e9" * (LONGEST_NAME // 2 + 1),
    "a wildcard": "x*",
}
GOOD = ("lm-nano-gpt2-texts", "x_y.z", "caf\u00e9", "SmolLM2-135M (1)", "x" * LONGEST_NAME, "console", "\u6587")


@pytest.mark.parametrize("case", BAD_NAMES)
def test_what_is_no_name_of_a_file_is_refused(case: str) -> None:
    with pytest.raises(InputError, match=r"^here .* is no name of a file \(it .*\); choose") as caught:
        check_file_name(BAD_NAMES[case], "here")
    assert len(str(caught.value)) < 250 and str(caught.value).isprintable()


@pytest.mark.parametrize("name", GOOD)
def test_what_is_one_stays_as_it_is(name: str) -> None:
    assert check_file_name(name, "here") == to_file_name(name) == name


def test_any_text_becomes_a_name_of_its_own(tmp_path: Path) -> None:
    texts = [text for text in BAD_NAMES.values() if isinstance(text, str)]
    names = [to_file_name(text) for text in texts]
    assert len(set(map(str.casefold, names))) == len(texts)
    for name in names:
        assert check_file_name(name, "made") == name
        (tmp_path / name).write_bytes(b"")
    assert {path.name for path in tmp_path.iterdir()} == set(names)


def test_names_that_some_file_system_takes_for_one() -> None:
    assert same_file_name("Run", "rUN") and same_file_name("caf\u00e9", unicodedata.normalize("NFD", "caf\u00e9"))
    assert not same_file_name("run", "runs")

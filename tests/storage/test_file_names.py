# pyright: basic
"""Names that somebody else chose never lead anywhere, and stay apart."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from tintformer.errors import InputError
from tintformer.storage.file_names import LONGEST_NAME, check_file_name, same_file_name, to_file_name

BAD = {
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


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_name_of_a_file_is_refused(case: str) -> None:
    with pytest.raises(InputError, match=r"^here .* is no name of a file \(it .*\); choose") as caught:
        check_file_name(BAD[case], "here")
    assert len(str(caught.value)) < 250 and str(caught.value).isprintable()


@pytest.mark.parametrize("name", GOOD)
def test_what_is_one_stays_as_it_is(name: str) -> None:
    assert check_file_name(name, "here") == to_file_name(name) == name


def test_any_text_becomes_a_name_of_its_own(tmp_path: Path) -> None:
    texts = [text for text in BAD.values() if isinstance(text, str)]
    names = [to_file_name(text) for text in texts]
    assert len(set(map(str.casefold, names))) == len(texts)
    for name in names:
        assert check_file_name(name, "made") == name
        (tmp_path / name).write_bytes(b"")
    assert {path.name for path in tmp_path.iterdir()} == set(names)


def test_names_that_some_file_system_takes_for_one() -> None:
    assert same_file_name("Run", "rUN") and same_file_name("caf\u00e9", unicodedata.normalize("NFD", "caf\u00e9"))
    assert not same_file_name("run", "runs")

# pyright: basic
"""YAML that somebody else wrote: values or one line, in little time and memory."""

from __future__ import annotations

import tracemalloc

import pytest

from tintformer.errors import InputError
from tintformer.storage.foreign_yaml import MAX_DEPTH, MAX_NODES, MAX_YAML, parse_foreign_yaml


def laughs(levels: int, each: int = 10, form: str = "[{}]") -> str:
    """Aliases of aliases: a line a level, ten to the power of the levels when written out."""
    lines = ["a0: &a0 x" if form == "[{}]" else "a0: &a0 {k: x}"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level} {form.format(', '.join([f'*a{level - 1}'] * each))}")
    return "\n".join(lines) + f"\ntitle: *a{levels - 1}\n"


BAD = {
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


@pytest.mark.parametrize("case", BAD)
def test_what_is_bad_is_one_line(case: str) -> None:
    text, message = BAD[case]
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

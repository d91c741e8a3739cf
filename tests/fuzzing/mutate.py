# pyright: basic
"""Mutations of files that know their structure: bytes, JSON, headers of safetensors and GGUF, YAML."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any

RAW: dict[str, str] = {
    "@deep": "[" * 3000 + "]" * 3000,
    "@deeper": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "@digits": "9" * 5000,
    "@nan": "NaN",
    "@infinity": "-Infinity",
    "@exponent": "1e999",
    "@surrogate": '"\\ud800"',
    "@null": '"\\u0000"',
    "@long": '"' + "x" * 200_000 + '"',
}
"""What JSON can say and `json.dumps` does not write, by the mark that stands for it."""

ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        3,
        7,
        64,
        255,
        4096,
        65_537,
        10**6,
        10**7,
        2**24,
        2**31,
        2**32 + 1,
        2**63,
        10**20,
    ),
    *(0.0, -0.0, 0.5, -1.5, 1e-45, 1e-12, 1e300, 1.7976931348623157e308),
    *("", " ", "no", "0", "1", "none", "null", "auto", "float16", "bfloat16", "int8", "float8_e4m3fn", "cuda"),
    *(
        "../../escaped",
        "/etc/passwd",
        "a/b",
        "x\ny",
        "\x1b[2J",
        "$(touch x)",
        "{text}",
        "%s%s%s",
        "é",
        "\u202e",
        "\U0001f600",
    ),
    *([], {}, [None], [1, 2, 3], [[]], {"a": 1}, ["a"] * 3, {"": ""}, list(range(2000))),
    *RAW,
)
"""Values where others are expected."""

CODE: tuple[tuple[str, Any], ...] = (
    ("auto_map", {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.C", "AutoTokenizer": ["evil.C", "evil.C"]}),
    ("trust_remote_code", True),
    ("custom_generate", "evil"),
    ("custom_pipelines", {"text-generation": {"impl": "evil.C", "pt": ["C"]}}),
    ("quantization_config", {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    ("quantization_config", {"quant_method": "gguf"}),
    ("_attn_implementation", "evil/kernel"),
    ("attn_implementation", "evil/kernel"),
    ("_name_or_path", "evil/model"),
    ("dtype", "float64"),
    ("torch_dtype", "int8"),
    ("tokenizer_class", "EvilTokenizer"),
    ("architectures", ["EvilModel"]),
    ("model_type", "bert"),
    ("base_model_tp_plan", {"*": "colwise"}),
    ("device_map", "auto"),
    ("chat_template", "{% for a in range(10**9) %}{{ a }}{% endfor %}"),
    ("num_labels", 10**7),
    ("id2label", {"0": "a"}),
    ("is_decoder", True),
    ("pruned_heads", {"0": [0]}),
    ("tie_word_embeddings", True),
    ("output_attentions", True),
    ("use_cache", "yes"),
)
"""Keys that libraries obey when they find them."""


def any_bytes(r: Random, data: bytes) -> bytes:
    """A change that knows nothing of the format."""
    if not data:
        return bytes(r.randrange(256) for _ in range(r.randint(0, 40)))
    at, length = r.randrange(len(data)), r.choice((1, 1, 4, 8, 64))
    match r.randrange(8):
        case 0:
            return data[:at] + bytes([data[at] ^ (1 << r.randrange(8))]) + data[at + 1 :]
        case 1:
            return data[:at]
        case 2:
            return data[:at] + data[at + length :]
        case 3:
            return (
                data[:at] + r.choice((b"\xff", b"\0", b"{", b'"', b"\xed\xa0\x80", b"\n", b"\r")) * length + data[at:]
            )
        case 4:
            other = r.randrange(len(data))
            return data[:at] + data[other : other + 64] + data[at + 64 :]
        case 5:
            return data[:at] + integer(r, r.choice((2, 4, 8))) + data[at + 8 :]
        case 6:
            return b""
        case _:
            return data[at:] + data[:at]


def integer(r: Random, width: int) -> bytes:
    """A number that sizes and counts are afraid of."""
    value = r.choice((0, 1, 2, 2**8, 2**16, 2**20, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1))
    return struct.pack("<Q", value)[:width]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every entry of a nested value as its container and its key."""
    found: list[tuple[Any, Any]] = []
    stack = [value]
    while stack:
        each = stack.pop()
        keys = list(each) if isinstance(each, dict) else range(len(each)) if isinstance(each, list) else ()
        for key in keys:
            found.append((each, key))
            stack.append(each[key])
    return found


def any_value(r: Random, value: Any) -> Any:
    """A nested value with one to three changes."""
    value = copy.deepcopy(value)
    for _ in range(r.choice((1, 1, 1, 2, 3))):
        if isinstance(value, dict) and r.random() < 0.15:
            key, added = r.choice(CODE)
            value[key] = added
            continue
        entries = places(value)
        if not entries or r.random() < 0.02:
            return r.choice(ODD)
        _change(r, *r.choice(entries), entries)
    return value


def _change(r: Random, container: Any, key: Any, entries: list[tuple[Any, Any]]) -> None:
    old = container[key]
    match r.randrange(8):
        case 0:
            del container[key]
        case 1 if isinstance(container, dict):
            container[r.choice(("", "x", f"{key}_", str(key).upper()))] = container.pop(key)
        case 2:
            container[key] = [old] if r.random() < 0.5 else {"a": old}
        case 3 if isinstance(old, int | float) and not isinstance(old, bool):
            container[key] = r.choice((old + 1, old - 1, old * 2, old * 1000, -old, float(old), str(old)))
        case 4:
            other, at = r.choice(entries)
            if at in other if isinstance(other, dict) else at < len(other):
                container[key] = copy.deepcopy(other[at])
        case 5 if isinstance(container, list):
            container.insert(key, copy.deepcopy(old))
        case _:
            container[key] = copy.deepcopy(r.choice(ODD))


def to_json(r: Random, value: Any) -> bytes:
    """As a file: marks become what they stand for, and sometimes a key is there twice."""
    text = json.dumps(value)
    for mark, raw in RAW.items():
        text = text.replace(json.dumps(mark), raw)
    if r.random() < 0.03 and text.startswith("{") and len(text) > 2:
        text = f'{{"model_type": 3, {text[1:]}'
    data = text.encode()
    return b"\xef\xbb\xbf" + data if r.random() < 0.02 else data


def any_json(r: Random, data: bytes) -> bytes:
    if r.random() < 0.15:
        return any_bytes(r, data)
    return to_json(r, any_value(r, json.loads(data)))


def any_json_lines(r: Random, data: bytes) -> bytes:
    lines = data.splitlines()
    at = r.randrange(len(lines))
    if r.random() < 0.2:
        return any_bytes(r, data)
    lines[at] = any_json(r, lines[at])
    return r.choice((b"\n", b"\n", b"\n\n", b"\r\n", b"\r", "\u2028".encode())).join(lines) + r.choice((b"\n", b""))


def any_safetensors(r: Random, data: bytes) -> bytes:
    """The length of the header, the header, or the tensors behind it."""
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    match r.randrange(6):
        case 0:
            return integer(r, 8) + data[8:]
        case 1:
            return any_bytes(r, data)
        case 2:
            return data[: 8 + size] + any_bytes(r, body)
        case 3:
            _change_tensor(r, header)
        case 4:
            _swap_tensors(r, header)
        case _:
            header = any_value(r, header)
    text = to_json(r, header)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body


_DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "U8", "I8", "BOOL", "C64", "F8_E4M3", "F8_E5M2", "F4", "X")


def _change_tensor(r: Random, header: dict[str, Any]) -> None:
    entry = header[r.choice([name for name in header if name != "__metadata__"])]
    match r.randrange(4):
        case 0:
            entry["dtype"] = r.choice(_DTYPES)
        case 1:
            entry["shape"] = r.choice(
                ([], [0], [1, *entry["shape"]], entry["shape"][::-1], [2**40, 2**40], [-1], [1.5])
            )
        case 2:
            entry["data_offsets"] = [r.choice((0, -1, 8, 2**63)), r.choice((0, 8, 2**40, 2**64))]
        case _:
            entry["dtype"], entry["shape"] = r.choice((("F16", [*entry["shape"], 2]), ("I32", entry["shape"])))


def _swap_tensors(r: Random, header: dict[str, Any]) -> None:
    """Two names for each other's data: where shapes agree, only a checksum could tell."""
    names = [name for name in header if name != "__metadata__"]
    one, other = r.choice(names), r.choice(names)
    header[one], header[other] = header[other], header[one]


def any_gguf(r: Random, data: bytes, header: int) -> bytes:
    """Mostly counts, lengths and types of the header, which is `header` bytes long."""
    match r.randrange(5):
        case 0:
            at = r.choice((0, 4, 8, 16))
            return data[:at] + integer(r, r.choice((4, 8))) + data[at + 8 :]
        case 1 | 2:
            at, width = r.randrange(header), r.choice((1, 4, 4, 8, 8))
            return data[:at] + integer(r, width) + data[at + width :]
        case 3:
            return data[: r.randrange(header)] + r.choice((b"", bytes(64), data[24 : 24 + 200]))
        case _:
            return any_bytes(r, data)


YAML_SNIPPETS: tuple[str, ...] = (
    "title: [&a [x,x,x,x,x,x,x,x], &b [*a,*a,*a,*a,*a,*a,*a,*a], &c [*b,*b,*b,*b,*b,*b,*b,*b], "
    "&d [*c,*c,*c,*c,*c,*c,*c,*c], &e [*d,*d,*d,*d,*d,*d,*d,*d], &f [*e,*e,*e,*e,*e,*e,*e,*e]]\n",
    "title: &r [*r]\n",
    "title: 2001-99-99\n",
    "title: 2001-01-01\n",
    "title: !!timestamp 2001-13-40\n",
    "title: !!int x\n",
    "title: !!float 1e\n",
    "title: !!binary '*'\n",
    "title: !!python/object/apply:os.system ['touch it-ran']\n",
    "title: !!python/name:os.system\n",
    "<<: {title: x}\n",
    "<<: *nothing\n",
    "title: 0x" + "f" * 9000 + "\n",
    "title: " + "9" * 5000 + "\n",
    "title: 1:2:3\n",
    "? [a, b]\n: c\n",
    "title: " + "[" * 500 + "]" * 500 + "\n",
    "%YAML 9.9\n---\ntitle: x\n",
    "--- a\n--- b\n",
    "\ttitle: x\n",
    'title: "\\ud800"\n',
    "title: $\\frac{1}{$ _x^\n",
    "path: /dev/zero\n",
    "path: ../../../../etc/passwd\n",
    "hub: evil/data\n",
    "limit: -1\n",
    "limit: yes\n",
)


def any_yaml(r: Random, data: bytes) -> bytes:
    import yaml

    match r.randrange(4):
        case 0:
            return any_bytes(r, data)
        case 1:
            lines = data.decode().splitlines(keepends=True)
            lines.insert(r.randint(0, len(lines)), r.choice(YAML_SNIPPETS))
            kept = [line for line in lines if r.random() < 0.97]
            return "".join(kept).encode(errors="replace")
        case 2:
            return r.choice(YAML_SNIPPETS).encode(errors="replace")
        case _:
            return yaml.safe_dump(any_value(r, yaml.safe_load(data)), allow_unicode=True).encode(errors="replace")


Mutation = Callable[[Random, bytes], bytes]

# pyright: basic
"""The corpus: hostile files by name, each made by code from a whole one, and what must happen when it is opened.

What the attack (tests/fuzz.py) finds becomes a row here. `python tests/corpus.py docs/security.md` puts what
each costs into that page.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hostile import INDEX, Payload, edit, edit_tensors, write
from safetensors import safe_open
from safetensors.torch import load_file, save_file

CONFIG, WEIGHTS, GENERATION = "config.json", "model.safetensors", "generation_config.json"
UPDATE, GGUF, TASK, RUN = "update.safetensors", "model.gguf", "task.yaml", "runs/lm-fuzz.json"
REFUSED = "refused"
START, END = "<!-- corpus -->", "<!-- end -->"
"""Where the table stands in its page."""


@dataclass(frozen=True)
class Row:
    """A hostile file: the kind of directory (`fuzzing.files.HOSTILE`, with a variant), the damage, and the outcome."""

    base: str
    damage: Callable[[Path], Any]
    outcome: str | None = REFUSED
    """None where it may open as well, because the file can be done without."""


def _each(*changes: Callable[[Path], Any]) -> Callable[[Path], None]:
    def apply(place: Path) -> None:
        for change in changes:
            change(place)

    return apply


def _fifo(name: str) -> Callable[[Path], None]:
    def apply(place: Path) -> None:
        (place / name).unlink()
        os.mkfifo(place / name)

    return apply


def _link(name: str, target: str) -> Callable[[Path], None]:
    def apply(place: Path) -> None:
        (place / name).unlink()
        (place / name).symlink_to(target)

    return apply


def _folder(name: str) -> Callable[[Path], Any]:
    return lambda place: ((place / name).unlink(), (place / name).mkdir())


def _large(name: str) -> Callable[[Path], None]:
    """16 GB that take no room on the disk."""
    return lambda place: os.truncate(place / name, 2**34)


def _cut(name: str) -> Callable[[Path], None]:
    return lambda place: os.truncate(place / name, (place / name).stat().st_size - 9)


def _flip(name: str, end: int) -> Callable[[Path], None]:
    """One bit, so many bytes before the end."""

    def apply(place: Path) -> None:
        data = bytearray((place / name).read_bytes())
        data[-end] ^= 0x40
        (place / name).write_bytes(data)

    return apply


def _edit_update(change: Callable[[dict[str, str], dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def apply(place: Path) -> None:
        with safe_open(place / UPDATE, framework="pt") as file:
            metadata = dict(file.metadata())
        tensors = load_file(place / UPDATE)
        change(metadata, tensors)
        save_file(tensors, place / UPDATE, metadata=metadata)

    return apply


def _index(place_of_all: str) -> Callable[[Path], None]:
    """Weights in another file, and an index that names one place for all of them."""

    def apply(place: Path) -> None:
        tensors = load_file(place / WEIGHTS)
        (place / WEIGHTS).rename(place / "part.safetensors")
        (place / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(tensors, place_of_all)}))

    return apply


def _retype(dtype: str) -> Callable[[Path], None]:
    """The bytes of the final norm under another dtype, and as many elements as they give."""

    def apply(place: Path) -> None:
        data = (place / WEIGHTS).read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        header["model.norm.weight"] |= {"dtype": dtype}
        text = json.dumps(header).encode()
        (place / WEIGHTS).write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])

    return apply


def _gguf(num_tensors: int, num_keys: int, rest: bytes = b"") -> Callable[[Path], None]:
    return write(GGUF, b"GGUF" + struct.pack("<IQQ", 3, num_tensors, num_keys) + rest)


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def _array(kind: int, count: int) -> bytes:
    """A key whose value is an array: type 9, the type of its elements, and how many there are said to be."""
    return _text("general.name") + struct.pack("<IIQ", 9, kind, count)


_FAMILY = _text("general.architecture") + struct.pack("<I", 8) + _text("llama")


def _count(key: str, value: int) -> bytes:
    return _text(key) + struct.pack("<II", 4, value)


_NESTED = _text("a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 5000
_BOMB = ", ".join(
    ["&a [x, x, x, x, x, x, x, x, x, x]"]
    + [f"&{new} [{', '.join([f'*{old}'] * 10)}]" for old, new in zip("abcdef", "bcdefg", strict=True)]
)
_NUMBER = '{"model_type": "llama", "vocab_size": ' + "9" * 5000 + "}"
_DEEP = '{"model_type": "llama", "x": ' + "[" * 10**5 + "]" * 10**5 + "}"


def _task(line: str) -> Callable[[Path], None]:
    def apply(place: Path) -> None:
        lines = [each for each in (place / TASK).read_text().splitlines() if each.split(":")[0] != line.split(":")[0]]
        (place / TASK).write_text("\n".join([*lines, line]) + "\n")

    return apply


def _run(**fields: Any) -> Callable[[Path], None]:
    return edit(lambda run: run.update(fields), RUN)


def _experiment(**fields: Any) -> Callable[[Path], None]:
    return edit(lambda run: run["experiments"][0].update(fields), RUN)


def _records(change: Callable[[Path], Any]) -> Callable[[Path], Any]:
    return lambda place: [change(file) for file in sorted(place.glob("records/*/*.json"))]


def _tokenizer(**parts: Any) -> Callable[[Path], None]:
    return edit(lambda tokenizer: tokenizer.update(parts), "tokenizer.json")


_EXPANDING = {
    "type": "Sequence",
    "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 50}] * 6,
}

FORMED, FACTORS = "update@formed", "update@factors"
LLAMA, LEARNER, SIMULATOR = "config@llama", "learner@gpt2", "simulator@llama"

CORPUS: dict[str, Row] = {
    # Configurations.
    "config: empty": Row(LLAMA, write(CONFIG, "")),
    "config: a list": Row(LLAMA, write(CONFIG, "[]")),
    "config: no UTF-8": Row(LLAMA, write(CONFIG, b'{"model_type": "\xff"}')),
    "config: 100,000 nested lists": Row(LLAMA, write(CONFIG, _DEEP)),
    "config: a number of 5,000 digits": Row(LLAMA, write(CONFIG, _NUMBER)),
    "config: a FIFO": Row(LLAMA, _fifo(CONFIG)),
    "config: /dev/zero": Row(LLAMA, _link(CONFIG, "/dev/zero")),
    "config: a directory": Row(LLAMA, _folder(CONFIG)),
    "config: 16 GB of nothing": Row(LLAMA, _large(CONFIG)),
    "config: a billion layers": Row(LLAMA, edit(lambda c: c.update(num_hidden_layers=10**9))),
    "config: a vocabulary of 2^24": Row(LLAMA, edit(lambda c: c.update(vocab_size=2**24))),
    "config: ten million labels": Row(LLAMA, edit(lambda c: c.update(num_labels=10**7))),
    "config: no layers": Row(LLAMA, edit(lambda c: c.update(num_hidden_layers=0))),
    "config: fewer layers than stored": Row(LLAMA, edit(lambda c: c.update(num_hidden_layers=1))),
    "config: heads of width 0": Row(LLAMA, edit(lambda c: c.update(head_dim=0))),
    "config: a negative number of heads": Row("config@gpt2", edit(lambda c: c.update(n_head=-1))),
    "config: a window of no token": Row("config@mistral", edit(lambda c: c.update(sliding_window=0))),
    "config: a negative window": Row("config@gpt_neo", edit(lambda c: c.update(window_size=-1))),
    "config: a window of none in some layers": Row(
        "config@qwen2",
        edit(lambda c: c.update(use_sliding_window=True, sliding_window=0, max_window_layers=1, layer_types=None)),
    ),
    "config: code": Row(LLAMA, edit(lambda c: c.update(auto_map={"AutoConfig": "evil.C"}))),
    "config: a kernel of the hub": Row(LLAMA, edit(lambda c: c.update(_attn_implementation="evil/kernel"))),
    # Weights.
    "weights: a pickle": Row(LLAMA, lambda p: (p / WEIGHTS).write_bytes(pickle.dumps(Payload(p / "it-ran")))),
    "weights: cut": Row(LLAMA, _cut(WEIGHTS)),
    "weights: a header of 2^63 bytes": Row(LLAMA, write(WEIGHTS, struct.pack("<Q", 2**63) + b"{}")),
    "weights: a header of 99 MB": Row(LLAMA, write(WEIGHTS, struct.pack("<Q", 99 * 10**6) + b"{}")),
    "weights: NaN": Row(LLAMA, edit_tensors(lambda t: t["model.norm.weight"][0:1].fill_(float("nan")))),
    "weights: a tensor too many": Row(LLAMA, edit_tensors(lambda t: t.update(evil=torch.ones(2)))),
    "weights: a tensor too few": Row(LLAMA, edit_tensors(lambda t: t.pop("model.norm.weight"))),
    "weights: an empty tensor": Row(LLAMA, edit_tensors(lambda t: t.update({"model.norm.weight": torch.ones(0)}))),
    "weights: whole numbers": Row(LLAMA, _retype("I32")),
    "weights: an unknown dtype": Row(LLAMA, _retype("X9")),
    "weights: codes with scales": Row(
        LLAMA,
        edit_tensors(
            lambda t: t.update(
                {
                    "model.layers.0.mlp.up_proj.weight": torch.ones(20, 12, dtype=torch.int8),
                    "model.layers.0.mlp.up_proj.weight_scale": torch.ones(20),
                }
            )
        ),
    ),
    "weights: a FIFO": Row(LLAMA, _fifo(WEIGHTS)),
    "index: leads out": Row(LLAMA, _index("../outside.safetensors")),
    "index: /etc/passwd": Row(LLAMA, _index("/etc/passwd")),
    "index: nested lists": Row(LLAMA, _each(_index("x"), write(INDEX, "[" * 10**5))),
    # GGUF.
    "gguf: empty": Row("gguf@", write(GGUF, b"")),
    "gguf: its family and nothing else": Row("gguf@", _gguf(0, 1, _FAMILY)),
    "gguf: 2^31 layers": Row("gguf@", _gguf(0, 2, _FAMILY + _count("llama.block_count", 2**31))),
    "gguf: 2^40 keys": Row("gguf@", _gguf(0, 2**40)),
    "gguf: 2^40 tensors": Row("gguf@", _gguf(2**40, 0)),
    "gguf: an array of 2^32 bytes": Row("gguf@", _gguf(0, 1, _array(0, 2**32))),
    "gguf: an array of 2^32 texts": Row("gguf@", _gguf(0, 1, _array(8, 2**32))),
    "gguf: an array of 2^60 doubles": Row("gguf@", _gguf(0, 1, _array(12, 2**60))),
    "gguf: a text of 2^40 bytes": Row("gguf@", _gguf(0, 1, struct.pack("<Q", 2**40))),
    "gguf: 5,000 nested arrays": Row("gguf@", _gguf(0, 1, _NESTED)),
    "gguf: 16 GB of nothing behind its tensors": Row("gguf@", _large(GGUF)),
    "gguf: /dev/zero": Row("gguf@", _link(GGUF, "/dev/zero")),
    # Models that learn, of transformers.
    "learner: a million beams": Row(
        LEARNER, edit(lambda c: c.update(num_beams=10**6), GENERATION)
    ),
    "learner: generation is a FIFO": Row(LEARNER, _fifo(GENERATION), outcome=None),
    "learner: a rate of NaN": Row(LEARNER, edit(lambda c: c["learning_rule"].update(learning_rate=float("nan")))),
    "learner: a switch that says no": Row(
        LEARNER, edit(lambda c: c["learning_rule"].update(update_norm_scale="no"))
    ),
    # Simulators.
    "simulator: a switch that says no": Row(
        SIMULATOR, edit(lambda c: c["learning_rule"].update(update_norm_scale="no"))
    ),
    "simulator: another rate": Row(SIMULATOR, edit(lambda c: c["learning_rule"].update(learning_rate=1.0))),
    "simulator: a dtype that is a module": Row(SIMULATOR, edit(lambda c: c.update(dtype="nn"))),
    "simulator: nested lists": Row(SIMULATOR, write(CONFIG, _DEEP)),
    "simulator: a FIFO": Row(SIMULATOR, _fifo(CONFIG)),
    "simulator: weights are a FIFO": Row(SIMULATOR, _fifo(WEIGHTS)),
    # Updates.
    "update: a flipped bit": Row(FORMED, _flip(UPDATE, 41)),
    "update: rates of NaN": Row(
        FACTORS, _edit_update(lambda m, t: m.update(rates=m["rates"].replace("0.002", "NaN")))
    ),
    "update: no rates": Row(FACTORS, _edit_update(lambda m, t: m.update(rates="{}"))),
    "update: no metadata but its format": Row(
        FORMED, _edit_update(lambda m, t: [m.pop(key) for key in list(m) if key != "format"])
    ),
    "update: a missing vector": Row(
        FORMED, _edit_update(lambda m, t: t.pop(next(key for key in t if "vector" in key)))
    ),
    "update: one row that is broadcast": Row(
        FORMED,
        _edit_update(lambda m, t: t.update({key: value[..., :1].clone() for key, value in t.items()})),
    ),
    "update: a FIFO": Row(FORMED, _fifo(UPDATE)),
    # Tokenizers.
    "tokenizer: empty": Row("tokenizer@", write("tokenizer.json", "")),
    "tokenizer: a normaliser that expands": Row("tokenizer@", _tokenizer(normalizer=_EXPANDING)),
    "tokenizer: a length that is a list": Row(
        "tokenizer@", edit(lambda c: c.update(model_max_length=[1]), "tokenizer_config.json")
    ),
    "tokenizer: nested lists": Row("tokenizer@", write("tokenizer.json", "[" * 10**5)),
    # Data.
    "task: anchors that expand": Row("task@", _task(f"title: [{_BOMB}]")),
    "task: an anchor in itself": Row("task@", _task("title: &r [*r]")),
    "task: a Python object": Row("task@", _task("title: !!python/object/apply:os.system ['touch it-ran']")),
    "task: month 99": Row("task@", _task("title: 2001-99-99")),
    "task: a number that is none": Row("task@", _task("title: !!int x")),
    "task: 5,000 digits": Row("task@", _task("title: " + "9" * 5000)),
    "task: 10,000 nested lists": Row("task@", _task("title: " + "[" * 10**4)),
    "task: data that is /dev/zero": Row("task@", _link("data/train.jsonl", "/dev/zero")),
    "task: data that is a FIFO": Row("task@", _fifo("data/train.jsonl")),
    "task: rows of nested lists": Row("task@", write("data/train.jsonl", "[" * 10**5 + "\n")),
    "task: half a character": Row("task@", write("data/train.jsonl", '{"text": "\\ud800", "label": 0}\n' * 3)),
    # Results.
    "results: a name that leads out": Row("evaluation@", _run(name="../../escaped")),
    "results: a name with a path": Row("evaluation@", _run(name="/tmp/escaped")),
    "results: a dtype that is a number": Row("evaluation@", _experiment(dtype=7)),
    "results: a negative length": Row("evaluation@", _experiment(length=-1)),
    "results: a run of nested lists": Row("evaluation@", write(RUN, "[" * 10**5)),
    "results: records with another number": Row(
        "evaluation@", _records(lambda f: f.write_bytes(f.read_bytes().replace(b"1", b"2")))
    ),
    "results: records of nested lists": Row("evaluation@", _records(lambda f: f.write_text("[" * 10**5))),
    # Sizes without weights.
    "params: zero heads": Row("params@llama", edit(lambda c: c.update(num_attention_heads=0))),
    "params: a negative width": Row("params@llama", edit(lambda c: c.update(hidden_size=-12))),
    "params: a feed-forward of width 0": Row("params@llama", edit(lambda c: c.update(intermediate_size=0))),
    "params: no positions": Row("params@llama", edit(lambda c: c.update(max_position_embeddings=0))),
    "params: no tokens": Row("params@llama", edit(lambda c: c.update(vocab_size=0))),
    "params: a list as model type": Row("params@llama", edit(lambda c: c.update(model_type=[1], rope_theta=2**70))),
    "params: a FIFO": Row("params@llama", _fifo(CONFIG)),
}  # fmt: skip
"""By name. Most must be refused; what transformers itself leaves without effect may open."""


def kind_of(row: Row) -> Any:
    """The row as a case of the attack, watched like those."""
    import shutil
    from dataclasses import replace

    from fuzzing.files import HOSTILE, base_of, kind_of_base

    name, _, variant = row.base.partition("@")

    def arrange(seed: int, place: Path) -> None:
        shutil.copytree(base_of(name, variant), place, dirs_exist_ok=True)
        row.damage(place)

    def run(seed: int, place: Path) -> str:
        return HOSTILE[name].open(place, base_of(name, variant))

    return replace(kind_of_base(name, variant), arrange=arrange, run=run)


def main(page: Path | None) -> None:
    """Peak memory and CPU time of opening each file, as a table; into the page, if there is one."""
    from fuzzing.guard import run_forked

    lines = ["| file | outcome | CPU, s | memory, MB |", "|---|---|---|---|"]
    prepared = set[str]()
    for number, (name, row) in enumerate(CORPUS.items()):
        kind = kind_of(row)
        if row.base not in prepared:
            kind.prepare()
            prepared.add(row.base)
        with tempfile.TemporaryDirectory() as folder:
            (report,) = run_forked(kind, [number], Path(folder))
        if report.finding is None:
            lines.append(f"| {name} | {report.outcome} | {report.cpu:.2f} | {report.memory / 2**20:.0f} |")
        else:
            lines.append(f"| {name} | {report.finding.splitlines()[-1][:60]} | | |")
        print(lines[-1], flush=True)
    if page is not None:
        before, _, rest = page.read_text(encoding="utf-8").partition(START)
        after = rest.partition(END)[2]
        page.write_text("\n".join([f"{before}{START}", *lines, f"{END}{after}"]), encoding="utf-8")


if __name__ == "__main__":
    import fuzz

    fuzz.quiet()
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)

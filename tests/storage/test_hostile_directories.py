# pyright: basic
"""Model directories that somebody else wrote, in the place of an auxiliary: refused before anything runs or is made."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cases import make_model
from hostile import INDEX, WEIGHTS, code, edit, edit_tensors, index, pickled, write
from safetensors.torch import load_file

import tintformer as tint

EMBEDDING, NORM = "model.embed_tokens.weight", "model.norm.weight"

HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a pickle for weights": (pickled("pytorch_model.bin", alone=True), "pickled weights are not read"),
    "a pickle that calls itself safetensors": (pickled(WEIGHTS), f"cannot read .*{WEIGHTS}"),
    "an adapter": (write("adapter_config.json", '{"base_model_name_or_path": "x"}'), "belongs to an adapter"),
    "code": (code, r"asks for code of its own \(auto_map\)"),
    "a billion layers": (edit(lambda c: c.update(num_hidden_layers=10**9)), "num_hidden_layers 1000000000"),
    "thousands of layers": (edit(lambda c: c.update(num_hidden_layers=4000)), "asks for 4000 layers, but"),
    "a wide model": (edit(lambda c: c.update(intermediate_size=2**24)), "instead of"),
    "a large vocabulary": (edit(lambda c: c.update(vocab_size=2**24)), "instead of"),
    "more layers than there are": (edit(lambda c: c.update(num_hidden_layers=9)), "lacks 63 parameters of its model"),
    "a wrong shape": (edit_tensors(lambda t: t.update({NORM: torch.ones(3)})), r"norm.weight: \(3,\) instead of"),
    "not a number": (edit_tensors(lambda t: t[EMBEDDING].view(-1)[3:4].fill_(float("nan"))), "contains NaN"),
    "infinity": (edit_tensors(lambda t: t[EMBEDDING].view(-1)[3:4].fill_(float("inf"))), "contains NaN or infinity"),
    "an index that leads out": (index("../outside.safetensors"), r"names '\.\./outside\.safetensors'"),
    "an index with a path": (index("/etc/passwd"), "names '/etc/passwd'"),
    "an index of pickles": (
        lambda directory: (index("evil.bin")(directory), pickled("evil.bin")(directory))[0],
        "names 'evil.bin'",
    ),
    "cut weights": (lambda d: write(WEIGHTS, (d / WEIGHTS).read_bytes()[:-9])(d), f"cannot read .*{WEIGHTS}"),
    "a long header": (write(WEIGHTS, b"\xff" * 8 + b"{}"), f"cannot read .*{WEIGHTS}"),
}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    make_model("llama", torch.float32).to(torch.float32).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("case", HOSTILE)
def test_refused(case: str, saved: Path) -> None:
    damage, message = HOSTILE[case]
    damage(saved)
    tracemalloc.start()
    started = time.process_time()  # a busy machine does not change it
    with pytest.raises(tint.TintError, match=message) as caught:
        tint.load(saved)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(str(caught.value).splitlines()) <= 2
    assert not (saved / "it-ran").exists()
    assert peak < 2**27 and time.process_time() - started < 60


def test_a_pickle_beside_the_weights_is_not_opened(saved: Path) -> None:
    """As many published models have one, it is no reason to refuse the safetensors beside it."""
    pickled("pytorch_model.bin")(saved)
    tint.load(saved)
    assert not (saved / "it-ran").exists()


def test_keys_that_no_family_knows_are_left_alone(saved: Path) -> None:
    edit(lambda config: config.update(number_of_parameters=10**12))(saved)
    assert tint.load(saved).family == "llama"


def test_an_index_of_what_lies_beside_it_is_followed(saved: Path) -> None:
    names = list(load_file(saved / WEIGHTS))
    index("part.safetensors")(saved)
    (saved.parent / "outside.safetensors").rename(saved / "part.safetensors")
    assert (saved / INDEX).is_file() and not (saved / WEIGHTS).exists()
    assert set(dict(tint.load(saved).model.named_parameters())) <= set(names)

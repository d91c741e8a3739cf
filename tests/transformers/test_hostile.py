# pyright: basic
"""Directories that somebody else wrote: refused in one line before anything runs or is allocated."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import covering, make_model, make_rule
from hostile import INDEX, WEIGHTS, code, custom_generate, edit, edit_tensors, index, pickled, write
from transformers import AutoModelForCausalLM

import tintformer as tint


def first(tensors: dict[str, torch.Tensor]) -> str:
    return next(name for name in sorted(tensors) if name.endswith("wte.weight"))


HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a pickle beside the weights": (pickled("pytorch_model.bin"), "pytorch_model.bin may be pickled"),
    "a pickle for weights": (pickled("pytorch_model.bin", alone=True), "pytorch_model.bin may be pickled"),
    "a pickle by another name": (pickled("optimizer.PT"), "optimizer.PT may be pickled"),
    "a pickle that calls itself safetensors": (pickled(WEIGHTS), f"cannot read .*{WEIGHTS}"),
    "an adapter": (write("adapter_config.json", '{"base_model_name_or_path": "x"}'), "belongs to an adapter"),
    "code": (code, "auto_map asks for code"),
    "code of the base": (
        edit(lambda c: c["auxiliary"].update(auto_map={"AutoConfig": "e.C"})),
        "auxiliary asks for code",
    ),
    "a billion layers": (edit(lambda c: c["auxiliary"].update(n_layer=10**9)), "asks for n_layer 1000000000"),
    "thousands of layers": (edit(lambda c: c["auxiliary"].update(n_layer=4000)), "asks for 4000 layers, but"),
    "a wide model": (
        edit(lambda c: c["auxiliary"].update(n_embd=3 * 2**22)),
        r"\(36,\) instead of \(37748736,\)",
    ),
    "a large vocabulary": (edit(lambda c: c["auxiliary"].update(vocab_size=2**24)), "instead of"),
    "more layers than there are": (edit(lambda c: c["auxiliary"].update(n_layer=3)), r"lacks auxiliary\.\S+h\.2\."),
    "an unknown key": (edit(lambda c: c.update(evil=1)), "unknown keys of a Tint configuration: evil"),
    "another family": (edit(lambda c: c["auxiliary"].update(model_type="llama")), "."),
    "a wrong shape": (edit_tensors(lambda t: t.update({first(t): torch.zeros(29, 13)})), r"\(29, 13\) instead of"),
    "a tensor too many": (edit_tensors(lambda t: t.update(evil=torch.zeros(1))), "holds evil, unlike"),
    "a tensor too few": (edit_tensors(lambda t: t.pop(first(t))), "lacks auxiliary.*wte"),
    "not a number": (edit_tensors(lambda t: t[first(t)].view(-1)[3:4].fill_(float("nan"))), "contains NaN or infinity"),
    "infinity": (edit_tensors(lambda t: t[first(t)].view(-1)[3:4].fill_(float("inf"))), "contains NaN or infinity"),
    "an index that leads out": (index("../outside.safetensors"), r"names '\.\./outside\.safetensors'"),
    "an index with a path": (index("/etc/passwd"), "names '/etc/passwd'"),
    "an index of pickles": (index("pytorch_model-00001-of-00001.bin"), "names 'pytorch_model"),
    "an index of numbers": (index(7), "names 7"),
    "integers for weights": (
        edit_tensors(lambda t: t.update({name: t[name].to(torch.int8) for name in list(t)[:1]})),
        "which is no floating-point weight",
    ),
    "a million beams": (write("generation_config.json", '{"num_beams": 1000000}'), "num_beams 1e"),
    "an index of what is not there": (index("model-00001-of-00001.safetensors"), "lacks model-00001-of-00001"),
    "an index without a map": (lambda d: (index("x")(d), write(INDEX, '{"metadata": {}}')(d))[0], "has no weight_map"),
    "an index that is none": (lambda d: (index("x")(d), write(INDEX, "[" * 10**5)(d))[0], f"cannot read .*{INDEX}"),
    "no weights": (lambda d: (d / WEIGHTS).unlink(), f"holds neither {WEIGHTS} nor"),
    "cut weights": (lambda d: write(WEIGHTS, (d / WEIGHTS).read_bytes()[:-9])(d), f"cannot read .*{WEIGHTS}"),
    "a long header": (write(WEIGHTS, b"\xff" * 8 + b"{}"), f"cannot read .*{WEIGHTS}"),
    "a generation that is none": (write("generation_config.json", "[1"), "cannot read .*generation_config"),
}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model = tint.TintForCausalLM.from_auxiliary(make_model("gpt2", torch.float32), make_rule("default"))
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(("case", "trust"), covering(list(HOSTILE), [None, True]))
def test_refused(case: str, trust: bool | None, saved: Path) -> None:
    damage, message = HOSTILE[case]
    damage(saved)
    tracemalloc.start()
    started = time.process_time()  # a busy machine does not change it
    for load in (AutoModelForCausalLM.from_pretrained, tint.TintForCausalLM.from_pretrained):
        with pytest.raises(tint.TintError, match=message) as caught:
            load(saved, trust_remote_code=trust)
        assert len(str(caught.value).splitlines()) <= 2
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not (saved / "it-ran").exists()
    assert peak < 2**27 and time.process_time() - started < 60


def test_code_for_generation_is_never_run(saved: Path) -> None:
    """transformers runs custom_generate/generate.py of a directory that is trusted; here nothing is."""
    custom_generate(saved)
    model: Any = AutoModelForCausalLM.from_pretrained(saved, trust_remote_code=True)
    assert not (saved / "it-ran").exists()
    assert model.generate(torch.arange(3, 8)[None], max_new_tokens=2).shape == (1, 7)


def test_tables_that_a_configuration_alone_asks_for(saved: Path) -> None:
    """GPT-J's positions are no weights, so that no file has to hold them."""
    model = tint.TintForCausalLM.from_auxiliary(make_model("gptj", torch.float32), make_rule("default"))
    model.save_pretrained(saved)
    edit(lambda config: config["auxiliary"].update(n_positions=2**24, rotary_dim=4, n_embd=16))(saved)
    with pytest.raises(tint.LoadError, match=r"bytes of tables besides its weights|instead of"):
        tint.TintForCausalLM.from_pretrained(saved)

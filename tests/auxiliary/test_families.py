# pyright: basic
"""Every family's description gives Hugging Face's logits, shares its tensors and leaves the model alone."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest
import torch
from cases import FIRST, MODELS, VOCABULARY, make_model

import tintformer as tint
from tintformer.auxiliary import families as registry
from tintformer.auxiliary.description import ops
from tintformer.auxiliary.ops import Linear, Norm
from tintformer.engines.reference import TensorExecutor
from tintformer.execution import walk
from tintformer.execution.batch import Batch

RULE = tint.LearningRule(learning_rate=0.0)


def forward(auxiliary: tint.Auxiliary, ids: torch.Tensor) -> torch.Tensor:
    batch = Batch.of(auxiliary, ids, train_mask=torch.ones_like(ids))
    executor = TensorExecutor(auxiliary, RULE, batch)
    with torch.no_grad():
        return executor.logits(walk.forward_pass(executor, auxiliary))


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_hugging_face_as_it_is(name: str) -> None:
    """HF casts to float32 in places even in a double model, so as it is it agrees to 1e-5 only (1e-9: the oracle)."""
    model = make_model(name)
    ids = torch.randint(3, VOCABULARY, (2, 13), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected = model(input_ids=ids).logits
    torch.testing.assert_close(forward(tint.load(model), ids), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", FIRST)
def test_logits_in_float32(name: str) -> None:
    model = make_model(name, torch.float32)
    ids = torch.randint(3, VOCABULARY, (1, 13), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected = model(input_ids=ids).logits
    torch.testing.assert_close(forward(tint.load(model), ids), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_every_block_parameter_is_described_once_and_shared(name: str) -> None:
    model = make_model(name)
    auxiliary = tint.load(model)
    pieces: dict[str, int] = {}
    for steps in (*auxiliary.blocks, auxiliary.final):
        for op in ops(steps):
            weights = (op.weight, op.bias) if isinstance(op, Linear) else ()
            weights = (op.scale, op.bias) if isinstance(op, Norm) else weights
            for weight in weights:
                if weight is not None:
                    parameter = model.get_parameter(weight.name)
                    assert weight.source.data_ptr() == parameter.data_ptr()
                    pieces[weight.name] = pieces.get(weight.name, 0) + weight.read().numel()
    blocks = registry.families()[auxiliary.family].paths.blocks
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.startswith(f"{blocks}."):
            assert pieces[parameter_name] == parameter.numel(), parameter_name


@pytest.mark.parametrize("name", FIRST)
def test_weight_write_is_the_inverse_of_read(name: str) -> None:
    auxiliary = tint.load(make_model(name))
    for op in ops(auxiliary.blocks[0]):
        if isinstance(op, Linear):
            copy = torch.zeros_like(op.weight.source)
            op.weight.write(op.weight.read(), into=copy)
            inside = copy != 0
            torch.testing.assert_close(copy[inside], op.weight.source[inside], rtol=0, atol=0)
            assert int(inside.sum()) == op.weight.read().numel()


def test_third_parties_register_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("llama", "tintformer.auxiliary.families.mistral:FAMILY", registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry] if group == registry.ENTRY_POINTS else [])
    registry.families.cache_clear()
    try:
        assert registry.families()["mistral"].title == "Mistral"
        wrong = EntryPoint("odd", "tintformer.errors:TintError", registry.ENTRY_POINTS)
        monkeypatch.setattr(registry, "entry_points", lambda group: [wrong])
        registry.families.cache_clear()
        with pytest.raises(tint.TintError, match="not a Family"):
            registry.families()
    finally:
        monkeypatch.undo()
        registry.families.cache_clear()
